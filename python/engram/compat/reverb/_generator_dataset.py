"""Any iterator of arrays as a `tf.data.Dataset`."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.compat.reverb._tf_errors import check_status, run_with_status
from engram.data._exit_guard import ExitGuard

__all__ = ["generator_dataset"]

_open: dict[int, Iterator[Sequence[Any]]] = {}
"""What is being iterated over now, by number."""

_broken: dict[int, Exception] = {}
"""What ended an iterator that is iterated over, by its number."""

_numbers = itertools.count()


def _close_all() -> None:
    for number in list(_open):
        _close(number)


_exit_guard = ExitGuard(_close_all)


def generator_dataset(
    begin: Callable[..., Iterator[Sequence[Any]]], args: Sequence[Any], specs: Sequence[Any]
) -> tuple[Any, tuple[Any, ...]]:
    """A dataset of what `begin(*args)` yields; each iteration begins anew, and closes what it began.

    TensorFlow's own `from_generator` does the same at several times the cost per element; here errors keep their kinds,
    too, as `run_with_status` says.

    Args:
        begin: A generator function. What it is given are arrays, or bytes.
        args: Tensors, evaluated when an iteration begins.
        specs: `tf.TensorSpec` of each array that is yielded.

    Returns:
        The dataset as a variant tensor, and what must live as long as it.
    """
    tf = import_tensorflow("a dataset")
    from engram.data._tf_function_dataset import function_dataset  # noqa: PLC0415, imports TensorFlow

    _exit_guard.register()
    number = [tf.TensorSpec([], tf.int64)]
    variant, functions = _iterated(lambda *values: _numbered(begin(*values)), args, number)
    numbers = tf.data.experimental.from_variant(variant, tuple(number))
    found = numbers.flat_map(
        tf.autograph.experimental.do_not_convert(lambda number: function_dataset(_next, number, specs))
    )
    return tf.data.experimental.to_variant(found), (functions, numbers, found)


def _numbered(iterator: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yields the number of an iterator, and raises what ended it."""
    number = next(_numbers)
    _open[number] = iterator
    try:
        yield [np.int64(number)]
        if number in _broken:
            raise _broken[number]
    finally:
        _broken.pop(number, None)
        _close(number)


def _next(number: Any) -> list[Any]:  # noqa: ANN401, an array
    """What an iterator yields next. An error is kept: TensorFlow would tell of most of them in words of its own."""
    with _exit_guard as may:
        if not may:
            raise StopIteration  # which TensorFlow knows
        try:
            return list(next(_open[int(number)]))
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001, `_numbered` raises it
            _broken[int(number)] = error
            raise StopIteration from None


def _close(number: int) -> None:
    """Closes an iterator, unless it is at work: then the end of the process does."""
    with suppress(ValueError):
        if (found := _open.get(number)) is not None:
            found.close()  # type: ignore[attr-defined]  # a generator
        _open.pop(number, None)


def _iterated(
    begin: Callable[..., Iterator[Sequence[Any]]], args: Sequence[Any], specs: Sequence[Any]
) -> tuple[Any, tuple[Any, ...]]:
    """As `generator_dataset`, of few elements: TensorFlow calls a function of its own for each."""
    tf = import_tensorflow("a dataset")
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


def _starting(begin: Callable[..., Iterator[Sequence[Any]]]) -> Callable[..., Any]:
    def start(*values: Any) -> Any:  # noqa: ANN401, arrays
        number = next(_numbers)
        _open[number] = begin(*values)
        return np.int64(number)

    return lambda *tensors: import_tensorflow("a dataset").numpy_function(start, tensors, np.int64)


def _stepping(specs: Sequence[Any]) -> Callable[[Any], Any]:
    tf = import_tensorflow("a dataset")
    shapes = [[axis or 0 for axis in spec.shape] if spec.shape.rank else [] for spec in specs]
    nothing = [np.zeros(shape, spec.dtype.as_numpy_dtype) for shape, spec in zip(shapes, specs, strict=True)]

    def step(number: Any) -> list[Any]:  # noqa: ANN401, an array
        with _exit_guard as may:
            if not may:
                raise StopIteration  # which TensorFlow knows
            return run_with_status(lambda: next(_open[int(number)]), nothing)

    def stepped(number: Any) -> Any:  # noqa: ANN401, tensors
        kind, text, *made = tf.numpy_function(step, [number], [tf.int64, tf.string, *(spec.dtype for spec in specs)])
        made = check_status(kind, text, made)
        for tensor, spec in zip(made, specs, strict=True):
            tensor.set_shape(spec.shape)
        return made

    return stepped


def _stopping(number: Any) -> Any:  # noqa: ANN401, tensors
    def stop(number: Any) -> Any:  # noqa: ANN401, arrays
        with _exit_guard:
            _close(int(number))
        return np.int64(0)

    return import_tensorflow("a dataset").numpy_function(stop, [number], np.int64)
