"""FTW's datasets as NumPy's, PyTorch's and JAX's arrays."""

import importlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from engram._consumption import ConsumptionTracker
from engram.compat.ftw.datasets._options import DatasetOptions
from engram.compat.reverb import _nest
from engram.compat.reverb._block_reader import MismatchError
from engram.compat.reverb._dataset_common import ElementSource, read_table
from engram.compat.reverb._elements import Convert as Make
from engram.compat.reverb._elements import Elements
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.data.column_block import Array, ColumnBlock
from engram.errors import UnsatisfiableError
from engram.store import TableStore

__all__ = ["ArrayDataset", "array_converter"]

Convert = Callable[[list[Any]], list[Any]]
_IDLE_SLEEP = 0.002
"""Seconds between glances at several stores that all have nothing."""

_ROOM_CHECK_INTERVAL = 0.2
"""Seconds without anything after which it is asked whether items that are held are in the way."""

_INFO = len(SampleInfo._fields)


class ArrayDataset:
    """An iterable of batches; each iterator fetches ahead, and gives back what it has not used.

    Whole items of one store come in batches, others in blocks of as many items as a batch has elements. An item counts
    as used with its first element, once the batch is handed over. Only where an insert waits for the room of items
    whose batch is not full yet, these count as used before, from then on.
    """

    def __init__(self, options: DatasetOptions, stores: Sequence[TableStore], convert: Convert) -> None:
        """Describes the batches; nothing is fetched before iteration begins."""
        self._options = options
        self._is_whole = (
            options.whole_items and len(stores) == 1 and options.batch_size is not None and not options.allows_ragged
        )
        self._waits = options.deterministic or len(stores) == 1
        self._stores = stores
        self._convert = convert

    def __iter__(self) -> Generator[ReplaySample]:
        if self._is_whole:
            try:
                yield from self._read(is_whole=True)
            except UnsatisfiableError:  # the table never holds as many items as make a batch
                pass
            else:
                return
        yield from self._read(is_whole=False)

    def _read(self, *, is_whole: bool) -> Generator[ReplaySample]:
        options = self._options
        source = self._source(is_whole=is_whole)
        made = self._batches if is_whole else self._elements
        with ExitStack() as stack:
            readers = [_StoreReader(store, options.table, partial(made, store, source)) for store in self._stores]
            for reader in readers:
                stack.enter_context(closing(reader.found))
            elements = _interleaved(readers, waits=self._waits)
            while True:
                if options.batch_size is None or is_whole:
                    leaves: list[Any] = next(elements)
                else:
                    batch = [next(elements) for _ in range(options.batch_size)]
                    leaves = [_stacked(options, column) for column in zip(*batch, strict=True)]
                info, data = leaves[:_INFO], self._convert(leaves[_INFO:])
                sample = ReplaySample(SampleInfo(*info), _nest.unflatten_as(options.nest, data))
                for reader in readers:
                    reader.tracker.consumed = reader.tracker.consumed_at(
                        reader.tracker.num_pieces if is_whole else reader.given
                    )
                yield sample

    def _source(self, *, is_whole: bool) -> ElementSource:
        options = self._options
        fetch_options = replace(
            options.source.fetch_options,
            max_in_flight=options.source.fetch_options.max_in_flight
            + options.prefetch_size * (options.batch_size or 1),
            block_size=options.batch_size or options.source.fetch_options.max_in_flight // 2,
            exact_blocks=is_whole,
            poll_interval=options.source.fetch_options.poll_interval if self._waits else 0,
        )
        convert = options.source.convert
        return replace(options.source, fetch_options=fetch_options, convert=_even(convert) if is_whole else convert)

    def _blocks(self, store: TableStore, source: ElementSource, tracker: ConsumptionTracker) -> Any:  # noqa: ANN401, a generator
        return closing(read_table(store, self._options.table, source, _nest.flatten(self._options.nest), tracker))

    def _batches(
        self, store: TableStore, source: ElementSource, tracker: ConsumptionTracker
    ) -> Generator[list[Array] | None]:
        """Yields the leaves of one batch after the other; None now and then while there are none."""
        with self._blocks(store, source, tracker) as blocks:
            for block in blocks:
                yield None if block is None else [rows.values for rows in block]

    def _elements(
        self, store: TableStore, source: ElementSource, tracker: ConsumptionTracker
    ) -> Generator[list[Array] | None]:
        """Yields the leaves of one element after the other; None now and then while there are none."""
        with self._blocks(store, source, tracker) as blocks:
            for block in blocks:
                if block is None:
                    yield None
                else:
                    yield from _each(block)


def _each(block: Elements) -> Iterator[list[Array]]:
    first = block[0]
    count = len(first.values) if first.splits is None else len(first.splits) - 1
    for at in range(count):
        yield [values[at, ...] if splits is None else values[splits[at] : splits[at + 1]] for values, splits in block]


class _StoreReader:
    """One store's elements, and which of its items were used."""

    def __init__(
        self, store: TableStore, table: str, read: Callable[[ConsumptionTracker], Generator[list[Array] | None]]
    ) -> None:
        self._store = store
        self._table = table
        self.tracker = ConsumptionTracker()
        self.found = read(self.tracker)
        self.given = 0

    def next(self) -> list[Array] | None:
        """The next element; None if there is none yet."""
        found = next(self.found)
        self.given += found is not None
        return found

    def make_room(self) -> None:
        """Holds no items any more where somebody waits to insert, maybe for their room."""
        if self.tracker.is_holding:
            info = self._store.info().get(self._table)
            if info is not None and info.waiting_inserts > 0:
                self.tracker.stop_holding()


def _interleaved(readers: Sequence[_StoreReader], *, waits: bool) -> Iterator[list[Array]]:
    """One of each, again and again; one that has nothing is waited for, or passed over at once."""
    look = math.inf
    while True:
        is_dry = True
        for reader in readers:
            found = reader.next()
            while found is None and waits:
                for each in readers:
                    each.make_room()
                found = reader.next()
            if found is not None:
                is_dry = False
                look = math.inf
                yield found
        if is_dry:
            now = time.monotonic()
            look = min(look, now + _ROOM_CHECK_INTERVAL)
            if now >= look:
                look = now + _ROOM_CHECK_INTERVAL
                for each in readers:
                    each.make_room()
            time.sleep(_IDLE_SLEEP)


def _even(make: Make) -> Make:
    """As `make`, of items that all have as many steps."""

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        for splits in block.splits:
            lengths: list[int] = [] if splits is None else np.diff(splits).tolist()
            if len(set(lengths)) > 1:
                raise MismatchError(_differ(table, [f"{length} steps" for length in lengths]))
        return make(table, specs, block)

    return convert


def _stacked(options: DatasetOptions, column: Sequence[Array]) -> Any:  # noqa: ANN401, an array, or several
    """`[B, ...]`; a list where they differ in shape, and may do so.

    Raises:
        MismatchError: They may not.
    """
    if len({each.shape for each in column}) == 1:
        return np.stack(column)
    if not options.allows_ragged:
        raise MismatchError(_differ(options.table, [f"the shape {list(each.shape)}" for each in column]))
    return list(column)


def _differ(table: str, found: Sequence[str]) -> str:
    other = next(each for each in found if each != found[0])
    return f"elements of a batch must be alike; of table `{table}`, one has {found[0]} and another {other}"


def array_converter(framework: str) -> Convert:
    """Makes a framework's arrays of NumPy's; text stays as it is.

    Raises:
        ImportError: The framework is not installed.
    """
    if framework == "numpy":
        return lambda leaves: leaves
    try:
        module = importlib.import_module(framework)
    except ImportError as error:
        raise ImportError(f"a dataset of the framework `{framework}` needs it, and it is not installed") from error
    one = _torch(module) if framework == "torch" else module.device_put

    def convert(leaves: list[Any]) -> list[Any]:
        return [_converted(one, leaf) for leaf in leaves]

    return convert


def _converted(one: Callable[[Array], Any], leaf: Any) -> Any:  # noqa: ANN401, as `_stacked` makes it
    if isinstance(leaf, list):
        return [_converted(one, each) for each in leaf]
    return leaf if leaf.dtype == object else one(leaf)


def _torch(torch: Any) -> Callable[[Array], Any]:  # noqa: ANN401, a module
    def tensor(array: Array) -> Any:  # noqa: ANN401, a tensor
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(np.asarray(array))

    return tensor
