"""The common part of all adders: checks of the order of calls in an episode, and of its data."""

import abc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Protocol

import numpy as np

from engram import Nest, _checks
from engram._closing_context import ClosingContext
from engram._text import nest_text
from engram.adders.item_writers import BaseItemWriter
from engram.adders.observation_layout import ObservationLayout, copy_with_layout
from engram.adders.step import Step, final_row, flatten
from engram.errors import ClosedError, EngramError, InvalidArgumentError, ItemError, SignatureError

__all__ = ["Adder", "TimeStep"]


class TimeStep(Protocol):
    """The part of a `dm_env.TimeStep` that adders use; any object with these attributes works.

    Nests consist of arrays, numbers and text. An array `[...]` of any shape becomes a column `[T, ...]`; its dtype
    must be one that Engram supports.
    """

    @property
    def reward(self) -> Nest:
        """Reward since the previous time step: a number, an array or a nest of them. Unused in first time steps."""

    @property
    def discount(self) -> Nest:
        """Discount of what follows: a number or an array; 0 if the episode terminated. Unused in first time steps."""

    @property
    def observation(self) -> Nest:
        """A nest of the same structure and dtypes in all episodes, and of the same shapes within an episode."""

    def first(self) -> bool:
        """True for the first time step of an episode."""

    def last(self) -> bool:
        """True for the last time step of an episode."""


class Adder(ClosingContext):
    """Takes the time steps of an episode one by one, and writes items. Use it from one thread.

    This is the base class; its subclasses define which items they create. Data is copied, so an environment may reuse
    its arrays. An item becomes visible at the first `add` after its chunk is full, at the end of its episode, or
    with `flush`. The end of a `with` block flushes and closes the adder; after an exception it does not wait:

        with NStepTransitionAdder(store, 1, 0.99, priority_fns={"replay": 1.0}) as adder:
            adder.add_first(timestep)
            while not timestep.last():
                action = agent(timestep)
                timestep = environment.step(action)
                adder.add(action, timestep)
    """

    _allows_none: ClassVar[bool] = False
    """True if leaves may be None, which means no value at this step."""

    def __init__(self, items: BaseItemWriter, timeout: float | None) -> None:
        """Sets up the common part; for subclasses.

        Args:
            items: Creates the items.
            timeout: Seconds that `add` and `reset` wait for tables; see `WriterOptions`. None: wait forever.
        """
        self._items = items
        self._timeout = timeout
        self._in_episode = False
        self._closed = False
        self._observation: Any = None
        self._is_start = False  # whether `_observation` is the first of its episode
        self._layout: ObservationLayout | None = None
        """Layout of `_observation`, which is not written yet."""
        self._written_layout: ObservationLayout | None = None
        """Layout of the observations that were written."""
        self._structures: list[Any] | None = None
        """Structures of action, reward, discount and extras of the rows that were written; see `_structure`."""

    def add_first(self, timestep: TimeStep) -> None:
        """Starts an episode.

        Args:
            timestep: The first time step; only its observation is used.

        Raises:
            InvalidArgumentError: `timestep` is not a first time step, or an episode is in progress.
            SignatureError: The observation differs from earlier ones in structure or dtypes, or a leaf is None, which
                only `StructuredAdder` allows. No episode was started. Shapes may change from episode to episode.
            ClosedError: The adder is closed.
        """
        if self._closed:
            raise ClosedError("the adder is closed")
        try:
            is_first, observation = timestep.first(), timestep.observation
        except AttributeError as error:
            raise _not_a_time_step(timestep) from error
        if not is_first:
            raise InvalidArgumentError("`add_first` requires the first time step of an episode; got a later one")
        if self._in_episode:
            raise InvalidArgumentError(
                "`add_first` starts an episode, but one is in progress; pass its last time step to `add`, or call "
                "`reset`"
            )
        copy, layout = copy_with_layout(observation)
        if self._written_layout is not None:
            self._check_layout(layout, self._written_layout, shapes=False)
            layout = layout.completed_from(self._written_layout)
        elif not (self._allows_none or layout.has_all_values()):
            raise SignatureError(f"an observation must not contain None; got {_checks.short_repr(observation)}")
        self._observation, self._layout = copy, layout
        self._is_start = self._in_episode = True

    def add(self, action: Nest, next_timestep: TimeStep, extras: Nest = ()) -> None:
        """Adds a transition. The last one of an episode ends it, and waits until the tables have its items.

        Args:
            action: The action at the previous observation: a nest of the same structure and dtypes throughout.
            next_timestep: The result of the action: reward, discount and the next observation.
            extras: Other data that belongs to the previous observation: a nest of the same structure and dtypes
                throughout. `()` or None: no extras.

        Raises:
            InvalidArgumentError: No episode is in progress, or `next_timestep` is a first time step or not a time step.
                Nothing of the transition is kept.
            SignatureError: The data differs from earlier data in structure or dtypes, contains None or a value that no
                column can store, or its items would not match the signature of their table. Nothing is kept.
            UnknownTableError: A table of the adder does not exist. Nothing is kept. In three cases, this is the cause
                of an `ItemError` instead: a priority is a function, there are `should_insert_fns`, or items may be as
                short as their episodes (`EpisodeAdder`; `SequenceAdder` with `TRUNCATE` or `WRITE`).
            PriorityError: A constant priority is negative, infinite or too large, and its table's selector rejects it.
                Nothing is kept. In the three cases above, this is the cause of an `ItemError` instead.
            BackpressureError: Too many items still waited for their tables (`max_waiting_items`), or the disk could not
                keep up, when the adder's `timeout` had passed. Also raised, whatever the `timeout`, if too many items
                wait and this is the only thread of the process, so that nothing can be sampled. Nothing is kept. One
                exception: if the disk cannot keep up with the last rows of an episode, the rows that were not accepted
                are lost, and the others are kept.
            DeadlineExceededError: The episode has ended, and its tables did not accept all items in time; they stay
                queued. Or the server did not send the options of a table in time, and nothing is kept.
            ItemError: The transition was added, but an item that ends with it was not created, because a function of
                `priority_fns` or `should_insert_fns` failed, or because its table rejected it. If several items failed,
                the text states their number. Other items were created.
            UnsatisfiableError: The episode has ended, and its last items are too large for their table.
            ClosedError: The adder is closed; or its table was dropped or its store closed, which is noticed when items
                are sent.
        """
        if self._closed:
            raise ClosedError("the adder is closed")
        if not self._in_episode:
            raise InvalidArgumentError("`add` continues an episode, but none is in progress; call `add_first` first")
        try:
            is_first, is_last, observation = next_timestep.first(), next_timestep.last(), next_timestep.observation
            reward, discount = next_timestep.reward, next_timestep.discount
        except AttributeError as error:
            raise _not_a_time_step(next_timestep) from error
        if is_first:
            raise InvalidArgumentError(
                "`add` requires the time step that an action led to; got a first time step: "
                "call `add_first` to start the next episode"
            )
        if extras is None:
            extras = ()
        row = Step(self._observation, action, reward, discount, self._is_start, extras)
        structures = self._check_structures(row)
        next_observation, layout = self._copy_next(observation)
        self._add(row)
        self._structures = structures
        self._written_layout = self._layout = layout
        self._observation = next_observation
        self._is_start = False
        with self._raising_item_errors():
            if is_last:
                self._in_episode = False
                # After its last transition, nothing of the episode may be rejected.
                with self._items.without_waiting():
                    self._end(final_row(next_observation, row))

    def reset(self) -> None:
        """Abandons the episode in progress, and waits until the tables have the items that were created before.

        Does nothing if no episode is in progress.

        Raises:
            DeadlineExceededError: The tables did not accept all items within the adder's `timeout`. Also raised if they
                accept no more until items are sampled, and this is the only thread of the process. The items that were
                not accepted stay queued.
            ItemError, BackpressureError, UnsatisfiableError, ClosedError: See `add`; the episode was abandoned.
        """
        if self._in_episode:
            self._in_episode = False
            self._abandon_episode(self._timeout)

    def _abandon_episode(self, timeout: float | None) -> None:
        """Ends the episode with `_abandon`, then raises the errors of its items."""
        with self._raising_item_errors(), self._items.without_waiting():
            self._abandon(timeout)

    @contextmanager
    def _raising_item_errors(self) -> Iterator[None]:
        """Raises the error of an item at the end of the block; after another error, adds it to that one as a note."""
        try:
            yield
        except BaseException as error:
            try:
                self._items.raise_item_error()
            except ItemError as item_error:
                error.add_note(str(item_error))
            raise
        self._items.raise_item_error()

    def flush(self, timeout: float | None = None) -> None:
        """Makes all items visible, and waits until their tables have them.

        Args:
            timeout: Seconds to wait for the tables' rate limiters. Default: None, wait forever.

        Raises:
            InvalidArgumentError: `timeout` is negative or not a number.
            DeadlineExceededError: The tables did not accept all items in time. Also raised if they accept no more until
                items are sampled, and this is the only thread of the process. The items that were not accepted stay
                queued.
            UnsatisfiableError: An item is too large for its table.
            ClosedError: A table was dropped, or the store closed, while items waited.
        """
        self._items.flush(_checks.seconds("`timeout`", timeout))

    def close(self, timeout: float | None = None) -> None:
        """Abandons the episode in progress, flushes, and closes the adder. Can be called again, also after an error.

        Args:
            timeout: Seconds to wait for the tables' rate limiters. Default: None, wait forever.

        Raises:
            InvalidArgumentError, DeadlineExceededError, UnsatisfiableError, ClosedError: See `flush`; the adder is not
                closed.
            ItemError, BackpressureError: See `reset`; the adder is not closed.
        """
        timeout = _checks.seconds("`timeout`", timeout)
        if self._in_episode:
            self._in_episode = False
            self._abandon_episode(timeout)
        self._items.close(timeout)
        self._closed = True

    def _pending_text(self) -> str:
        return self._items.pending_text()

    @abc.abstractmethod
    def _add(self, row: Step) -> None:
        """Adds a row to the episode; after an error, nothing of it may be kept."""

    @abc.abstractmethod
    def _end(self, row: Step) -> None:
        """Writes the rows that follow the last transition, if any, and ends the item writer's episode.

        If this raises an error, the item writer's episode must have ended too; use `_ending` for that. If it succeeds,
        a subclass whose items span episodes may let the item writer's episode continue.

        Args:
            row: The row with the final observation.
        """

    def _abandon(self, timeout: float | None) -> None:
        """Ends the episode without another transition; subclasses may override it."""
        self._items.end_episode(timeout)

    @contextmanager
    def _ending(self, timeout: float | None) -> Iterator[None]:
        """Ends the episode after the block, which writes its last rows; an error in the block is raised afterwards."""
        try:
            yield
        except BaseException:
            with suppress(EngramError):
                self._items.end_episode(0)
            raise
        self._items.end_episode(timeout)

    def _copy_next(self, observation: Nest) -> tuple[Any, ObservationLayout]:
        """Returns a copy of the next observation of the episode, and its layout."""
        expected = self._layout
        assert expected is not None  # noqa: S101, an episode is in progress
        if type(observation) is np.ndarray and expected.is_layout_of(observation):
            return observation.copy(), expected
        copy, layout = copy_with_layout(observation)
        self._check_layout(layout, expected, shapes=True)
        return copy, layout.completed_from(expected)

    def _check_layout(self, layout: ObservationLayout, expected: ObservationLayout, *, shapes: bool) -> None:
        if not (self._allows_none or layout.has_all_values()) or not layout.matches(expected, shapes=shapes):
            raise SignatureError(f"an observation must have the layout of the earlier ones, {expected}; got {layout}")

    def _check_structures(self, row: Step) -> list[Any]:
        """Returns the structures of the row's fields except the observation.

        Raises:
            SignatureError: A structure differs from the earlier rows', or a leaf is None.
        """
        expected = self._structures
        nests = (row.action, row.reward, row.discount, row.extras)
        structures = [self._structure(name, nest) for name, nest in zip(_FIELDS, nests, strict=True)]
        if expected is not None and structures != expected:
            for name, nest, structure, old in zip(_FIELDS, nests, structures, expected, strict=True):
                if structure != old:
                    raise SignatureError(
                        f"`{name}` must have the same structure as in earlier steps: {_describe(old)}; "
                        f"got {_checks.short_repr(nest)}"
                    )
        return structures

    def _structure(self, name: str, nest: Nest) -> Nest:
        """Returns the structure of a nest: optree's PyTreeSpec; but False for a leaf, and True for `()`."""
        if isinstance(nest, _LEAF_TYPES):
            return False
        if type(nest) is tuple and not nest:
            return True
        leaves, structure = flatten(nest)
        if not self._allows_none and any(leaf is None for leaf in leaves):
            raise SignatureError(f"`{name}` must not contain None; got {_checks.short_repr(nest)}")
        return False if structure.is_leaf() else structure


def _not_a_time_step(given: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a time step must have `reward`, `discount`, `observation`, `first()` and `last()`, like dm_env.TimeStep; got "
        f"{_checks.short_repr(given)}"
    )


_FIELDS = ("action", "reward", "discount", "extras")

_LEAF_TYPES = (np.ndarray, np.generic, float, int, str, bytes)


def _describe(structure: Any) -> str:  # noqa: ANN401, what `_structure` returns
    if isinstance(structure, bool):
        return "an empty tuple" if structure else "a single value"
    return nest_text(structure.unflatten, structure.num_leaves)
