"""What all adders have in common: the order of calls in an episode."""

import abc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from engram.adders.step import Step, final, is_text, leaves_of
from engram.errors import ClosedError, EngramError, ForkedError, InvalidArgumentError, SignatureError

__all__ = ["Adder", "Items", "TimeStep"]


class TimeStep(Protocol):
    """What adders read of a `dm_env.TimeStep`; anything alike will do."""

    @property
    def reward(self) -> Any:  # noqa: ANN401, a nest
        """Since the time step before: a number, an array or a nest."""

    @property
    def discount(self) -> Any:  # noqa: ANN401, an array
        """Of what comes after: a number or an array."""

    @property
    def observation(self) -> Any:  # noqa: ANN401, a nest
        """What there is to see, a nest."""

    def first(self) -> bool:
        """It begins an episode."""

    def last(self) -> bool:
        """It ends one."""


class Items(Protocol):
    """What becomes of an adder's rows."""

    def complain(self) -> None:
        """Raises the first error that an item met since the last call."""

    def end_episode(self, timeout: float | None) -> None:
        """Ends the episode, and waits until the tables have its items."""

    def flush(self, timeout: float | None) -> None:
        """Makes all items visible, and waits until their tables have them."""

    def close(self, timeout: float | None) -> None:
        """Flushes, and takes no more."""


class Adder(abc.ABC):
    """Takes an episode's time steps one by one, and keeps copies. Belongs to one thread.

    Leaving its block flushes and closes it:

        with NStepTransitionAdder(store, 1, 0.99, priority_fns={"replay": 1.0}) as adder:
            adder.add_first(timestep)
            while not timestep.last():
                action = agent(timestep)
                timestep = environment.step(action)
                adder.add(action, timestep)
    """

    _takes_none: ClassVar[bool] = False
    """Leaves may be None: no value at this step."""

    def __init__(self, items: Items, timeout: float | None) -> None:
        self._items = items
        self._timeout = timeout
        self._in_episode = False
        self._closed = False
        self._observation: Any = None
        self._is_start = False
        self._form: _Form | None = None
        """What the observation looks like."""
        self._known: _Form | None = None
        """What those that are rows look like."""

    def add_first(self, timestep: TimeStep) -> None:
        """Begins an episode.

        Args:
            timestep: Its first time step.

        Raises:
            InvalidArgumentError: The time step is not a first one, or an episode is under way.
            SignatureError: The observation looks unlike those before.
            ClosedError: The adder was closed.
        """
        if self._closed:
            raise ClosedError("the adder was closed; it takes no more")
        if not timestep.first():
            raise InvalidArgumentError("`add_first` takes an episode's first time step; got one that is not first")
        if self._in_episode:
            raise InvalidArgumentError(
                "`add_first` begins an episode, and one is under way; `add` its last time step first, or `reset`"
            )
        self._observation, self._form = self._taken(timestep.observation, self._known)
        self._is_start = self._in_episode = True

    def add(self, action: Any, next_timestep: TimeStep, extras: Any = ()) -> None:  # noqa: ANN401, nests
        """Adds a transition; the last of an episode ends it, and waits until the tables have its items.

        Args:
            action: What was done, a nest.
            next_timestep: What came of it.
            extras: What else belongs to the observation before it, a nest of the same structure throughout.

        Raises:
            InvalidArgumentError: No episode is under way, or `next_timestep` begins another one; nothing is kept.
            SignatureError: The data looks unlike that before, has no value somewhere, or does not fit a table; nothing
                is kept, but where functions look at items, see below.
            BackpressureError: Too many items wait for their tables, for the adder's timeout; nothing is kept. Of the
                rows that end an episode, those that were not taken are lost.
            DeadlineExceededError: The episode has ended, and its tables did not take all items in time; they stay
                queued.
            Exception: Whatever a function of priorities or of what to insert raises, and errors of the items that it
                was for: the transition was added, other items were made. Go on with the next one.
        """
        if not self._in_episode:
            raise InvalidArgumentError("`add` goes on with an episode, and none is under way; call `add_first` first")
        if next_timestep.first():
            raise InvalidArgumentError(
                "`add` takes what an action led to; got a first time step: `add_first` begins the next episode"
            )
        extras = () if extras is None else extras
        row = Step(self._observation, action, next_timestep.reward, next_timestep.discount, self._is_start, extras)
        if not self._takes_none:
            _check_values(row)
        following, form = self._taken(next_timestep.observation, self._form)
        self._add(row)
        self._known = self._form = form
        self._observation = following
        self._is_start = False
        try:
            if next_timestep.last():
                self._in_episode = False
                self._end(final(following, row))
        finally:
            self._items.complain()

    def reset(self) -> None:
        """Gives up the episode under way; items that it has made stay, and their tables are waited for.

        Raises:
            DeadlineExceededError: They were not taken within the adder's timeout; they stay queued.
        """
        if self._in_episode:
            self._in_episode = False
            try:
                self._give_up()
            finally:
                self._items.complain()

    def flush(self, timeout: float | None = None) -> None:
        """Makes all items visible, and waits until their tables have them.

        Args:
            timeout: Seconds to wait for the tables' rate limiters; None: for ever.

        Raises:
            DeadlineExceededError: Some were not taken in time; they stay queued.
        """
        self._items.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flushes, and takes no more. May be called again; after an error it tries again.

        Args:
            timeout: As of `flush`.

        Raises:
            DeadlineExceededError: As of `flush`.
        """
        self._items.close(timeout)
        self._closed = True
        self._in_episode = False

    @abc.abstractmethod
    def _add(self, row: Step) -> None:
        """Another row of the episode; an error keeps nothing of it."""

    @abc.abstractmethod
    def _end(self, row: Step) -> None:
        """The row after the last; whatever happens, the episode has ended then: see `_ending`."""

    def _give_up(self) -> None:
        """The episode ends without another row."""
        self._items.end_episode(self._timeout)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """The last rows of an episode, which ends then; an error among them is the one that is raised."""
        try:
            yield
        except BaseException:
            with suppress(EngramError):
                self._items.end_episode(0)
            raise
        self._items.end_episode(self._timeout)

    def _taken(self, observation: Any, asked: "_Form | None") -> tuple[Any, "_Form"]:  # noqa: ANN401, nests
        """A copy, as environments may write into what they gave, and what it looks like: as `asked`, if it is known."""
        if isinstance(observation, np.ndarray) and asked is not None and asked.is_array_of(observation.dtype):
            return observation.copy(), asked
        leaves, structure = leaves_of(observation)
        copies = [None if leaf is None else np.array(leaf) for leaf in leaves]
        found = _Form(structure, tuple(None if copy is None else _kind(copy) for copy in copies))
        if asked is not None and found != asked and not self._takes_none:
            raise SignatureError(f"an observation looks unlike those before; asked: {asked}; found: {found}")
        return structure.unflatten(copies), found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # In a forked child, finishing is the parent's business.
            with suppress(ForkedError):
                self.close()
            return
        # Something failed: what can go at once goes, but nobody waits, and nothing hides the error.
        with suppress(EngramError):
            self.close(timeout=0)


_ARRAYS = (np.ndarray, np.generic, float, int, str, bytes)


def _check_values(row: Step) -> None:
    for name, nest in zip(Step._fields, row, strict=True):
        if not isinstance(nest, _ARRAYS) and any(leaf is None for leaf in leaves_of(nest)[0]):
            raise SignatureError(f"the {name} has no value, or a leaf of it has none; got {nest!r}")


@dataclass(frozen=True, slots=True)
class _Form:
    """Nesting and dtypes."""

    structure: Any
    dtypes: tuple[Any, ...]

    def is_array_of(self, dtype: np.dtype[Any]) -> bool:
        return self.dtypes == (dtype,) and self.structure.is_leaf()

    def __str__(self) -> str:
        return f"{self.structure.unflatten([str(dtype) for dtype in self.dtypes])}".replace("'", "")


def _kind(array: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401, a dtype or a word
    return "text" if is_text(array) else array.dtype
