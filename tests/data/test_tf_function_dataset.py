"""TensorFlow datasets of the results of Python functions."""

import numpy as np
import pytest

pytestmark = pytest.mark.frameworks

ITERATORS = {}  # by the number that a dataset passes to `step`


def step(number):
    return next(ITERATORS[int(number)])


@pytest.fixture
def make_dataset():
    """Makes a dataset of the arrays that an iterator yields."""
    import tensorflow as tf  # noqa: PLC0415, the extra

    from engram.data import _tf_function_dataset  # noqa: PLC0415, the extra

    def make(iterator, *specs):
        number = len(ITERATORS)
        ITERATORS[number] = iterator
        specs = [tf.TensorSpec(*spec) for spec in specs]
        numbers = tf.data.Dataset.from_tensors(np.int64(number))
        return numbers.flat_map(lambda number: _tf_function_dataset.function_dataset(step, number, specs))

    return make


def test_arrays_of_any_memory_order_and_text_are_yielded(make_dataset):
    arrays = [np.arange(6.0).reshape(2, 3).T, np.array([b"a", b"longer"], object), np.arange(8)[::2]]
    elements = list(make_dataset(iter([arrays, arrays]), ([3, 2], "float64"), ([None], "string"), ([None], "int64")))
    assert len(elements) == 2
    for element in elements:
        for tensor, array in zip(element, arrays, strict=True):
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
