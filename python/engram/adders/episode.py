"""Whole episodes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import ItemSchedule, Priority, TrajectoryItemWriter, table_priorities
from engram.adders.step import Step, is_text, map_leaves, zeros_like
from engram.errors import InvalidArgumentError
from engram.store import TableStore
from engram.writer import Compression

__all__ = ["EpisodeAdder", "PaddingFn"]

PaddingFn = Callable[[tuple[int, ...], npt.DTypeLike], npt.ArrayLike]
"""From shape and dtype of a leaf to what a row of padding has there."""


class EpisodeAdder(Adder):
    """Makes one item of each episode: a `Step` whose leaves are `[T, ...]`, in the dtypes that were added.

    Its last row has the final observation and zeros: `n` transitions are `T = n + 1` rows. An episode that is given up
    makes none.

        with EpisodeAdder(store, 1_000, priority_fns={"replay": None}) as adder:
            adder.add_first(timestep)
            while not timestep.last():
                action = agent(timestep)
                timestep = environment.step(action)
                adder.add(action, timestep)
    """

    def __init__(
        self,
        client: TableStore,
        max_sequence_length: int,
        *,
        priority_fns: Mapping[str, Priority | None] | None = None,
        padding_fn: PaddingFn | None = None,
        chunk_length: int | None = None,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> None:
        """Opens a writer.

        Args:
            client: An `engram.Store` or `engram.Client`: where the tables are. They are looked for when rows come.
            max_sequence_length: Most rows of an episode, the last one included: 2 or more. The `add` of a transition
                that would not fit is an InvalidArgumentError, and keeps nothing.
            priority_fns: The tables, each with its items' priority: a number, a function from an item's data (a `Step`
                of NumPy arrays `[T, ...]`) to a number, or None for 1. None: one table, `DEFAULT_PRIORITY_TABLE`.
            padding_fn: From shape `(...)` and dtype of a leaf of one row to an array like it, such as `numpy.zeros`: it
                fills shorter episodes up to `max_sequence_length` rows; text is filled with empty text. An error of its
                is raised by the `add` that ends the episode, whose item is not made. None: items are as long as their
                episodes.
            chunk_length: Rows per chunk. None: 1 to 16, about 16 KiB, as of `Store.writer`.
            timeout: Seconds that `add` and `reset` wait for tables; None: for ever, 0: not at all.
            compression: `"auto"`, `"off"`, or `"delta"` for integers that change little from step to step: as of
                `Store.writer`.

        Raises:
            InvalidArgumentError: An argument is not what is said here.
        """
        _checks.instance_of("`client`", client, TableStore, "an engram.Store or an engram.Client")
        _checks.seconds("`timeout`", timeout)
        if padding_fn is not None and not callable(padding_fn):
            raise InvalidArgumentError(f"`padding_fn` must be a function of a shape and a dtype; got {padding_fn!r}")
        self._most = _checks.integer("`max_sequence_length`", max_sequence_length, low=2)
        self._padding_fn = padding_fn
        self._plans = [
            ItemSchedule(table=table, length=self._most, period=self._most, priority=priority)
            for table, priority in table_priorities(priority_fns).items()
        ]
        self._rows = TrajectoryItemWriter(
            client, self._plans, chunk_length=chunk_length, timeout=timeout, compression=compression
        )
        super().__init__(self._rows, timeout)

    def _add(self, row: Step) -> None:
        if self._rows.count + 2 > self._most:
            raise InvalidArgumentError(
                f"an episode has more than {self._most - 1} transitions; with its final row it must fit into "
                f"`max_sequence_length`, which is {self._most}: `reset` gives it up"
            )
        self._rows.append(row)

    def _end(self, row: Step) -> None:
        with self._ending(self._timeout):
            self._rows.append(row)
            missing = self._most - self._rows.count
            if self._padding_fn is not None and missing:
                filler = map_leaves(self._filler, row)
                for _ in range(missing):
                    self._rows.append(filler)
            if self._rows.count < self._most:
                for plan in self._plans:
                    self._rows.create(plan, self._rows.count)

    def _filler(self, leaf: object) -> Any:  # noqa: ANN401, an array
        array = np.asarray(leaf)
        if is_text(array) or self._padding_fn is None:
            return zeros_like(array)
        return np.asarray(self._padding_fn(array.shape, array.dtype), dtype=array.dtype)
