"""What a Python function returns, again and again, as a `tf.data.Dataset` that does little work of its own."""

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
    """A dataset of what `step(number)` returns, until it raises a StopIteration; for a function of `flat_map`.

    It runs in the thread that asks for an element: handing it to another one and back takes longer than most calls do.

    Args:
        step: A function of a module, as TensorFlow knows it for ever. Text is arrays of `bytes` objects.
        number: An i64 tensor `[]`, given to it.
        specs: `tf.TensorSpec` of each array.
    """
    dtypes = [spec.dtype for spec in specs]

    def called(number: Any) -> list[Any]:  # noqa: ANN401, a tensor
        if (token := _token(step)) is None:
            made = tf.numpy_function(step, [number], dtypes)
        else:
            made = tf.raw_ops.PyFunc(input=[number], token=token, Tout=dtypes)
        for tensor, spec in zip(made, specs, strict=True):
            tensor.set_shape(spec.shape)
        return list(made)

    function = tf.function(called, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
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
        preserve_cardinality=False,  # a StopIteration is an end, and no error
        force_synchronous=True,
    )
    return tf.data.experimental.from_variant(variant, tuple(specs))


_lock = threading.Lock()
_kept: dict[Next, tuple[str, Any]] = {}
"""Of functions that TensorFlow knows: their tokens, and what it looks up by them."""


def _token(step: Next) -> str | None:
    """The token by which TensorFlow calls a function; None where `numpy_function` has to be asked."""
    with _lock:
        if not _is_known_way():
            return None
        if step not in _kept:
            _kept[step] = _registered(step)
        return _kept[step][0]


def _registered(step: Next) -> tuple[str, Any]:
    """Makes a function known to TensorFlow, whose registry looks at what others return: 6 us an array."""
    from tensorflow.python.ops import script_ops  # noqa: PLC0415, private: it may be gone

    class Direct(script_ops.EagerFunc):  # type: ignore[misc]  # TensorFlow's
        """A function that the registry calls, and leaves alone what it returns."""

        def __init__(self) -> None:
            """Nothing of what others need."""

        def __call__(self, device: Any, token: Any, args: Sequence[Any]) -> Any:  # noqa: ANN401, ARG002, TensorFlow's
            return [np.asarray(array, order="C") for array in step(*args)]

    direct = Direct()
    return script_ops._py_funcs.insert(direct), direct  # noqa: SLF001, nothing else knows


@cache
def _is_known_way() -> bool:
    """Whether this TensorFlow calls functions as `_registered` has it."""

    def step(number: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        return [number + 1, np.array([b"text"], object)]

    try:
        with tf.init_scope():
            token, kept = _registered(step)
            found = tf.raw_ops.PyFunc(input=[np.int64(1)], token=token, Tout=[tf.int64, tf.string])
            number, text = (tensor.numpy() for tensor in found)
            del kept
    except Exception:  # noqa: BLE001, whatever it says: there is another way
        return False
    return bool(number == 2 and text.tolist() == [b"text"])  # noqa: PLR2004, one more
