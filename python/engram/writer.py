"""Writers: steps go in, items come out.

A writer collects steps in chunks. An item becomes visible when its chunk is full, at the end of an
episode, or on `flush`. A writer belongs to one thread; a store may have any number of them.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from engram import _checks, _engram
from engram._closing_context import ClosingContext
from engram.errors import ClosedError, ForkedError, InvalidArgumentError
from engram.patterns import Pattern, checked_patterns, pattern_compiler

if TYPE_CHECKING:
    from engram.store import TableStore

__all__ = ["BatchedWriter", "Compression", "PatternWriter", "TrajectoryWriter"]

Compression: TypeAlias = Literal["auto", "delta", "off"]
"""How chunks are compressed: see `Store.writer`."""


class _Native(Protocol):
    @property
    def pending_items(self) -> int: ...
    def flush(self, timeout: float | None) -> None: ...
    def close(self, timeout: float | None) -> None: ...


class _Writer(ClosingContext):
    """What all writers can do."""

    _native: _Native

    @property
    def pending_items(self) -> int:
        """Items made that no table has yet."""
        return self._native.pending_items

    def flush(self, timeout: float | None = None) -> None:
        """Makes all items visible, and waits until their tables have them.

        Args:
            timeout: Seconds to wait for the tables' rate limiters; None: for ever.

        Raises:
            DeadlineExceededError: Some were not taken in time; they stay queued.
            ClosedError: Their table was dropped, or the store closed.
        """
        self._native.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flushes, and takes no more steps. May be called again."""
        self._native.close(timeout)

    def __del__(self) -> None:
        try:
            pending = self._native.pending_items
        except (AttributeError, ClosedError, ForkedError):
            return
        if pending:
            text = f"a {type(self).__name__} was dropped with {pending} items that no table has; flush or close it"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)


class TrajectoryWriter(_Writer):
    """Writes steps, and makes items of any slices of their history. From `Store.writer`.

    Leaving the block flushes and closes it:

        with store.writer(history=2) as writer:
            for step in episode:
                writer.append(step)
                if writer.episode_steps >= 2:
                    writer.create_item("replay", num_steps=2)
    """

    def __init__(
        self,
        store: "TableStore",
        *,
        history: int,
        chunk_length: int | None,
        max_in_flight_items: int,
        timeout: float | None,
        compression: Compression,
    ) -> None:
        _checks.text("`compression`", compression)
        self._native: _engram.TrajectoryWriter = _engram.TrajectoryWriter(
            store._native,  # noqa: SLF001, the store's other half
            _checks.integer("`history`", history),
            chunk_length if chunk_length is None else _checks.integer("`chunk_length`", chunk_length),
            _checks.integer("`max_in_flight_items`", max_in_flight_items),
            timeout,
            compression,
        )
        self._history: Any = None
        self._history_version = -1
        # Once per step: calls go straight to the native method, past the one below.
        if type(self).append is TrajectoryWriter.append:
            self.append = self._native.append  # type: ignore[method-assign]

    def append(self, step: Any, *, partial_step: bool = False) -> None:  # noqa: ANN401
        """Adds a step.

        Args:
            step: A pytree of arrays, numbers and text. It may have more leaves than those
                before; leaves that it lacks, or that are None, have no value at this step.
            partial_step: The step goes on with the next append, which must set other leaves.

        Raises:
            SignatureError: A leaf has another dtype than before, or none that a column can hold;
                nothing of the step is kept.
            InvalidArgumentError: A leaf was set already in this step.
            BackpressureError: Too many items wait for their tables, for the writer's timeout.
        """
        self._native.append(step, partial_step=partial_step)

    @property
    def history(self) -> Any:  # noqa: ANN401, a nest
        """The nest of a step, its leaves the columns' steps since the episode began.

        `history["obs"][-2:]` are the last two steps, `history["obs"][-1]` the last one without a
        time axis, `history["obs"][[0, 3]]` those two. Only the newest `history` steps can be used.
        Each slice has `shape`, `dtype`, `numpy()` and a length.
        """
        version = self._native.structure_version
        if version != self._history_version:
            self._history = self._native.history()
            self._history_version = version
        return self._history

    def create_item(
        self,
        table: str,
        priority: float = 1.0,
        trajectory: Any = None,  # noqa: ANN401, a nest
        *,
        num_steps: int | None = None,
    ) -> int:
        """Makes an item.

        Args:
            table: Name of the table.
            priority: Of the item.
            trajectory: A nest of slices of the history.
            num_steps: Instead: all columns of the last so many steps.

        Returns:
            Its key.

        Raises:
            ExpiredStepError: It refers to steps that are no longer kept.
            SignatureError: It does not fit the table's signature; nothing is made.
            PriorityError: The priority is NaN, or negative or infinite where it is a weight.
            DeadlineExceededError: A client's server did not tell of a table within the writer's timeout.
            UnknownTableError, BackpressureError: As their descriptions say.
        """
        try:
            return self._native.create_item(table, priority, trajectory, num_steps)
        except (TypeError, OverflowError):
            _checks.table_name("`table`", table)
            _checks.number("`priority`", priority)
            if num_steps is not None:
                _checks.integer("`num_steps`", num_steps)
            raise

    @property
    def episode_steps(self) -> int:
        """Complete steps since the episode began."""
        return self._native.episode_steps

    def end_episode(self, timeout: float | None = None, *, clear: bool = True) -> None:
        """Ends the episode: makes all items visible, and waits until their tables have them.

        Args:
            timeout: Seconds to wait for the tables' rate limiters; None: for ever.
            clear: Forget the history; otherwise later items may reach back into this episode.

        Raises:
            DeadlineExceededError: Some items were not taken in time; they stay queued, and the
                episode has ended all the same.
            OutOfMemoryError: The last steps could not be sealed: the episode has not ended. Call again;
                no item is made twice.
        """
        self._native.end_episode(timeout, clear)


class PatternWriter(_Writer):
    """Writes steps; patterns declared beforehand make the items. From `Store.pattern_writer`.

    Leaving the block flushes and closes it:

        with store.pattern_writer([Pattern("replay", num_steps=2)]) as writer:
            for step in episode:
                writer.append(step)
            writer.end_episode()
    """

    def __init__(
        self,
        store: "TableStore",
        patterns: Sequence[Pattern],
        *,
        chunk_length: int | None,
        max_in_flight_items: int,
        timeout: float | None,
        compression: Compression,
        uniform: bool = False,  # all appends, also of parts of steps, have one structure
    ) -> None:
        _checks.text("`compression`", compression)
        chosen = checked_patterns(patterns)
        self._native: _engram.PatternWriter = _engram.PatternWriter(
            store._native,  # noqa: SLF001, the store's other half
            len(chosen),
            pattern_compiler(chosen),
            chunk_length if chunk_length is None else _checks.integer("`chunk_length`", chunk_length),
            _checks.integer("`max_in_flight_items`", max_in_flight_items),
            timeout,
            compression,
            uniform,
        )
        if type(self).append is PatternWriter.append:
            self.append = self._native.append  # type: ignore[method-assign]

    def append(self, step: Any, *, partial_step: bool = False) -> None:  # noqa: ANN401
        """Adds a step, and makes the items that are due.

        Args:
            step: A pytree of arrays, numbers and text, of one structure throughout. None: no
                value at this step; items that would need one are not made.
            partial_step: The step goes on with the next append, which must set other leaves.

        Raises:
            SignatureError: The step looks unlike those before, or its items would not fit their
                table's signature; nothing of the step is kept.
            BackpressureError: Too many items wait for their tables, for the writer's timeout.
            DeadlineExceededError: A client's server did not tell of a table within the writer's timeout.
            PriorityError: The TD errors of an item are no such numbers, or its table does not take the priority that
                they make. The step is in all the same, and the items of other patterns are made.
            UnsatisfiableError, ClosedError: An item was refused by its table. The step is in all the same.
        """
        self._native.append(step, partial_step=partial_step)

    @property
    def episode_steps(self) -> int:
        """Complete steps since the episode began."""
        return self._native.episode_steps

    def end_episode(self, timeout: float | None = None, *, clear: bool = True) -> None:
        """Ends the episode: tries the patterns that wait for its end, makes all items visible, and waits.

        Args:
            timeout: Seconds to wait for the tables' rate limiters; None: for ever.
            clear: Items of the next episode never reach back into this one.

        Raises:
            DeadlineExceededError: Some items were not taken in time; they stay queued, and the
                episode has ended all the same.
            OutOfMemoryError: The last steps could not be sealed: the episode has not ended. Call again;
                no item is made twice.
        """
        self._native.end_episode(timeout, clear)


class BatchedWriter(_Writer):
    """Writes steps of many environments at once; patterns make the items. From `Store.batched_writer`."""

    def __init__(
        self,
        store: "TableStore",
        num_envs: int,
        patterns: Sequence[Pattern],
        *,
        chunk_length: int | None,
        max_in_flight_items: int,
        timeout: float | None,
        compression: Compression,
    ) -> None:
        _checks.text("`compression`", compression)
        chosen = checked_patterns(patterns)
        self._native: _engram.BatchedWriter = _engram.BatchedWriter(
            store._native,  # noqa: SLF001, the store's other half
            _checks.integer("`num_envs`", num_envs),
            pattern_compiler(chosen),
            chunk_length if chunk_length is None else _checks.integer("`chunk_length`", chunk_length),
            _checks.integer("`max_in_flight_items`", max_in_flight_items),
            timeout,
            compression,
        )

    def append_batch(self, steps: Any, *, episode_ends: npt.ArrayLike | None = None) -> None:  # noqa: ANN401
        """Adds one step of every environment, and makes the items that are due in each.

        Args:
            steps: A pytree of arrays `[N, ...]`, of one structure throughout.
            episode_ends: bool `[N]`: where True, this is the last step of that environment's episode,
                and items of its next one never reach back. None: nowhere.

        Raises:
            SignatureError: The steps look unlike those before; nothing is kept.
            BackpressureError: Too many items wait for their tables, for the writer's timeout.
            DeadlineExceededError: A client's server did not tell of a table within the writer's timeout.
            PriorityError: As for a `PatternWriter`. The steps are in all the same, and all other items are made.
        """
        ends = None if episode_ends is None else np.ascontiguousarray(episode_ends, dtype=np.bool_).view(np.uint8)
        if ends is not None and ends.ndim != 1:
            raise InvalidArgumentError(f"`episode_ends` must have the shape [N]; got {ends.shape}")
        self._native.append_batch(steps, ends)
