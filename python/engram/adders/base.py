"""What all adders have in common: the order of calls in an episode."""

import abc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Protocol

import numpy as np

from engram import _checks
from engram._closing_context import ClosingContext
from engram.adders.observation_layout import ObservationLayout, copy_with_layout
from engram.adders.step import Step, final_row, flatten
from engram.errors import ClosedError, EngramError, InvalidArgumentError, ItemError, SignatureError

__all__ = ["Adder", "ItemWriter", "TimeStep"]


class TimeStep(Protocol):
    """What adders read of a `dm_env.TimeStep`; anything alike will do.

    Nests are of arrays, numbers and text; an array `[...]` of any shape and dtype becomes a column of `[T, ...]`.
    """

    @property
    def reward(self) -> Any:  # noqa: ANN401, a nest
        """Since the time step before: a number, an array or a nest of them. Of a first time step, it is not read."""

    @property
    def discount(self) -> Any:  # noqa: ANN401, an array
        """Of what comes after: a number or an array, 0 where the episode terminated. Of a first one, it is not read."""

    @property
    def observation(self) -> Any:  # noqa: ANN401, a nest
        """What there is to see: a nest, alike in structure and dtypes throughout, and in shapes within an episode."""

    def first(self) -> bool:
        """True where it begins an episode."""

    def last(self) -> bool:
        """True where it ends one."""


class ItemWriter(Protocol):
    """What becomes of an adder's rows."""

    def raise_item_error(self) -> None:
        """Raises what went wrong with an item of rows that are in since the last call: the first error."""

    def end_episode(self, timeout: float | None) -> None:
        """Ends the episode, and waits until the tables have its items."""

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible, and waits until their tables have them."""

    def close(self, timeout: float | None) -> None:
        """Flushes, and takes no more."""


class Adder(ClosingContext):
    """Takes an episode's time steps one by one, and keeps copies. Belongs to one thread.

    This is what all adders have in common; which items they make, their classes say. An item becomes visible when its
    chunk is full, at the end of its episode, or on `flush`. Leaving an adder's block flushes and closes it; after an
    error it does not wait:

        with NStepTransitionAdder(store, 1, 0.99, priority_fns={"replay": 1.0}) as adder:
            adder.add_first(timestep)
            while not timestep.last():
                action = agent(timestep)
                timestep = environment.step(action)
                adder.add(action, timestep)
    """

    _takes_none: ClassVar[bool] = False
    """Leaves may be None: no value at this step."""

    def __init__(self, items: ItemWriter, timeout: float | None) -> None:
        """Takes what a kind of adder has made for itself: users make one of those.

        Args:
            items: Makes items of its rows.
            timeout: Seconds that `add` and `reset` wait for tables; None: for ever, 0: not at all.
        """
        self._items = items
        self._timeout = timeout
        self._in_episode = False
        self._closed = False
        self._observation: Any = None
        self._is_start = False
        self._looks: ObservationLayout | None = None
        """Of the observation."""
        self._known: ObservationLayout | None = None
        """Of those that are rows."""
        self._structures: list[Any] | None = None
        """Of what rows have beside the observation."""

    def add_first(self, timestep: TimeStep) -> None:
        """Begins an episode.

        Args:
            timestep: Its first time step; of that, only the observation is read.

        Raises:
            InvalidArgumentError: The time step is not a first one, or none at all, or an episode is under way.
            SignatureError: The observation nests otherwise than those before, has other dtypes, or no value somewhere;
                no episode has begun. Its shapes may be others than those of earlier episodes.
            ClosedError: The adder was closed.
        """
        if self._closed:
            raise ClosedError("the adder was closed; it takes no more")
        try:
            is_first, observation = timestep.first(), timestep.observation
        except AttributeError as error:
            raise _no_time_step(timestep) from error
        if not is_first:
            raise InvalidArgumentError("`add_first` takes an episode's first time step; got one that is not first")
        if self._in_episode:
            raise InvalidArgumentError(
                "`add_first` begins an episode, and one is under way; `add` its last time step first, or `reset`"
            )
        copy, looks = copy_with_layout(observation)
        if self._known is not None:
            self._check_looks(looks, self._known, shapes=False)
            looks = looks.completed(self._known)
        elif not (self._takes_none or looks.has_all()):
            raise SignatureError(f"an observation must have a value everywhere; got {observation!r}")
        self._observation, self._looks = copy, looks
        self._is_start = self._in_episode = True

    def add(self, action: Any, next_timestep: TimeStep, extras: Any = ()) -> None:  # noqa: ANN401, nests
        """Adds a transition; the last of an episode ends it, and waits until the tables have its items.

        Args:
            action: What was done at the observation before, a nest of one structure and of the same dtypes throughout.
            next_timestep: What came of it: reward, discount and the next observation.
            extras: What else belongs to the observation before it, a nest likewise. `()` or None: nothing.

        Raises:
            InvalidArgumentError: No episode is under way, or `next_timestep` begins another one, or is no time step;
                nothing is kept.
            SignatureError: The data nests otherwise than before, has other dtypes, no value somewhere, or one that no
                column can hold, or items made of it would not fit their table; nothing is kept.
            UnknownTableError: There is no table of one of the adder's names; nothing is kept. Where items are made one
                by one, as for priorities that are functions, it is the cause of an `ItemError`.
            PriorityError: A priority given as a number is negative or infinite, and its table's selector takes no such;
                as for `UnknownTableError`.
            BackpressureError: Too many items wait for their tables, for the adder's timeout; nothing is kept. Of the
                rows that end an episode, those that were not taken are lost.
            DeadlineExceededError: The episode has ended, and its tables did not take all items in time: they stay
                queued. Or a client's server did not tell of a table in time: nothing is kept.
            ItemError: The transition was added, but an item that ends with it was not made: a function of priorities
                or of what to insert failed, or its table refused it. Other items were made: go on.
            UnsatisfiableError: The episode has ended, and its last items are too large for their table.
            ClosedError: The adder was closed; or its table was dropped or its store closed, which is noticed when items
                are sent.
        """
        if self._closed:
            raise ClosedError("the adder was closed; it takes no more")
        if not self._in_episode:
            raise InvalidArgumentError("`add` goes on with an episode, and none is under way; call `add_first` first")
        try:
            is_first, is_last, observation = next_timestep.first(), next_timestep.last(), next_timestep.observation
            reward, discount = next_timestep.reward, next_timestep.discount
        except AttributeError as error:
            raise _no_time_step(next_timestep) from error
        if is_first:
            raise InvalidArgumentError(
                "`add` takes what an action led to; got a first time step: `add_first` begins the next episode"
            )
        if extras is None:
            extras = ()
        row = Step(self._observation, action, reward, discount, self._is_start, extras)
        structures = self._checked(row)
        following, looks = self._taken(observation)
        self._add(row)
        self._structures = structures
        self._known = self._looks = looks
        self._observation = following
        self._is_start = False
        with self._complaining():
            if is_last:
                self._in_episode = False
                self._end(final_row(following, row))

    def reset(self) -> None:
        """Gives up the episode under way; items that it has made, or can, stay, and their tables are waited for.

        Without an episode under way, it does nothing.

        Raises:
            DeadlineExceededError: They were not taken within the adder's timeout; they stay queued.
            ItemError, BackpressureError, UnsatisfiableError, ClosedError: As of `add`; the episode is given up.
        """
        if self._in_episode:
            self._in_episode = False
            self._leave(self._timeout)

    def _leave(self, timeout: float | None) -> None:
        with self._complaining():
            self._give_up(timeout)

    @contextmanager
    def _complaining(self) -> Iterator[None]:
        """Raises what went wrong with an item; an error of an episode's end goes before it, and tells of it."""
        try:
            yield
        except BaseException as error:
            try:
                self._items.raise_item_error()
            except ItemError as other:
                error.add_note(str(other))
            raise
        self._items.raise_item_error()

    def flush(self, timeout: float | None = None) -> None:
        """Makes all items visible, and waits until their tables have them.

        Args:
            timeout: Seconds to wait for the tables' rate limiters; None: for ever, 0: not at all.

        Raises:
            InvalidArgumentError: `timeout` is below 0, or no number.
            DeadlineExceededError: Some were not taken in time; they stay queued.
            UnsatisfiableError: One is too large for its table.
            ClosedError: Their table was dropped, or the store closed, while they waited.
        """
        self._items.flush(_checks.seconds("`timeout`", timeout))

    def close(self, timeout: float | None = None) -> None:
        """Gives up the episode under way, flushes, and takes no more. May be called again, also after an error.

        Args:
            timeout: Seconds to wait for the tables' rate limiters; None: for ever, 0: not at all.

        Raises:
            InvalidArgumentError, DeadlineExceededError, UnsatisfiableError, ClosedError: As of `flush`; the adder is not
                closed then.
            ItemError, BackpressureError: As of `reset`; likewise.
        """
        timeout = _checks.seconds("`timeout`", timeout)
        if self._in_episode:
            self._in_episode = False
            self._leave(timeout)
        self._items.close(timeout)
        self._closed = True

    @abc.abstractmethod
    def _add(self, row: Step) -> None:
        """Another row of the episode; an error keeps nothing of it."""

    @abc.abstractmethod
    def _end(self, row: Step) -> None:
        """The row after the last; whatever happens, the episode has ended then: see `_ending`."""

    def _give_up(self, timeout: float | None) -> None:
        """The episode ends without another transition."""
        self._items.end_episode(timeout)

    @contextmanager
    def _ending(self, timeout: float | None) -> Iterator[None]:
        """The last rows of an episode, which ends then; an error among them is the one that is raised."""
        try:
            yield
        except BaseException:
            with suppress(EngramError):
                self._items.end_episode(0)
            raise
        self._items.end_episode(timeout)

    def _taken(self, observation: Any) -> tuple[Any, ObservationLayout]:  # noqa: ANN401, nests
        """The next observation of the episode."""
        asked = self._looks
        assert asked is not None  # noqa: S101, an episode is under way
        if isinstance(observation, np.ndarray) and asked.is_of(observation):
            return observation.copy(), asked
        copy, found = copy_with_layout(observation)
        self._check_looks(found, asked, shapes=True)
        return copy, found.completed(asked)

    def _check_looks(self, found: ObservationLayout, asked: ObservationLayout, *, shapes: bool) -> None:
        if not (self._takes_none or found.has_all()) or not found.fits(asked, shapes=shapes):
            raise SignatureError(f"an observation looks unlike those before; asked: {asked}; found: {found}")

    def _checked(self, row: Step) -> list[Any]:
        """How what the row has beside the observation nests: as before, and with a value everywhere."""
        asked = self._structures
        nests = (row.action, row.reward, row.discount, row.extras)
        structures = [self._structure(name, nest) for name, nest in zip(_ROW, nests, strict=True)]
        if asked is not None and structures != asked:
            for name, nest, now, before in zip(_ROW, nests, structures, asked, strict=True):
                if now != before:
                    raise SignatureError(f"{name} must nest as before, {_nest(before)}; got {nest!r}")
        return structures

    def _structure(self, name: str, nest: Any) -> Any:  # noqa: ANN401, nests; False is a leaf, True is nothing
        if isinstance(nest, _ARRAYS):
            return False
        if type(nest) is tuple and not nest:
            return True
        leaves, structure = flatten(nest)
        if not self._takes_none and any(leaf is None for leaf in leaves):
            raise SignatureError(f"{name} must have a value everywhere; got {nest!r}")
        return False if structure.is_leaf() else structure


def _no_time_step(given: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a time step has `reward`, `discount`, `observation`, `first()` and `last()`, as dm_env.TimeStep; got "
        f"{given!r}"
    )


_ROW = ("action", "reward", "discount", "extras")

_ARRAYS = (np.ndarray, np.generic, float, int, str, bytes)


def _nest(structure: Any) -> str:  # noqa: ANN401, as of `_structure`
    if isinstance(structure, bool):
        return "()" if structure else "a single value"
    return str(structure.unflatten(["*"] * structure.num_leaves)).replace("'*'", "*")
