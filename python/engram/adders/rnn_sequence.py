"""An adder of sequences for recurrent agents, with only the first recurrent state of each."""

from collections.abc import Mapping
from typing import Unpack

import numpy as np

from engram import Nest, _checks
from engram.adders.base import Adder
from engram.adders.item_writers import Priority, open_item_writer, padding_rows, same_schedules, select_all
from engram.adders.step import MaskedStep, Step, map_leaves, zeros_like
from engram.table_store import TableStore
from engram.writer_options import WriterOptions

__all__ = ["NonOverlappingRNNSequenceAdder"]

_CORE_STATE = "core_state"


class NonOverlappingRNNSequenceAdder(Adder):
    """Creates consecutive items with the recurrent state of their first row only. Items share no row by default.

    Items are `Step`s with leaves `[T, ...]`, where `T` is `sequence_length`. If `extras` is a mapping with a key
    `core_state`, the leaves under that key are `[1, ...]`: states of later rows are neither stored nor sent. The row
    after an episode's last transition has the final observation and zeros. An episode of `n` transitions creates
    `ceil((n + 1) / T)` items, or `floor((n + 1) / T)` without padding.

    With `overlap=True`, which is allowed despite the name of this class, consecutive items share one row: an item ends
    with the row with which the next item starts. Items are then `MaskedStep`s with leaves `[T + 1, ...]`. The first `T`
    rows are the item's transitions; at the end of an episode also the final observation and padding, with a mask of 0.
    Of the last row, use the observation only. Its mask is 1 if the next item starts with it: its transition belongs to
    that item. An episode creates `ceil(n / T)` items, or `floor(n / T)` without padding.

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
        **options: Unpack[WriterOptions],
    ) -> None:
        """Opens an adder.

        Args:
            client: The `engram.Store` or `engram.Client` that has the tables. They need not exist before the first row.
            sequence_length: Rows from the start of one item to the start of the next, `T`; 1 or more. Also the rows of
                an item, unless `overlap` adds one.
            priority_fns: Priority of the items by table: a number, a function from an item's data (a `Step` or, with
                `overlap`, a `MaskedStep` of NumPy arrays) to a number, or None for 1. Default: None, the table
                `DEFAULT_PRIORITY_TABLE` with priority 1.
            pad_end_of_episode: Complete the last item of an episode with rows of zeros. If False, its last rows may be
                in no item. Default: True.
            overlap: Add to each item the row with which the next item starts, and a mask. Default: False, no row is in
                two items.
            **options: Options of `engram.WriterOptions`.

        Raises:
            InvalidArgumentError: An argument has a type or value that is not allowed.
            TypeError: An option is unknown.
        """
        _checks.boolean("`pad_end_of_episode`", pad_end_of_episode)
        _checks.boolean("`overlap`", overlap)
        self._period = _checks.integer("`sequence_length`", sequence_length)
        self._schedules = same_schedules(priority_fns, self._period + overlap, self._period, _select_with_first_state)
        self._pad_end_of_episode = pad_end_of_episode
        self._overlap = overlap
        self._item_writer = open_item_writer(client, self._schedules, **options)
        super().__init__(self._item_writer, options.get("timeout"))

    def _add(self, row: Step) -> None:
        self._append(row, is_transition=True)

    def _append(self, row: Step, padding: int = 0, *, is_transition: bool) -> None:
        """Writes a row, with its recurrent state only if an item starts with it.

        `padding` as in `PatternItemWriter.append`; `is_transition` is the row's mask.
        """
        extras = row.extras
        if self._item_writer.num_rows % self._period and isinstance(extras, Mapping) and _CORE_STATE in extras:
            row = row._replace(extras={**extras, _CORE_STATE: map_leaves(lambda _: None, extras[_CORE_STATE])})
        mask = np.float32(is_transition)
        self._item_writer.append(MaskedStep(*row, mask=mask) if self._overlap else row, padding)

    def _end(self, row: Step) -> None:
        with self._ending(self._timeout):
            self._append(row, is_transition=False)
            if self._pad_end_of_episode:
                zeros = zeros_like(row)
                for padding in padding_rows(self._item_writer, self._schedules):
                    self._append(zeros, padding, is_transition=False)


def _select_with_first_state(row: Nest, length: int) -> Nest:
    """Selects the last `length` rows, but only the first of them for the recurrent state."""
    item = select_all(row, length)
    if not isinstance(row.extras, Mapping) or _CORE_STATE not in row.extras:
        return item
    first = slice(-length, 1 - length if length > 1 else None)
    state = map_leaves(lambda leaf: leaf[first], row.extras[_CORE_STATE])
    return item._replace(extras={**item.extras, _CORE_STATE: state})
