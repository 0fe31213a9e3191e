"""Sequences of several lengths for several tables, and only those that are wanted."""

from collections.abc import Callable, Mapping
from typing import Any

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import ItemSchedule, Priority, open_item_writer, pad, table_priorities
from engram.adders.step import Step, zeros_like
from engram.errors import InvalidArgumentError
from engram.store import TableStore
from engram.writer import Compression

__all__ = ["MultiSequenceAdder"]


class MultiSequenceAdder(Adder):
    """Makes items for several tables out of the same rows, each with a length and a period of its own.

    Items are `Step`s whose leaves are `[T, ...]`, with the `T` of their table, in the dtypes that were added. Every
    table gets what a `SequenceAdder` of its own would write: padding goes to its own next boundary, and no item is made
    whose rows, those aside that it shares with the one before, are only padding.

        adder = MultiSequenceAdder(store, {"short": 5, "long": 50}, {"short": 5, "long": 25})
    """

    def __init__(
        self,
        client: TableStore,
        sequence_lengths: Mapping[str, int],
        periods: Mapping[str, int],
        *,
        priority_fns: Mapping[str, Priority | None] | None = None,
        should_insert_fns: Mapping[str, Callable[[list[Step]], bool]] | None = None,
        pad_end_of_episode: bool = True,
        final_row: bool = True,
        chunk_length: int | None = None,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> None:
        """Opens a writer.

        Args:
            client: An `engram.Store` or `engram.Client`: where the tables are. They are looked for when rows come.
            sequence_lengths: Rows of an item, `T`, by table: 1 or more.
            periods: Rows from the beginning of one item to that of the next, by table: 1 or more.
            priority_fns: By table: its items' priority, a number, a function from an item's data (a `Step` of NumPy
                arrays `[T, ...]`) to one, or None for 1. None: 1 for all.
            should_insert_fns: By table: a function of an item's `T` rows, a list of `Step`s without a time axis, that
                says whether to make it. None: all are made.
            pad_end_of_episode: True: rows of zeros complete the last items of an episode; False: its last rows may be
                in no item.
            final_row: True: write the row after an episode's last transition: its final observation, and zeros. Without
                it, a reward of 0 in a sequence is one that was observed, unless it is padded.
            chunk_length: Rows per chunk. None: 1 to 16, about 16 KiB, as of `Store.writer`.
            timeout: Seconds that `add` and `reset` wait for tables; None: for ever, 0: not at all.
            compression: `"auto"`, `"off"`, or `"delta"` for integers that change little from step to step: as of
                `Store.writer`.

        Raises:
            InvalidArgumentError: The mappings are not of the same tables, or an argument is not what is said here.
        """
        mappings: dict[str, Mapping[str, Any]] = {"sequence_lengths": sequence_lengths, "periods": periods}
        optional = {"priority_fns": priority_fns, "should_insert_fns": should_insert_fns}
        mappings |= {name: mapping for name, mapping in optional.items() if mapping is not None}
        for name, mapping in mappings.items():
            if not isinstance(mapping, Mapping):
                raise InvalidArgumentError(f"`{name}` must be a mapping, by table; got {mapping!r}")
        if not sequence_lengths:
            raise InvalidArgumentError("`sequence_lengths` must name a table at least; got none")
        for name, mapping in mappings.items():
            if set(mapping) != set(sequence_lengths):
                raise InvalidArgumentError(
                    f"`{name}` must be of the same tables as `sequence_lengths`, {sorted(sequence_lengths)}; "
                    f"got {sorted(mapping)}"
                )
        for table, wanted in (should_insert_fns or {}).items():
            if not callable(wanted):
                raise InvalidArgumentError(f"what to insert into `{table}` must be said by a function; got {wanted!r}")
        priorities = table_priorities(priority_fns if priority_fns is not None else dict.fromkeys(sequence_lengths))
        self._plans = [
            ItemSchedule(
                table=table,
                length=_checks.integer(f"the sequence length for `{table}`", sequence_lengths[table]),
                period=_checks.integer(f"the period for `{table}`", periods[table]),
                priority=priority,
                keep=None if should_insert_fns is None else should_insert_fns[table],
            )
            for table, priority in priorities.items()
        ]
        _checks.boolean("`pad_end_of_episode`", pad_end_of_episode)
        _checks.boolean("`final_row`", final_row)
        self._pads = pad_end_of_episode
        self._has_final_row = final_row
        self._rows = open_item_writer(
            client, self._plans, chunk_length=chunk_length, timeout=timeout, compression=compression
        )
        super().__init__(self._rows, timeout)

    def _add(self, row: Step) -> None:
        self._rows.append(row)

    def _end(self, row: Step) -> None:
        with self._ending(self._timeout):
            if self._has_final_row:
                self._rows.append(row)
            if self._pads:
                zeros = zeros_like(row)
                pad(self._rows, self._plans, lambda padding: self._rows.append(zeros, padding))
