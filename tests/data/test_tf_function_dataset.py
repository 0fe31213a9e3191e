"""What Python functions return, as TensorFlow's datasets."""

import numpy as np
import pytest

pytestmark = pytest.mark.frameworks

CALLS = {}


def step(number):
    return next(CALLS[int(number)])


@pytest.fixture(params=["known", "unknown"])
def made(request, monkeypatch):
    """Makes a dataset of what an iterator yields; by the quick way, and where TensorFlow has none."""
    import tensorflow as tf  # noqa: PLC0415, the extra

    from engram.data import _tf_function_dataset  # noqa: PLC0415, the extra

    if request.param == "unknown":
        monkeypatch.setattr(_tf_function_dataset, "_is_known_way", lambda: False)
    else:
        assert _tf_function_dataset._is_known_way()

    def make(iterator, *specs):
        number = len(CALLS)
        CALLS[number] = iterator
        specs = [tf.TensorSpec(*spec) for spec in specs]
        numbers = tf.data.Dataset.from_tensors(np.int64(number))
        return numbers.flat_map(lambda number: _tf_function_dataset.function_dataset(step, number, specs))

    return make


def test_arrays_of_any_order_and_text(made):
    arrays = [np.arange(6.0).reshape(2, 3).T, np.array([b"a", b"longer"], object), np.arange(8)[::2]]
    found = list(made(iter([arrays, arrays]), ([3, 2], "float64"), ([None], "string"), ([None], "int64")))
    assert len(found) == 2
    for element in found:
        for tensor, array in zip(element, arrays, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_an_error_and_another_dtype(made):
    import tensorflow as tf  # noqa: PLC0415, the extra

    def fails():
        yield [np.int64(1)]
        raise ValueError("it is so")

    found = iter(made(fails(), ([], "int64")))
    assert int(next(found)[0]) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="it is so"):
        next(found)
    with pytest.raises(tf.errors.InvalidArgumentError, match="int64"):
        list(made(iter([[np.float32(1)]]), ([], "int64")))
