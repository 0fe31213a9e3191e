"""Calls of `TFClient` from TensorFlow, whose errors are those of TensorFlow that Reverb raises."""

from collections.abc import Callable, Sequence
from typing import Any, cast

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
Other errors become an `InvalidArgumentError` if they are a ValueError or a TypeError, else an `InternalError`."""


def call_from_tensorflow(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """Calls `function` with the inputs as arrays and returns its results as tensors, eagerly or in a graph.

    Raises TensorFlow's errors: eagerly the one that corresponds to the error's gRPC code, in a graph those of
    `tf.numpy_function`.
    """
    tf = import_tensorflow("reverb.TFClient")
    from engram.data._tf_calls import call_python  # noqa: PLC0415, imports TensorFlow

    def call(*arrays: object) -> Sequence[Any]:
        with translated():
            return function(*arrays)

    try:
        return list(call_python(call, inputs, [tf.TensorSpec(None, dtype) for dtype in dtypes]))
    except Exception as error:
        if not tf.executing_eagerly() or (converted := _tensorflow_error(error)) is None:
            raise
        raise converted from None


def _tensorflow_error(error: Exception) -> Exception | None:
    """Returns TensorFlow's error for an error of Engram or its `translated` form; None for other errors."""
    engine_error = next((each for each in (error, error.__cause__) if isinstance(each, EngramError)), error)
    if isinstance(engine_error, ValueError | TypeError):
        name = "InvalidArgumentError"
    elif isinstance(engine_error, EngramError):
        name = _TENSORFLOW_ERRORS.get(type(engine_error), "InternalError")
    else:
        return None
    errors = import_tensorflow("reverb.TFClient").errors
    return cast("Exception", getattr(errors, name)(None, None, str(error)))
