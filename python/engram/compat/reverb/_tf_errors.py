"""Raises Python errors in TensorFlow graphs, as the errors of TensorFlow that Reverb raises."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from engram.compat.reverb._errors import translated
from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.errors import (
    BackpressureError,
    ClosedError,
    DeadlineExceededError,
    EngramError,
    HandshakeError,
    OutOfMemoryError,
    UnavailableError,
    UnknownTableError,
)

__all__ = ["call_from_tensorflow", "numpy_function"]

_OK, _INVALID, _NOT_FOUND = range(3)

_MAX_NOT_FOUND_BYTES = 250
"""Longer texts of a `NotFoundError` are cut: `_raise` passes the text to `tf.io.read_file` as a file name, and the
system reports a longer name as another error."""

_TENSORFLOW_ERRORS = {
    UnknownTableError: "NotFoundError",
    DeadlineExceededError: "DeadlineExceededError",
    UnavailableError: "UnavailableError",
    ClosedError: "UnavailableError",
    HandshakeError: "UnauthenticatedError",
    OutOfMemoryError: "ResourceExhaustedError",
    BackpressureError: "ResourceExhaustedError",
}
"""Names of the classes of `tf.errors` for Engram's errors: the gRPC codes that a server sends to dm-reverb's clients.
Other errors become an `InvalidArgumentError` if they are a ValueError or a TypeError, else an `InternalError`."""


def numpy_function(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Any], dtypes: Sequence[Any], placeholders: Sequence[Any]
) -> list[Any]:
    """Returns the tensors of a call of `function` in a graph, like `tf.numpy_function`, with other errors.

    A ValueError or a TypeError becomes an `InvalidArgumentError` and an `UnknownTableError` a `NotFoundError`, without
    the traceback that TensorFlow adds to the text. When `function` fails, TensorFlow's function returns the
    `placeholders`, arrays of any values with the dtypes of the results.
    """
    tf = import_tensorflow("a dataset")

    def call(*arrays: Any) -> list[Any]:  # noqa: ANN401, arrays
        try:
            return [np.int64(_OK), b"", *function(*arrays)]
        except (ValueError, TypeError) as error:
            return [np.int64(_INVALID), str(error).encode(), *placeholders]
        except UnknownTableError as error:
            text = _reverb_text(error).encode()[:_MAX_NOT_FOUND_BYTES].decode(errors="ignore")
            return [np.int64(_NOT_FOUND), text.encode(), *placeholders]

    status, text, *tensors = tf.numpy_function(call, inputs, [tf.int64, tf.string, *dtypes])
    for tensor in (status, text):
        tensor.set_shape([])
    no_error = tf.cond(tf.equal(status, _OK), lambda: tf.constant(0, tf.int64), lambda: _raise(status, text))
    with tf.control_dependencies([no_error]):
        return [tf.identity(tensor) for tensor in tensors]


def _raise(status: Any, text: Any) -> Any:  # noqa: ANN401, tensors
    """Raises the error of a status in a graph.

    TensorFlow has no operation that raises a given error. This calls an operation that fails with the same type of
    error and quotes a name in its text, and passes `text` as that name: to `tf.io.read_file` as the name of a file that
    does not exist, or to `tf.io.parse_example` as the name of an example that lacks a feature. The quote ends at a NUL,
    so a NUL after `text` cuts what the operation adds. The text of an `InvalidArgumentError` begins with `Name: `.
    """
    tf = import_tensorflow("a dataset")
    name = tf.strings.join([text, "\0"])

    def invalid() -> Any:  # noqa: ANN401, a tensor
        missing = {"missing": tf.io.FixedLenFeature([], tf.int64)}
        return tf.io.parse_example([b""], missing, example_names=tf.reshape(name, [1]))["missing"][0]

    def not_found() -> Any:  # noqa: ANN401, a tensor
        return tf.strings.to_number(tf.io.read_file(name), tf.int64)

    raised = tf.cond(tf.equal(status, _INVALID), invalid, not_found)
    # TensorFlow removes operations whose results are not used, but not Python functions.
    return tf.numpy_function(_identity, [raised], tf.int64)


def _identity(number: Any) -> Any:  # noqa: ANN401, an array
    return number


def _reverb_text(error: UnknownTableError | UnavailableError | HandshakeError) -> str:
    """Returns Reverb's error text."""
    try:
        with translated():
            raise error
    except RuntimeError as reverb_error:
        return str(reverb_error)


def call_from_tensorflow(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """Calls `function` with the inputs as arrays and returns its results as tensors, eagerly or in a graph.

    Raises TensorFlow's errors: eagerly the one that corresponds to the error's gRPC code, in a graph those that
    `numpy_function` raises.
    """
    tf = import_tensorflow("reverb.TFClient")
    if not tf.executing_eagerly():
        placeholders = [np.zeros([], dtype.as_numpy_dtype) for dtype in dtypes]
        return numpy_function(function, inputs, dtypes, placeholders)
    try:
        arrays = function(*[tensor.numpy() for tensor in inputs])
    except Exception as error:
        if (converted := _tensorflow_error(error)) is None:
            raise
        raise converted from None
    return [tf.constant(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]


def _tensorflow_error(error: Exception) -> Exception | None:
    """Returns TensorFlow's error for an error of Engram or its `translated` form; None for other errors."""
    engine_error = next((each for each in (error, error.__cause__) if isinstance(each, EngramError)), error)
    if isinstance(engine_error, ValueError | TypeError):
        name = "InvalidArgumentError"
    elif isinstance(engine_error, EngramError):
        name = _TENSORFLOW_ERRORS.get(type(engine_error), "InternalError")
    else:
        return None
    if isinstance(error, UnknownTableError | UnavailableError | HandshakeError):
        text = _reverb_text(error)
    else:
        text = str(error)
    errors = import_tensorflow("reverb.TFClient").errors
    return cast("Exception", getattr(errors, name)(None, None, text))
