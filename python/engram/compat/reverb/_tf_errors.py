"""Passes Python errors through TensorFlow graphs: as a status and a text, on which the graph fails."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engram.compat.reverb._errors import translated
from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.errors import UnknownTableError

__all__ = ["call_from_tensorflow", "check_status", "run_with_status"]

_OK, _INVALID, _NOT_FOUND = range(3)


def run_with_status(function: Callable[[], Sequence[Any]], placeholders: Sequence[Any]) -> list[Any]:
    """Calls `function` and returns a status, an error text and the result: 0 and "" without an error.

    The status of a ValueError or TypeError stands for `InvalidArgumentError`, that of an `UnknownTableError` for
    `NotFoundError`. After an error, `placeholders` replace the result. Other errors are raised.
    """
    try:
        return [np.int64(_OK), b"", *function()]
    except (ValueError, TypeError) as error:
        return [np.int64(_INVALID), str(error).encode(), *placeholders]
    except UnknownTableError as error:
        return [np.int64(_NOT_FOUND), _reverb_text(error).encode(), *placeholders]


def _reverb_text(error: UnknownTableError) -> str:
    """Reverb's text for an unknown table."""
    try:
        with translated():
            raise error
    except RuntimeError as reverb_error:
        return str(reverb_error)


def check_status(status: Any, text: Any, tensors: Sequence[Any]) -> list[Any]:  # noqa: ANN401, tensors
    """Returns the tensors, in a graph that fails unless `status` is 0."""
    tf = import_tensorflow("a dataset")
    for tensor in (status, text):
        tensor.set_shape([])
    ok = tf.cond(tf.equal(status, _OK), lambda: tf.constant(""), lambda: _fail(status, text))
    with tf.control_dependencies([ok]):
        return [tf.identity(tensor) for tensor in tensors]


def _fail(status: Any, text: Any) -> Any:  # noqa: ANN401, tensors
    """Fails with `InvalidArgumentError` or `NotFoundError`. A graph raises the latter by reading a missing file."""
    tf = import_tensorflow("a dataset")
    with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(status, _INVALID), [text])]):
        return tf.io.read_file(text)


def call_from_tensorflow(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """Calls `function` with the inputs as arrays and returns its results as tensors, eagerly or in a graph."""
    tf = import_tensorflow("reverb.TFClient")
    placeholders = [np.zeros([], dtype.as_numpy_dtype) for dtype in dtypes]
    if tf.executing_eagerly():
        status, text, *arrays = run_with_status(lambda: function(*[tensor.numpy() for tensor in inputs]), placeholders)
        if status != _OK:
            error = tf.errors.InvalidArgumentError if status == _INVALID else tf.errors.NotFoundError
            raise error(None, None, text.decode())
        return [tf.constant(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
    status, text, *tensors = tf.numpy_function(
        lambda *arrays: run_with_status(lambda: function(*arrays), placeholders), inputs, [tf.int64, tf.string, *dtypes]
    )
    return check_status(status, text, tensors)
