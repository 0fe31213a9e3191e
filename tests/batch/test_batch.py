"""Batches: memory, metadata, importance weights, ragged and padded columns."""

import gc

import numpy as np
import pytest
from helpers.support import case, fill, raises

import engram
from engram import Dataset, Table, rate_limiters, selectors
from engram.errors import InvalidArgumentError, SignatureError


def store_with_lengths(open_store, lengths, **columns):
    """A store with an item per length, whose column `x` has that many steps; `columns` has the indices of others."""
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            for step in range(length):
                writer.append({"a": number, "b": np.full(2, step), "x": number * 10 + step, "z": str(step)})
            history = writer.history
            item = {"x": history["x"][:], **{name: history[name][index] for name, index in columns.items()}}
            writer.create_item("t", trajectory=item)
            writer.end_episode()
    return store


# --- memory --------------------------------------------------------------------------------------


def root(array):
    """The array that `array` is a view of, directly or through other views."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_arrays_own_their_memory(open_store):
    columns = []
    for size in (3, 100_000):
        store = open_store(Table("t", max_size=4))
        for value in range(4):
            store.insert({"x": np.full(size, value, np.float32), "y": value}, {"t": 1.0})
        for name, batch in (("sample", store.sample("t", 8)), ("dataset", next(iter(Dataset(store, "t", 8))))):
            x = batch.data["x"]
            with case(name, size):
                assert x.ctypes.data % 64 == 0
                assert x.flags.c_contiguous
                assert x.flags.writeable
                assert type(root(x).base).__name__ == "Owner", "NumPy looks into the engine's own buffer"
            columns.append((name, size, x, x.copy()))
        for value in range(8):
            store.insert({"x": np.full(size, 99, np.float32), "y": value}, {"t": 1.0})
        store.sample("t", 8)
        store.close()
    del store, batch
    gc.collect()
    for name, size, x, before in columns:
        with case(name, size):
            np.testing.assert_array_equal(x, before)
            x[:] = -1
            assert (x == -1).all()


def test_writing_to_a_batch_changes_no_other(open_store):
    store = open_store(Table("t"))
    fill(store, "t", [np.arange(4)])
    first = store.sample("t", 2).data["x"]
    first[:] = 77
    assert (store.sample("t", 2).data["x"] == np.arange(4)).all()


def test_a_column_outlives_its_batch(open_store):
    store = open_store(Table("t"))
    fill(store, "t", [np.arange(50_000)])
    columns = [store.sample("t", 2).data["x"] for _ in range(5)]
    gc.collect()
    for column in columns:
        assert (column == np.arange(50_000)).all()


def test_inserted_data_is_copied(open_store):
    store = open_store(Table("t"))
    array = np.zeros(3)
    fill(store, "t", [array])
    array[:] = 1
    assert (store.sample("t", 1).data["x"] == 0).all()


# --- metadata ---------------------------------------------------------------------------------------


def test_info_describes_the_drawn_items(open_store):
    store = open_store(Table("t", sampler=selectors.Prioritized(1.0)))
    keys = fill(store, "t", range(4), priority=lambda value: value + 1.0)
    batch = store.sample("t", 50)
    info = batch.info
    dtypes = {
        name: getattr(info, name).dtype for name in ("key", "probability", "priority", "times_sampled", "table_size")
    }
    assert dtypes == {
        "key": np.uint64,
        "probability": np.float64,
        "priority": np.float64,
        "times_sampled": np.int32,
        "table_size": np.int64,
    }
    x = batch.data["x"]
    assert info.key.tolist() == [keys[value] for value in x]
    np.testing.assert_allclose(info.priority, x + 1.0)
    np.testing.assert_allclose(info.probability, (x + 1.0) / 10)
    assert (info.table_size == 4).all()
    for value in range(4):
        times = info.times_sampled[x == value]
        assert times.tolist() == list(range(1, len(times) + 1))


def test_info_arrays_are_created_once_on_access(open_store):
    store = open_store(Table("t"))
    fill(store, "t", [1])
    info = store.sample("t", 3).info
    assert info._arrays == {}
    assert info.key is info.key
    assert set(info._arrays) == {"key"}


def test_len_is_the_number_of_items(open_store):
    store = open_store(Table("t"))
    fill(store, "t", [1])
    batch = store.sample("t", 3)
    assert len(batch) == 3
    assert batch.row_splits is batch.lengths is batch.mask is None


# --- importance weights --------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_importance_weights_follow_their_definition(open_store, exponent):
    priorities = np.array([0.5, 1.0, 2.0, 0.0, 4.0])
    store = open_store(Table("t", sampler=selectors.Prioritized(exponent)))
    fill(store, "t", range(5), priority=lambda value: float(priorities[value]))
    batch = store.sample("t", 64)
    mass = np.where(priorities > 0, priorities**exponent, 0.0)
    n, p = (mass > 0).sum(), mass / mass.sum()
    for beta in (0.0, 0.4, 1.0, 2.0):
        raw = (1 / (n * p[batch.data["x"]])) ** beta
        largest = (1 / (n * p[mass > 0].min())) ** beta
        for normalize, expected in ((None, raw), ("batch", raw / raw.max()), ("table", raw / largest)):
            with case(beta, normalize):
                weights = batch.importance_weights(beta, normalize=normalize)
                assert weights.dtype == np.float32
                np.testing.assert_allclose(weights, expected, rtol=1e-5)
        np.testing.assert_array_equal(batch.importance_weights(beta), batch.importance_weights(beta, normalize="batch"))


def test_importance_weights_of_a_uniform_table_are_one(open_store):
    store = open_store(Table("t"))
    fill(store, "t", range(7))
    batch = store.sample("t", 10)
    for normalize in (None, "batch", "table"):
        np.testing.assert_allclose(batch.importance_weights(0.7, normalize=normalize), 1.0)


def test_importance_weights_are_one_if_all_priorities_are_zero(open_store):
    store = open_store(Table("t", sampler=selectors.Prioritized(1.0)))
    fill(store, "t", range(4), priority=lambda _: 0.0)
    np.testing.assert_allclose(store.sample("t", 10).importance_weights(1.0), 1.0)


@pytest.mark.parametrize(
    ("beta", "normalize", "text"),
    [
        (np.nan, None, "`beta` must be a number; got nan"),
        (np.inf, None, "`beta` must be finite; got inf"),
        (1.0, "mean", '`normalize` must be "batch", "table" or None; got \'mean\' (str)'),
    ],
)
def test_bad_importance_weights_are_rejected(open_store, beta, normalize, text):
    store = open_store(Table("t"))
    fill(store, "t", [1])
    with raises(InvalidArgumentError, text):
        store.sample("t", 1).importance_weights(beta, normalize=normalize)


# --- items of different lengths ------------------------------------------------------------------


def test_columns_of_different_lengths_are_ragged(open_store):
    store = store_with_lengths(open_store, [2, 1, 3], a=-1, b=slice(None), z=slice(-1, None))
    batch = store.sample("t", 3)
    assert batch.data["x"].tolist() == [0, 1, 10, 20, 21, 22]
    assert batch.data["b"].shape == (6, 2)
    assert batch.data["a"].tolist() == [0, 1, 2]
    assert batch.data["z"].tolist() == [["1"], ["0"], ["2"]]
    splits = batch.row_splits
    assert (splits["a"], splits["z"], batch.lengths) == (None, None, None)
    for name in ("b", "x"):
        assert splits[name].dtype == np.int64
        assert splits[name].tolist() == [0, 2, 3, 6]


def test_pad_fills_items_up_to_the_longest(open_store):
    store = store_with_lengths(open_store, [2, 1, 3], a=-1, b=slice(None), z=slice(None))
    batch = store.sample("t", 3, pad=True)
    assert batch.data["x"].tolist() == [[0, 1, 0], [10, 0, 0], [20, 21, 22]]
    assert batch.data["z"].tolist() == [["0", "1", ""], ["0", "", ""], ["0", "1", "2"]]
    assert batch.data["b"].shape == (3, 3, 2)
    assert (batch.row_splits, batch.lengths["a"], batch.mask["a"]) == (None, None, None)
    for name in ("b", "x", "z"):
        assert batch.lengths[name].dtype == np.int64
        assert batch.lengths[name].tolist() == [2, 1, 3]
        assert batch.mask[name].tolist() == [[True, True, False], [True, False, False], [True, True, True]]


def test_items_of_equal_length_have_no_splits_and_no_mask(open_store):
    for pad in (False, True):
        batch = store_with_lengths(open_store, [2, 2]).sample("t", 2, pad=pad)
        assert batch.data["x"].shape == (2, 2)
        assert batch.row_splits is batch.lengths is batch.mask is None


def test_the_mask_of_a_single_leaf_is_an_array(open_store):
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))
    for length in (1, 2):
        store.insert(np.arange(length), {"t": 1.0}, time_axis=True)
    batch = store.sample("t", 2, pad=True)
    assert batch.mask.tolist() == [[True, False], [True, True]]


def test_items_that_cannot_be_stacked_are_rejected(open_store):
    cases = [
        (
            {"x": np.zeros(2)},
            {"x": np.zeros(3)},
            "column `x` is float64[2] without time axis in one item and float64[3]",
        ),
        ({"x": 1}, {"x": 1.0}, "column `x` is int64[] without time axis in one item and float64[]"),
        ({"x": 1}, {"y": 1}, "items with column `x` and items with column `y` cannot form one batch (keys "),
        ({"x": 1}, [np.asarray(1)], "items with column `x` and items with column `0` cannot form one batch"),
        (
            [np.asarray(1)],
            (np.asarray(1),),
            "items with the nests `[*]` and `(*,)`, where `*` is a column, cannot form one batch",
        ),
    ]
    for first, second, text in cases:
        store = open_store(
            Table("t", sampler=selectors.Fifo(), max_times_sampled=1, rate_limiter=rate_limiters.MinSize(2))
        )
        keys = [store.insert(data, {"t": 1.0}) for data in (first, second)]
        with pytest.raises(SignatureError) as caught:
            store.sample("t", 2, timeout=1)
        assert str(caught.value).startswith(text)
        advice = (
            f" cannot form one batch (keys {keys[0]} and {keys[1]}); sample them one by one, or create the table "
            "with a `signature` with fixed sizes, so that it rejects items that differ"
        )
        assert advice in str(caught.value)


def test_items_that_cannot_be_stacked_can_be_sampled_one_by_one(open_store):
    store = open_store(Table.queue("t", max_size=5))
    for data in ({"x": 1}, [np.asarray(2.0)]):
        store.insert(data, {"t": 1.0})
    first, second = engram.Dataset(store, "t", max_batches=2)
    assert (first.data["x"].item(), second.data[0].item()) == (1, 2.0)


@pytest.mark.parametrize("lengths", [[2, 2], [2, 3]])
def test_squeezed_marks_columns_without_a_time_axis(open_store, lengths):
    store = store_with_lengths(open_store, lengths, a=-1, b=slice(None))
    batch = store.sample("t", 2, timeout=10)
    assert batch.squeezed == {"a": True, "b": False, "x": False}


@pytest.mark.parametrize(("shape", "hinted"), [((5, 4), True), ((3, 5), False), ((3,), False)])
def test_items_whose_first_axes_differ_may_lack_a_time_axis(open_store, shape, hinted):
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1, rate_limiter=rate_limiters.MinSize(2)))
    store.insert_batch("t", {"x": np.zeros((1, 3, 4))})
    store.insert_batch("t", {"x": np.zeros((1, *shape))})
    with pytest.raises(SignatureError) as caught:
        store.sample("t", 2, timeout=1)
    hint = "insert the items with `time_axis=True`: then their lengths may differ"
    assert str(caught.value).endswith(hint) == hinted
