"""The common parts of the datasets: argument checks, and the conversion of a table's items to elements."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import engram
from engram.compat.reverb import _arguments, _nest, _table_note
from engram.compat.reverb._block_reader import BlockReader, FetchOptions
from engram.compat.reverb._elements import Convert, Elements, check_signature, steps_per_item
from engram.compat.reverb._errors import translated
from engram.compat.reverb._lazy_tensorflow import DatasetMixin, Tensor, import_tensorflow
from engram.compat.reverb._unbatched_dataset import unbatched_dataset
from engram.compat.reverb.client import Client
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.tensor_spec import TensorSpec, as_spec
from engram.consumption import ConsumptionTracker
from engram.data.column_block import ColumnBlock
from engram.table_store import TableStore

__all__ = [
    "ElementSource",
    "dtypes_and_shapes",
    "init_table_dataset",
    "lists_to_tuples",
    "make_fetch_options",
    "read_table",
    "server_store",
]

_RECONNECT_TIMEOUT = 1.0
"""Seconds that a client waits for an unreachable server; then the dataset lets TensorFlow run, and tries again."""


def make_fetch_options(
    max_in_flight_samples_per_worker: int,
    num_workers_per_iterator: int,
    max_samples_per_stream: int,
    rate_limiter_timeout_ms: int,
    max_samples: int = -1,
) -> FetchOptions:
    """Checks the arguments of a dataset and returns them as `FetchOptions`. Errors name the argument."""
    in_flight = _arguments.positive("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker)
    for name, value in (
        ("num_workers_per_iterator", num_workers_per_iterator),
        ("max_samples_per_stream", max_samples_per_stream),
        ("max_samples", max_samples),
    ):
        if _arguments.integer(name, value) < 1 and value != -1:
            raise ValueError(f"{name} ({value}) must be a positive integer or -1")
    if _arguments.integer("rate_limiter_timeout_ms", rate_limiter_timeout_ms) < -1:
        raise ValueError(f"rate_limiter_timeout_ms ({rate_limiter_timeout_ms}) must be an integer >= -1")
    workers = max(1, num_workers_per_iterator)
    return FetchOptions(
        max_in_flight=int(in_flight) * int(workers),
        items_per_stream=None if max_samples_per_stream == -1 else int(max_samples_per_stream),
        timeout=None if rate_limiter_timeout_ms == -1 else rate_limiter_timeout_ms / 1_000,
        max_items=None if max_samples == -1 else int(max_samples),
        reconnect_forever=True,
    )


def dtypes_and_shapes(
    server_address: str, table: str, timeout: int | None, axes: Sequence[int | None] = ()
) -> tuple[engram.Nest, engram.Nest]:
    """Returns two nests: the dtypes, and the shapes prefixed with `axes`, of the table's signature.

    The server must answer within `timeout` whole seconds; None, 0 or less means an hour.
    """
    tf = import_tensorflow("a dataset")  # imported first: the specs of `server_info` are TensorFlow's then
    info = Client(server_address).server_info(timeout)
    if _arguments.text("table", table) not in info:
        names = ", ".join(sorted(info))
        raise ValueError(f"Server at {server_address} does not contain any table named {table}. Found: {names}.")
    signature = info[table].signature
    if signature is None:
        raise ValueError(f"Table {table} at {server_address} does not have a signature.")
    leading = tf.TensorShape(axes)
    return (
        _nest.map_structure(lambda spec: spec.dtype, signature),
        _nest.map_structure(lambda spec: leading.concatenate(spec.shape), signature),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementSource:
    """How items are fetched and converted to elements.

    `info_shape` is the shape of each info field of an element. The data has the same axes first; the table's signature
    does not include them.
    """

    fetch_options: FetchOptions
    convert: Convert
    info_shape: tuple[int | None, ...] = ()


def server_store(address: str) -> engram.Client:
    """Returns a client of a server, from whose calls a dataset returns soon while the server is unreachable."""
    return engram.Client(_arguments.host_and_port(address), reconnect_timeout=_RECONNECT_TIMEOUT)


def init_table_dataset(
    dataset: DatasetMixin,
    source: ElementSource,
    open_store: Callable[..., TableStore],
    args: list[Tensor],
    spec: engram.Nest,
    *,
    owned: bool = True,
) -> None:
    """Initializes `dataset`, whose constructor is running, as a dataset of `ReplaySample`s of a table of any store.

    `open_store` receives the strings in `args`, string tensors of which the last is the table's name. If `owned`, the
    store is closed when an iteration ends. `spec` is a nest of `tf.TensorSpec`: the data of an element.
    """
    tf = import_tensorflow("a dataset")
    data = lists_to_tuples(spec)
    info = SampleInfo(*[tf.TensorSpec(source.info_shape, dtype) for dtype in SampleInfo.tf_dtypes()])
    element = ReplaySample(info, data)
    specs = [as_spec(leaf) for leaf in tf.nest.flatten(data)]

    @contextmanager
    def open_blocks(*values: bytes) -> Iterator[tuple[Iterator[Elements | None], ConsumptionTracker]]:
        texts = [value.decode() for value in values]
        store = open_store(*texts)
        tracker = ConsumptionTracker()
        try:
            with translated(), closing(read_table(store, texts[-1], source, specs, tracker)) as blocks:
                yield blocks, tracker
        finally:
            if owned:
                store.close()

    elements = unbatched_dataset(
        open_blocks,
        args,
        tf.nest.flatten(element),
        _nest.column_names(element),
        num_packed=len(SampleInfo._fields),
        counted=True,
    )
    dataset._initialize(elements, element)  # noqa: SLF001, called by its constructor


def read_table(
    store: TableStore, table: str, source: ElementSource, specs: list[TensorSpec], tracker: ConsumptionTracker
) -> Generator[Elements | None]:
    """Yields blocks of elements of a table, and None from time to time while there are none.

    When the generator is closed, items that `tracker` does not count as consumed are returned to the table. The pieces
    that the tracker counts are elements.
    """

    def check_info(info: engram.TableInfo) -> None:
        signature = _table_note.decode(info.note).signature
        if signature is not None:
            check_signature(table, specs, signature, len(source.info_shape))

    def convert(block: ColumnBlock) -> Elements:
        elements = source.convert(table, specs, block)
        tracker.add_items(_elements_per_item(table, block, elements))
        return elements

    reader = BlockReader(store, table, source.fetch_options, convert, tracker=tracker, check_info=check_info)
    return reader.blocks()


def _elements_per_item(table: str, block: ColumnBlock, elements: Elements) -> list[int]:
    """The number of elements of each item of a block.

    An element is a whole item, or a part of one; all parts have the same number of steps.
    """
    count = elements[0].size
    if count == block.size:
        return [1] * count
    steps = steps_per_item(table, block)
    per_item: list[int] = (steps * count // max(1, steps.sum())).tolist()
    return per_item


def lists_to_tuples(nest: engram.Nest) -> engram.Nest:
    """Replaces the lists of a nest by tuples, as in the elements of TensorFlow's datasets."""
    children = _nest.children(nest)
    if children is None:
        return nest
    converted = [lists_to_tuples(child) for _, child in children]
    is_sequence = isinstance(nest, list | tuple) and not _nest.is_namedtuple(nest)
    return tuple(converted) if is_sequence else _nest.with_children(nest, converted)
