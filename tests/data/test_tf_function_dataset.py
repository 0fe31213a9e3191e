"""TensorFlow datasets of the results of Python functions."""

import numpy as np
import pytest
from helpers.support import slow_except

pytestmark = pytest.mark.frameworks

ITERATORS = {}  # by the number that a dataset passes to `step`


def step(number):
    return next(ITERATORS[int(number)])


@pytest.fixture
def make_dataset():
    """Makes a dataset of the arrays that an iterator yields."""
    import tensorflow as tf  # noqa: PLC0415, the extra

    from engram.data import _tf_function_dataset  # noqa: PLC0415, the extra

    def make(iterator, *specs, packed=()):
        number = len(ITERATORS)
        specs = [tf.TensorSpec(*spec) for spec in specs]
        names = [f"column {i}" for i in range(len(specs))]
        is_packed = [i in packed for i in range(len(specs))]
        packer = _tf_function_dataset.ArrayPacker(
            specs, names, is_packed, has_empty_rows=False, spec_source="the specs"
        )
        ITERATORS[number] = (packer.pack([array[None] for array in arrays]) for arrays in iterator)
        numbers = tf.data.Dataset.from_tensors(np.int64(number))
        results = numbers.flat_map(lambda number: _tf_function_dataset.function_dataset(step, number, packer))
        return results.map(lambda *tensors: tuple(tensor[0] for tensor in tensors))

    return make


def test_arrays_of_any_memory_order_and_text_are_yielded(make_dataset):
    arrays = [np.arange(6.0).reshape(2, 3).T, np.array([b"a", b"longer"], object), np.arange(8)[::2]]
    elements = list(make_dataset(iter([arrays, arrays]), ([3, 2], "float64"), ([None], "string"), ([None], "int64")))
    assert len(elements) == 2
    for element in elements:
        for tensor, array in zip(element, arrays, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("value_shape", slow_except([2, 2], of=[[], [3], [2, 2]]))
@pytest.mark.parametrize("axes", slow_except([], [2, 3], [0], of=[[], [2], [2, 3], [0]]))
def test_packed_arrays_keep_their_values(make_dataset, axes, value_shape):
    shape = [*axes, *value_shape]
    packed = [
        np.full(shape, 2**64 - 1, np.uint64),
        np.full(shape, np.nan),
        np.full(shape, -(2**63)),
        np.full(shape, 5e-324),
        np.full(shape, -(2**31), np.int32),
        np.ones(shape, np.bool_),
        np.full(shape, 255, np.uint8),
        np.full(shape, -128, np.int8),
        np.full(shape, 1.5, np.float16),
        np.full(shape, 1 - 2j, np.complex128),
        np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape[::-1]).T,
    ]
    text, number = np.array([b"text"], object), np.float32([1.5])
    specs = [([None] * len(axes) + value_shape, array.dtype.name) for array in packed]
    elements = make_dataset(
        iter([[text, *packed, number]]),
        ([1], "string"),
        *specs,
        ([1], "float32"),
        packed=range(1, 1 + len(packed)),
    )
    for tensor, array in zip(next(iter(elements)), [text, *packed, number], strict=True):
        assert tensor.dtype.as_numpy_dtype == array.dtype
        assert tensor.shape == array.shape
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_errors_and_wrong_dtypes_are_raised(make_dataset):
    import tensorflow as tf  # noqa: PLC0415, the extra

    def fails():
        yield [np.int64(1)]
        raise ValueError("failed on purpose")

    elements = iter(make_dataset(fails(), ([], "int64")))
    assert int(next(elements)[0]) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="failed on purpose"):
        next(elements)
    with pytest.raises(tf.errors.InvalidArgumentError, match="int64"):
        list(make_dataset(iter([[np.float32(1)]]), ([], "int64")))
