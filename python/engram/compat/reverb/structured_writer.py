"""The structured writer: the caller appends steps, and patterns declared beforehand create the items."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

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
from engram.compat.reverb._configs import Config, check_configs
from engram.compat.reverb._errors import translated
from engram.compat.reverb._flatteners import LEAF_CLASSES, Flatten, flattener
from engram.compat.reverb._nest import is_leaf
from engram.compat.reverb._pattern_writer import check_source_leaves, history_length, pattern_writer, source_leaves
from engram.compat.reverb._sending import NativeWriter
from engram.compat.reverb._signature_inference import infer_signature, unpack_pattern
from engram.compat.reverb._steps import Column, NewTypes, checked, chunk_length
from engram.compat.reverb._turns import new_lock
from engram.errors import EngramError
from engram.nests import Nest

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
    """Writes steps, from which configs create items. Created by `Client.structured_writer`.

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

    Items are sent once the chunk with their last step is full, on `flush` and on `end_episode`; the items of the first
    ten appends that create any are sent immediately. Several threads can use a writer: their calls wait for each other.

    When the writer is garbage-collected or the process exits, pending items are sent, and the writer waits up to a
    minute until they are in their tables, or a few seconds if the server is gone. Ctrl-C ends the wait. A `UserWarning`
    states how many items were lost.
    """

    def __init__(self, client: "Client", configs: Sequence[Config]) -> None:
        """Creates a writer; called by `Client.structured_writer`.

        Args:
            client: Client of the server.
            configs: At least one config. The writer copies them.

        Raises:
            ValueError: A config is invalid. The message states its position, from 0, and why.
        """
        self._native: Any = None  # opened by the first append
        self._lock = new_lock()
        check_configs(configs, with_priority=True)
        self._configs = copy.deepcopy(list(configs))
        self._source_leaves = source_leaves(self._configs)
        self._num_leaves: int | None = None  # of a step
        self._columns: list[Column] = []
        self._flatten: Flatten | None = None
        self._step_is_open = False
        self._columns_set: set[int] = set()  # columns with a value in the open step
        self._appends = 0  # number of stored steps and parts of steps
        self._eager_items = _sending.EAGER_ITEMS  # number of further appends whose items are sent immediately
        self._store, self._server_probe = client._store, client._server_probe  # noqa: SLF001, same package

    def _open_native(self) -> NativeWriter:
        """Opens the engine's writer at the first append: the default chunk length depends on the size of a step."""
        with translated():
            length = chunk_length(self._columns, history_length(self._configs))
            self._native = pattern_writer(self._store, self._configs, chunk_length=length)
        tables = {config.table for config in self._configs}
        _sending.close_on_drop(self, self._native, "StructuredWriter", tables, self._server_probe)
        return self._native

    @property
    def step_is_open(self) -> bool:
        """True if the newest step is partial, so that the next append continues it."""
        return self._step_is_open

    def append(self, data: Nest, *, partial_step: bool = False) -> None:
        """Adds a step, or a part of one, and creates the items whose conditions are met.

        Args:
            data: A nest of arrays, numbers and text, `[...]` each, with as many leaves as earlier steps. Mappings,
                tuples and lists are nests, not arrays. A Python int becomes int64, a float float64. None means no value
                in this step; items that need the value are not created. Leaves that no config reads are ignored.
            partial_step: If True, the next append continues this step and must set other leaves. Default: False.

        Raises:
            ValueError: The number of leaves differs from earlier steps; a leaf differs in dtype or shape; a config
                reads a leaf that steps do not have; or a config's constant priority is NaN, or it is negative or
                infinite and the table's selector is prioritized. Nothing is stored in these cases. Or the `td_error` of
                an item cannot be computed, or is not a valid priority: the step is stored, the item is not created.
            TypeError: A leaf is not a value that a column can store, or the keys of a mapping cannot be sorted. Nothing
                is stored.
            RuntimeError: A leaf already has a value in this step, or the table does not exist: nothing is stored. Or
                the server is gone.
        """
        with self._lock:
            row, first_values = self._row(self._leaves(data))
            if self._step_is_open:
                for number, value in enumerate(row):
                    if value is not None and number in self._columns_set:
                        leaf = self._source_leaves[number]
                        raise RuntimeError(
                            f"A value for column {leaf} was provided by multiple append calls in the same step."
                        )
            for column, array in first_values:
                column.set_type(array)
            native = self._open_native() if self._native is None else self._native
            try:
                native.append(tuple(row), partial_step=partial_step)
            except BaseException:
                if self._append_took_effect():
                    self._advance(row, partial=partial_step)
                else:
                    for column, _ in first_values:
                        column.clear_type()
                with translated():
                    raise
            self._advance(row, partial=partial_step)
            self._send_ready_items(native)

    def _leaves(self, data: Nest) -> list[Any]:
        """Returns the leaves of a step. The first step creates the columns."""
        leaves: list[Any] = []
        fits = self._flatten is not None and self._flatten(data, leaves)
        if fits and (LEAF_CLASSES.issuperset(map(type, leaves)) or all(map(is_leaf, leaves))):
            return leaves
        paths_and_leaves = _nest.flatten_with_path(data)
        leaves = [leaf for _, leaf in paths_and_leaves]
        if self._num_leaves is None:
            check_source_leaves(self._configs, len(leaves))
            self._num_leaves = len(leaves)
            paths = [path for path, _ in paths_and_leaves]
            self._columns = [Column(paths[leaf], _label(leaf, paths[leaf])) for leaf in self._source_leaves]
        if len(leaves) != self._num_leaves:
            raise ValueError(
                f"Flattened data has an unexpected length, got {len(leaves)} but wanted {self._num_leaves}."
            )
        self._flatten = flattener(data)
        return leaves

    def _row(self, leaves: list[Any]) -> tuple[list[Any], NewTypes]:
        """Returns the leaves that configs read, converted for the engine, and the first values among them."""
        row: list[Any] = []
        first_values: NewTypes = []
        # Not `convert_in_place`, which takes a list of these leaves: an append would take 8 % longer.
        for number, column in zip(self._source_leaves, self._columns, strict=True):
            value = leaves[number]
            kind = type(value)
            fits = kind in column.scalar_types or value is None
            if kind is np.ndarray:
                fits = value.dtype == column.exact_dtype and value.shape == column.shape
            if not fits:
                value = checked(_nest.as_array(value), column)
                if column.dtype is None:
                    first_values.append((column, value))
            row.append(value)
        return row, first_values

    def _append_took_effect(self) -> bool:
        """True if the engine stored the last append although it raised an error."""
        try:
            return bool(self._native.appends > self._appends)
        except EngramError:  # another process owns the writer
            return False

    def _advance(self, row: Sequence[Any], *, partial: bool) -> None:
        """Updates the state after the engine stored a step, or a part of one."""
        self._appends += 1
        self._step_is_open = partial
        if partial:
            self._columns_set.update(number for number, value in enumerate(row) if value is not None)
        else:
            self._columns_set.clear()

    def _send_ready_items(self, native: NativeWriter) -> None:
        """Sends items that need not wait for more steps."""
        if self._eager_items and native.unsent_items:
            self._eager_items -= 1
            _sending.send(native)
        elif native.has_full_unsent_chunk:
            _sending.send(native)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and waits until at most `block_until_num_items` of them are not yet in their tables.

        Args:
            block_until_num_items: Number of items that may still be pending. If it is above 0 and at most that many
                are pending already, `flush` returns at once and sends nothing. Default: 0.
            timeout_ms: Milliseconds to wait. 0 means not at all; None or less than 0 means no limit. Default: no limit.

        Raises:
            TypeError: `block_until_num_items` is not an integer, or `timeout_ms` is not a number.
            ValueError: `block_until_num_items` is negative.
            DeadlineExceededError: The tables did not accept the items in time. The items stay queued.
            RuntimeError: The server or a table is gone. Each such failure is raised once, by the next call.
        """
        timeout = _sending.timeout_seconds(timeout_ms, zero_means_no_limit=False)
        _sending.flush(self._lock, self._native, block_until_num_items, timeout_ms, timeout)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:  # noqa: FBT001, FBT002, as in Reverb
        """Ends the episode: creates items with `is_end_episode`, sends all items, and waits for their tables.

        A partial step ends as it is.

        Args:
            clear_buffers: If True, items of the next episode cannot include steps of this one. Default: True.
            timeout_ms: Milliseconds to wait. 0 means not at all; None or less than 0 means no limit. Default: no limit.

        Raises:
            TypeError: `clear_buffers` is not a bool, or `timeout_ms` is not a number.
            ValueError: The `td_error` of an item that is created at the end cannot be computed, or is NaN, or infinite
                and the table's selector is prioritized. The item is not created, and the episode has ended.
            MemoryError: There is not enough memory to complete the last chunk. The episode continues; call again.
            DeadlineExceededError: The tables did not accept the items in time. The items stay queued, and the episode
                has ended.
            RuntimeError: The server or a table is gone. Or the writer belongs to the process that this one was forked
                from; then the episode continues.
        """
        _arguments.boolean("clear_buffers", clear_buffers)
        timeout = _sending.timeout_seconds(timeout_ms, zero_means_no_limit=False)

        def on_ended() -> None:
            self._step_is_open = False
            self._columns_set.clear()

        _sending.end_episode(
            self._lock, self._native, on_ended, clear_buffers=clear_buffers, timeout_ms=timeout_ms, timeout=timeout
        )


def _label(leaf: int, path: tuple[Any, ...]) -> str:
    """The name of a column in error texts: its leaf's number, and the path unless each step is a single leaf."""
    return f"{leaf} (path={path})" if path else str(leaf)
