"""Elements out of blocks of arrays, by TensorFlow's own means: one call of Python for many elements."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from engram.compat.reverb._elements import Elements, Rows
from engram.compat.reverb._generator_dataset import generator_dataset
from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.data._tf_element_counter import TfElementCounter, with_element_counter

__all__ = ["unbatched_dataset"]


def unbatched_dataset(
    begin: Callable[..., Iterator[Elements | None]],
    args: Sequence[Any],
    specs: Sequence[Any],
    *,
    counted: bool = False,
) -> tuple[Any, Any]:
    """A dataset of single elements.

    Args:
        begin: Yields several elements at once, or None while there are none; it is closed when an iteration ends.
        args: Tensors that it is given, as arrays.
        specs: `tf.TensorSpec` of each tensor of an element.
        counted: `begin` is also given a `TfElementCounter`, which says how many elements have left the dataset.

    Returns:
        The dataset as a variant tensor, and what must live as long as it.
    """
    if not counted:
        return _unbatched(begin, args, specs)
    tf = import_tensorflow("a dataset")
    kept = []

    def began(*values: Any) -> Iterator[Elements | None]:  # noqa: ANN401, arrays
        taken = TfElementCounter(values[-1])
        try:
            yield from begin(*values[:-1], taken)
        finally:
            taken.close()

    def make(tensors: list[Any]) -> Any:  # noqa: ANN401, a tf.data.Dataset
        variant, needed = _unbatched(began, tensors, specs)
        kept.append(needed)
        return tf.data.experimental.from_variant(variant, tuple(specs))

    result = with_element_counter(make, args)
    return tf.data.experimental.to_variant(result), (kept, result)


def _unbatched(
    begin: Callable[..., Iterator[Elements | None]], args: Sequence[Any], specs: Sequence[Any]
) -> tuple[Any, Any]:
    tf = import_tensorflow("a dataset")
    ragged = [spec.shape.rank is None or (spec.shape.rank > 0 and spec.shape[0] is None) for spec in specs]
    if any(ragged):
        return _unbatched_ragged(begin, args, specs, ragged)
    batched = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]
    nothing = [np.zeros([0, *(axis or 0 for axis in spec.shape)], spec.dtype.as_numpy_dtype) for spec in specs]

    def arrays(*values: Any) -> Iterator[Sequence[Any]]:  # noqa: ANN401, arrays
        for found in begin(*values):
            # Nothing at all lets TensorFlow look whether anybody still waits.
            yield nothing if found is None else [rows.values for rows in found]

    variant, kept = generator_dataset(arrays, args, batched)
    source = tf.data.experimental.from_variant(variant, tuple(batched))
    result = source.unbatch()
    return tf.data.experimental.to_variant(result), (kept, source, result)


def _unbatched_ragged(
    begin: Callable[..., Iterator[Elements | None]], args: Sequence[Any], specs: Sequence[Any], ragged: Sequence[bool]
) -> tuple[Any, Any]:
    """As `unbatched_dataset`, where elements may differ in shape: then each is cut out of all the elements' rows."""
    tf = import_tensorflow("a dataset")
    cuts = sum(ragged)
    whole = [
        tf.TensorSpec(None if may else [None, *spec.shape], spec.dtype) for spec, may in zip(specs, ragged, strict=True)
    ]
    spans = [tf.TensorSpec([None, None], tf.int64)] * (3 * cuts)
    nothing = [np.zeros([0, *(axis or 0 for axis in spec.shape or ())], spec.dtype.as_numpy_dtype) for spec in specs]
    no_spans = [np.zeros([0, 0], np.int64)] * (3 * cuts)

    def arrays(*values: Any) -> Iterator[Sequence[Any]]:  # noqa: ANN401, arrays
        for found in begin(*values):
            if found is None:
                yield [np.False_, *nothing, *no_spans]
            elif all(rows.splits is None for rows in found):
                yield [np.False_, *(rows.values for rows in found), *no_spans]
            else:
                count = len(found[0].values) if found[0].splits is None else len(found[0].splits) - 1
                flat = [
                    rows.values.reshape(-1) if may else rows.values for rows, may in zip(found, ragged, strict=True)
                ]
                where = [each for rows, may in zip(found, ragged, strict=True) if may for each in _spans(rows, count)]
                yield [np.True_, *flat, *where]

    def cut(is_ragged: Any, *tensors: Any) -> Any:  # noqa: ANN401, tensors
        values, places = tensors[: len(specs)], tensors[len(specs) :]
        even = [value for value, may in zip(values, ragged, strict=True) if not may]
        flat = [value for value, may in zip(values, ragged, strict=True) if may]

        def one(*parts: Any) -> Any:  # noqa: ANN401, tensors
            left, spans = iter(parts[: len(even)]), parts[len(even) :]
            cut_out = iter(
                tf.reshape(tf.raw_ops.Slice(input=rows, begin=spans[3 * at], size=spans[3 * at + 1]), spans[3 * at + 2])
                for at, rows in enumerate(flat)
            )
            return tuple(next(cut_out if may else left) for may in ragged)

        def each() -> Any:  # noqa: ANN401, a tensor
            return tf.data.experimental.to_variant(tf.data.Dataset.from_tensor_slices((*even, *places)).map(one))

        def side_by_side() -> Any:  # noqa: ANN401, a tensor
            return tf.data.experimental.to_variant(tf.data.Dataset.from_tensor_slices(tuple(values)))

        variant = tf.cond(is_ragged, each, side_by_side)
        return tf.data.experimental.from_variant(variant, tuple(specs))

    variant, kept = generator_dataset(arrays, args, [tf.TensorSpec([], tf.bool), *whole, *spans])
    source = tf.data.experimental.from_variant(variant, (tf.TensorSpec([], tf.bool), *whole, *spans))
    result = source.flat_map(cut)
    return tf.data.experimental.to_variant(result), (kept, source, result)


def _spans(rows: Rows, count: int) -> list[Any]:
    """Of each element: where it begins in the flat array `[N, 1]`, its size `[N, 1]` and its shape `[N, rank]`."""
    values, splits = rows
    if splits is None:
        shape = values.shape[1:]
        size = int(np.prod(shape, dtype=np.int64))
        begins, sizes = np.arange(count) * size, np.full(count, size)
        shapes = np.tile(np.array(shape, np.int64), (count, 1))
    else:
        cell = values.shape[1:]
        size = int(np.prod(cell, dtype=np.int64))
        lengths = np.diff(splits)
        begins, sizes = splits[:-1] * size, lengths * size
        shapes = np.column_stack([lengths, np.tile(np.array(cell, np.int64), (count, 1))])
    return [begins[:, None], sizes[:, None], shapes.reshape(count, -1)]
