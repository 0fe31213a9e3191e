"""A `tf.data.Dataset` of the results of a Python function, with little overhead per call."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from engram._text import column_text
from engram.data._tf_types import Tensor, TfDataset
from engram.errors import InvalidArgumentError

__all__ = ["ArrayPacker", "function_dataset", "unbatch"]

NextElement = Callable[[npt.NDArray[Any]], Sequence[Any]]
"""Receives the number of an iterator, i64 `[]`; returns the arrays of its next elements, or raises StopIteration."""

_IN_CALLING_THREAD = (
    {"force_synchronous": True} if "force_synchronous" in inspect.signature(tf.raw_ops.MapDataset).parameters else {}
)
"""The option that keeps calls in the thread that requests an element. TensorFlow has it since 2.18."""


def function_dataset(next_element: NextElement, iterator_number: Tensor, packer: "ArrayPacker") -> TfDataset:
    """Returns a dataset of the results of repeated calls `next_element(iterator_number)` until StopIteration.

    Use it inside `flat_map`, whose function receives a new `iterator_number` for each iteration. Where TensorFlow can,
    `next_element` runs in the thread that requests an element: passing the call to another thread and back takes longer
    than most calls do, and only the main thread notices Ctrl-C.

    Args:
        next_element: A module-level function, as TensorFlow keeps it for the life of the process. It returns arrays as
            `packer.pack` does, for any number of elements; text is arrays of `bytes` objects.
        iterator_number: The argument of `next_element`, an i64 tensor `[]`.
        packer: An `ArrayPacker` for the tensors of several elements.
    """

    def call(number: Tensor) -> list[Any]:
        return packer.unpack(tf.numpy_function(next_element, [number], packer.dtypes))

    function = tf.function(call, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    traced = function.get_concrete_function()
    traced.add_to_graph()
    numbers = tf.data.Dataset.from_tensors(iterator_number).repeat()
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(numbers),
        other_arguments=[],
        f=traced,
        output_types=[spec.dtype for spec in packer.specs],
        output_shapes=[spec.shape for spec in packer.specs],
        use_inter_op_parallelism=False,
        preserve_cardinality=False,  # so that a StopIteration ends the dataset instead of failing it
        **_IN_CALLING_THREAD,
    )
    return tf.data.experimental.from_variant(variant, packer.specs)


def unbatch(dataset: TfDataset, *, empty_rows: bool) -> TfDataset:
    """Returns a dataset of the rows of a dataset's tuples.

    TensorFlow's own `unbatch` is faster, but ends the process with a segmentation fault if a row has an axis of size 0.
    Unless `empty_rows` is True, all arrays must come from an `ArrayPacker`, which rejects such rows.
    """
    if empty_rows:
        split = tf.autograph.experimental.do_not_convert(lambda *tensors: tf.data.Dataset.from_tensor_slices(tensors))
        return dataset.flat_map(split)
    return dataset.unbatch()


class ArrayPacker:
    """Passes several arrays to TensorFlow as one: each array that a Python function returns costs it about 5 us.

    Attributes:
        specs: A `tf.TensorSpec` for each tensor, of several elements.
        dtypes: The dtypes of the arrays that `pack` returns.
        no_elements: What `pack` returns for no elements.
        has_empty_rows: As given to the constructor.
    """

    def __init__(
        self,
        specs: Sequence[Any],
        names: Sequence[str],
        is_packed: Sequence[bool],
        *,
        has_empty_rows: bool,
        spec_source: str,
    ) -> None:
        """Creates a packer.

        Args:
            specs: A `tf.TensorSpec` for each tensor of an element.
            names: For each tensor, the name of its column.
            is_packed: For each tensor, True if it is packed. It must then be of numbers or bools; its shape consists of
                leading axes of unknown size, which all packed tensors share, and of axes of known size other than 0.
            has_empty_rows: True if a spec states that an axis has size 0.
            spec_source: Where the program gives the specs, for error texts.
        """
        shapes = [None if spec.shape.rank is None else spec.shape.as_list() for spec in specs]
        self.has_empty_rows = has_empty_rows
        specs = [
            tf.TensorSpec(None if shape is None else [None, *shape], spec.dtype)
            for shape, spec in zip(shapes, specs, strict=True)
        ]
        self.specs = tuple(specs)
        self._spec_source = spec_source
        self._other_names = [name for name, packed in zip(names, is_packed, strict=True) if not packed]
        self._is_packed = list(is_packed)
        self._is_other = [not packed for packed in is_packed]
        self._packed_specs = list(compress(specs, self._is_packed))
        packed_shapes = [spec.shape.as_list() for spec in self._packed_specs]
        self._num_axes = packed_shapes[0].count(None) if packed_shapes else 0
        self._value_shapes = [shape[self._num_axes :] for shape in packed_shapes]
        self._value_bytes = [
            spec.dtype.size * math.prod(shape)
            for spec, shape in zip(self._packed_specs, self._value_shapes, strict=True)
        ]
        self._total_bytes = sum(self._value_bytes)
        self.dtypes = [spec.dtype for spec in compress(specs, self._is_other)]
        if self._packed_specs:
            self.dtypes.insert(0, tf.uint8)
        self.no_elements = self.pack(
            [
                np.zeros([0, *(size or 0 for size in shape or ())], spec.dtype.as_numpy_dtype)
                for shape, spec in zip(shapes, specs, strict=True)
            ]
        )

    def pack(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Returns the packed arrays as one, if there are any, and then the others.

        Raises:
            InvalidArgumentError: An element has an axis of size 0, which its spec does not state.
        """
        others = list(compress(arrays, self._is_other))
        if not self.has_empty_rows:
            self._check_rows(others)
        if not self._packed_specs:
            return others
        packed = list(compress(arrays, self._is_packed))
        data = np.frombuffer(b"".join([array.tobytes() for array in packed]), np.uint8)
        # With its bytes on the first axis, TensorFlow can split it into arrays without knowing the sizes of other axes.
        return [data.reshape(self._total_bytes, *packed[0].shape[: self._num_axes]), *others]

    def _check_rows(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        for array, name in zip(arrays, self._other_names, strict=True):
            if array.size == 0 and len(array):
                raise InvalidArgumentError(
                    f"{column_text(name)} has values of shape {list(array.shape[1:])}, but its spec does not state "
                    "that an axis has size 0; state all sizes except that of the time axis in "
                    f"{self._spec_source}"
                )

    def unpack(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns one tensor per spec from the tensors of the arrays of `pack`."""
        others = iter(tensors)
        packed = self._split(next(others)) if self._packed_specs else iter(())
        result = [next(packed if is_packed else others) for is_packed in self._is_packed]
        for tensor, spec in zip(result, self.specs, strict=True):
            tensor.set_shape(spec.shape)
        return result

    def _split(self, packed: Tensor) -> Iterator[Any]:
        packed.set_shape([self._total_bytes, *[None] * self._num_axes])
        axes = [-1] if self._num_axes == 1 else tf.unstack(tf.shape(packed)[1:])
        parts = tf.split(packed, self._value_bytes)
        for part, spec, shape in zip(parts, self._packed_specs, self._value_shapes, strict=True):
            width = [] if spec.dtype.size == 1 else [spec.dtype.size]
            tensor = tf.reshape(part, [*axes, *shape, *width])
            yield tf.cast(tensor, tf.bool) if spec.dtype == tf.bool else tf.bitcast(tensor, spec.dtype)
