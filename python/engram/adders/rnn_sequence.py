"""Sequences for recurrent agents: only the first recurrent state is kept."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import ItemSchedule, Priority, all_columns, open_item_writer, pad, table_priorities
from engram.adders.step import MaskedStep, Step, map_leaves, zeros_like
from engram.store import TableStore
from engram.writer import Compression

__all__ = ["NonOverlappingRNNSequenceAdder"]

_CORE_STATE = "core_state"


class NonOverlappingRNNSequenceAdder(Adder):
    """Makes items of `sequence_length` rows that follow each other, with the recurrent state of their first row alone.

    Items are `Step`s whose leaves are `[T, ...]`. Where `extras` is a mapping with `core_state`, the leaves of that are
    `[1, ...]`: states in between are neither stored nor sent. The row after an episode's last transition has its final
    observation and zeros. An episode of `n` transitions makes `ceil((n + 1) / T)` items, `floor((n + 1) / T)` without
    padding.

    With `overlap`, items are `MaskedStep`s of `T` transitions and one row more, `[T + 1, ...]`, whose observation the
    next item begins with: every transition can be learnt from, `ceil(n / T)` items have them all.

        adder = NonOverlappingRNNSequenceAdder(store, 20, priority_fns={"replay": None})
        adder.add_first(timestep)
        adder.add(action, next_timestep, {"core_state": state})
    """

    def __init__(
        self,
        client: TableStore,
        sequence_length: int,
        *,
        priority_fns: Mapping[str, Priority | None] | None = None,
        pad_end_of_episode: bool = True,
        overlap: bool = False,
        chunk_length: int | None = None,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> None:
        """Opens a writer.

        Args:
            client: An `engram.Store` or `engram.Client`: where the tables are. They are looked for when rows come.
            sequence_length: `T`, 1 or more.
            priority_fns: The tables, each with its items' priority: a number, a function from an item's data (a `Step`,
                or `MaskedStep`, of NumPy arrays `[T, ...]`) to a number, or None for 1. None: one table,
                `DEFAULT_PRIORITY_TABLE`.
            pad_end_of_episode: True: rows of zeros complete the last item of an episode; False: its last rows may be in
                no item.
            overlap: True: items have a row more, which is also the first of the next, and a mask. Default False.
            chunk_length: Rows per chunk. None: 1 to 16, about 16 KiB, as of `Store.writer`.
            timeout: Seconds that `add` and `reset` wait for tables; None: for ever, 0: not at all.
            compression: `"auto"`, `"off"`, or `"delta"` for integers that change little from step to step: as of
                `Store.writer`.

        Raises:
            InvalidArgumentError: An argument is not what is said here.
        """
        _checks.boolean("`pad_end_of_episode`", pad_end_of_episode)
        _checks.boolean("`overlap`", overlap)
        self._period = _checks.integer("`sequence_length`", sequence_length)
        self._plans = [
            ItemSchedule(
                table=table,
                length=self._period + overlap,
                period=self._period,
                priority=priority,
                take=_with_first_state,
            )
            for table, priority in table_priorities(priority_fns).items()
        ]
        self._pads = pad_end_of_episode
        self._overlap = overlap
        self._rows = open_item_writer(
            client, self._plans, chunk_length=chunk_length, timeout=timeout, compression=compression
        )
        super().__init__(self._rows, timeout)

    def _add(self, row: Step) -> None:
        self._append(row, is_transition=True)

    def _append(self, row: Step, padding: int = 0, *, is_transition: bool) -> None:
        extras = row.extras
        if self._rows.count % self._period and isinstance(extras, Mapping) and _CORE_STATE in extras:
            row = row._replace(extras={**extras, _CORE_STATE: map_leaves(lambda _: None, extras[_CORE_STATE])})
        mask = np.float32(is_transition)
        self._rows.append(MaskedStep(*row, mask=mask) if self._overlap else row, padding)

    def _end(self, row: Step) -> None:
        with self._ending(self._timeout):
            self._append(row, is_transition=False)
            if self._pads:
                zeros = zeros_like(row)
                pad(self._rows, self._plans, lambda padding: self._append(zeros, padding, is_transition=False))


def _with_first_state(row: Any, length: int) -> Any:  # noqa: ANN401, nests
    item = all_columns(row, length)
    if not isinstance(row.extras, Mapping) or _CORE_STATE not in row.extras:
        return item
    first = slice(-length, 1 - length if length > 1 else None)
    state = map_leaves(lambda leaf: leaf[first], row.extras[_CORE_STATE])
    return item._replace(extras={**item.extras, _CORE_STATE: state})
