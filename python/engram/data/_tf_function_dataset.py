"""A `tf.data.Dataset` of the results of a Python function, with little overhead per call."""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

__all__ = ["function_dataset"]

Next = Callable[[npt.NDArray[Any]], Sequence[Any]]


def function_dataset(step: Next, number: Any, specs: Sequence[Any]) -> Any:  # noqa: ANN401, TensorFlow's
    """Returns a dataset of the results of `step(number)`, up to its StopIteration; to be used inside `flat_map`.

    `step` runs in the thread that requests an element: passing the call to another thread and back takes longer than
    most calls do.

    Args:
        step: A module-level function, as TensorFlow keeps it for the life of the process. It returns one array per
            spec; text is arrays of `bytes` objects.
        number: The argument of `step`, an i64 tensor `[]`.
        specs: A `tf.TensorSpec` for each array.
    """
    dtypes = [spec.dtype for spec in specs]

    def call(number: Any) -> list[Any]:  # noqa: ANN401, a tensor
        if (token := _token(step)) is None:
            results = tf.numpy_function(step, [number], dtypes)
        else:
            results = tf.raw_ops.PyFunc(input=[number], token=token, Tout=dtypes)
        for tensor, spec in zip(results, specs, strict=True):
            tensor.set_shape(spec.shape)
        return list(results)

    function = tf.function(call, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    traced = function.get_concrete_function()
    traced.add_to_graph()
    numbers = tf.data.Dataset.from_tensors(number).repeat()
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(numbers),
        other_arguments=[],
        f=traced,
        output_types=dtypes,
        output_shapes=[spec.shape for spec in specs],
        use_inter_op_parallelism=False,
        preserve_cardinality=False,  # so that a StopIteration ends the dataset instead of failing it
        force_synchronous=True,
    )
    return tf.data.experimental.from_variant(variant, tuple(specs))


_lock = threading.Lock()
_registrations: dict[Next, tuple[str, Any]] = {}
"""For each registered function: its token, and the object that TensorFlow calls for that token."""


def _token(step: Next) -> str | None:
    """Returns the token by which TensorFlow calls a function directly; None if only `numpy_function` works."""
    with _lock:
        if not _direct_calls_work():
            return None
        if step not in _registrations:
            _registrations[step] = _register(step)
        return _registrations[step][0]


def _register(step: Next) -> tuple[str, Any]:
    """Registers a function so that TensorFlow does not inspect its results, which costs 6 us per array."""
    from tensorflow.python.ops import script_ops  # noqa: PLC0415, private: other versions may not have it

    class DirectCall(script_ops.EagerFunc):  # type: ignore[misc]  # TensorFlow's
        """A function whose results TensorFlow's registry uses unchanged."""

        def __init__(self) -> None:
            """Skips the base class, whose state is not needed."""

        def __call__(self, device: Any, token: Any, args: Sequence[Any]) -> Any:  # noqa: ANN401, ARG002, TensorFlow's
            return [np.asarray(array, order="C") for array in step(*args)]

    direct_call = DirectCall()
    return script_ops._py_funcs.insert(direct_call), direct_call  # noqa: SLF001, there is no public registry


@cache
def _direct_calls_work() -> bool:
    """True if this version of TensorFlow calls functions registered by `_register`."""

    def step(number: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        return [number + 1, np.array([b"text"], object)]

    try:
        with tf.init_scope():
            token, registered = _register(step)
            results = tf.raw_ops.PyFunc(input=[np.int64(1)], token=token, Tout=[tf.int64, tf.string])
            number, text = (tensor.numpy() for tensor in results)
            del registered
    except Exception:  # noqa: BLE001, whatever fails, `numpy_function` is used instead
        return False
    return bool(number == 2 and text.tolist() == [b"text"])  # noqa: PLR2004, 1 + 1
