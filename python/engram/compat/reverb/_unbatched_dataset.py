"""A dataset of single elements, read in blocks: one Python call per block, or per element if they differ in shape."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from engram.compat.reverb._elements import Elements, split_elements
from engram.compat.reverb._generator_dataset import generator_dataset
from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.data._tf_element_counter import TfElementCounter, with_element_counter

__all__ = ["unbatched_dataset"]

_MAX_SMALL_BYTES = 256
"""Maximum size of a tensor's value that is packed. Packing copies values; copying larger ones takes too long."""


def unbatched_dataset(
    read_blocks: Callable[..., Iterator[Elements | None]],
    args: Sequence[Any],
    specs: Sequence[Any],
    names: Sequence[str],
    *,
    num_packed: int = 0,
    counted: bool = False,
) -> tuple[Any, Any]:
    """Creates a dataset of the single elements of the blocks that `read_blocks(*args)` yields.

    The generator yields None while there are no elements, and is closed when an iteration ends; if `counted`, it also
    receives a `TfElementCounter` of the elements that have left the dataset. `args` are tensors, passed as arrays.
    `specs` and `names` (for error texts) are those of the tensors of an element. The first `num_packed` tensors are
    packed into one array, see `ArrayPacker`, even if they are large. Returns the dataset as a variant tensor, and what
    must live as long as the dataset.
    """
    if not counted:
        return _unbatched(read_blocks, args, specs, names, num_packed)
    tf = import_tensorflow("a dataset")
    keep_alive = []

    def read_blocks_counted(*values: Any) -> Iterator[Elements | None]:  # noqa: ANN401, arrays
        counter = TfElementCounter(values[-1])
        try:
            yield from read_blocks(*values[:-1], counter)
        finally:
            counter.close()

    def make(tensors: list[Any]) -> Any:  # noqa: ANN401, a tf.data.Dataset
        variant, objects = _unbatched(read_blocks_counted, tensors, specs, names, num_packed)
        keep_alive.append(objects)
        return tf.data.experimental.from_variant(variant, tuple(specs))

    result = with_element_counter(make, args)
    return tf.data.experimental.to_variant(result), (keep_alive, result)


def _unbatched(
    read_blocks: Callable[..., Iterator[Elements | None]],
    args: Sequence[Any],
    specs: Sequence[Any],
    names: Sequence[str],
    num_packed: int,
) -> tuple[Any, Any]:
    """Does what `unbatched_dataset` describes, without a counter."""
    tf = import_tensorflow("a dataset")
    from engram.data._tf_function_dataset import (  # noqa: PLC0415, imports TensorFlow
        ArrayPacker,
        check_rows,
        unbatch,
    )

    def pack(arrays: list[Any]) -> list[Any]:
        if not empty_rows:
            check_rows(arrays, names, "the shapes given to the dataset, or in the table's signature")
        return packer.pack(arrays)

    shapes = [None if spec.shape.rank is None else [None, *spec.shape] for spec in specs]
    batched = [tf.TensorSpec(shape, spec.dtype) for shape, spec in zip(shapes, specs, strict=True)]
    # True if some values are always empty.
    empty_rows = any(shape is not None and 0 in shape for shape in shapes)
    packer = ArrayPacker(batched, [i < num_packed or _is_small(spec) for i, spec in enumerate(specs)])
    empty = pack([_empty(spec) for spec in specs])

    def arrays(*values: Any) -> Iterator[Sequence[Any]]:  # noqa: ANN401, arrays
        for elements in read_blocks(*values):
            if elements is None:
                yield empty  # gives TensorFlow the chance to notice that the iteration was cancelled
            elif all(tensor.splits is None for tensor in elements):
                yield pack([tensor.values for tensor in elements])
            else:
                yield from (pack([array[None] for array in arrays]) for arrays in split_elements(elements))

    variant, keep_alive = generator_dataset(arrays, args, packer)
    source = tf.data.experimental.from_variant(variant, tuple(batched))
    result = unbatch(source, empty_rows=empty_rows)
    return tf.data.experimental.to_variant(result), (keep_alive, source, result)


def _is_small(spec: Any) -> bool:  # noqa: ANN401, TensorFlow's
    """True if all values of a tensor have the same small size, and a dtype that `ArrayPacker` can pack."""
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if dtype.isbuiltin != 1 or dtype.kind == "O" or not spec.shape.is_fully_defined():
        return False
    return bool(0 < spec.shape.num_elements() * dtype.itemsize <= _MAX_SMALL_BYTES)


def _empty(spec: Any) -> Any:  # noqa: ANN401, an array
    """Returns the array of a tensor for a block without elements, `[0, ...]`."""
    axes = spec.shape.as_list() if spec.shape.rank else []
    return np.zeros([0, *(axis or 0 for axis in axes)], spec.dtype.as_numpy_dtype)
