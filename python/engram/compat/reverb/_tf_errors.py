"""Errors on their way through TensorFlow: Python's say their kind and text, and a graph fails with both."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engram.compat.reverb._errors import translated
from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.errors import UnknownTableError

__all__ = ["call_from_tensorflow", "check_status", "run_with_status"]

_FINE, _INVALID, _NOT_FOUND = range(3)


def run_with_status(function: Callable[[], Sequence[Any]], nothing: Sequence[Any]) -> list[Any]:
    """What `function` returns, after the kind and the text of its error: 0 and "" where there was none.

    A ValueError and a TypeError are to become an `InvalidArgumentError`, an `UnknownTableError` a `NotFoundError`; then
    `nothing` stands for the values. Other errors are raised.
    """
    try:
        return [np.int64(_FINE), b"", *function()]
    except (ValueError, TypeError) as error:
        return [np.int64(_INVALID), str(error).encode(), *nothing]
    except UnknownTableError as error:
        return [np.int64(_NOT_FOUND), _words(error).encode(), *nothing]


def _words(error: UnknownTableError) -> str:
    """What Reverb says of a table that is not there."""
    try:
        with translated():
            raise error
    except RuntimeError as told:
        return str(told)


def check_status(kind: Any, text: Any, tensors: Sequence[Any]) -> list[Any]:  # noqa: ANN401, tensors
    """In a graph: the tensors, once it is known that there was no error."""
    tf = import_tensorflow("a dataset")
    for tensor in (kind, text):
        tensor.set_shape([])
    fine = tf.cond(tf.equal(kind, _FINE), lambda: tf.constant(""), lambda: _fail(kind, text))
    with tf.control_dependencies([fine]):
        return [tf.identity(tensor) for tensor in tensors]


def _fail(kind: Any, text: Any) -> Any:  # noqa: ANN401, tensors
    """Fails: to read a file that is not there is a graph's way to a `NotFoundError`."""
    tf = import_tensorflow("a dataset")
    with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(kind, _INVALID), [text])]):
        return tf.io.read_file(text)


def call_from_tensorflow(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """Tensors of what `function` makes of the inputs' arrays: at once where that is possible, else in the graph."""
    tf = import_tensorflow("reverb.TFClient")
    nothing = [np.zeros([], dtype.as_numpy_dtype) for dtype in dtypes]
    if tf.executing_eagerly():
        kind, text, *made = run_with_status(lambda: function(*[tensor.numpy() for tensor in inputs]), nothing)
        if kind != _FINE:
            error = tf.errors.InvalidArgumentError if kind == _INVALID else tf.errors.NotFoundError
            raise error(None, None, text.decode())
        return [tf.constant(array, dtype) for array, dtype in zip(made, dtypes, strict=True)]
    kind, text, *made = tf.numpy_function(
        lambda *arrays: run_with_status(lambda: function(*arrays), nothing), inputs, [tf.int64, tf.string, *dtypes]
    )
    return check_status(kind, text, made)
