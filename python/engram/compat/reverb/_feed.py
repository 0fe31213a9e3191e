"""Any iterator of arrays as a `tf.data.Dataset`."""

import atexit
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from engram.compat.reverb._lazy import tensorflow
from engram.compat.reverb._tf_errors import guarded, passed

__all__ = ["feed"]

_open: dict[int, Iterator[Sequence[Any]]] = {}
"""What is being iterated over now, by number."""

_numbers = itertools.count()


def feed(
    begin: Callable[..., Iterator[Sequence[Any]]], args: Sequence[Any], specs: Sequence[Any]
) -> tuple[Any, tuple[Any, ...]]:
    """A dataset of what `begin(*args)` yields; each iteration begins anew, and closes what it began.

    TensorFlow's own `from_generator` does the same; this one costs half as much per element, and errors keep their
    kinds, as `guarded` says.

    Args:
        begin: A generator function. What it is given are arrays, or bytes.
        args: Tensors, evaluated when an iteration begins.
        specs: `tf.TensorSpec` of each array that is yielded.

    Returns:
        The dataset as a variant tensor, and what must live as long as it.
    """
    tf = tensorflow("a dataset")
    args = [tf.convert_to_tensor(arg) for arg in args]
    number = [tf.TensorSpec(None, tf.int64)]
    functions = tuple(
        tf.function(function, input_signature=signature, autograph=False).get_concrete_function()
        for function, signature in (
            (_starting(begin), [tf.TensorSpec(arg.shape, arg.dtype) for arg in args]),
            (_stepping(specs), number),
            (_stopping, number),
        )
    )
    variant = tf.raw_ops.GeneratorDataset(
        init_func_other_args=args,
        next_func_other_args=[],
        finalize_func_other_args=[],
        init_func=functions[0],
        next_func=functions[1],
        finalize_func=functions[2],
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return variant, functions


class _Exit:
    """The end of the process: TensorFlow's threads must have left Python by then, or they never return."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working = 0
        self._has_come = False

    def enter(self) -> bool:
        """A thread of TensorFlow's comes into Python; not once the end has come."""
        with self._lock:
            self._working += not self._has_come
            return not self._has_come

    def leave(self) -> None:
        """It is about to return."""
        with self._lock:
            self._working -= 1

    def come(self) -> None:
        """Ends all iterations, and waits a while for those that are under way."""
        with self._lock:
            self._has_come = True
        end = time.monotonic() + _PATIENCE
        while self._working and time.monotonic() < end:
            time.sleep(0.01)


_PATIENCE = 5.0
"""Seconds."""

_exit = _Exit()
atexit.register(_exit.come)


def _starting(begin: Callable[..., Iterator[Sequence[Any]]]) -> Callable[..., Any]:
    def start(*values: Any) -> Any:  # noqa: ANN401, arrays
        number = next(_numbers)
        _open[number] = begin(*values)
        return np.int64(number)

    return lambda *tensors: tensorflow("a dataset").numpy_function(start, tensors, np.int64)


def _stepping(specs: Sequence[Any]) -> Callable[[Any], Any]:
    tf = tensorflow("a dataset")
    shapes = [[axis or 0 for axis in spec.shape] if spec.shape.rank else [] for spec in specs]
    nothing = [np.zeros(shape, spec.dtype.as_numpy_dtype) for shape, spec in zip(shapes, specs, strict=True)]

    def step(number: Any) -> list[Any]:  # noqa: ANN401, an array
        if not _exit.enter():
            raise StopIteration  # which TensorFlow knows
        try:
            return guarded(lambda: next(_open[int(number)]), nothing)
        finally:
            _exit.leave()

    def stepped(number: Any) -> Any:  # noqa: ANN401, tensors
        kind, text, *made = tf.numpy_function(step, [number], [tf.int64, tf.string, *(spec.dtype for spec in specs)])
        made = passed(kind, text, made)
        for tensor, spec in zip(made, specs, strict=True):
            tensor.set_shape(spec.shape)
        return made

    return stepped


def _stopping(number: Any) -> Any:  # noqa: ANN401, tensors
    def stop(number: Any) -> Any:  # noqa: ANN401, arrays
        found = _open.pop(int(number), None)
        if found is not None:
            found.close()  # type: ignore[attr-defined]  # a generator
        return np.int64(0)

    return tensorflow("a dataset").numpy_function(stop, [number], np.int64)
