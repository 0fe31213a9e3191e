"""An adder of sequences of several lengths for several tables, with filters."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import ItemSchedule, Priority, open_item_writer, padding_rows, table_priorities
from engram.adders.step import Step, zeros_like
from engram.errors import InvalidArgumentError
from engram.table_store import TableStore
from engram.writer_options import WriterOptions

__all__ = ["MultiSequenceAdder"]


class MultiSequenceAdder(Adder):
    """Creates items for several tables from the same rows, with a length and a period for each table.

    Items are `Step`s with leaves `[T, ...]`, with the `T` of their table, in the dtypes that were added. Each table
    gets the items that a `SequenceAdder` for it alone would create: its last item of an episode is padded, but an item
    whose new rows would all be padding is not created.

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
        **options: Unpack[WriterOptions],
    ) -> None:
        """Opens an adder.

        Args:
            client: The `engram.Store` or `engram.Client` that has the tables. They need not exist before the first row.
            sequence_lengths: Rows of an item, `T`, by table; 1 or more.
            periods: Rows from the start of one item to the start of the next, by table; 1 or more.
            priority_fns: Priority of the items by table: a number, a function from an item's data (a `Step` of NumPy
                arrays `[T, ...]`) to a number, or None for 1. Default: None, 1 for all tables.
            should_insert_fns: By table, a function of an item's rows, a list of `T` `Step`s without a time axis; the
                item is created if it returns True. Default: None, all items are created.
            pad_end_of_episode: Complete the last items of an episode with rows of zeros. If False, its last rows may be
                in no item. Default: True.
            final_row: Write the row after an episode's last transition, with the final observation and zeros. If False,
                the final observation is not stored, and all rows except padding have an observed reward. Default: True.
            **options: Options of `engram.WriterOptions`.

        Raises:
            InvalidArgumentError: The mappings do not have the same tables, or an argument has a type or value that is
                not allowed.
            TypeError: An option is unknown.
        """
        mappings: dict[str, Mapping[str, Any]] = {"sequence_lengths": sequence_lengths, "periods": periods}
        optional = {"priority_fns": priority_fns, "should_insert_fns": should_insert_fns}
        mappings |= {name: mapping for name, mapping in optional.items() if mapping is not None}
        for name, mapping in mappings.items():
            if not isinstance(mapping, Mapping):
                raise InvalidArgumentError(f"`{name}` must be a mapping by table name; got {mapping!r}")
        if not sequence_lengths:
            raise InvalidArgumentError("`sequence_lengths` must have at least one table; got {}")
        for name, mapping in mappings.items():
            if set(mapping) != set(sequence_lengths):
                raise InvalidArgumentError(
                    f"`{name}` must have the same tables as `sequence_lengths`, {sorted(sequence_lengths)}; "
                    f"got {sorted(mapping)}"
                )
        for table, should_insert in (should_insert_fns or {}).items():
            if not callable(should_insert):
                raise InvalidArgumentError(
                    f"`should_insert_fns` must have a function for table `{table}`; got {should_insert!r}"
                )
        priorities = table_priorities(priority_fns if priority_fns is not None else dict.fromkeys(sequence_lengths))
        self._schedules = [
            ItemSchedule(
                table=table,
                length=_checks.integer(f"the sequence length of table `{table}`", sequence_lengths[table]),
                period=_checks.integer(f"the period of table `{table}`", periods[table]),
                priority=priority,
                should_insert=None if should_insert_fns is None else should_insert_fns[table],
            )
            for table, priority in priorities.items()
        ]
        _checks.boolean("`pad_end_of_episode`", pad_end_of_episode)
        _checks.boolean("`final_row`", final_row)
        self._pad_end_of_episode = pad_end_of_episode
        self._has_final_row = final_row
        self._item_writer = open_item_writer(client, self._schedules, **options)
        super().__init__(self._item_writer, options.get("timeout"))

    def _add(self, row: Step) -> None:
        self._item_writer.append(row)

    def _end(self, row: Step) -> None:
        with self._ending(self._timeout):
            if self._has_final_row:
                self._item_writer.append(row)
            if self._pad_end_of_episode:
                zeros = zeros_like(row)
                for padding in padding_rows(self._item_writer, self._schedules):
                    self._item_writer.append(zeros, padding)
