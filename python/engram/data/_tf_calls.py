"""Calls Python from TensorFlow: eagerly, or by an operation of a graph."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from engram.data._exit_guard import ExitGuard

__all__ = ["call_python"]

_exit_guard = ExitGuard()


def call_python(function: Callable[..., Sequence[Any]], inputs: Sequence[Any], specs: Sequence[Any]) -> Any:  # noqa: ANN401, tensors
    """Calls `function` with the inputs as arrays; returns its results as tensors, one per `tf.TensorSpec`.

    A graph keeps the function for the life of the process. In a graph, a call without specs returns the operation, and
    errors are those of `tf.numpy_function`: a ValueError or TypeError becomes an `InvalidArgumentError`, most others an
    `UnknownError`.
    """
    if tf.executing_eagerly():
        arrays = function(*[tensor.numpy() if tf.is_tensor(tensor) else tensor for tensor in inputs])
        return [tf.constant(array, spec.dtype) for array, spec in zip(arrays, specs, strict=True)]
    _exit_guard.register()

    def call(*arrays: object) -> Sequence[Any]:
        with _exit_guard as may_run:
            if not may_run:
                raise StopIteration  # ends a dataset that prefetches while the process exits
            return function(*arrays)

    with tf.device("cpu:0"):
        result = tf.numpy_function(call, list(inputs), [spec.dtype for spec in specs])
    if specs:
        for tensor, spec in zip(result, specs, strict=True):
            tensor.set_shape(spec.shape)
    return result
