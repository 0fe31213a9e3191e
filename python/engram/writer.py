"""Writers: they accept steps, and insert items that refer to these steps.

A writer collects steps in chunks. An item becomes visible at the first append after its chunk is full, at the end of
an episode, or on `flush`. A writer belongs to one thread; a store can have any number of writers.
"""

import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks, _engram
from engram._closing_context import ClosingContext
from engram._lost_items import report, tables_text
from engram._nest_checks import IsDeclared, check_equal_lists, check_number_lists, check_one_nest
from engram._process_end import at_process_end
from engram._text import counted
from engram.errors import ClosedError, EngramError, ForkedError, InvalidArgumentError
from engram.patterns import Pattern, checked_patterns, pattern_compiler
from engram.writer_options import Compression, WriterOptions, checked_options

if TYPE_CHECKING:
    from engram.table_store import TableStore

__all__ = ["BatchedWriter", "Compression", "PatternWriter", "TrajectoryWriter"]


class _Writer(ClosingContext):
    """The methods that all writers share."""

    _native: _engram.Writer
    _shown: tuple[str, ...]
    """Names of the attributes that `repr` shows."""
    _tables: Collection[str]
    """Names of the tables that items were created for."""
    _process: int

    def __new__(cls, *_: object, **__: object) -> Self:
        writer = super().__new__(cls)
        writer._process = os.getpid()
        at_process_end(writer, _Writer._report_at_process_end)
        return writer

    @property
    def pending_items(self) -> int:
        """Number of created items that are not yet known to be in their table."""
        return self._native.pending_items

    def flush(self, timeout: float | None = None) -> None:
        """Sends all items and waits until their tables have them.

        Args:
            timeout: Seconds to wait for the tables' rate limiters. `None` waits forever.

        Raises:
            DeadlineExceededError: Tables did not accept all items in time. Also raised if they accept no more until
                items are sampled, and this is the only thread of the process. The items that were not accepted stay
                queued.
            ClosedError: The store was closed, or a table dropped.
        """
        self._native.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flushes, and accepts no more steps. Can be called more than once.

        Args:
            timeout: As in `flush`, in seconds.

        Raises:
            DeadlineExceededError: As in `flush`. The writer stays open.
            ClosedError: The store was closed, or a table dropped.
        """
        self._native.close(timeout)

    def __repr__(self) -> str:
        try:
            state = ", ".join(f"{name.removeprefix('_')}={getattr(self, name)!r}" for name in self._shown)
        except EngramError as error:  # after a fork, or while another thread uses the writer
            state = str(error)
        return f"{type(self).__name__}({state})"

    def _pending_text(self) -> str:
        pending = self.pending_items
        return f"{counted(pending, 'pending item')} of {tables_text(self._tables)}" if pending else ""

    # Not `sys`: at the end of the interpreter, it may be None. `_report_at_process_end` was called before.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._report("was garbage-collected", stacklevel=3)

    def _report_at_process_end(self) -> None:
        if os.getpid() != self._process:
            return  # its process reports it; here, it may seem in use
        for _ in range(100):
            try:
                self._report("was still open when its process ended", stacklevel=2)
            except EngramError:  # another thread uses it
                time.sleep(0.001)
            else:
                return
        text = (
            f"a {type(self).__name__} was still in use by another thread when its process ended; its pending items of "
            f"{tables_text(self._tables)} may be lost; end the thread and close the writer first"
        )
        report(text, ResourceWarning, self, stacklevel=2)

    def _report(self, what: str, *, stacklevel: int) -> None:
        try:
            pending = self._pending_text()
        except (AttributeError, ClosedError, ForkedError):  # AttributeError: its constructor failed
            return
        if pending:
            text = f"a {type(self).__name__} {what} with {pending}, which may be lost; flush or close it first"
            report(text, ResourceWarning, self, stacklevel=stacklevel)


class _StepWriter(_Writer):
    """The methods that the writers of single steps share."""

    _native: _engram.TrajectoryWriter | _engram.PatternWriter
    _is_declared: IsDeclared | None
    """Decides about lists in steps; None once a complete step has determined the structure."""

    def _append(self, step: Nest, *, partial_step: bool) -> None:
        if self._is_declared is not None:
            check_number_lists(step, self._is_declared)
        self._native.append(step, partial_step=partial_step)
        if not partial_step:
            self._allow_lists()

    def _allow_lists(self) -> None:
        """Makes later steps skip the checks for lists, and `append` skip its Python method.

        That costs more than the native one, and `append` runs once per step.
        """
        self._is_declared = None
        if type(self) in {TrajectoryWriter, PatternWriter}:  # not a subclass, which may have its own `append`
            self.__dict__["append"] = self._native.append

    @property
    def episode_steps(self) -> int:
        """Number of complete steps in the current episode."""
        return self._native.episode_steps

    def end_episode(self, timeout: float | None = None, *, clear: bool = True) -> None:
        """Ends the episode: sends all items and waits until their tables have them.

        Patterns with `end_of_episode()` are applied first.

        Args:
            timeout: Seconds to wait for the tables' rate limiters. `None` waits forever.
            clear: Clear the history. If False, later items can refer to steps of this episode.

        Raises:
            DeadlineExceededError: Tables did not accept all items in time. The rest stays queued, and the episode has
                ended nevertheless.
            OutOfMemoryError: The last steps could not be compressed into a chunk, and the episode has not ended. Call
                again; no item is created twice.
            PriorityError: As in `PatternWriter.append`.
            UnsatisfiableError, ClosedError: A table rejected an item.
        """
        self._native.end_episode(timeout, clear)


class TrajectoryWriter(_StepWriter):
    """Writes steps, and items of arbitrary slices of their history. Created by `Store.writer`.

    The `with` block flushes and closes it:

        with store.writer(history=2) as writer:
            for step in episode:
                writer.append(step)
                if writer.episode_steps >= 2:
                    writer.create_item("replay", num_steps=2)
    """

    _shown = ("episode_steps", "pending_items")

    def __init__(self, store: "TableStore", *, history: int, **options: Unpack[WriterOptions]) -> None:
        self._native: _engram.TrajectoryWriter = _engram.TrajectoryWriter(
            store._native_for_writer(),  # noqa: SLF001, same package
            _checks.integer("`history`", history),
            checked_options(options),
        )
        self._tables: set[str] = set()
        self._is_declared: IsDeclared | None = store._declares()  # noqa: SLF001, same package
        self._history: Any = None
        self._history_version = -1  # the native `structure_version` that `_history` was created for; -1: none yet

    def append(self, step: Nest, *, partial_step: bool = False) -> None:
        """Adds a step.

        Args:
            step: Nest of arrays, numbers and strings. It may have leaves that earlier steps lack. Leaves that it lacks,
                or that are None, have no value at this step. An item without some elements of a list or tuple has the
                others in a dict by index, unless it is the last ones that it lacks.
            partial_step: True if the next `append` continues this step with other leaves.

        Raises:
            SignatureError: A leaf has a different dtype than before, or one that is not supported; the step has a list
                of numbers, and no table of the store has a signature with these columns; or the step changes the
                nesting of earlier ones, for example a dict to a list. Nothing of the step is stored.
            InvalidArgumentError: A leaf already has a value in this step.
            BackpressureError: When the writer's timeout had passed, too many items still waited for their tables or
                were in flight, or the disk could not keep up. Nothing is stored; the call can be repeated.
            UnsatisfiableError, ClosedError: A table rejected an earlier item. The step is stored, unless the item was
                in flight before the call.
        """
        self._append(step, partial_step=partial_step)

    @property
    def history(self) -> Nest:
        """Nest of the columns' histories, with the structure of a step.

        A history has all steps since the last `end_episode(clear=True)`, but items can only refer to the newest ones,
        up to the writer's option `history`. `history["obs"][-2:]` selects the last two steps, `history["obs"][-1]` the
        last one without a time axis, and `history["obs"][[0, 3]]` the steps with these indices. Each slice has `shape`,
        `dtype`, `numpy()` and a length.

        Raises:
            InvalidArgumentError: No step was appended yet.
        """
        version = self._native.structure_version
        if version != self._history_version:
            self._history = self._native.history()
            self._history_version = version
        return self._history

    def create_item(
        self, table: str, priority: float = 1.0, trajectory: Nest | None = None, *, num_steps: int | None = None
    ) -> int:
        """Creates an item. Exactly one of `trajectory` and `num_steps` is required.

        Args:
            table: Name of the table.
            priority: Priority of the item.
            trajectory: Nest of slices of `history`.
            num_steps: Create an item of all columns of this many most recent steps.

        Returns:
            Key of the item.

        Raises:
            ExpiredStepError: The item refers to steps that are no longer in the history.
            SignatureError: The item does not match the table's signature, and is not created.
            PriorityError: The priority is NaN, or a Prioritized selector of the table does not allow it.
            DeadlineExceededError: The server did not describe the table within the writer's timeout.
            InvalidArgumentError: An argument is invalid.
            UnknownTableError: There is no table of this name.
            BackpressureError: When the writer's timeout had passed, too many items still waited for their tables or
                were in flight, or the disk could not keep up. Nothing is stored; the call can be repeated.
            UnsatisfiableError, ClosedError: A table rejected this item or an earlier one. If the earlier one was in
                flight before the call, this item is not created.
        """
        key = self._native.create_item(table, priority, trajectory, num_steps)
        self._tables.add(table)
        return key


class PatternWriter(_StepWriter):
    """Writes steps, and creates items as patterns declare. Created by `Store.pattern_writer`.

    The `with` block flushes and closes it:

        with store.pattern_writer([Pattern("replay", num_steps=2)]) as writer:
            for step in episode:
                writer.append(step)
            writer.end_episode()
    """

    _shown = ("_tables", "episode_steps", "pending_items")

    def __init__(
        self,
        store: "TableStore",
        patterns: Sequence[Pattern],
        *,
        uniform: bool = False,  # True if every append has the same structure, including appends of partial steps
        **options: Unpack[WriterOptions],
    ) -> None:
        checked = checked_patterns(patterns)
        self._tables = sorted({pattern.table for pattern in checked})
        self._is_declared: IsDeclared | None = store._declares()  # noqa: SLF001, same package
        self._native: _engram.PatternWriter = _engram.PatternWriter(
            store._native_for_writer(),  # noqa: SLF001, same package
            len(checked),
            pattern_compiler(checked),
            checked_options(options),
            uniform,
        )

    def append(self, step: Nest, *, partial_step: bool = False) -> None:
        """Adds a step, and creates the items whose patterns apply.

        Args:
            step: Nest of arrays, numbers and strings, with the same structure at every step. A leaf that is None has no
                value at this step; items that need the value are not created.
            partial_step: True if the next `append` continues this step with other leaves.

        Raises:
            SignatureError: The step differs from earlier steps, has a list of numbers as `TrajectoryWriter.append`
                states, or its items would not match their table's signature. Nothing of the step is stored. If the
                table has no signature, a step with cells of another shape is stored, but no item that also has earlier
                steps can be created.
            BackpressureError: When the writer's timeout had passed, too many items still waited for their tables or
                were in flight, or the disk could not keep up. Nothing is stored; the call can be repeated.
            DeadlineExceededError: The server did not describe a table within the writer's timeout.
            PriorityError: The TD errors of an item are not one float32, float64, int32 or int64 per step, or its table
                rejects their priority, for example because it is NaN. The step is stored, and the items of other
                patterns are created.
            UnsatisfiableError, ClosedError: A table rejected an item. The step is stored, unless the item was in flight
                before the call.
        """
        self._append(step, partial_step=partial_step)

    def append_steps(self, steps: Nest) -> None:
        """Adds many consecutive steps of the episode in one call, for example all steps of a recorded episode.

        The items are those of one `append` per step, in the same order, but this is much faster. Rate limiters are
        respected as by `append`: the call waits while a table does not accept items. The episode does not end.

            writer.append_steps({"obs": observations, "action": actions})  # arrays [T, ...]
            writer.end_episode()

        Args:
            steps: Nest of arrays `[T, ...]`: `T` steps, with the structure of the steps of `append`. A leaf that is
                None has no value at these steps.

        Raises:
            SignatureError: The arrays differ in `T` or from the columns of earlier steps, one is a masked array, the
                steps are a list instead of one nest or have a list of equal nests whose columns no signature has, or
                items would not match their table's signature. Nothing is stored. If the table has no signature, steps
                with cells of another shape are all stored, but no item that also has earlier steps can be created.
            InvalidArgumentError: The last step is not complete (`partial_step`). Nothing is stored.
            BackpressureError, OutOfMemoryError, UnsatisfiableError, ClosedError, DeadlineExceededError: As in
                `append`, at one of the steps. The steps before are stored; the text states how many, and the
                first `PriorityError` at one of these.
            PriorityError: As in `append`. All steps are stored, and all other items are created.
        """
        if self._is_declared is not None:
            check_number_lists(steps)
            check_one_nest("`steps`", steps, "step", self._is_declared)
            check_equal_lists(steps, "step", self._is_declared)
        self._native.append_steps(steps)
        self._allow_lists()


class BatchedWriter(_Writer):
    """Writes steps of many environments at once, and creates items as patterns declare.

    Created by `Store.batched_writer`.
    """

    _shown = ("_num_envs", "_tables", "pending_items")

    def __init__(
        self, store: "TableStore", num_envs: int, patterns: Sequence[Pattern], **options: Unpack[WriterOptions]
    ) -> None:
        checked = checked_patterns(patterns)
        self._tables = sorted({pattern.table for pattern in checked})
        self._num_envs = _checks.integer("`num_envs`", num_envs)
        self._is_declared: IsDeclared | None = store._declares()  # noqa: SLF001, same package
        self._native: _engram.BatchedWriter = _engram.BatchedWriter(
            store._native_for_writer(),  # noqa: SLF001, same package
            self._num_envs,
            pattern_compiler(checked),
            checked_options(options, max_in_flight_items=65_536),
        )

    def append_batch(self, steps: Nest, *, episode_ends: npt.ArrayLike | None = None) -> None:
        """Adds one step of every environment, and creates the items whose patterns apply.

        For vector environments of Gymnasium, use `engram.gymnasium.VectorWriter`: it takes what their `step` returns.
        If steps consist of an observation and the action taken on it, append one more step with the last observation
        of each episode, and set `episode_ends` at that step. `terminated | truncated` is True one step earlier: if it
        were passed as `episode_ends`, no item would have the end of an episode.

        Args:
            steps: Nest of arrays `[N, ...]`, with the same structure at every step. `N` is `num_envs`.
            episode_ends: bool `[N]`: True if this is the last step of the environment's episode that is appended. Items
                of its next episode do not refer to this one. Default: all False.

        Warns:
            UserWarning: A bool column is False in all items, because it is True only at the last step of an episode,
                and the patterns use it only at earlier steps. Once per column.

        Raises:
            SignatureError: The steps differ from earlier ones, or their items would not match their table's signature;
                or there is a list of equal nests, or a tuple of one per environment, and no table of the store has a
                signature with its columns. Nothing is stored. If the table has no signature, steps with cells of
                another shape are stored, but no item that also has earlier steps can be created.
            InvalidArgumentError: `episode_ends` has another shape than `[N]`, or numbers that are neither 0 nor 1.
            BackpressureError: When the writer's timeout had passed, too many items still waited for their tables or
                were in flight, or the disk could not keep up. Nothing is stored; the call can be repeated.
            DeadlineExceededError: The server did not describe a table within the writer's timeout.
            PriorityError: As in `PatternWriter.append`. The steps are stored, and all other items are created.
            UnsatisfiableError, ClosedError: A table rejected an item. The steps are stored, unless the item was in
                flight before the call.
        """
        self._check(steps, has_time_axis=False)
        if episode_ends is None:
            self._native.append_batch(steps, None)
            self._is_declared = None
            return
        _checks.not_masked("`episode_ends`", episode_ends)
        given = np.asarray(episode_ends)
        if given.ndim != 1:
            raise InvalidArgumentError(
                f"`episode_ends` must have shape [{self._num_envs}], one bool per environment (`num_envs`); "
                f"got {list(given.shape)}"
            )
        self._native.append_batch(steps, _flags(given))
        self._is_declared = None

    def append_steps(self, steps: Nest, *, episode_ends: npt.ArrayLike | None = None) -> None:
        """Adds many consecutive steps of every environment, such as recorded episodes, in one call.

        The items are those of one `append_batch` per step, in the same order, but this is much faster. Rate limiters
        are respected as by `append_batch`: the call waits while a table does not accept items.

        Args:
            steps: Nest of arrays `[N, T, ...]`: `T` steps of each environment, with the structure of the steps of
                `append_batch`. `N` is `num_envs`.
            episode_ends: bool `[N, T]`: True if this is the last step of an episode of the environment. Default: all
                False.

        Warns:
            UserWarning: As in `append_batch`.

        Raises:
            SignatureError: The arrays differ in `T` or from the columns of earlier steps, one is a masked array, the
                steps are a list instead of one nest or have a list of equal nests whose columns no signature has, or
                items would not match their table's signature. Nothing is stored. If the table has no signature, steps
                with cells of another shape are all stored, but no item that also has earlier steps can be created.
            InvalidArgumentError: `episode_ends` has another shape than `[N, T]`, or numbers that are neither 0 nor 1.
                Nothing is stored.
            BackpressureError, OutOfMemoryError, UnsatisfiableError, ClosedError, DeadlineExceededError: As in
                `append_batch`, at one of the steps. The steps before are stored; the text states how many, and the
                first `PriorityError` at one of these.
            PriorityError: As in `append_batch`. All steps are stored, and all other items are created.
        """
        self._check(steps, has_time_axis=True)
        if episode_ends is None:
            self._native.append_steps(steps, None)
            self._is_declared = None
            return
        _checks.not_masked("`episode_ends`", episode_ends)
        given = np.asarray(episode_ends)
        if given.ndim != 2 or len(given) != self._num_envs:  # noqa: PLR2004, environments and time
            raise InvalidArgumentError(
                f"`episode_ends` must have shape [{self._num_envs}, T], one bool per environment (`num_envs`) and step"
                f"; got {list(given.shape)}"
            )
        self._native.append_steps(steps, (_flags(given).reshape(-1), given.shape[1]))
        self._is_declared = None

    def _check(self, steps: Nest, *, has_time_axis: bool) -> None:
        """Checks the lists of the first steps, which determine the structure."""
        if self._is_declared is not None:
            check_number_lists(steps)
            check_one_nest("`steps`", steps, "step", self._is_declared, tuples=has_time_axis)
            each = "step" if has_time_axis else "environment"
            check_equal_lists(steps, each, self._is_declared, num_envs=self._num_envs)


def _flags(episode_ends: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns flags as 0 and 1, after checking that they are bools or the numbers 0 and 1."""
    ends = np.array(episode_ends, dtype=np.bool_, order="C")
    if episode_ends.dtype != np.bool_ and not np.array_equal(episode_ends, ends):
        raise InvalidArgumentError(
            f"`episode_ends` must be bools; got {_checks.short_repr(episode_ends.tolist())}; an environment's number "
            "is not allowed in place of its flag"
        )
    return ends.view(np.uint8)
