"""Whole episodes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engram import _checks
from engram.adders.base import Adder
from engram.adders.plans import LookingItems, Plan, Priority, tables_of
from engram.adders.step import Step, each_leaf, is_text, zeros_like
from engram.errors import InvalidArgumentError
from engram.store import AnyStore
from engram.writer import Compression

__all__ = ["EpisodeAdder"]

PaddingFn = Callable[[tuple[int, ...], npt.DTypeLike], npt.ArrayLike]
"""From shape and dtype of a leaf to what a row of padding has there."""


class EpisodeAdder(Adder):
    """Makes one item of each episode: a `Step` whose leaves are `[T, ...]`.

    Its last row has the final observation and zeros: `n` transitions are `n + 1` rows.
    """

    def __init__(
        self,
        client: AnyStore,
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
            client: Where the tables are.
            max_sequence_length: Most rows of an episode, the last one included.
            priority_fns: The tables, each with a priority, a function of the item's data, or None for 1. None: one
                table, `DEFAULT_PRIORITY_TABLE`.
            padding_fn: From shape and dtype of a leaf to what fills shorter episodes up to `max_sequence_length` rows,
                such as `numpy.zeros`; text is filled with empty text. None: items are as long as their episodes.
            chunk_length: Rows per chunk, as of `Store.writer`.
            timeout: Seconds that `add` waits for tables; None: for ever.
            compression: As of `Store.writer`; `"delta"` for integers that change little from step to step.
        """
        _checks.one_of("`client`", client, AnyStore, "an engram.Store or an engram.Client")
        _checks.seconds("`timeout`", timeout)
        if padding_fn is not None and not callable(padding_fn):
            raise InvalidArgumentError(f"`padding_fn` must be a function of a shape and a dtype; got {padding_fn!r}")
        self._most = _checks.integer("`max_sequence_length`", max_sequence_length, low=2)
        self._padding_fn = padding_fn
        self._plans = [
            Plan(table=table, length=self._most, period=self._most, priority=priority)
            for table, priority in tables_of(priority_fns).items()
        ]
        self._rows = LookingItems(
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
            if self._padding_fn is not None:
                filler = each_leaf(self._filler, row)
                for _ in range(self._most - self._rows.count):
                    self._rows.append(filler)
            if self._rows.count < self._most:
                for plan in self._plans:
                    self._rows.create(plan, self._rows.count)

    def _filler(self, leaf: object) -> Any:  # noqa: ANN401, an array
        array = np.asarray(leaf)
        if is_text(array) or self._padding_fn is None:
            return zeros_like(array)
        return np.asarray(self._padding_fn(array.shape, array.dtype), dtype=array.dtype)
