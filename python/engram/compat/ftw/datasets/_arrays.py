"""FTW's datasets as iterables of NumPy, PyTorch or JAX arrays."""

import importlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np

from engram._extras import importing_extra
from engram.compat.ftw.datasets._options import DatasetOptions
from engram.compat.reverb import _nest
from engram.compat.reverb._block_reader import MismatchError
from engram.compat.reverb._dataset_common import ElementSource, read_table
from engram.compat.reverb._elements import Convert, Elements, split_elements
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.consumption import ConsumptionTracker
from engram.data.column_block import Array, ColumnBlock
from engram.dataset import has_waiting_insert
from engram.errors import UnsatisfiableError
from engram.table_store import TableStore

__all__ = ["ArrayDataset", "array_converter"]

ConvertLeaves = Callable[[list[Any]], list[Any]]
"""Converts the leaves of a batch or an element from NumPy arrays to arrays of a framework."""

_IDLE_SLEEP = 0.002
"""Seconds between two polls of several stores while none has an element."""

_ROOM_CHECK_INTERVAL = 0.2
"""Seconds without an element between two checks whether held items block inserts."""

_NUM_INFO_FIELDS = len(SampleInfo._fields)


class ArrayDataset:
    """An endless iterable of batches. Each iterator fetches items ahead; closing it returns unconsumed ones.

    If batches consist of whole items of a single store, which must be equal in shape, items are fetched as batches.
    Otherwise they are fetched in blocks of up to the batch size (without a batch size: half of `max_in_flight`), or one
    by one if the table has `max_times_sampled` or if items cannot be combined into a block.

    An item is consumed once a batch with its first element is yielded. This changes when an insert waits for the space
    of items that are held for an incomplete batch: from then on, each request for more items counts all fetched items
    as consumed, even if their batch is not yielded yet. The same happens once, at a request, when items have been held
    for `engram.consumption.MAX_HOLD`.
    """

    def __init__(self, options: DatasetOptions, stores: Sequence[TableStore], convert: ConvertLeaves) -> None:
        """Creates the iterable. Nothing is fetched before iteration begins."""
        self._options = options
        self._whole_batches = (
            options.whole_items and len(stores) == 1 and options.batch_size is not None and not options.allows_ragged
        )
        self._strict_order = options.deterministic or len(stores) == 1
        self._stores = stores
        self._convert = convert

    def __iter__(self) -> Generator[ReplaySample]:
        if self._whole_batches:
            try:
                yield from self._read(whole_batches=True)
            except UnsatisfiableError:  # the table can never have a whole batch of items
                pass
            else:
                return
        yield from self._read(whole_batches=False)

    def _read(self, *, whole_batches: bool) -> Generator[ReplaySample]:
        options = self._options
        source = self._source(whole_batches=whole_batches)
        with ExitStack() as stack:
            readers = [_StoreReader(store, options, source, whole_batches=whole_batches) for store in self._stores]
            for reader in readers:
                stack.enter_context(closing(reader.elements))
            elements = _interleaved(readers, strict_order=self._strict_order)
            while True:
                if options.batch_size is None or whole_batches:
                    leaves: list[Any] = next(elements)
                else:
                    batch = [next(elements) for _ in range(options.batch_size)]
                    leaves = [_stacked(options, column) for column in zip(*batch, strict=True)]
                info, data = leaves[:_NUM_INFO_FIELDS], self._convert(leaves[_NUM_INFO_FIELDS:])
                sample = ReplaySample(SampleInfo(*info), _nest.unflatten_as(options.nest, data))
                # A piece is an element: a reader yields single ones, or a whole batch of them at once.
                consumed_items = [
                    reader.tracker.count_pieces_up_to(
                        reader.tracker.num_pieces if whole_batches else reader.num_elements
                    )
                    for reader in readers
                ]
                last = readers[-1].tracker
                for reader, items in zip(readers[:-1], consumed_items[:-1], strict=True):
                    reader.tracker.delivered = items
                items = consumed_items[-1]
                # Ctrl-C can interrupt any call, so there is none between this assignment and the `yield`. With several
                # stores, it can still interrupt this function after the items of only some of them were delivered.
                last.delivered = items
                yield sample

    def _source(self, *, whole_batches: bool) -> ElementSource:
        options = self._options
        fetch_options = replace(
            options.source.fetch_options,
            max_in_flight=options.source.fetch_options.max_in_flight
            + options.prefetch_size * (options.batch_size or 1),
            block_size=options.batch_size or options.source.fetch_options.max_in_flight // 2,
            exact_blocks=whole_batches,
            poll_interval=options.source.fetch_options.poll_interval if self._strict_order else 0,
        )
        convert = options.source.convert
        return replace(
            options.source,
            fetch_options=fetch_options,
            convert=_with_length_check(convert) if whole_batches else convert,
        )


class _StoreReader:
    """Reads elements, or whole batches of them, from one store, and tracks which of the store's items were consumed."""

    def __init__(
        self, store: TableStore, options: DatasetOptions, source: ElementSource, *, whole_batches: bool
    ) -> None:
        self._store = store
        self._table = options.table
        self.tracker = ConsumptionTracker()
        blocks = read_table(store, options.table, source, _nest.flatten(options.nest), self.tracker)
        self.elements = _leaves(blocks, whole_batches=whole_batches)
        self.num_elements = 0  # number of elements that `next` has returned

    def next(self) -> list[Array] | None:
        """Returns the next element; None if there is none yet."""
        element = next(self.elements)
        self.num_elements += element is not None
        return element

    def release_if_inserts_wait(self) -> None:
        """Stops holding items if an insert waits, because it may wait for the space that they occupy."""
        if self.tracker.is_holding and has_waiting_insert(self._store, self._table):
            self.tracker.stop_holding()


def _leaves(blocks: Generator[Elements | None], *, whole_batches: bool) -> Generator[list[Array] | None]:
    """Yields the leaves of each element, or of whole batches; None every poll interval while there is none."""
    with closing(blocks):
        for block in blocks:
            if block is None:
                yield None
            elif whole_batches:
                yield [tensor.values for tensor in block]
            else:
                yield from split_elements(block)


def _interleaved(readers: Sequence[_StoreReader], *, strict_order: bool) -> Iterator[list[Array]]:
    """Yields one element of each reader in turn. With `strict_order`, waits for each; otherwise skips idle ones."""
    next_check = math.inf
    while True:
        idle = True
        for reader in readers:
            element = reader.next()
            while element is None and strict_order:
                for each in readers:
                    each.release_if_inserts_wait()
                element = reader.next()
            if element is not None:
                idle = False
                next_check = math.inf
                yield element
        if idle:
            now = time.monotonic()
            next_check = min(next_check, now + _ROOM_CHECK_INTERVAL)
            if now >= next_check:
                next_check = now + _ROOM_CHECK_INTERVAL
                for each in readers:
                    each.release_if_inserts_wait()
            time.sleep(_IDLE_SLEEP)


def _with_length_check(convert_items: Convert) -> Convert:
    """Wraps `convert_items` with a check that all items have the same number of steps."""

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        for splits in block.splits:
            lengths: list[int] = [] if splits is None else np.diff(splits).tolist()
            if len(set(lengths)) > 1:
                raise MismatchError(_mismatch_text(table, [f"{length} steps" for length in lengths]))
        return convert_items(table, specs, block)

    return convert


def _stacked(options: DatasetOptions, column: Sequence[Array]) -> Any:  # noqa: ANN401, an array, or several
    """Stacks the arrays of a batch, `[B, ...]`. Returns a list if they differ in shape and that is allowed."""
    if len({each.shape for each in column}) == 1:
        return np.stack(column)
    if not options.allows_ragged:
        raise MismatchError(_mismatch_text(options.table, [f"the shape {list(each.shape)}" for each in column]))
    return list(column)


def _mismatch_text(table: str, properties: Sequence[str]) -> str:
    other = next(each for each in properties if each != properties[0])
    return f"elements of a batch of table `{table}` must have equal shapes; one has {properties[0]} and another {other}"


def array_converter(framework: str) -> ConvertLeaves:
    """Returns a function that converts NumPy arrays to arrays of a framework. Text is not converted."""
    if framework == "numpy":
        return lambda leaves: leaves
    with importing_extra(framework, f"a dataset with framework={framework!r}"):
        module = importlib.import_module(framework)
    convert_array: Callable[[Array], Any] = module.device_put if framework == "jax" else _as_tensor

    def convert(leaves: list[Any]) -> list[Any]:
        return [_converted(convert_array, leaf) for leaf in leaves]

    return convert


def _converted(convert_array: Callable[[Array], Any], leaf: Any) -> Any:  # noqa: ANN401, a result of `_stacked`
    if isinstance(leaf, list):
        return [_converted(convert_array, each) for each in leaf]
    return leaf if leaf.dtype == object else convert_array(leaf)


def _as_tensor(array: Array) -> Any:  # noqa: ANN401, a tensor
    from engram._torch_tensors import as_tensor  # noqa: PLC0415, imports PyTorch

    return as_tensor(array, None)
