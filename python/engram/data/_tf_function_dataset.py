"""A `tf.data.Dataset` of the results of a Python function, with little overhead per call."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from engram.errors import InvalidArgumentError

__all__ = ["check_rows", "function_dataset", "pack_arrays", "unbatch"]

Next = Callable[[npt.NDArray[Any]], Sequence[Any]]

_IN_CALLING_THREAD = (
    {"force_synchronous": True} if "force_synchronous" in inspect.signature(tf.raw_ops.MapDataset).parameters else {}
)
"""The option that keeps calls in the thread that requests an element. TensorFlow has it since 2.18."""


def function_dataset(
    next_element: Next,
    iterator_number: Any,  # noqa: ANN401, a tensor
    specs: Sequence[Any],
    *,
    num_packed: int = 0,
) -> Any:  # noqa: ANN401, TensorFlow's
    """Returns a dataset of the results of repeated calls `next_element(iterator_number)` until StopIteration.

    Use it inside `flat_map`, whose function receives a new `iterator_number` for each iteration. Where TensorFlow can,
    `next_element` runs in the thread that requests an element: passing the call to another thread and back takes longer
    than most calls do, and only the main thread notices Ctrl-C.

    Args:
        next_element: A module-level function, as TensorFlow keeps it for the life of the process. It returns one array
            per spec, but see `num_packed`; text is arrays of `bytes` objects.
        iterator_number: The argument of `next_element`, an i64 tensor `[]`.
        specs: A `tf.TensorSpec` for each tensor of the dataset's tuples.
        num_packed: If not 0, `next_element` returns the first `num_packed` arrays as one array of `pack_arrays`:
            TensorFlow takes about 5 us for each array that a Python function returns.
    """
    dtypes = [spec.dtype for spec in specs]
    packed_specs, other_specs = specs[:num_packed], specs[num_packed:]

    def call(number: Any) -> list[Any]:  # noqa: ANN401, a tensor
        packed_dtypes = [tf.int64] if packed_specs else []
        results = list(tf.numpy_function(next_element, [number], packed_dtypes + dtypes[num_packed:]))
        unpacked = _unpack(results.pop(0), packed_specs) if packed_specs else []
        for tensor, spec in zip(results, other_specs, strict=True):
            tensor.set_shape(spec.shape)
        return unpacked + results

    function = tf.function(call, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    traced = function.get_concrete_function()
    traced.add_to_graph()
    numbers = tf.data.Dataset.from_tensors(iterator_number).repeat()
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(numbers),
        other_arguments=[],
        f=traced,
        output_types=dtypes,
        output_shapes=[spec.shape for spec in specs],
        use_inter_op_parallelism=False,
        preserve_cardinality=False,  # so that a StopIteration ends the dataset instead of failing it
        **_IN_CALLING_THREAD,
    )
    return tf.data.experimental.from_variant(variant, tuple(specs))


def unbatch(dataset: Any, *, empty_rows: bool) -> Any:  # noqa: ANN401, TensorFlow's
    """Returns a dataset of the rows of a dataset's tuples.

    TensorFlow's own `unbatch` is faster, but ends the process with a segmentation fault if a row has an axis of size 0.
    Unless `empty_rows` is True, the caller has to check all arrays with `check_rows`.
    """
    if empty_rows:
        split = tf.autograph.experimental.do_not_convert(lambda *tensors: tf.data.Dataset.from_tensor_slices(tensors))
        return dataset.flat_map(split)
    return dataset.unbatch()


def check_rows(arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Raises an InvalidArgumentError if an array has rows with an axis of size 0."""
    for array in arrays:
        if array.size == 0 and len(array):
            raise InvalidArgumentError(
                f"a column has values of shape {list(array.shape[1:])}, but its spec does not state that an axis has "
                "size 0; give a spec with all sizes except that of the time axis"
            )


def pack_arrays(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """Returns arrays of one shape as one array, i64 `[N, ...]`: 8-byte numbers by their bits, i32 by value."""
    packed = np.empty((len(arrays), *arrays[0].shape), np.int64)
    for row, array in enumerate(arrays):
        packed[row] = array if array.itemsize < packed.itemsize else array.view(np.int64)
    return packed


def _unpack(packed: Any, specs: Sequence[Any]) -> list[Any]:  # noqa: ANN401, a tensor
    """Returns the tensors of an array of `pack_arrays`."""
    tensors: list[Any] = tf.unstack(packed, len(specs))
    for i, spec in enumerate(specs):
        tensors[i].set_shape(spec.shape)
        if spec.dtype != tf.int64:
            convert = tf.bitcast if spec.dtype.size == tf.int64.size else tf.cast
            tensors[i] = convert(tensors[i], spec.dtype)
    return tensors
