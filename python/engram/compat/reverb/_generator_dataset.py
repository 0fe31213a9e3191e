"""Any iterator of arrays as a `tf.data.Dataset`."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.compat.reverb._tf_errors import numpy_function
from engram.data._exit_guard import ExitGuard

__all__ = ["generator_dataset"]

_open_iterators: dict[int, Iterator[Sequence[Any]]] = {}
"""The open iterators by number."""

_iterator_errors: dict[int, Exception] = {}
"""The errors that ended open iterators, by number."""

_numbers = itertools.count()


def _close_all() -> None:
    for number in list(_open_iterators):
        _close(number)


_exit_guard = ExitGuard(_close_all)


def generator_dataset(
    begin: Callable[..., Iterator[Sequence[Any]]],
    args: Sequence[Any],
    packer: Any,  # noqa: ANN401, imports TensorFlow
) -> tuple[Any, tuple[Any, ...]]:
    """Creates a dataset of the arrays that the generator `begin(*args)` yields. Each iteration has its own generator.

    TensorFlow's `from_generator` costs several times as much per element and changes the types of errors. This dataset
    raises errors as `_tf_errors.numpy_function` does.

    `args` are tensors, evaluated when an iteration begins and passed as arrays or bytes; arrays are yielded in the form
    that `packer.pack` returns. Returns the dataset as a variant tensor, and what must live as long as the dataset.
    """
    tf = import_tensorflow("a dataset")
    from engram.data._tf_function_dataset import function_dataset  # noqa: PLC0415, imports TensorFlow

    _exit_guard.register()
    number_spec = [tf.TensorSpec([], tf.int64)]
    # This dataset has a single element, the number of the generator, so its cost per element does not matter.
    variant, functions = _traced_generator_dataset(lambda *values: _number_of(begin(*values)), args, number_spec)
    numbers = tf.data.experimental.from_variant(variant, tuple(number_spec))
    result = numbers.flat_map(
        tf.autograph.experimental.do_not_convert(lambda number: function_dataset(_next, number, packer))
    )
    return tf.data.experimental.to_variant(result), (functions, numbers, result)


def _number_of(iterator: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yields one element, the number under which it registers `iterator`.

    TensorFlow resumes this generator when the iteration over `iterator` has ended. If an error ended that iteration,
    this generator raises the error, so that its type is preserved.
    """
    number = next(_numbers)
    _open_iterators[number] = iterator
    try:
        yield [np.int64(number)]
        if number in _iterator_errors:
            raise _iterator_errors[number]
    finally:
        _iterator_errors.pop(number, None)
        _close(number)


def _next(number: Any) -> list[Any]:  # noqa: ANN401, an array
    """Returns an iterator's next arrays. An error is stored, not raised: TensorFlow would change its type."""
    with _exit_guard as may_run:
        if not may_run:
            raise StopIteration  # TensorFlow ends the iteration
        try:
            return list(next(_open_iterators[int(number)]))
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001, `_number_of` raises it
            _iterator_errors[int(number)] = error
            raise StopIteration from None


def _close(number: int) -> None:
    """Closes an iterator. If it is running, it stays open until the process exits."""
    with suppress(ValueError):
        if (iterator := _open_iterators.get(number)) is not None:
            iterator.close()  # type: ignore[attr-defined]  # a generator
        _open_iterators.pop(number, None)


def _traced_generator_dataset(
    begin: Callable[..., Iterator[Sequence[Any]]], args: Sequence[Any], specs: Sequence[Any]
) -> tuple[Any, tuple[Any, ...]]:
    """Like `generator_dataset`, but slower per element: TensorFlow executes a traced function for each."""
    tf = import_tensorflow("a dataset")
    args = [tf.convert_to_tensor(arg) for arg in args]
    number_spec = [tf.TensorSpec(None, tf.int64)]
    functions = tuple(
        tf.function(function, input_signature=signature, autograph=False).get_concrete_function()
        for function, signature in (
            (_start_function(begin), [tf.TensorSpec(arg.shape, arg.dtype) for arg in args]),
            (_next_function(specs), number_spec),
            (_stop, number_spec),
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


def _start_function(begin: Callable[..., Iterator[Sequence[Any]]]) -> Callable[..., Any]:
    def start(*values: Any) -> Any:  # noqa: ANN401, arrays
        number = next(_numbers)
        _open_iterators[number] = begin(*values)
        return np.int64(number)

    return lambda *tensors: import_tensorflow("a dataset").numpy_function(start, tensors, np.int64)


def _next_function(specs: Sequence[Any]) -> Callable[[Any], Any]:
    shapes = [[axis or 0 for axis in spec.shape.as_list()] if spec.shape.rank else [] for spec in specs]
    placeholders = [np.zeros(shape, spec.dtype.as_numpy_dtype) for shape, spec in zip(shapes, specs, strict=True)]

    def next_arrays(number: Any) -> Sequence[Any]:  # noqa: ANN401, an array
        with _exit_guard as may_run:
            if not may_run:
                raise StopIteration  # TensorFlow ends the iteration
            return next(_open_iterators[int(number)])

    def next_tensors(number: Any) -> Any:  # noqa: ANN401, tensors
        tensors = numpy_function(next_arrays, [number], [spec.dtype for spec in specs], placeholders)
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape(spec.shape)
        return tensors

    return next_tensors


def _stop(number: Any) -> Any:  # noqa: ANN401, tensors
    def stop(number: Any) -> Any:  # noqa: ANN401, arrays
        with _exit_guard:
            _close(int(number))
        return np.int64(0)

    return import_tensorflow("a dataset").numpy_function(stop, [number], np.int64)
