"""The structured writer: it only takes steps; patterns declared beforehand make the items."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _arguments, _nest, _sending
from engram.compat.reverb._config_builder import (
    Condition,
    Pattern,
    PatternTransform,
    ReferenceStep,
    constant_priority_fn,
    create_config,
    create_reference_step,
    pattern_from_transform,
    td_error,
)
from engram.compat.reverb._configs import Condition as ConditionProto
from engram.compat.reverb._configs import Config, config_problem
from engram.compat.reverb._errors import translated
from engram.compat.reverb._flatteners import LEAF_CLASSES, Flatten, flattener, is_leaf
from engram.compat.reverb._pattern_writer import pattern_writer
from engram.compat.reverb._patterns import already_set_text, check_source_leaves, history_length, source_leaves
from engram.compat.reverb._signature_inference import infer_signature, unpack_pattern
from engram.compat.reverb._steps import Column, checked, chunk_length
from engram.errors import EngramError

if TYPE_CHECKING:
    from engram.compat.reverb.client import Client

__all__ = [
    "Condition",
    "ConditionProto",
    "Config",
    "Pattern",
    "PatternTransform",
    "ReferenceStep",
    "StructuredWriter",
    "constant_priority_fn",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "td_error",
    "unpack_pattern",
]


class StructuredWriter:
    """Writes steps, of which configs make items. From `Client.structured_writer`. It belongs to one thread.

        step = reverb.structured.create_reference_step({"observation": None, "action": None})
        config = reverb.structured.create_config(
            pattern={"observations": step["observation"][-2:], "action": step["action"][-2]},
            table="replay",
            conditions=[reverb.structured.Condition.step_index() % 2 == 1],
        )
        writer = client.structured_writer([config])
        for number in range(6):
            writer.append({"observation": np.float32(number), "action": number})
        writer.end_episode()

    Items are sent when their steps fill a chunk, on `flush` and on `end_episode`. The first ten are sent at once.

    A writer that is dropped, or lives when the process ends, sends its items, and waits up to a minute until their
    tables have them, or a few seconds for a server that is gone; Ctrl-C ends that. A `UserWarning` says how many are
    lost.
    """

    def __init__(self, client: "Client", configs: Sequence[Config]) -> None:
        """As `Client.structured_writer`.

        Args:
            client: Of the server.
            configs: At least one; the writer copies them.

        Raises:
            ValueError: One is not valid: the text says which, and why.
        """
        self._native: Any = None  # from the first append on
        for number, config in enumerate(configs):
            problem = config_problem(config)
            if problem is None and config.priority.WhichOneof("priority_fn") is None:
                problem = "`priority` must say how priorities are found."
            if problem is not None:
                raise ValueError(f"Invalid configuration at position {number}: {problem}")
        self._configs = copy.deepcopy(list(configs))
        self._sources = source_leaves(self._configs)
        self._count: int | None = None  # leaves of a step
        self._columns: list[Column] = []
        self._flatten: Flatten | None = None
        self._open = False
        self._given: set[int] = set()  # columns that have a value in the open step
        self._appends = 0  # taken, whole steps and parts
        self._early = _sending.EAGER_ITEMS
        self._store, self._server_probe = client._store, client._server_probe  # noqa: SLF001, its other half

    def _begin(self) -> Any:  # noqa: ANN401, the engine's writer
        with translated():
            length = chunk_length(self._columns, history_length(self._configs))
            self._native = pattern_writer(self._store, self._configs, chunk_length=length)
        _sending.close_on_drop(self, self._native, "StructuredWriter", self._server_probe)
        return self._native

    @property
    def step_is_open(self) -> bool:
        """The last append was a partial one."""
        return self._open

    def append(self, data: Any, *, partial_step: bool = False) -> None:  # noqa: ANN401, a nest
        """Adds a step, or a part of one, and makes the items that are due.

        Args:
            data: A nest of arrays, numbers and text, `[...]` each, of as many leaves as those before; mappings, tuples
                and lists are nests, not arrays. Python's int is int64, float is float64. None: no value at this step;
                items that would need one are not made. Leaves that no config reads are not looked at.
            partial_step: The step goes on with the next append, which must set other leaves.

        Raises:
            ValueError: It has more or fewer leaves, one has another dtype or shape than before, a config reads a leaf
                that steps do not have, or its constant priority is NaN, or negative or infinite where it is a weight:
                nothing of it is kept. Or the `td_error` of an item cannot be found, or is no such priority: the step is
                kept, the item not made.
            TypeError: A leaf is nothing that a column can hold, or keys of a mapping cannot be sorted. Nothing of it is
                kept.
            RuntimeError: A leaf has a value in this step already, or there is no such table: nothing of it is kept. Or
                the server is gone.
        """
        row, firsts = self._row(self._leaves(data))
        if self._open:
            for number, value in enumerate(row):
                if value is not None and number in self._given:
                    raise RuntimeError(already_set_text(self._sources[number]))
        for column, array in firsts:
            column.set_type(array)
        native = self._begin() if self._native is None else self._native
        try:
            native.append(tuple(row), partial_step=partial_step)
        except BaseException:
            if self._is_taken():
                self._keep(row, partial=partial_step)
            else:
                for column, _ in firsts:
                    column.clear_type()
            with translated():
                raise
        self._keep(row, partial=partial_step)
        self._send(native)

    def _leaves(self, data: Any) -> list[Any]:  # noqa: ANN401, a nest
        leaves: list[Any] = []
        fits = self._flatten is not None and self._flatten(data, leaves)
        if fits and (LEAF_CLASSES.issuperset(map(type, leaves)) or all(map(is_leaf, leaves))):
            return leaves
        found = _nest.flatten_with_path(data)
        leaves = [leaf for _, leaf in found]
        if self._count is None:
            check_source_leaves(self._configs, len(leaves))
            self._count = len(leaves)
            labels = [f"{number} (path={path})" for number, (path, _) in enumerate(found)]
            self._columns = [Column(found[number][0], labels[number]) for number in self._sources]
        if len(leaves) != self._count:
            raise ValueError(f"Flattened data has an unexpected length, got {len(leaves)} but wanted {self._count}.")
        self._flatten = flattener(data)
        return leaves

    def _row(self, leaves: list[Any]) -> tuple[list[Any], list[tuple[Column, npt.NDArray[Any]]]]:
        """The leaves that are read, such as are stored; and those that are the first of their columns."""
        row, firsts = [], []
        for number, column in zip(self._sources, self._columns, strict=True):
            value = leaves[number]
            kind = type(value)
            known = kind in column.scalar_types or value is None
            if kind is np.ndarray:
                known = value.dtype == column.exact_dtype and value.shape == column.shape
            if not known:
                value = _nest.as_array(value)
                if column.dtype is None:
                    firsts.append((column, value))
                else:
                    checked(value, column)
            row.append(value)
        return row, firsts

    def _is_taken(self) -> bool:
        """The engine has what was appended last, though that raised an error."""
        try:
            return bool(self._native.appends > self._appends)
        except EngramError:  # another thread's or process's
            return False

    def _keep(self, row: Sequence[Any], *, partial: bool) -> None:
        """The step, or the part of one, is taken."""
        self._appends += 1
        self._open = partial
        if partial:
            self._given.update(number for number, value in enumerate(row) if value is not None)
        else:
            self._given.clear()

    def _send(self, native: Any) -> None:  # noqa: ANN401, the engine's writer
        """Sends what need not wait for more steps."""
        if self._early and native.unsent_items:
            self._early -= 1
            _sending.send(native)
        elif native.has_full_unsent_chunk:
            _sending.send(native)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and waits until at most so many are not in their tables.

        Args:
            block_until_num_items: How many may be left; where no more are, nothing is sent.
            timeout_ms: Milliseconds to wait; 0: not at all; None or less than 0: for ever.

        Raises:
            TypeError: `block_until_num_items` is no integer, or `timeout_ms` no number.
            ValueError: `block_until_num_items` is negative.
            DeadlineExceededError: They were not taken in time; they stay queued.
            RuntimeError: The server, or a table, is gone. Each such error is told once, by whichever call comes
                next.
        """
        _sending.flush(self._native, block_until_num_items, timeout_ms, _seconds(timeout_ms))

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:  # noqa: FBT001, FBT002, as Reverb has it
        """Ends the episode: applies what waits for its end, sends all items, and waits until their tables have them.

        A step that is open ends as it is.

        Args:
            clear_buffers: Items of the next episode never reach back into this one.
            timeout_ms: Milliseconds to wait; 0: not at all; None or less than 0: for ever.

        Raises:
            TypeError: `timeout_ms` is no number.
            ValueError: The `td_error` of an item that waited for the end cannot be found, or is NaN, or infinite where
                it is a weight: it is not made, and the episode has ended.
            MemoryError: The last steps could not be sealed: the episode goes on. Call again.
            DeadlineExceededError: They were not taken in time; they stay queued, and the episode has ended all the
                same.
            RuntimeError: The server, or a table, is gone; or another thread, or the process that it was forked from,
                has the writer: the episode goes on.
        """
        timeout = _seconds(timeout_ms)
        if self._native is None:
            return
        native, clear = self._native, bool(clear_buffers)

        def ended() -> None:
            self._open = False
            self._given.clear()

        _sending.end_episode(native, lambda seconds: native.end_episode(seconds, clear), ended, timeout_ms, timeout)


def _seconds(timeout_ms: float | None) -> float | None:
    """Seconds; None: for ever. Unlike other writers', 0 is no time at all."""
    if timeout_ms is None:
        return None
    milliseconds = _arguments.number("timeout_ms", timeout_ms)
    return milliseconds / 1_000 if milliseconds >= 0 else None
