"""Calls of `TFClient` from TensorFlow, whose errors are those of TensorFlow that Reverb raises."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engram.compat.reverb._block_reader import DtypeMismatchError
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

__all__ = ["call_from_tensorflow"]

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
Other errors become an `InvalidArgumentError` if they are a ValueError or a TypeError, else, as a `DtypeMismatchError`,
an `InternalError`."""


def call_from_tensorflow(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """Calls `function` with the inputs as arrays and returns its results as tensors, eagerly or in a graph.

    Raises TensorFlow's error that corresponds to the error's gRPC code. In a graph, this is an `UnknownError` unless it
    is an `InvalidArgumentError`, a `NotFoundError` or an `InternalError`.
    """
    tf = import_tensorflow("reverb.TFClient")
    from engram.data._tf_calls import call_python  # noqa: PLC0415, imports TensorFlow

    specs = [tf.TensorSpec(None, dtype) for dtype in dtypes]

    def call(*arrays: object) -> Sequence[Any]:
        with translated():
            return function(*arrays)

    if tf.executing_eagerly():
        try:
            return list(call_python(call, inputs, specs))
        except Exception as error:
            if (name := _tensorflow_error(error)) is None:
                raise
            raise getattr(tf.errors, name)(None, None, str(error)) from None

    def call_in_graph(*arrays: object) -> Any:  # noqa: ANN401, see below
        try:
            return [*call(*arrays), b""]
        except Exception as error:
            # An exception becomes an `InvalidArgumentError` or an `UnknownError`. TensorFlow has no operation that
            # raises a given error: these are errors of its own, with our text in them.
            name = _tensorflow_error(error)
            if name == "NotFoundError":
                values = [b"" if dtype == tf.string else np.zeros((), dtype.as_numpy_dtype) for dtype in dtypes]
                return [*values, str(error).encode()[:_MAX_FILE_NAME].decode(errors="ignore").encode()]
            if name == "InternalError":
                return type(str(error), (), {})()  # a result whose type is unknown
            raise

    *tensors, file = call_python(call_in_graph, inputs, [*specs, tf.TensorSpec([], tf.string)])
    with tf.device("cpu:0"):
        content = tf.cond(tf.equal(file, b""), lambda: tf.constant(b""), lambda: tf.io.read_file(file))
        # A `tf.function` runs operations with effects even if their results are not used, and this is one.
        check = tf.debugging.Assert(tf.equal(content, b""), [file])
        with tf.control_dependencies([check]):
            return [tf.identity(tensor) for tensor in tensors]


_MAX_FILE_NAME = 250
"""Maximum bytes of the text of a `NotFoundError` in a graph, which is that of a file: names may have 255 bytes."""


def _tensorflow_error(error: Exception) -> str | None:
    """Name of TensorFlow's error for an error of Engram or its `translated` form; None for other errors."""
    engine_error = next((each for each in (error, error.__cause__) if isinstance(each, EngramError)), error)
    if isinstance(engine_error, DtypeMismatchError):
        return "InternalError"
    if isinstance(engine_error, ValueError | TypeError):
        return "InvalidArgumentError"
    if isinstance(engine_error, EngramError):
        return _TENSORFLOW_ERRORS.get(type(engine_error), "InternalError")
    return None
