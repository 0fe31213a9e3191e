"""A `tf.data.Dataset` of the results of a Python function, with little overhead per call."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

__all__ = ["function_dataset"]

Next = Callable[[npt.NDArray[Any]], Sequence[Any]]

_IN_CALLING_THREAD = (
    {"force_synchronous": True} if "force_synchronous" in inspect.signature(tf.raw_ops.MapDataset).parameters else {}
)
"""The option that keeps calls in the thread that requests an element. TensorFlow has it since 2.18."""


def function_dataset(next_element: Next, iterator_number: Any, specs: Sequence[Any]) -> Any:  # noqa: ANN401, TensorFlow's
    """Returns a dataset of the results of repeated calls `next_element(iterator_number)` until StopIteration.

    Use it inside `flat_map`, whose function receives a new `iterator_number` for each iteration. Where TensorFlow can,
    `next_element` runs in the thread that requests an element: passing the call to another thread and back takes longer
    than most calls do, and only the main thread notices Ctrl-C.

    Args:
        next_element: A module-level function, as TensorFlow keeps it for the life of the process. It returns one array
            per spec; text is arrays of `bytes` objects.
        iterator_number: The argument of `next_element`, an i64 tensor `[]`.
        specs: A `tf.TensorSpec` for each array.
    """
    dtypes = [spec.dtype for spec in specs]

    def call(number: Any) -> list[Any]:  # noqa: ANN401, a tensor
        results = tf.numpy_function(next_element, [number], dtypes)
        for tensor, spec in zip(results, specs, strict=True):
            tensor.set_shape(spec.shape)
        return list(results)

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
