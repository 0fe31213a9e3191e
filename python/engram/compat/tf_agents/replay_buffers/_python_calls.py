"""Calls of methods of a replay buffer, eagerly or by an operation of a graph."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from engram.data._tf_calls import call_python
from engram.data._tf_types import Tensor, TfDataset

__all__ = ["GraphInvalidArgumentError", "Tensor", "TfDataset", "call_method", "invalid_argument", "without_autograph"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


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


def call_method(
    method: Callable[..., Sequence[Any]],
    constants: Sequence[Any],
    inputs: Sequence[Any],
    specs: Sequence[Any],
) -> Any:  # noqa: ANN401, tensors
    """Calls a bound method with the constants, and the inputs as arrays; see `call_python`.

    A graph gets a weak reference: it does not keep a replay buffer alive.
    """
    reference = weakref.WeakMethod(method)

    def call(*arrays: object) -> Sequence[Any]:
        bound = reference()
        if bound is None:
            raise invalid_argument("the replay buffer was deleted; keep a reference to it while its graphs are used")
        return bound(*constants, *arrays)

    return call_python(call, inputs, specs)
