"""A table as a `tf.data.Dataset`."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Unpack

import numpy as np
import tensorflow as tf

from engram import _engram
from engram._consumption import ConsumptionTracker
from engram.data._exit_guard import ExitGuard
from engram.data._tf_element_counter import TfElementCounter, count_elements
from engram.data._tf_function_dataset import function_dataset
from engram.data.column_block import Array, ColumnBlock
from engram.data.elements import Element, Info, Options
from engram.data.prefetch_thread import POLL_INTERVAL
from engram.data.table_reader import TableReader
from engram.errors import DeadlineExceededError, InvalidArgumentError, SignatureError
from engram.store import TableStore

__all__ = ["dataset"]

Spec = Any
"""A `tf.TensorSpec` or `tf.RaggedTensorSpec`; mypy need not know TensorFlow."""

_MOST_TOGETHER = 64  # batches
_readers: dict[int, Generator[Sequence[Any]]] = {}


def _close_all() -> None:
    for reader in list(_readers.values()):
        with suppress(ValueError):  # one that is at work
            reader.close()


_exit_guard = ExitGuard(_close_all)
_INFO = Info(np.uint64, np.float64, np.int64, np.float64, np.int32)


def dataset(
    store: TableStore,
    table: str,
    *,
    element_spec: Any = None,  # noqa: ANN401, a nest
    **options: Unpack[Options],
) -> "tf.data.Dataset":
    """A table's items or steps, as a `tf.data.Dataset` of `Element`s.

        for element in dataset(store, "replay", batch_size=256).prefetch(2):
            learn(element.data)

    The order is the table's; of several datasets, `interleave` makes one. It runs in the process that made it: a
    dataset cannot be saved, nor sent to tf.data's service.

    Each iterator fetches ahead on lease: what TensorFlow has not taken when it is dropped goes back. Taken is what has
    left this dataset: what a `batch` or `prefetch` after it has asked for, too, whether the loop came to see it or not.

    A call into TensorFlow costs more than a batch: dense batches, of tables that hand out items any number of times,
    are handed over `prefetch` at a time; those that were not taken do not count as sampled in the end. `prefetch=8` is
    much faster than the default.

    So that nothing else is used unasked, tf.data's own ideas of reading ahead and of running `map` in parallel are
    switched off: ask for `prefetch` and `num_parallel_calls`.

    What `element_spec` says of the data is, in this order:

    * the `element_spec` given;
    * the table's signature: a first axis of any size is the time axis;
    * the first element, which is waited for and goes back. A time axis has any size then; a column is ragged where the
      first batch is.

    Args:
        store: Where the table is: an `engram.Store` or `engram.Client`.
        table: Its name.
        element_spec: The nest of `data` with a `tf.TensorSpec` or `tf.RaggedTensorSpec` of each column, batch and time
            axes included; or the `element_spec` of another such dataset. None: see above.
        **options: Each of `engram.data.Options`.

    Returns:
        A `tf.data.Dataset` of `Element`s, whose leaves are tensors `[B, T, ...]`, and `[B]` in `info`. Columns that may
        differ in length are `tf.RaggedTensor`s, of batches of one length too; with `pad` they are dense and `mask` says
        where there are steps; otherwise `mask` is `()`. Lists are tuples, as tf.data takes lists for tensors.

    Raises:
        InvalidArgumentError: An option is not what `Options` says, `element_spec` not what is said here, or a column
            has one of the float8 dtypes.
        TypeError: There is no such option.
        DeadlineExceededError: `timeout` was over before there was a first element to look at.
        SignatureError, UnsatisfiableError: The first element was looked at, and is as `engram.data.numpy.dataset` says.
        UnknownTableError, ClosedError, UnavailableError: There is no such table, its store is closed, or the server is
            gone.
        tf.errors.InvalidArgumentError: On iteration: items do not match the `element_spec`; they go back. Other errors
            of the store come as the `tf.errors` nearest to them, with their text.
        tf.errors.UnknownError: On iteration: Ctrl-C was pressed while the main thread waited for an element; the text
            says `KeyboardInterrupt`.
    """
    _exit_guard.register()
    reading = TableReader.of(store, table, options)
    store._native.can_sample(table, 1)  # noqa: SLF001, says whether there is such a table
    columns, structure = _columns(reading, element_spec)
    flat = _Flat(reading, columns, _engram.names(structure))

    def of_reader(number: Any) -> Any:  # noqa: ANN401, TensorFlow's
        found = function_dataset(_next, number, flat.specs).unbatch()
        return found if flat.together == 1 else count_elements(found, number)

    readers = tf.data.Dataset.from_generator(flat.readers, output_signature=tf.TensorSpec([], tf.int64))
    as_it_is = tf.autograph.experimental.do_not_convert
    assembled = as_it_is(partial(_assembled, reading, columns, structure))
    found = readers.flat_map(as_it_is(of_reader)).map(assembled)
    # TensorFlow would read ahead unasked, and use items up that nobody sees.
    only_asked = tf.data.Options()
    only_asked.experimental_optimization.inject_prefetch = False
    only_asked.experimental_optimization.map_parallelization = False
    return found.with_options(only_asked)


class _Column:
    """How a column comes: dense, ragged, or padded with a mask."""

    def __init__(self, name: str, spec: Spec, *, pad: bool) -> None:
        if spec.dtype.name.startswith("float8"):
            raise InvalidArgumentError(f"`{name}` is {spec.dtype.name}, which tf.data cannot cut into elements")
        self.name = name
        self.spec = spec
        self.shape: list[int | None] = spec.shape.as_list()
        self.dtype = np.dtype(spec.dtype.as_numpy_dtype)
        self.is_ragged = isinstance(spec, tf.RaggedTensorSpec)
        self.is_masked = pad and len(self.shape) > 1 and self.shape[1] is None

    def parts(self) -> Iterator[Spec]:
        """What is handed to TensorFlow for it; a first axis is of any size, so that there may be nothing."""
        if self.is_ragged:
            yield tf.TensorSpec([None, *self.shape[2:]], self.spec.dtype)
        else:
            yield tf.TensorSpec([None, *self.shape[1:]] if self.shape else [], self.spec.dtype)
        if self.is_ragged or self.is_masked:
            yield tf.TensorSpec([None], tf.int64)

    def flatten(self, array: Array, split: Array | None, lengths: Array | None) -> list[Any]:
        """What `parts` says.

        Raises:
            SignatureError: The array does not fit.
        """
        if split is None:
            found: tuple[int | None, ...] = array.shape
        else:
            found = (len(split) - 1, None, *array.shape[1:])
        fits = len(found) == len(self.shape) and all(
            want is None or want == size for want, size in zip(self.shape, found, strict=True)
        )
        if not fits or array.dtype != self.dtype or (split is not None and not self.is_ragged):
            raise SignatureError(self._misfit(array, found, ragged=split is not None))
        if self.is_ragged:
            return [array, split] if split is not None else _as_ragged(array)
        if self.is_masked:
            return [array, np.full(len(array), array.shape[1]) if lengths is None else lengths]
        return [array]

    def _misfit(self, array: Array, shape: tuple[int | None, ...], *, ragged: bool) -> str:
        kind = "string" if array.dtype == object else array.dtype.name
        found = f"{kind} {list(shape)}{', ragged' if ragged else ''}"
        wanted = f"{self.spec.dtype.name} {self.shape}{', ragged' if self.is_ragged else ''}"
        said = f"`{self.name}` is {found}, and `element_spec` says {wanted}"
        if ragged and not self.is_ragged:
            said += (
                "; items of a batch differ in length: ask for `pad=True`, or give a signature to the table or an "
                "`element_spec` with a tf.RaggedTensorSpec"
            )
        return said

    def assemble(self, parts: Iterator[Any], batch: list[int | None]) -> tuple[Any, Any]:
        """Its tensor, and its mask if it has one, of TensorFlow's tensors for `parts`."""
        tensor = next(parts)
        if self.is_ragged:
            tensor.set_shape([None, *self.shape[2:]])
            splits = next(parts)
            splits.set_shape([size + 1 for size in batch if size is not None])
            # The engine made them.
            splits = tf.cast(splits, self.spec.row_splits_dtype)
            return tf.RaggedTensor.from_row_splits(tensor, splits, validate=False), None
        tensor.set_shape([*batch, *self.shape[len(batch) :]])
        if not self.is_masked:
            return tensor, None
        lengths = next(parts)
        lengths.set_shape(batch)
        return tensor, tf.sequence_mask(lengths, tf.shape(tensor)[1])


def _as_ragged(array: Array) -> list[Array]:
    number, length = array.shape[:2]
    return [array.reshape(-1, *array.shape[2:]), np.arange(number + 1, dtype=np.int64) * length]


def _columns(reading: TableReader, given: Any) -> tuple[list[_Column], str]:  # noqa: ANN401, a nest
    if given is not None:
        nest = given.data if isinstance(given, Element) else given
        specs, names, structure = _engram.flatten(nest)
        for name, spec in zip(names, specs, strict=True):
            _check(reading, name, spec)
    elif (signature := reading.store.info()[reading.table].signature) is not None:
        arrays, names, structure = _engram.flatten(signature)
        specs = [_of_signature(reading, list(array.shape), tf.as_dtype(array.dtype)) for array in arrays]
    else:
        block = _first(reading)
        names, structure = _engram.names(block.structure), block.structure
        triples = zip(block.columns, block.splits, block.squeezed, strict=True)
        specs = [_of_column(reading, *triple) for triple in triples]
    columns = [_Column(name, spec, pad=reading.pad) for name, spec in zip(names, specs, strict=True)]
    return columns, structure


def _check(reading: TableReader, name: str, spec: Spec) -> None:
    about = f"`element_spec`: `{name}`"
    if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec):
        raise InvalidArgumentError(f"{about} must be a tf.TensorSpec or a tf.RaggedTensorSpec; got {spec!r}")
    if spec.shape.rank is None:
        raise InvalidArgumentError(f"{about} must say how many axes there are; got {spec!r}")
    for want, size in zip(_batch(reading), spec.shape.as_list(), strict=False):
        if None not in (want, size) and want != size:
            raise InvalidArgumentError(f"{about} has a batch of {size}, and `batch_size` is {want}")
    if not isinstance(spec, tf.RaggedTensorSpec):
        return
    if reading.batch_size is None or reading.steps or reading.pad:
        raise InvalidArgumentError(f"{about} cannot be ragged: only batches of whole items without `pad` are")
    if spec.ragged_rank != 1:
        raise InvalidArgumentError(f"{about} must have a ragged_rank of 1, the time axis; got {spec.ragged_rank}")


def _batch(reading: TableReader) -> list[int | None]:
    """The axis of the batch."""
    if reading.batch_size is None:
        return []
    return [None if reading.steps and not reading.drop_remainder else reading.batch_size]


def _of_signature(reading: TableReader, shape: list[int | None], dtype: Any) -> Spec:  # noqa: ANN401, TensorFlow's
    if reading.steps:
        return tf.TensorSpec([*_batch(reading), *shape[1:]], dtype)
    ragged = reading.batch_size is not None and not reading.pad and shape[:1] == [None]
    return _spec([*_batch(reading), *shape], dtype, ragged=ragged)


def _of_column(reading: TableReader, column: Array, split: Array | None, squeezed: bool) -> Spec:  # noqa: FBT001, as is
    dtype = tf.string if column.dtype == object else tf.as_dtype(column.dtype)
    if reading.steps:
        return tf.TensorSpec([*_batch(reading), *column.shape], dtype)
    batch = _batch(reading)
    if squeezed:
        return tf.TensorSpec([*batch, *column.shape[len(batch) :]], dtype)
    cell = column.shape[1:] if split is not None else column.shape[len(batch) + 1 :]
    return _spec([*batch, None, *cell], dtype, ragged=split is not None)


def _spec(shape: list[int | None], dtype: Any, *, ragged: bool) -> Spec:  # noqa: ANN401, TensorFlow's
    return tf.RaggedTensorSpec(shape, dtype, ragged_rank=1) if ragged else tf.TensorSpec(shape, dtype)


class _Looked(Exception):  # noqa: N818, no error
    """Refuses a block, so that it goes back."""


def _first(reading: TableReader) -> ColumnBlock:
    """The items of the first batch, the first item or the first step; they go back."""
    if reading.steps:  # of a batch of steps, items may have been used before it is full
        reading = replace(reading, batch_size=None)
    seen: list[ColumnBlock] = []

    def look(block: ColumnBlock) -> None:
        seen.append(block)
        raise _Looked

    with closing(reading.read(look)) as elements:
        try:
            next(elements, None)
        except _Looked:
            return seen[0]
    raise DeadlineExceededError(
        f"table `{reading.table}` had nothing within {reading.timeout:g} s to tell the `element_spec` from; give one, "
        "or give the table a signature"
    )


class _Flat:
    """Elements as tuples of arrays: `info` and the columns' parts, of some elements each.

    None at all are handed over, too.
    """

    def __init__(self, reading: TableReader, columns: list[_Column], names: list[str]) -> None:
        self._reading = reading
        self._columns = columns
        self._names = names
        self._size = reading.batch_size or 1
        self._seen = ""  # the structure that was looked at last
        single = reading.batch_size is None
        info = [tf.TensorSpec([] if single else [None], dtype) for dtype in _INFO]
        parts = [*info, *(part for column in columns for part in column.parts())]
        self.specs = [tf.TensorSpec([None, *part.shape], part.dtype) for part in parts]
        self._nothing = tuple(_empty(part) for part in parts)
        dense = not any(column.is_ragged for column in columns)
        # As many as are kept ready are handed over at once: a call costs more than what it carries.
        together = reading.batch_size is not None and not reading.steps and not reading.pad and dense
        self.together = min(reading.prefetch, _MOST_TOGETHER) if together and reading.keeps_items else 1

    def readers(self) -> Generator[int]:
        """One number, of a reader that is there for as long as this is."""
        with _exit_guard as may_run:
            if not may_run:
                return
            taken, tracker = TfElementCounter(), ConsumptionTracker(lambda: False)  # what fills no batch is not used
            reader = _readers[taken.number] = self._read(taken, tracker)
        try:
            yield taken.number
        finally:
            with _exit_guard:
                del _readers[taken.number]
                reader.close()
                taken.close()

    def _read(self, taken: TfElementCounter, tracker: ConsumptionTracker) -> Generator[tuple[Any, ...]]:
        if self.together == 1:
            found = self._reading.read(lambda block: tuple(part[None] for part in self._flatten(block)), POLL_INTERVAL)
        else:
            found = self._read_together(taken, tracker)
        with closing(found) as flats:
            for flat in flats:
                # Now and then there is nothing: TensorFlow sees only between calls that an iterator is not wanted.
                yield self._nothing if flat is None else flat

    def _read_together(self, taken: TfElementCounter, tracker: ConsumptionTracker) -> Generator[tuple[Any, ...] | None]:
        handed = 0
        with closing(self._reading.read_together(self._stack, self.together, tracker, POLL_INTERVAL)) as found:
            for flat in found:
                try:
                    yield flat
                except GeneratorExit:
                    tracker.consumed = tracker.consumed_at(taken.elements * self._size)
                    raise
                # TensorFlow asks for more only when it has taken all.
                handed += 0 if flat is None else len(flat[0]) * self._size
                tracker.consumed = tracker.consumed_at(handed)

    def _stack(self, parts: list[ColumnBlock]) -> tuple[Any, ...]:
        return tuple(map(np.stack, zip(*map(self._flatten, parts), strict=True)))

    def _flatten(self, block: ColumnBlock) -> list[Array]:
        if block.structure != self._seen:
            names = _engram.names(block.structure)
            if names != self._names:
                known, found = (", ".join(f"`{name}`" for name in each) for each in (self._names, names))
                raise SignatureError(f"`element_spec` has the columns {known}; found {found}")
            self._seen = block.structure
        flat: list[Array] = list(block.info)
        for column, array, split, lengths in zip(
            self._columns, block.columns, block.splits, block.lengths, strict=True
        ):
            flat += column.flatten(array, split, lengths)
        return flat


def _next(number: Array) -> Sequence[Any]:
    with _exit_guard as may_run:
        reader = _readers.get(int(number)) if may_run else None
        if reader is None:
            raise StopIteration  # which TensorFlow knows
        return next(reader)


def _empty(spec: Spec) -> Array:
    shape = [0, *(size or 0 for size in spec.shape)]
    return np.full(shape, b"" if spec.dtype == tf.string else 0, spec.dtype.as_numpy_dtype)


def _assembled(reading: TableReader, columns: list[_Column], structure: str, *flat: Any) -> Element:  # noqa: ANN401, tensors
    """An element of what `_Flat` hands over; traced, not run."""
    parts, batch = iter(flat), _batch(reading)
    info = Info(*islice(parts, len(_INFO)))
    for tensor in info:
        tensor.set_shape(batch)
    pairs = [column.assemble(parts, batch) for column in columns]
    data, mask = (_tuples(_engram.unflatten(structure, list(leaves))) for leaves in zip(*pairs, strict=True))
    return Element(info, data, mask if any(column.is_masked for column in columns) else ())  # None is slow in tf.data


def _tuples(nest: Any) -> Any:  # noqa: ANN401, a nest
    """The nest with tuples for lists."""
    if isinstance(nest, dict):
        return {key: _tuples(part) for key, part in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*map(_tuples, nest))
    return tuple(map(_tuples, nest)) if isinstance(nest, list | tuple) else nest
