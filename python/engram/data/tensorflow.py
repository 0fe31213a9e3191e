"""A table as a `tf.data.Dataset`."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, Unpack

import numpy as np

from engram import Nest, _engram
from engram._extras import importing_extra
from engram._text import column_text, columns_text
from engram.consumption import ConsumptionTracker
from engram.data._tf_types import Tensor
from engram.data.column_block import Array, ColumnBlock
from engram.data.elements import Element, Info, Options
from engram.data.prefetch_thread import POLL_INTERVAL
from engram.data.table_reader import TableReader
from engram.errors import DeadlineExceededError, InvalidArgumentError, SignatureError
from engram.table_store import TableStore

with importing_extra("tensorflow", "engram.data.tensorflow"):
    import tensorflow as tf

    from engram.data._tf_function_dataset import ArrayPacker
    from engram.data._tf_generator import generator_dataset

__all__ = ["dataset"]

Spec = Any
"""A `tf.TensorSpec` or `tf.RaggedTensorSpec`; `Any`, so that type checks do not require TensorFlow."""

_MAX_BATCHES_PER_CALL = 64
"""Maximum number of batches that one call into Python returns."""

_INFO_DTYPES = Info(np.uint64, np.float64, np.int64, np.float64, np.int32, np.float64, np.float64)


def dataset(
    store: TableStore, table: str, *, element_spec: Nest | None = None, **options: Unpack[Options]
) -> "tf.data.Dataset":
    """Returns a `tf.data.Dataset` of a table's items or steps.

        for element in dataset(store, "replay", batch_size=256).prefetch(2):
            learn(element.data)

    Elements arrive in the order in which the table is sampled; `interleave` combines several datasets. The dataset
    works only in the process that created it: it cannot be saved or sent to tf.data's service.

    Each iterator fetches ahead, on lease; elements that TensorFlow has not taken when the iterator is dropped are
    returned to the table. An element is taken, and consumed, when it leaves this dataset, also if a `batch` or
    `prefetch` after it requested it and the loop never used it.

    Passing data to TensorFlow takes longer per call than sampling a batch. If the table has no `max_times_sampled`, one
    call therefore passes several dense elements: up to `prefetch` batches of items without `pad`; without
    `max_batches`, also about `prefetch` batches of steps, or single items or steps of a whole block (see
    `engram.data.Options`). `prefetch=8` is much faster than the default.
    Elements that TensorFlow has not taken when the iterator is dropped do not count as sampled.

    tf.data's automatic prefetching and its automatic parallel `map` are disabled, as they would consume items that no
    code requested: call `prefetch`, and `map` with `num_parallel_calls`.

    The `element_spec` of `data` is taken from the first available of:

    * the argument `element_spec`;
    * the table's signature, in which a first axis of unknown size is the time axis;
    * the first element, which the call waits for and returns to the table. Time axes are then of unknown size, and a
      column is ragged if it is ragged in the first batch.

    Args:
        store: The `engram.Store` or `engram.Client` that has the table.
        table: The table's name.
        element_spec: The nest of `data` with a `tf.TensorSpec` or `tf.RaggedTensorSpec` for each column, batch and time
            axes included; or the `element_spec` of another dataset of this function. Default: None, see above.
        **options: Options of `engram.data.Options`.

    Returns:
        A `tf.data.Dataset` of `Element`s with leaves `[B, T, ...]`, and `[B]` in `info`. Columns whose items may differ
        in length are `tf.RaggedTensor`s in every batch. With `pad` they are dense, and their leaves in `mask` are
        True for real steps; other leaves of `mask` are None. Without padded columns `mask` is `()`. Lists in `data`
        become tuples, as tf.data treats lists as tensors.

    Raises:
        InvalidArgumentError: An argument has a type or value that is not allowed, or a column has a float8 dtype.
        TypeError: An option is unknown.
        DeadlineExceededError: The first element was needed for its spec, and did not arrive within `timeout`.
        SignatureError, UnsatisfiableError: The first element was needed for its spec; see `engram.data.numpy.dataset`.
        UnknownTableError: The table does not exist.
        ClosedError: The store is closed.
        UnavailableError: The server cannot be reached.
        tf.errors.InvalidArgumentError: On iteration: items do not match the `element_spec`; they are returned to the
            table. Other errors of the store are raised as the closest `tf.errors`, with their text.
        tf.errors.UnknownError: On iteration, with TensorFlow 2.18 or later: Ctrl-C was pressed while the main thread
            waited for an element; the text contains `KeyboardInterrupt`. Earlier versions call Python in other threads,
            which Ctrl-C does not interrupt.
    """
    reader = TableReader.of(store, table, options)
    store._native.can_sample(table, 1)  # noqa: SLF001, raises an error if the table does not exist
    columns, structure, spec_source = _columns(reader, element_spec)
    flat_elements = _FlatElements(reader, columns, _engram.names(structure), spec_source)
    flat = generator_dataset(
        flat_elements.open,
        lambda arrays: [arrays],
        flat_elements.packer,
        counted=flat_elements.are_stacked,
        pieces_per_element=reader.batch_size or 1,
    )
    assemble = tf.autograph.experimental.do_not_convert(partial(_assemble, reader, columns, structure))
    tf_options = tf.data.Options()
    tf_options.experimental_optimization.map_parallelization = False
    return flat.map(assemble).with_options(tf_options)


class _Column:
    """One column and its form in the dataset: dense, ragged, or padded with a mask."""

    def __init__(self, name: str, spec: Spec, spec_source: str, *, pad: bool) -> None:
        if spec.dtype.name.startswith("float8"):
            raise InvalidArgumentError(
                f"{_describe_column(name)} has dtype {spec.dtype.name}, which `engram.data.tensorflow` does not "
                "support; read this table with `engram.data.numpy`, or store another dtype"
            )
        self.name = name
        self.spec = spec
        self._spec_source = spec_source  # for error texts
        self.shape: list[int | None] = spec.shape.as_list()
        self.dtype = np.dtype(spec.dtype.as_numpy_dtype)
        self.is_ragged = isinstance(spec, tf.RaggedTensorSpec)
        self.is_masked = pad and len(self.shape) > 1 and self.shape[1] is None

    def parts(self) -> Iterator[Spec]:
        """Specs of the tensors that TensorFlow receives for the column; their first axis may have any size, also 0."""
        if self.is_ragged:
            yield tf.TensorSpec([None, *self.shape[2:]], self.spec.dtype)
        else:
            yield tf.TensorSpec([None, *self.shape[1:]] if self.shape else [], self.spec.dtype)
        if self.is_ragged or self.is_masked:
            yield tf.TensorSpec([None], tf.int64)

    def check(self, array: Array, shape: tuple[int | None, ...], *, ragged: bool) -> None:
        """Raises a SignatureError if a column of this shape and the array's dtype does not match the spec."""
        fits = len(shape) == len(self.shape) and all(
            expected is None or expected == size for expected, size in zip(self.shape, shape, strict=True)
        )
        if not fits or array.dtype != self.dtype or (ragged and not self.is_ragged):
            raise SignatureError(self._mismatch(array, shape, ragged=ragged))

    def flatten(self, array: Array, split: Array | None, lengths: Array | None) -> list[Any]:
        """Returns the arrays for `parts`.

        Raises:
            SignatureError: The column does not match the spec.
        """
        shape = array.shape if split is None else (len(split) - 1, None, *array.shape[1:])
        self.check(array, shape, ragged=split is not None)
        if self.is_ragged:
            return [array, split] if split is not None else _as_ragged(array)
        if self.is_masked:
            return [array, np.full(len(array), array.shape[1]) if lengths is None else lengths]
        return [array]

    def _mismatch(self, array: Array, shape: tuple[int | None, ...], *, ragged: bool) -> str:
        kind = "string" if array.dtype == object else array.dtype.name
        actual = f"{kind} {list(shape)}{', ragged' if ragged else ''}"
        expected = f"{self.spec.dtype.name} {self.shape}{', ragged' if self.is_ragged else ''}"
        column = _describe_column(self.name)
        text = f"{column} does not match {self._spec_source}: got {actual}, expected {expected}"
        if ragged and not self.is_ragged:
            text += (
                "; items of a batch differ in length: give `pad=True`, a table with a signature, or an `element_spec` "
                "with a tf.RaggedTensorSpec"
            )
        return text

    def assemble(self, parts: Iterator[Any], batch: list[int | None]) -> tuple[Any, Any]:
        """Returns the column's tensor and its mask, if it has one, from the tensors for `parts`."""
        tensor = next(parts)
        if self.is_ragged:
            tensor.set_shape([None, *self.shape[2:]])
            splits = next(parts)
            splits.set_shape([size + 1 for size in batch if size is not None])
            splits = tf.cast(splits, self.spec.row_splits_dtype)
            return tf.RaggedTensor.from_row_splits(tensor, splits, validate=False), None
        tensor.set_shape([*batch, *self.shape[len(batch) :]])
        if not self.is_masked:
            return tensor, None
        lengths = next(parts)
        lengths.set_shape(batch)
        return tensor, tf.sequence_mask(lengths, tf.shape(tensor)[1])


def _describe_column(name: str) -> str:
    return f"column {column_text(name)}" if name else column_text(name)


def _as_ragged(array: Array) -> list[Array]:
    count, length = array.shape[:2]
    return [array.reshape(count * length, *array.shape[2:]), np.arange(count + 1, dtype=np.int64) * length]


def _columns(reader: TableReader, element_spec: Nest) -> tuple[list[_Column], str, str]:
    """Returns the columns, their structure, and the source of their specs as text."""
    if element_spec is not None:
        nest = element_spec.data if isinstance(element_spec, Element) else element_spec
        specs, names, structure = _engram.flatten(nest)
        for name, spec in zip(names, specs, strict=True):
            _check_spec(reader, name, spec)
        source = "`element_spec`"
    elif (signature := reader.store.info()[reader.table].signature) is not None:
        arrays, names, structure = _engram.flatten(signature)
        # TensorFlow does not know the name of text's dtype; its strings are bytes.
        dtypes = [tf.string if array.dtype == "str" else tf.as_dtype(array.dtype) for array in arrays]
        specs = [_signature_spec(reader, list(array.shape), dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        source = "the table's signature, from which the dataset derived its specs"
    else:
        block = _first_block(reader)
        names, structure = _engram.names(block.structure), block.structure
        triples = zip(block.columns, block.splits, block.squeezed, strict=True)
        specs = [_column_spec(reader, *triple) for triple in triples]
        source = "the first element, from which the dataset derived its specs"
    columns = [_Column(name, spec, source, pad=reader.pad) for name, spec in zip(names, specs, strict=True)]
    return columns, structure, source


def _check_spec(reader: TableReader, name: str, spec: Spec) -> None:
    about = f"`element_spec`: {column_text(name)}"
    if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec):
        raise InvalidArgumentError(f"{about} must be a tf.TensorSpec or a tf.RaggedTensorSpec; got {spec!r}")
    if spec.shape.rank is None:
        raise InvalidArgumentError(f"{about} must have a known number of axes; got {spec!r}")
    for expected, size in zip(_batch_axis(reader), spec.shape.as_list(), strict=False):
        if None not in (expected, size) and expected != size:
            raise InvalidArgumentError(f"{about} has a batch axis of {size}; expected {expected}, the `batch_size`")
    if not isinstance(spec, tf.RaggedTensorSpec):
        return
    if reader.batch_size is None or reader.steps or reader.pad:
        raise InvalidArgumentError(f"{about} must not be ragged: only batches of whole items without `pad` are")
    if spec.ragged_rank != 1:
        raise InvalidArgumentError(f"{about} must have a ragged_rank of 1, the time axis; got {spec.ragged_rank}")


def _batch_axis(reader: TableReader) -> list[int | None]:
    """Returns the size of the batch axis, in a list: None if it varies; an empty list without a batch axis."""
    if reader.batch_size is None:
        return []
    return [None if reader.steps and not reader.drop_remainder else reader.batch_size]


def _signature_spec(reader: TableReader, shape: list[int | None], dtype: Any) -> Spec:  # noqa: ANN401, TensorFlow's
    """Returns the spec of a column, given its shape and dtype in the table's signature."""
    if reader.steps:
        return tf.TensorSpec([*_batch_axis(reader), *shape[1:]], dtype)
    ragged = reader.batch_size is not None and not reader.pad and shape[:1] == [None]
    return _spec([*_batch_axis(reader), *shape], dtype, ragged=ragged)


def _column_spec(reader: TableReader, column: Array, split: Array | None, squeezed: bool) -> Spec:  # noqa: FBT001, a field of `ColumnBlock`
    """Returns the spec of a column, given its values in the first element."""
    dtype = tf.string if column.dtype == object else tf.as_dtype(column.dtype)
    if reader.steps:
        return tf.TensorSpec([*_batch_axis(reader), *column.shape], dtype)
    batch = _batch_axis(reader)
    if squeezed:
        return tf.TensorSpec([*batch, *column.shape[len(batch) :]], dtype)
    step_shape = column.shape[1:] if split is not None else column.shape[len(batch) + 1 :]
    return _spec([*batch, None, *step_shape], dtype, ragged=split is not None)


def _spec(shape: list[int | None], dtype: Any, *, ragged: bool) -> Spec:  # noqa: ANN401, TensorFlow's
    return tf.RaggedTensorSpec(shape, dtype, ragged_rank=1) if ragged else tf.TensorSpec(shape, dtype)


class _Inspected(Exception):  # noqa: N818, not an error
    """Ends the reading after the first block, so that its items are returned to the table."""


def _first_block(reader: TableReader) -> ColumnBlock:
    """Returns the first batch, the first item or the first step; the items are returned to the table."""
    if reader.steps:  # some items of a batch of steps may count as consumed before it is full
        reader = replace(reader, batch_size=None)
    blocks: list[ColumnBlock] = []

    def inspect(block: ColumnBlock) -> None:
        blocks.append(block)
        raise _Inspected

    with closing(reader.read(inspect)) as elements:
        try:
            next(elements, None)
        except _Inspected:
            return blocks[0]
    raise DeadlineExceededError(
        f"table `{reader.table}` returned no element within {reader.timeout:g} s to derive the `element_spec` from; "
        "give an `element_spec`, or a signature to the table"
    )


class _FlatElements:
    """A dataset's elements as tuples of arrays: the packed `info`, then the parts of each column.

    Each array has an additional axis for the elements that one call passes on; there may be none. It is the second axis
    of the packed `info`, and the first axis of the parts.

    Attributes:
        packer: Packs `info`; its `specs` has a `tf.TensorSpec` for each array of `info` and each part.
        are_stacked: True if one call may pass on several elements.
    """

    def __init__(self, reader: TableReader, columns: list[_Column], names: list[str], spec_source: str) -> None:
        self._reader = reader
        self._columns = columns
        self._names = names
        self._spec_source = spec_source  # for error texts
        self._batch_size = reader.batch_size or 1
        self._checked_structure = ""  # the structure of the last block, whose columns were checked
        single = reader.batch_size is None
        info = [tf.TensorSpec([] if single else [None], dtype) for dtype in _INFO_DTYPES]
        columns_parts = [part for column in columns for part in column.parts()]
        part_names = [name for column, name in zip(columns, names, strict=True) for _ in column.parts()]
        parts = [*info, *columns_parts]
        self.packer = ArrayPacker(
            parts,
            [*Info._fields, *part_names],
            [i < len(info) for i in range(len(parts))],
            has_empty_rows=any(0 in column.shape for column in columns),
            spec_source="`element_spec` or the table's signature",
        )
        dense = not reader.pad and not any(column.is_ragged for column in columns)
        has_item_batches = reader.batch_size is not None and not reader.steps
        self._batches_per_call = min(reader.prefetch, _MAX_BATCHES_PER_CALL)
        can_stack = dense and (self._batches_per_call > 1 if has_item_batches else reader.max_batches is None)
        self.are_stacked = can_stack and reader.keeps_items

    @contextmanager
    def open(self) -> Iterator[tuple[Iterator[list[Any] | None], ConsumptionTracker | None]]:
        """Opens a reader of the arrays of one element, or of several if `are_stacked`."""
        # The table may have been dropped and created again since `are_stacked` was determined.
        if self.are_stacked and self._reader.keeps_items:
            tracker, reads = self._reader.read_together(
                self._flatten, self._stack, self._batches_per_call, POLL_INTERVAL
            )
        else:
            tracker, reads = None, self._reader.read(self._flatten, POLL_INTERVAL)
        with closing(reads):
            yield reads, tracker

    def _flatten(self, block: ColumnBlock) -> list[Any]:
        """Returns the arrays of one element."""
        self._check_structure(block)
        columns = zip(self._columns, block.columns, block.splits, block.lengths, strict=True)
        parts = (column.flatten(array, split, lengths) for column, array, split, lengths in columns)
        return self.packer.pack([array[None] for array in chain(block.info, *parts)])

    def _stack(self, block: ColumnBlock) -> list[Any]:
        """Returns the arrays of several dense elements from the items or steps of all of them."""
        self._check_structure(block)
        batch = () if self._reader.batch_size is None else (self._reader.batch_size,)
        count = block.size // self._batch_size
        for column, array, split in zip(self._columns, block.columns, block.splits, strict=True):
            row_shape = array.shape[1:] if split is None else (None, *array.shape[1:])
            column.check(array, (*batch, *row_shape), ragged=split is not None)  # no column may be ragged
        arrays = (*block.info, *block.columns)
        return self.packer.pack([array.reshape(count, *batch, *array.shape[1:]) for array in arrays])

    def _check_structure(self, block: ColumnBlock) -> None:
        if block.structure == self._checked_structure:
            return
        names = _engram.names(block.structure)
        if names != self._names:
            expected, actual = columns_text(self._names), columns_text(names)
            raise SignatureError(f"the columns do not match {self._spec_source}: got {actual}, expected {expected}")
        self._checked_structure = block.structure


def _assemble(reader: TableReader, columns: list[_Column], structure: str, *flat: Tensor) -> Element:
    """Returns an element from the tensors of `_FlatElements`; TensorFlow traces it once."""
    parts, batch = iter(flat), _batch_axis(reader)
    info = Info(*islice(parts, len(_INFO_DTYPES)))
    for tensor in info:
        tensor.set_shape(batch)
    pairs = [column.assemble(parts, batch) for column in columns]
    data, mask = (_lists_to_tuples(_engram.unflatten(structure, list(leaves))) for leaves in zip(*pairs, strict=True))
    return Element(info, data, mask if any(column.is_masked for column in columns) else ())  # None is slow in tf.data


def _lists_to_tuples(nest: Nest) -> Nest:
    if isinstance(nest, dict):
        return {key: _lists_to_tuples(part) for key, part in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*map(_lists_to_tuples, nest))
    return tuple(map(_lists_to_tuples, nest)) if isinstance(nest, list | tuple) else nest
