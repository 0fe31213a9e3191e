"""A dataset that reads blocks of elements from Python and splits them in TensorFlow: one Python call per block."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from engram.compat.reverb._elements import Elements, TensorBlock
from engram.compat.reverb._generator_dataset import generator_dataset
from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.data._tf_element_counter import TfElementCounter, with_element_counter

__all__ = ["unbatched_dataset"]


def unbatched_dataset(
    read_blocks: Callable[..., Iterator[Elements | None]],
    args: Sequence[Any],
    specs: Sequence[Any],
    *,
    counted: bool = False,
) -> tuple[Any, Any]:
    """Creates a dataset of single elements.

    Args:
        read_blocks: A generator function that yields several elements at once, or None while there are none. The
            generator is closed when an iteration ends.
        args: Tensors, passed to `read_blocks` as arrays.
        specs: `tf.TensorSpec` of each tensor of an element.
        counted: If True, `read_blocks` also receives a `TfElementCounter` of the elements that have left the dataset.

    Returns:
        The dataset as a variant tensor, and the objects that must live as long as the dataset.
    """
    if not counted:
        return _unbatched(read_blocks, args, specs)
    tf = import_tensorflow("a dataset")
    keep_alive = []

    def read_blocks_counted(*values: Any) -> Iterator[Elements | None]:  # noqa: ANN401, arrays
        counter = TfElementCounter(values[-1])
        try:
            yield from read_blocks(*values[:-1], counter)
        finally:
            counter.close()

    def make(tensors: list[Any]) -> Any:  # noqa: ANN401, a tf.data.Dataset
        variant, objects = _unbatched(read_blocks_counted, tensors, specs)
        keep_alive.append(objects)
        return tf.data.experimental.from_variant(variant, tuple(specs))

    result = with_element_counter(make, args)
    return tf.data.experimental.to_variant(result), (keep_alive, result)


def _unbatched(
    read_blocks: Callable[..., Iterator[Elements | None]], args: Sequence[Any], specs: Sequence[Any]
) -> tuple[Any, Any]:
    """Does what `unbatched_dataset` describes, without a counter."""
    tf = import_tensorflow("a dataset")
    ragged = [spec.shape.rank is None or spec.shape.as_list()[:1] == [None] for spec in specs]
    if any(ragged):
        return _unbatched_ragged(read_blocks, args, specs, ragged)
    batched = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]
    empty = list(map(_empty, specs))

    def arrays(*values: Any) -> Iterator[Sequence[Any]]:  # noqa: ANN401, arrays
        for elements in read_blocks(*values):
            # An empty block gives TensorFlow the chance to notice that the iteration was cancelled.
            yield empty if elements is None else [tensor.values for tensor in elements]

    variant, keep_alive = generator_dataset(arrays, args, batched)
    source = tf.data.experimental.from_variant(variant, tuple(batched))
    result = source.unbatch()
    return tf.data.experimental.to_variant(result), (keep_alive, source, result)


def _unbatched_ragged(
    read_blocks: Callable[..., Iterator[Elements | None]],
    args: Sequence[Any],
    specs: Sequence[Any],
    ragged: Sequence[bool],
) -> tuple[Any, Any]:
    """Like `_unbatched`, for elements that may differ in shape.

    `ragged` marks the tensors that may differ. If they do in a block, their values are passed as flat arrays, which
    TensorFlow slices into elements: see `_spans`.
    """
    tf = import_tensorflow("a dataset")
    num_ragged = sum(ragged)
    value_specs = [
        tf.TensorSpec(None if is_ragged else [None, *spec.shape], spec.dtype)
        for spec, is_ragged in zip(specs, ragged, strict=True)
    ]
    span_specs = [tf.TensorSpec([None, None], tf.int64)] * (3 * num_ragged)
    empty = list(map(_empty, specs))
    no_spans = [np.zeros([0, 0], np.int64)] * (3 * num_ragged)

    def arrays(*values: Any) -> Iterator[Sequence[Any]]:  # noqa: ANN401, arrays
        for elements in read_blocks(*values):
            if elements is None:
                yield [np.False_, *empty, *no_spans]
            elif all(tensor.splits is None for tensor in elements):
                yield [np.False_, *(tensor.values for tensor in elements), *no_spans]
            else:
                first = elements[0]
                count = len(first.values) if first.splits is None else len(first.splits) - 1
                pairs = list(zip(elements, ragged, strict=True))
                flat = [tensor.values.reshape(-1) if is_ragged else tensor.values for tensor, is_ragged in pairs]
                spans = [span for tensor, is_ragged in pairs if is_ragged for span in _spans(tensor, count)]
                yield [np.True_, *flat, *spans]

    def split(block_is_ragged: Any, *tensors: Any) -> Any:  # noqa: ANN401, tensors
        values, spans = tensors[: len(specs)], tensors[len(specs) :]
        dense = [value for value, is_ragged in zip(values, ragged, strict=True) if not is_ragged]
        flat = [value for value, is_ragged in zip(values, ragged, strict=True) if is_ragged]

        def one_element(*parts: Any) -> Any:  # noqa: ANN401, tensors
            dense_parts, spans = iter(parts[: len(dense)]), parts[len(dense) :]
            slices = iter(
                tf.reshape(
                    tf.raw_ops.Slice(input=flat_values, begin=spans[3 * index], size=spans[3 * index + 1]),
                    spans[3 * index + 2],
                )
                for index, flat_values in enumerate(flat)
            )
            return tuple(next(slices if is_ragged else dense_parts) for is_ragged in ragged)

        def split_ragged() -> Any:  # noqa: ANN401, a tensor
            dataset = tf.data.Dataset.from_tensor_slices((*dense, *spans)).map(one_element)
            return tf.data.experimental.to_variant(dataset)

        def split_dense() -> Any:  # noqa: ANN401, a tensor
            return tf.data.experimental.to_variant(tf.data.Dataset.from_tensor_slices(tuple(values)))

        variant = tf.cond(block_is_ragged, split_ragged, split_dense)
        return tf.data.experimental.from_variant(variant, tuple(specs))

    block_specs = (tf.TensorSpec([], tf.bool), *value_specs, *span_specs)
    variant, keep_alive = generator_dataset(arrays, args, block_specs)
    source = tf.data.experimental.from_variant(variant, block_specs)
    result = source.flat_map(split)
    return tf.data.experimental.to_variant(result), (keep_alive, source, result)


def _empty(spec: Any) -> Any:  # noqa: ANN401, an array
    """Returns a tensor of no elements, `[0, ...]`."""
    axes = spec.shape.as_list() if spec.shape.rank else []
    return np.zeros([0, *(axis or 0 for axis in axes)], spec.dtype.as_numpy_dtype)


def _spans(tensor: TensorBlock, count: int) -> list[Any]:
    """Returns each element's start in the flat array, `[N, 1]`, its size, `[N, 1]`, and its shape, `[N, rank]`."""
    values, splits = tensor
    if splits is None:
        shape = values.shape[1:]
        size = int(np.prod(shape, dtype=np.int64))
        begins, sizes = np.arange(count) * size, np.full(count, size)
        shapes = np.tile(np.array(shape, np.int64), (count, 1))
    else:
        row_shape = values.shape[1:]
        size = int(np.prod(row_shape, dtype=np.int64))
        lengths = np.diff(splits)
        begins, sizes = splits[:-1] * size, lengths * size
        shapes = np.column_stack([lengths, np.tile(np.array(row_shape, np.int64), (count, 1))])
    return [begins[:, None], sizes[:, None], shapes.reshape(count, -1)]
