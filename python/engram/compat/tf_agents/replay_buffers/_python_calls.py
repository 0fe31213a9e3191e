"""Calls of Python methods, eagerly or by an operation of a graph."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from engram.data._exit_guard import ExitGuard

__all__ = ["GraphInvalidArgumentError", "call_python", "invalid_argument", "without_autograph"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_exit_guard = ExitGuard()


class GraphInvalidArgumentError(tf.errors.InvalidArgumentError, ValueError):
    """An `InvalidArgumentError` that can also be raised in a graph.

    TensorFlow reports a ValueError of a Python function as an `InvalidArgumentError`, and its own errors as unknown.
    """


def invalid_argument(message: str) -> GraphInvalidArgumentError:
    """Returns an error with this text."""
    return GraphInvalidArgumentError(None, None, message)


def without_autograph(function: _Function) -> _Function:
    """Decorator: AutoGraph does not convert the function, nor what it calls."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]  # TensorFlow has no types


def call_python(
    method: Callable[..., Sequence[Any]],
    constants: Sequence[Any],
    inputs: Sequence[Any],
    specs: Sequence[Any],
) -> Any:  # noqa: ANN401, tensors
    """Calls a bound method with the constants, and the inputs as arrays; returns its results as tensors, one per spec.

    A graph keeps the functions that its operations call for the life of the process. So it gets a weak reference: a
    graph does not keep a replay buffer alive. In a graph, sizes of specs that are None are unknown, and a call without
    specs returns the operation.
    """
    if tf.executing_eagerly():
        arrays = method(*constants, *[tensor.numpy() if tf.is_tensor(tensor) else tensor for tensor in inputs])
        return [tf.constant(array, spec.dtype) for array, spec in zip(arrays, specs, strict=True)]
    _exit_guard.register()
    reference = weakref.WeakMethod(method)

    def call(*arrays: Any) -> Sequence[Any]:  # noqa: ANN401, arrays
        with _exit_guard as may_run:
            if not may_run:
                raise StopIteration  # ends a dataset that prefetches while the process exits
            bound = reference()
            if bound is None:
                raise invalid_argument(
                    "the replay buffer was deleted; keep a reference to it while its graphs are used"
                )
            return bound(*constants, *arrays)

    with tf.device("cpu:0"):
        result = tf.numpy_function(call, list(inputs), [spec.dtype for spec in specs])
    if not specs:
        return result
    for tensor, spec in zip(result, specs, strict=True):
        tensor.set_shape(spec.shape)
    return result
