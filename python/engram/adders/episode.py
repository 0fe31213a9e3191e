"""An adder of whole episodes."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks
from engram._casts import cast, is_same_kind
from engram.adders.base import Adder
from engram.adders.item_writers import Priority, TrajectoryItemWriter, same_schedules
from engram.adders.step import Step, is_text, map_leaves, zeros_like
from engram.errors import InvalidArgumentError
from engram.table_store import TableStore
from engram.writer_options import WriterOptions

__all__ = ["EpisodeAdder", "PaddingFn"]

PaddingFn = Callable[[tuple[int, ...], npt.DTypeLike], npt.ArrayLike]
"""Returns the value of a leaf in rows of padding, given the leaf's shape and dtype."""


class EpisodeAdder(Adder):
    """Creates one item per episode: a `Step` with leaves `[T, ...]`, in the dtypes that were added.

    The last row has the final observation and zeros, so `n` transitions are `T = n + 1` rows. An abandoned episode
    creates no item.

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
        **options: Unpack[WriterOptions],
    ) -> None:
        """Opens an adder.

        Args:
            client: The `engram.Store` or `engram.Client` that has the tables. They need not exist before the first row.
            max_sequence_length: Maximum rows of an episode, 2 or more, including the row of the final observation.
                `add` raises an InvalidArgumentError for a transition that does not fit, and keeps nothing of it.
            priority_fns: Priority of the items by table: a number, a function from an item's data (a `Step` of NumPy
                arrays `[T, ...]`) to a number, or None for 1. Default: None, the table `DEFAULT_PRIORITY_TABLE` with
                priority 1.
            padding_fn: Returns the padding for a leaf of one row, given its shape `(...)` and dtype, for example
                `numpy.zeros`; episodes are padded to `max_sequence_length` rows. Text is padded with empty text. An
                error of the function is raised by the `add` that ends the episode, and no item is created. Default:
                None, items are as long as their episodes.
            **options: Options of `engram.WriterOptions`.

        Raises:
            InvalidArgumentError: An argument has a type or value that is not allowed.
            TypeError: An option is unknown.
        """
        _checks.instance_of("`client`", client, TableStore, "an engram.Store or an engram.Client")
        if padding_fn is not None and not callable(padding_fn):
            raise InvalidArgumentError(f"`padding_fn` must be a function of a shape and a dtype; got {padding_fn!r}")
        self._max_rows = _checks.integer("`max_sequence_length`", max_sequence_length, low=2)
        self._padding_fn = padding_fn
        self._schedules = same_schedules(priority_fns, self._max_rows, self._max_rows)
        self._item_writer = TrajectoryItemWriter(client, self._schedules, **options)
        super().__init__(self._item_writer, options.get("timeout"))

    def _add(self, row: Step) -> None:
        if self._item_writer.num_rows + 2 > self._max_rows:
            raise InvalidArgumentError(
                f"an episode must have at most {self._max_rows - 1} transitions: `max_sequence_length` is "
                f"{self._max_rows}, and the last row holds only the final observation; raise "
                "`max_sequence_length`, or call `reset` to abandon this episode"
            )
        self._item_writer.append(row)

    def _end(self, row: Step) -> None:
        with self._ending(self._timeout):
            self._item_writer.append(row)
            missing = self._max_rows - self._item_writer.num_rows
            if self._padding_fn is not None and missing:
                padding = map_leaves(self._padding, row)
                for _ in range(missing):
                    self._item_writer.append(padding)
            # With `max_sequence_length` rows, `append` has created the item.
            if self._item_writer.num_rows < self._max_rows:
                for schedule in self._schedules:
                    self._item_writer.create(schedule, self._item_writer.num_rows)

    def _padding(self, leaf: object) -> Nest:
        array = np.asarray(leaf)
        if is_text(array) or self._padding_fn is None:
            return zeros_like(array)
        padding = self._padding_fn(array.shape, array.dtype)
        _checks.not_masked("`padding_fn(...)`", padding)
        return _padding_of(np.asarray(padding), array.dtype)


def _padding_of(given: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns what `padding_fn` returned in the dtype of its leaf; values of another kind must be equal in it."""
    what = "`padding_fn` returned"
    if is_same_kind(given.dtype, dtype):
        return cast(given, dtype, what, InvalidArgumentError)
    padding, different = given, given.ravel()
    if given.dtype.kind in "biuf":
        with np.errstate(invalid="ignore"):
            padding = given.astype(dtype)
        different = given[padding != given]
    if different.size:
        raise InvalidArgumentError(
            f"{what} {different[0]}, which {dtype} cannot hold; it must return values of the dtype that it is given"
        )
    return padding
