"""Elements of datasets: items and steps, singly and in batches. NumPy is used to test the code of all frameworks.

A block is a batch of items that a dataset requests at once, to yield them, or their steps, as smaller elements.
"""

import threading
import time
from itertools import islice

import numpy as np
import optree
import pytest
from helpers.data_tables import fill, insert, queue
from helpers.support import BackgroundCall, raises, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import Dataset, Store, Table, selectors
from engram.data import Element, Info, Ragged, table_reader
from engram.data.numpy import dataset
from engram.errors import ClosedError, InvalidArgumentError, SignatureError

NO_STEPS = "`steps` requires items whose columns have a time axis of the same length; got "


def xs(elements):
    return [element.data["x"].tolist() for element in elements]


# --- whole items ---------------------------------------------------------------------------------


def test_batches_contain_the_items_in_order(open_store):
    store = open_store(queue())
    fill(store, [2, 2, 2, 2])
    elements = list(dataset(store, "t", batch_size=2, max_batches=2))
    assert xs(elements) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert [element.data["y"][0].shape for element in elements] == [(2, 2, 1)] * 2
    assert [element.mask for element in elements] == [None, None]
    assert elements[0].info.priority.tolist() == [2, 2]
    dtypes = ["uint64", "float64", "int64", "float64", "int32", "float64", "float64"]
    assert [array.dtype.name for array in elements[0].info] == dtypes
    assert type(elements[0]) is Element
    assert type(elements[0].info) is Info


def test_single_items_have_no_batch_axis(open_store):
    store = open_store(queue())
    fill(store, [2, 3])
    elements = list(dataset(store, "t", timeout=0.1))
    assert xs(elements) == [[0, 1], [2, 3, 4]]
    assert [float(element.info.priority) for element in elements] == [2, 3]
    assert [(type(array), array.shape) for element in elements for array in element.info] == [(np.ndarray, ())] * 14


def test_single_items_of_a_block_are_those_inserted(open_store):
    store = open_store(Table("t"))
    fill(store, [2, 3, 1, 4])
    steps = {2.0: [0, 1], 3.0: [2, 3, 4], 1.0: [5], 4.0: [6, 7, 8, 9]}
    elements = list(dataset(store, "t", max_batches=200))
    assert all(element.data["x"].tolist() == steps[float(element.info.priority)] for element in elements)
    assert all(element.data["y"][0].shape == (len(element.data["x"]), 1) for element in elements)
    assert len(elements) == 200
    assert len({float(element.info.priority) for element in elements}) == 4
    assert store.info()["t"].samples == 200


def test_single_items_may_have_no_time_axis(open_store):
    store = open_store(Table("t"))
    insert(store, {"x": np.float32(3), "word": np.array("ab"), "v": np.arange(3)}, time_axis=False)
    for element in dataset(store, "t", max_batches=3):
        assert {name: (type(leaf), leaf.shape) for name, leaf in element.data.items()} == {
            "x": (np.ndarray, ()),
            "word": (np.ndarray, ()),
            "v": (np.ndarray, (3,)),
        }
        assert (element.data["x"].item(), element.data["word"].item()) == (3, "ab")


def test_single_items_may_differ_in_columns_dtypes_and_shapes(open_store):
    """Although items are read in blocks, which need the same columns: the reader falls back to single items."""
    store = open_store(Table("t"))
    insert(store, {"x": np.arange(2)}, {"y": np.arange(3)}, {"x": np.float32([1])}, {"x": np.zeros((1, 2), int)})
    elements = list(dataset(store, "t", max_batches=200))
    layouts = {(name, leaf.dtype.name, leaf.shape) for element in elements for name, leaf in element.data.items()}
    expected = {("x", "int64", (2,)), ("y", "int64", (3,)), ("x", "float32", (1,)), ("x", "int64", (1, 2))}
    assert (len(elements), layouts) == (200, expected)
    assert store.info()["t"].samples == 200, "returned items do not count"


def test_single_steps_may_differ_in_columns(open_store):
    store = open_store(Table("t"))
    insert(store, {"x": np.arange(2)}, {"y": np.arange(2)})
    names = [name for element in dataset(store, "t", steps=True, max_batches=200) for name in element.data]
    assert names[::2] == names[1::2], "the steps of an item are yielded together"
    assert set(names) == {"x", "y"}
    insert(store, {"z": 1}, time_axis=False)
    with raises(
        SignatureError,
        f"{NO_STEPS}`z` without a time axis",
    ):
        list(dataset(store, "t", steps=True, max_batches=1_000))


def test_columns_of_different_lengths_are_ragged(open_store):
    store = open_store(queue())
    fill(store, [2, 3, 1])
    [element] = dataset(store, "t", batch_size=3, max_batches=1)
    assert isinstance(element.data["x"], Ragged)
    assert element.data["x"].values.tolist() == [0, 1, 2, 3, 4, 5]
    assert element.data["x"].row_splits.tolist() == [0, 2, 5, 6]
    assert element.data["y"][0].values.shape == (6, 1)


def test_pad_fills_items_up_to_the_longest(open_store):
    store = open_store(queue())
    fill(store, [2, 3, 1])
    [element] = dataset(store, "t", batch_size=3, max_batches=1, pad=True)
    assert xs([element]) == [[[0, 1, 0], [2, 3, 4], [5, 0, 0]]]
    assert element.mask["x"].tolist() == [[True, True, False], [True] * 3, [True, False, False]]
    assert element.mask["x"].dtype == bool
    assert element.mask["y"][0].shape == (3, 3)


def insert_mixed(store):
    """Inserts three items, with a squeezed column `a`, a column `b` of equal lengths, and a ragged column `c`."""
    writer = store.writer(history=3)
    for length in (1, 2, 3):
        for t in range(3):
            writer.append({"a": t, "b": t, "c": t})
        history = writer.history
        data = {"a": history["a"][-1], "b": history["b"][-2:], "c": history["c"][-length:]}
        writer.create_item("t", 1.0, data)
    writer.flush()


def test_an_item_may_have_squeezed_even_and_ragged_columns(open_store):
    store = open_store(queue())
    insert_mixed(store)
    insert_mixed(store)
    [ragged] = dataset(store, "t", batch_size=3, max_batches=1)
    [padded] = dataset(store, "t", batch_size=3, max_batches=1, pad=True)
    assert (ragged.data["a"].tolist(), ragged.data["b"].shape) == ([2, 2, 2], (3, 2))
    assert ragged.data["c"].row_splits.tolist() == [0, 1, 3, 6]
    assert (padded.mask["a"], padded.mask["b"]) == (None, None)
    assert padded.mask["c"].tolist() == [[True, False, False], [True, True, False], [True] * 3]


def test_nests_keep_their_structure():
    with Store([queue()]) as store:
        insert(store, (np.zeros(2), {"b": [np.ones(2)]}))
        [element] = dataset(store, "t", steps=True, batch_size=2, max_batches=1)
    assert optree.tree_structure(element.data) == optree.tree_structure((0, {"b": [0]}))


# --- steps ---------------------------------------------------------------------------------------


lengths = st.lists(st.integers(1, 5), max_size=8)


@settings(max_examples=50)
@given(lengths, st.one_of(st.none(), st.integers(1, 7)), st.one_of(st.none(), st.integers(1, 9)), st.booleans())
def test_steps_are_yielded_in_order(lengths, batch_size, max_batches, drop_remainder):
    owners = np.repeat(np.float64(lengths), lengths).tolist()
    steps = list(range(len(owners)))
    with Store([queue()]) as store:
        fill(store, lengths)
        options = {"batch_size": batch_size, "max_batches": max_batches, "drop_remainder": drop_remainder}
        elements = list(dataset(store, "t", steps=True, timeout=0.01, **options))
    size = batch_size or 1
    batches = [slice(start, start + size) for start in range(0, len(steps), size)]
    batches = [batch for batch in batches if batch.stop <= len(steps) or not drop_remainder][:max_batches]
    if batch_size is None:
        assert [int(element.data["x"]) for element in elements] == [steps[batch.start] for batch in batches]
        assert [float(element.info.priority) for element in elements] == [owners[batch.start] for batch in batches]
        assert all(element.data["y"][0].shape == (1,) for element in elements)
    else:
        assert xs(elements) == [steps[batch] for batch in batches]
        assert [element.info.priority.tolist() for element in elements] == [owners[batch] for batch in batches]
        assert [element.data["y"][0].ravel().tolist() for element in elements] == [steps[batch] for batch in batches]


@settings(max_examples=25)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.one_of(st.none(), st.integers(1, 7)))
def test_the_steps_of_a_drawn_item_are_yielded_together(lengths, batch_size):
    """Also if the steps of an item are in several batches."""
    starts = np.cumsum([0, *lengths])
    whole = {int(start): int(start) + length for start, length in zip(starts, lengths, strict=False)}
    with Store([Table("t")], seed=1) as store:
        fill(store, lengths)
        elements = list(dataset(store, "t", steps=True, batch_size=batch_size, max_batches=30))
    assert len(elements) == 30
    assert {element.data["x"].shape for element in elements} == {() if batch_size is None else (batch_size,)}
    values = np.concatenate([np.atleast_1d(element.data["x"]) for element in elements]).tolist()
    priorities = np.concatenate([np.atleast_1d(element.info.priority) for element in elements]).tolist()
    start = 0
    while start < len(values):
        # The last item may be cut off by `max_batches`.
        steps = list(range(values[start], whole[values[start]]))[: len(values) - start]
        assert values[start : start + len(steps)] == steps
        assert priorities[start : start + len(steps)] == [whole[values[start]] - values[start]] * len(steps)
        start += len(steps)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_steps_may_be_text(open_store, batch_size):
    store = open_store(Table("t"))
    insert(store, {"word": np.array(["a", "bc"])})
    elements = list(dataset(store, "t", steps=True, batch_size=batch_size, max_batches=2))
    assert {element.data["word"].dtype for element in elements} == {np.dtype(object)}
    assert [element.data["word"].tolist() for element in elements] == (
        ["a", "bc"] if batch_size is None else [["a", "bc"]] * 2
    )


@pytest.mark.parametrize("table", [queue(), Table("t")])
def test_items_without_a_time_axis_have_no_steps(open_store, table):
    store = open_store(table)
    insert(store, {"x": np.zeros(3), "y": np.zeros(3)}, time_axis=False)
    text = f"{NO_STEPS}`x` without a time axis, `y` without a time axis"
    with raises(SignatureError, text):
        next(iter(dataset(store, "t", steps=True)))
    assert store.info()["t"].samples == 0, "the items were returned"


def test_steps_of_columns_that_differ_in_length_are_rejected(open_store):
    store = open_store(queue())
    insert_mixed(store)
    text = f"{NO_STEPS}`a` without a time axis, `b` of length 2, `c` of length 1"
    with raises(SignatureError, text):
        next(iter(dataset(store, "t", steps=True, batch_size=4)))


def test_steps_before_columns_of_other_lengths_are_yielded(open_store):
    store = open_store(queue())
    writer = store.writer(history=3)
    for t in range(3):
        writer.append({"b": t, "c": t})
    for length in (2, 3, 1):
        writer.create_item("t", 1.0, {"b": writer.history["b"][-2:], "c": writer.history["c"][-length:]})
    writer.flush()
    iterator = iter(dataset(store, "t", steps=True, batch_size=2))
    assert next(iterator).data["c"].tolist() == [1, 2]
    with raises(
        SignatureError,
        f"{NO_STEPS}`b` of length 2, `c` of length 3",
    ):
        next(iterator)
    assert store.info()["t"].size == 2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"x": np.zeros(2, np.float64)}, "got float32 [] for `x`, then float64 []"),
        ({"x": np.zeros((2, 3), np.float32)}, "got float32 [] for `x`, then float32 [3]"),
        ({"z": np.zeros(2, np.float32)}, "got the columns `x`, then the columns `z`"),
        (np.zeros(2, np.float32), "got the columns `x`, then a single array"),
    ],
)
def test_steps_of_a_batch_must_have_the_same_layout(open_store, other, text):
    store = open_store(queue())
    insert(store, {"x": np.float32([1, 2, 3])}, other)
    iterator = iter(dataset(store, "t", steps=True, batch_size=2))
    assert next(iterator).data["x"].tolist() == [1, 2]
    assert next(iterator).data["x"].tolist() == [3], "steps before the error are yielded"
    with raises(SignatureError, f"the items or steps of a batch must have the same columns, dtypes and shapes; {text}"):
        next(iterator)
    assert store.info()["t"].size == 1, "the item that does not fit was returned"


def test_errors_refer_to_a_single_array_as_the_data(open_store):
    store = open_store(queue())
    insert(store, np.zeros(2, np.float32), np.zeros(2, np.float64))
    iterator = iter(dataset(store, "t", steps=True, batch_size=3))
    next(iterator)
    with raises(
        SignatureError,
        "the items or steps of a batch must have the same columns, dtypes and shapes; got float32 [] for the data, "
        "then float64 []",
    ):
        next(iterator)
    store = open_store(queue())
    store.insert(np.zeros(2), {"t": 1.0})
    with raises(SignatureError, f"{NO_STEPS}the data without a time axis"):
        next(iter(dataset(store, "t", steps=True)))


def test_steps_of_a_batch_must_have_the_same_nest(open_store):
    store = open_store(queue())
    insert(store, (np.zeros(1),), [np.zeros(1)])
    iterator = iter(dataset(store, "t", steps=True, batch_size=2))
    next(iterator)
    rule = "the items or steps of a batch must have the same columns, dtypes and shapes"
    with raises(SignatureError, f"{rule}; got the nest (*,), then [*]"):
        next(iterator)


def test_writing_to_an_element_changes_no_other(open_store):
    store = open_store(Table("t"))
    insert(store, {"x": np.arange(4)})
    for options in ({"steps": True}, {"steps": True, "batch_size": 2}, {}):
        elements = list(dataset(store, "t", max_batches=8, **options))
        copies = [element.data["x"].copy() for element in elements]
        for i, element in enumerate(elements):
            element.data["x"][...] = 100 + i
            assert all(
                (later.data["x"] == copy).all() for later, copy in list(zip(elements, copies, strict=True))[i + 1 :]
            )


# --- consumed and returned items -----------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"steps": True}, {"steps": True, "batch_size": 2}, {"batch_size": 1}])
def test_items_that_were_not_yielded_are_returned(open_store, options):
    store = open_store(queue())
    fill(store, [2, 2, 2])
    iterator = iter(dataset(store, "t", prefetch=3, **options))
    assert np.ravel(next(iterator).data["x"])[0] == 0
    wait_until(lambda: store.info()["t"].samples == 3)
    iterator.close()
    assert store.info()["t"].samples == 1
    assert store.sample("t", 2, timeout=10).data["x"].tolist() == [[2, 3], [4, 5]]


def test_no_more_items_are_fetched_than_max_batches_needs(open_store):
    store = open_store(queue())
    fill(store, [1] * 10)
    iterator = iter(dataset(store, "t", steps=True, batch_size=2, max_batches=2, prefetch=9))
    first = next(iterator)
    wait_until(lambda: store.info()["t"].samples >= 4)
    time.sleep(0.1)
    assert store.info()["t"].samples == 4
    assert xs([first, *iterator]) == [[0, 1], [2, 3]]
    assert (store.info()["t"].samples, store.info()["t"].size) == (4, 6)


def test_a_dataset_can_be_iterated_again(open_store):
    store = open_store(queue())
    fill(store, [1, 1])
    elements = dataset(store, "t", max_batches=1)
    assert [[int(element.data["x"][0]) for element in elements] for _ in range(2)] == [[0], [1]]


def test_closing_the_store_ends_an_iterator(open_store):
    store = open_store(queue())
    fill(store, [3])
    iterator = iter(dataset(store, "t", steps=True, batch_size=2))
    assert next(iterator).data["x"].tolist() == [0, 1]
    store.close()
    assert next(iterator).data["x"].tolist() == [2]
    with raises(ClosedError, "the store is closed"):
        next(iterator)


@pytest.fixture
def block_sizes(monkeypatch):
    """Sizes of the blocks that datasets request, in items, in order."""
    sizes = []

    def record(store, table, size, **options):
        sizes.append(size)
        return Dataset(store, table, size, **options)

    monkeypatch.setattr(table_reader, "Dataset", record)
    return sizes


@pytest.mark.parametrize(
    ("table", "shape", "options", "expected"),
    [
        (queue(), (100,), {"batch_size": 32, "steps": True}, [1]),
        (Table("t"), (1,), {"batch_size": 32, "steps": True}, [16, 32]),
        (Table("t"), (10, 10), {"batch_size": 32, "steps": True}, [16, 4]),  # 4 items of 10 steps fill a batch
        (Table("t"), (1,), {"batch_size": 2, "steps": True}, [2, 2]),
        (Table("t"), (1,), {"steps": True}, [16, 64]),
        (Table("t"), (1,), {}, [16, 64]),
        (Table("t"), (2**20 - 1,), {}, [16, 4]),
        (Table("t"), (5 * 2**20,), {"max_batches": 20}, [16, 1]),
    ],
)
def test_blocks_are_as_large_as_batches_and_item_sizes_allow(block_sizes, table, shape, options, expected):
    with Store([table]) as store:
        for _ in range(4):
            insert(store, np.zeros(shape, np.uint8))  # zeros: compressed to almost nothing
        list(dataset(store, "t", **{"max_batches": 80, "timeout": 0.2, **options}))
    assert block_sizes == expected


def test_the_first_block_of_large_items_is_small(block_sizes):
    noise = np.random.default_rng(0)
    with Store([Table("t")]) as store:
        for _ in range(4):
            insert(store, noise.integers(0, 256, (1, 2**20), np.uint8))
        list(dataset(store, "t", max_batches=4))
    assert block_sizes[0] == 3, "the bytes that an item needs besides its data count, too"


def test_block_sizes_adapt_to_the_items_read(block_sizes):
    with Store([Table("t", sampler=selectors.Lifo())]) as store:
        elements = iter(dataset(store, "t", timeout=10))
        filling = threading.Timer(0.1, lambda: insert(store, np.zeros(2**20, np.uint8)))
        filling.start()
        for _ in range(40):
            next(elements)
        assert block_sizes == [16, 4]
        insert(store, np.zeros(1, np.uint8))
        for _ in range(4_000):
            next(elements)
        assert 32 < block_sizes[-1] <= 64
        assert len(block_sizes) < 10
        elements.close()


def test_steps_with_empty_cells_are_yielded(open_store):
    store = open_store(queue())
    insert(store, {"x": np.zeros([2, 0])}, {"x": np.zeros([2, 0])})
    assert [element.data["x"].shape for element in dataset(store, "t", steps=True, batch_size=4, timeout=0.1)] == [
        (4, 0)
    ]


def test_the_parts_of_a_batch_are_concatenated_once(monkeypatch):
    parts = []
    concatenate = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda arrays: parts.append(len(arrays)) or concatenate(arrays))
    with Store([queue()]) as store:
        fill(store, [2] * 50)
        [element, rest] = dataset(store, "t", steps=True, batch_size=80, timeout=0.1)
    assert xs([element, rest]) == [list(range(80)), list(range(80, 100))]
    assert set(parts) == {40, 10}


# --- timeouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.001])
@pytest.mark.parametrize("options", [{"batch_size": 2}, {}, {"steps": True, "batch_size": 4}])
@pytest.mark.parametrize("table", [queue(), Table("t")])
def test_available_items_are_yielded_despite_a_short_timeout(open_store, table, options, timeout):
    store = open_store(table)
    fill(store, [2] * 4)
    for _ in range(3 if table.max_times_sampled is None else 1):
        assert len(list(islice(dataset(store, "t", timeout=timeout, **options), 1))) == 1


@pytest.mark.parametrize("options", [{"batch_size": 2}, {}, {"steps": True}, {"steps": True, "batch_size": 4}])
def test_all_available_items_are_yielded_with_a_timeout_of_0(open_store, options):
    store = open_store(queue())
    fill(store, [2] * 80)
    elements = [np.ravel(element.data["x"]) for element in dataset(store, "t", timeout=0, **options)]
    assert np.concatenate(elements).tolist() == list(range(160))


def test_read_together_yields_none_while_it_waits():
    """So that the caller can close the iterator, which is possible only between two elements."""
    with Store([Table("t")]) as store:
        reader = table_reader.TableReader(store, "t", batch_size=2)
        _, batches = reader.read_together(len, lambda block: block.size // 2, 3, 0.01)
        call = BackgroundCall(lambda: [next(batches) for _ in range(2)])
        assert call.result() == [None, None]
        fill(store, [1] * 2)
        assert 1 <= next(each for each in batches if each is not None) <= 3
        batches.close()


def test_a_timeout_of_0_does_not_wait_for_items_that_are_not_available(open_store):
    store = open_store(queue())
    fill(store, [2] * 2)
    assert len(list(islice(Dataset(store, "t", timeout=0), 1))) == 1
    assert list(Dataset(store, "t", 3, timeout=0)) == [], "there is one item"
    held = iter(Dataset(store, "t"))
    next(held)
    assert list(Dataset(store, "t", timeout=0)) == [], "the last item is leased"


# --- bad arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "`batch_size` must be at least 1; got 0"),
        ({"batch_size": 0, "steps": True}, "`batch_size` must be at least 1; got 0"),
        ({"prefetch": 0}, "`prefetch` must be at least 1; got 0"),
        ({"prefetch": None}, "`prefetch` must be an integer; got None"),
        ({"max_batches": 0, "steps": True}, "`max_batches` must be at least 1; got 0"),
        ({"timeout": -1}, "`timeout` must be a number of seconds, at least 0, or None to wait forever; got -1"),
        ({"steps": 1}, "`steps` must be True or False; got 1 (int)"),
        ({"pad": "no"}, "`pad` must be True or False; got 'no' (str)"),
        ({"drop_remainder": None}, "`drop_remainder` must be True or False; got None"),
        (
            {"pad": True, "steps": True, "batch_size": 2},
            "`pad` pads whole items and cannot be combined with `steps`; leave one of them out",
        ),
        ({"pad": True}, "`pad` fills items up to the longest one of their batch; give a `batch_size`, too"),
    ],
)
def test_bad_options_are_rejected(options, text):
    with Store([queue()]) as store, raises(InvalidArgumentError, text):
        dataset(store, "t", **options)


def test_bad_arguments_are_rejected():
    with Store([queue()]) as store:
        with raises(InvalidArgumentError, "`store` must be an engram.Store or an engram.Client; got 't' (str)"):
            dataset("t", store)
        with raises(InvalidArgumentError, "`table` must be a str, the name of a table; got 3 (int)"):
            dataset(store, 3)
        text = (
            "dataset() has no option `batchsize`; the options that all datasets share are `batch_size`, "
            "`drop_remainder`, `max_batches`, `pad`, `prefetch`, `steps`, `timeout`"
        )
        with raises(TypeError, text):
            dataset(store, "t", batchsize=3)


def test_sizes_may_be_numpy_integers():
    with Store([queue()]) as store:
        fill(store, [1] * 300)
        sizes = {"batch_size": np.uint8(200), "max_batches": np.uint8(200), "prefetch": np.uint8(2)}
        [first, last] = dataset(store, "t", steps=True, timeout=np.float32(0.05), **sizes)
    assert (len(first.data["x"]), len(last.data["x"])) == (200, 100)
