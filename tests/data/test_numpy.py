"""What datasets yield, whatever the framework: items and steps, one by one and in batches."""

import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import raises

from engram import Store, Table, selectors
from engram.data import Element, Info, Ragged
from engram.data.numpy import dataset
from engram.errors import InvalidArgumentError, SignatureError


def queue():
    return Table("t", sampler=selectors.Fifo(), max_times_sampled=1)


def fill(store, lengths, first=0):
    """Items of so many steps, which are numbered throughout; their priorities are their lengths."""
    for length in lengths:
        steps = np.arange(first, first + length)
        store.insert({"x": steps, "y": [np.float32(steps)[:, None]]}, {"t": float(length)}, time_axis=True)
        first += length


def test_batches(open_store):
    store = open_store(queue())
    fill(store, [2, 2, 2, 2])
    found = list(dataset(store, "t", batch_size=2, max_batches=2))
    assert [element.data["x"].tolist() for element in found] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert [element.data["y"][0].shape for element in found] == [(2, 2, 1)] * 2
    assert [element.mask for element in found] == [None, None]
    assert found[0].info.priority.tolist() == [2, 2]
    assert [array.dtype.name for array in found[0].info] == ["uint64", "float64", "int64", "float64", "int32"]
    assert type(found[0]) is Element
    assert type(found[0].info) is Info


def test_single_items(open_store):
    store = open_store(queue())
    fill(store, [2, 3])
    found = list(dataset(store, "t", timeout=0.1))
    assert [element.data["x"].tolist() for element in found] == [[0, 1], [2, 3, 4]]
    assert [float(element.info.priority) for element in found] == [2, 3]
    assert [element.info.key.shape for element in found] == [(), ()]


def test_ragged(open_store):
    store = open_store(queue())
    fill(store, [2, 3, 1])
    [element] = dataset(store, "t", batch_size=3, max_batches=1)
    assert isinstance(element.data["x"], Ragged)
    assert element.data["x"].values.tolist() == [0, 1, 2, 3, 4, 5]
    assert element.data["x"].row_splits.tolist() == [0, 2, 5, 6]
    assert element.data["y"][0].values.shape == (6, 1)


def test_padded(open_store):
    store = open_store(queue())
    fill(store, [2, 3, 1])
    [element] = dataset(store, "t", batch_size=3, max_batches=1, pad=True)
    assert element.data["x"].tolist() == [[0, 1, 0], [2, 3, 4], [5, 0, 0]]
    assert element.mask["x"].tolist() == [[True, True, False], [True] * 3, [True, False, False]]
    assert element.mask["y"][0].shape == (3, 3)


lengths = st.lists(st.integers(1, 5), max_size=8)


@settings(max_examples=50)
@given(lengths, st.one_of(st.none(), st.integers(1, 7)), st.one_of(st.none(), st.integers(1, 9)))
def test_steps(lengths, batch_size, max_batches):
    owners = np.repeat(np.float64(lengths), lengths).tolist()
    steps = list(range(len(owners)))
    with Store([queue()]) as store:
        fill(store, lengths)
        options = {"batch_size": batch_size, "max_batches": max_batches}
        found = list(dataset(store, "t", steps=True, timeout=0.05, **options))
    size = batch_size or 1
    wanted = [slice(start, start + size) for start in range(0, len(steps), size)][:max_batches]
    if batch_size is None:
        assert [int(element.data["x"]) for element in found] == [steps[at.start] for at in wanted]
        assert [float(element.info.priority) for element in found] == [owners[at.start] for at in wanted]
        assert all(element.data["y"][0].shape == (1,) for element in found)
    else:
        assert [element.data["x"].tolist() for element in found] == [steps[at] for at in wanted]
        assert [element.info.priority.tolist() for element in found] == [owners[at] for at in wanted]
        assert [element.data["y"][0].ravel().tolist() for element in found] == [steps[at] for at in wanted]


def test_what_was_not_yielded_goes_back(open_store):
    store = open_store(queue())
    fill(store, [2, 2, 2])
    for element in dataset(store, "t", steps=True, prefetch=3):
        assert element.data["x"] == 0
        break
    assert store.sample("t", 2, timeout=10).data["x"].tolist() == [[2, 3], [4, 5]]


def test_a_dataset_may_be_read_again(open_store):
    store = open_store(queue())
    fill(store, [1, 1])
    ones = dataset(store, "t", max_batches=1)
    assert [[int(element.data["x"][0]) for element in ones] for _ in range(2)] == [[0], [1]]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"x": np.zeros(3), "y": np.zeros(2)}, "`x` no time axis, `y` no time axis"),
        ({"x": np.float32(1), "y": np.zeros(2)}, "`x` no time axis, `y` no time axis"),
    ],
)
def test_items_that_have_no_steps(data, found):
    with Store([queue()]) as store:
        store.insert(data, {"t": 1.0})
        text = f"`steps` needs items whose columns have as many steps each; found: {found}"
        with raises(SignatureError, text):
            next(iter(dataset(store, "t", steps=True)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1; got 0"),
        ({"batch_size": 0, "steps": True}, "`batch_size` must be at least 1; got 0"),
        ({"prefetch": 0}, "`prefetch` must be at least 1; got 0"),
        ({"max_batches": 0, "steps": True}, "`max_batches` must be at least 1; got 0"),
        ({"timeout": -1}, "`timeout` must be at least 0, or None to wait for ever; got -1"),
        ({"steps": 1}, "`steps` must be True or False; got 1 (int)"),
        ({"pad": "no"}, "`pad` must be True or False; got 'no' (str)"),
    ],
)
def test_bad_options(options, text):
    with Store([queue()]) as store, raises(InvalidArgumentError, text):
        dataset(store, "t", **options)


def test_nests_come_back_as_they_are():
    with Store([queue()]) as store:
        store.insert((np.zeros(2), {"b": [np.ones(2)]}), {"t": 1.0}, time_axis=True)
        [element] = dataset(store, "t", steps=True, batch_size=2, max_batches=1)
    assert optree.tree_structure(element.data) == optree.tree_structure((0, {"b": [0]}))
