"""What datasets yield, whatever the framework: items and steps, one by one and in batches."""

import threading
import time
from itertools import islice

import numpy as np
import optree
import pytest
from data_tables import fill, insert, queue
from hypothesis import given, settings
from hypothesis import strategies as st
from support import BackgroundCall, raises, wait_until

from engram import Dataset, Store, Table, selectors
from engram._consumption import ConsumptionTracker
from engram.data import Element, Info, Ragged, table_reader
from engram.data.numpy import dataset
from engram.errors import ClosedError, InvalidArgumentError, SignatureError


def xs(elements):
    return [element.data["x"].tolist() for element in elements]


# --- whole items ---------------------------------------------------------------------------------


def test_batches(open_store):
    store = open_store(queue())
    fill(store, [2, 2, 2, 2])
    found = list(dataset(store, "t", batch_size=2, max_batches=2))
    assert xs(found) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
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
    assert xs(found) == [[0, 1], [2, 3, 4]]
    assert [float(element.info.priority) for element in found] == [2, 3]
    assert [(type(array), array.shape) for element in found for array in element.info] == [(np.ndarray, ())] * 10


def test_single_items_of_a_block(open_store):
    store = open_store(Table("t"))
    fill(store, [2, 3, 1, 4])
    steps = {2.0: [0, 1], 3.0: [2, 3, 4], 1.0: [5], 4.0: [6, 7, 8, 9]}
    found = list(dataset(store, "t", max_batches=200))
    assert all(element.data["x"].tolist() == steps[float(element.info.priority)] for element in found)
    assert all(element.data["y"][0].shape == (len(element.data["x"]), 1) for element in found)
    assert len(found) == 200
    assert len({float(element.info.priority) for element in found}) == 4
    assert store.info()["t"].samples == 200


def test_single_items_that_have_no_time_axis(open_store):
    store = open_store(Table("t"))
    insert(store, {"x": np.float32(3), "word": np.array("ab"), "v": np.arange(3)}, time_axis=False)
    for element in dataset(store, "t", max_batches=3):
        assert {name: (type(leaf), leaf.shape) for name, leaf in element.data.items()} == {
            "x": (np.ndarray, ()),
            "word": (np.ndarray, ()),
            "v": (np.ndarray, (3,)),
        }
        assert (element.data["x"].item(), element.data["word"].item()) == (3, b"ab")


def test_single_items_need_not_be_alike(open_store):
    """They are read in blocks, and could not be if items of a block had to go side by side."""
    store = open_store(Table("t"))
    insert(store, {"x": np.arange(2)}, {"y": np.arange(3)}, {"x": np.float32([1])}, {"x": np.zeros((1, 2), int)})
    found = list(dataset(store, "t", max_batches=200))
    looks = {(name, leaf.dtype.name, leaf.shape) for element in found for name, leaf in element.data.items()}
    wanted = {("x", "int64", (2,)), ("y", "int64", (3,)), ("x", "float32", (1,)), ("x", "int64", (1, 2))}
    assert (len(found), looks) == (200, wanted)
    assert store.info()["t"].samples == 200, "what went back does not count"


def test_single_steps_need_not_be_alike(open_store):
    store = open_store(Table("t"))
    insert(store, {"x": np.arange(2)}, {"y": np.arange(2)})
    names = [name for element in dataset(store, "t", steps=True, max_batches=200) for name in element.data]
    assert names[::2] == names[1::2], "the steps of an item come together"
    assert set(names) == {"x", "y"}
    insert(store, {"z": 1}, time_axis=False)
    with raises(SignatureError, "`steps` needs items whose columns have as many steps each; found: `z` no time axis"):
        list(dataset(store, "t", steps=True, max_batches=1_000))


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
    assert xs([element]) == [[[0, 1, 0], [2, 3, 4], [5, 0, 0]]]
    assert element.mask["x"].tolist() == [[True, True, False], [True] * 3, [True, False, False]]
    assert element.mask["x"].dtype == bool
    assert element.mask["y"][0].shape == (3, 3)


def mixed(store):
    """Items of a squeezed, an even and a ragged column."""
    writer = store.writer(history=3)
    for length in (1, 2, 3):
        for t in range(3):
            writer.append({"a": t, "b": t, "c": t})
        history = writer.history
        data = {"a": history["a"][-1], "b": history["b"][-2:], "c": history["c"][-length:]}
        writer.create_item("t", 1.0, data)
    writer.flush()


def test_items_that_are_partly_ragged(open_store):
    store = open_store(queue())
    mixed(store)
    mixed(store)
    [ragged] = dataset(store, "t", batch_size=3, max_batches=1)
    [padded] = dataset(store, "t", batch_size=3, max_batches=1, pad=True)
    assert (ragged.data["a"].tolist(), ragged.data["b"].shape) == ([2, 2, 2], (3, 2))
    assert ragged.data["c"].row_splits.tolist() == [0, 1, 3, 6]
    assert (padded.mask["a"], padded.mask["b"]) == (None, None)
    assert padded.mask["c"].tolist() == [[True, False, False], [True, True, False], [True] * 3]


def test_nests_come_back_as_they_are():
    with Store([queue()]) as store:
        insert(store, (np.zeros(2), {"b": [np.ones(2)]}))
        [element] = dataset(store, "t", steps=True, batch_size=2, max_batches=1)
    assert optree.tree_structure(element.data) == optree.tree_structure((0, {"b": [0]}))


# --- steps ---------------------------------------------------------------------------------------


lengths = st.lists(st.integers(1, 5), max_size=8)


@settings(max_examples=50)
@given(lengths, st.one_of(st.none(), st.integers(1, 7)), st.one_of(st.none(), st.integers(1, 9)), st.booleans())
def test_steps(lengths, batch_size, max_batches, drop_remainder):
    owners = np.repeat(np.float64(lengths), lengths).tolist()
    steps = list(range(len(owners)))
    with Store([queue()]) as store:
        fill(store, lengths)
        options = {"batch_size": batch_size, "max_batches": max_batches, "drop_remainder": drop_remainder}
        found = list(dataset(store, "t", steps=True, timeout=0.05, **options))
    size = batch_size or 1
    wanted = [slice(start, start + size) for start in range(0, len(steps), size)]
    wanted = [at for at in wanted if at.stop <= len(steps) or not drop_remainder][:max_batches]
    if batch_size is None:
        assert [int(element.data["x"]) for element in found] == [steps[at.start] for at in wanted]
        assert [float(element.info.priority) for element in found] == [owners[at.start] for at in wanted]
        assert all(element.data["y"][0].shape == (1,) for element in found)
    else:
        assert xs(found) == [steps[at] for at in wanted]
        assert [element.info.priority.tolist() for element in found] == [owners[at] for at in wanted]
        assert [element.data["y"][0].ravel().tolist() for element in found] == [steps[at] for at in wanted]


@settings(max_examples=25)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.one_of(st.none(), st.integers(1, 7)))
def test_steps_of_blocks(lengths, batch_size):
    """Items of a table that keeps them come at random; each comes whole."""
    starts = np.cumsum([0, *lengths])
    whole = {int(start): int(start) + length for start, length in zip(starts, lengths, strict=False)}
    with Store([Table("t")], seed=1) as store:
        fill(store, lengths)
        found = list(dataset(store, "t", steps=True, batch_size=batch_size, max_batches=30))
    assert len(found) == 30
    assert {element.data["x"].shape for element in found} == {() if batch_size is None else (batch_size,)}
    seen = np.concatenate([np.atleast_1d(element.data["x"]) for element in found]).tolist()
    priorities = np.concatenate([np.atleast_1d(element.info.priority) for element in found]).tolist()
    at = 0
    while at < len(seen):
        steps = list(range(seen[at], whole[seen[at]]))[: len(seen) - at]
        assert seen[at : at + len(steps)] == steps
        assert priorities[at : at + len(steps)] == [whole[seen[at]] - seen[at]] * len(steps)
        at += len(steps)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_steps_of_text(open_store, batch_size):
    store = open_store(Table("t"))
    insert(store, {"word": np.array(["a", "bc"])})
    found = list(dataset(store, "t", steps=True, batch_size=batch_size, max_batches=2))
    assert {element.data["word"].dtype for element in found} == {np.dtype(object)}
    assert [element.data["word"].tolist() for element in found] == (
        [b"a", b"bc"] if batch_size is None else [[b"a", b"bc"]] * 2
    )


@pytest.mark.parametrize("table", [queue(), Table("t")])
def test_items_that_have_no_steps(open_store, table):
    store = open_store(table)
    insert(store, {"x": np.zeros(3), "y": np.zeros(3)}, time_axis=False)
    text = "`steps` needs items whose columns have as many steps each; found: `x` no time axis, `y` no time axis"
    with raises(SignatureError, text):
        next(iter(dataset(store, "t", steps=True)))
    assert store.info()["t"].samples == 0, "they go back"


def test_items_of_columns_that_differ(open_store):
    store = open_store(queue())
    mixed(store)
    text = "`steps` needs items whose columns have as many steps each; found: `a` no time axis, `b` 2, `c` 1"
    with raises(SignatureError, text):
        next(iter(dataset(store, "t", steps=True, batch_size=4)))
    writer = store.writer(history=3)
    for t in range(3):
        writer.append({"b": t, "c": t})
    for length in (2, 3, 1):
        writer.create_item("t", 1.0, {"b": writer.history["b"][-2:], "c": writer.history["c"][-length:]})
    writer.flush()
    store.sample("t", 3)
    reading = iter(dataset(store, "t", steps=True, batch_size=2))
    assert next(reading).data["c"].tolist() == [1, 2]
    with raises(SignatureError, "`steps` needs items whose columns have as many steps each; found: `b` 2, `c` 3"):
        next(reading)
    assert store.info()["t"].size == 2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"x": np.zeros(2, np.float64)}, "`x` was float32 [], and is float64 []"),
        ({"x": np.zeros((2, 3), np.float32)}, "`x` was float32 [], and is float32 [3]"),
        ({"z": np.zeros(2, np.float32)}, "columns were `x`, and are `z`"),
    ],
)
def test_steps_that_do_not_go_together(open_store, other, text):
    store = open_store(queue())
    insert(store, {"x": np.float32([1, 2, 3])}, other)
    reading = iter(dataset(store, "t", steps=True, batch_size=2))
    assert next(reading).data["x"].tolist() == [1, 2]
    assert next(reading).data["x"].tolist() == [3], "nothing is lost"
    with raises(SignatureError, f"the steps of a batch must be alike; {text}"):
        next(reading)
    assert store.info()["t"].size == 1, "what does not fit goes back"


def test_steps_whose_nests_differ(open_store):
    store = open_store(queue())
    insert(store, (np.zeros(1),), [np.zeros(1)])
    reading = iter(dataset(store, "t", steps=True, batch_size=2))
    next(reading)
    with raises(SignatureError, 'the steps of a batch must be alike; their nest was {"t":[0]}, and is {"l":[0]}'):
        next(reading)


def test_elements_share_nothing_that_may_be_written(open_store):
    store = open_store(Table("t"))
    insert(store, {"x": np.arange(4)})
    for options in ({"steps": True}, {"steps": True, "batch_size": 2}, {}):
        found = list(dataset(store, "t", max_batches=8, **options))
        before = [element.data["x"].copy() for element in found]
        for i, element in enumerate(found):
            element.data["x"][...] = 100 + i
            assert all((later.data["x"] == was).all() for later, was in list(zip(found, before, strict=True))[i + 1 :])


# --- what is used, and what goes back ------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"steps": True}, {"steps": True, "batch_size": 2}, {"batch_size": 1}])
def test_what_was_not_yielded_goes_back(open_store, options):
    store = open_store(queue())
    fill(store, [2, 2, 2])
    reading = iter(dataset(store, "t", prefetch=3, **options))
    assert np.ravel(next(reading).data["x"])[0] == 0
    wait_until(lambda: store.info()["t"].samples == 3)
    reading.close()
    assert store.info()["t"].samples == 1
    assert store.sample("t", 2, timeout=10).data["x"].tolist() == [[2, 3], [4, 5]]


def test_no_more_is_fetched_than_may_be_needed(open_store):
    store = open_store(queue())
    fill(store, [1] * 10)
    reading = iter(dataset(store, "t", steps=True, batch_size=2, max_batches=2, prefetch=9))
    first = next(reading)
    wait_until(lambda: store.info()["t"].samples >= 4)
    time.sleep(0.1)
    assert store.info()["t"].samples == 4
    assert xs([first, *reading]) == [[0, 1], [2, 3]]
    assert (store.info()["t"].samples, store.info()["t"].size) == (4, 6)


def test_a_dataset_may_be_read_again(open_store):
    store = open_store(queue())
    fill(store, [1, 1])
    ones = dataset(store, "t", max_batches=1)
    assert [[int(element.data["x"][0]) for element in ones] for _ in range(2)] == [[0], [1]]


def test_a_store_that_closes(open_store):
    store = open_store(queue())
    fill(store, [3])
    reading = iter(dataset(store, "t", steps=True, batch_size=2))
    assert next(reading).data["x"].tolist() == [0, 1]
    store.close()
    assert next(reading).data["x"].tolist() == [2]
    with raises(ClosedError, "the store is closed"):
        next(reading)


@pytest.fixture
def sizes(monkeypatch):
    """How many items the blocks have that are asked for, one after the other."""
    found = []

    def recorded(store, table, size, **options):
        found.append(size)
        return Dataset(store, table, size, **options)

    monkeypatch.setattr(table_reader, "Dataset", recorded)
    return found


@pytest.mark.parametrize(
    ("table", "shape", "options", "blocks"),
    [
        (queue(), (100,), {"batch_size": 32, "steps": True}, [1]),
        (Table("t"), (1,), {"batch_size": 32, "steps": True}, [16, 32]),
        (Table("t"), (10, 10), {"batch_size": 32, "steps": True}, [16, 4]),  # 40 steps
        (Table("t"), (1,), {"batch_size": 2, "steps": True}, [2, 2]),
        (Table("t"), (1,), {"steps": True}, [16, 64]),
        (Table("t"), (1,), {}, [16, 64]),
        (Table("t"), (2**20 - 1,), {}, [16, 4]),
        (Table("t"), (5 * 2**20,), {}, [16, 1]),
    ],
)
def test_how_many_items_a_block_has(sizes, table, shape, options, blocks):
    with Store([table]) as store:
        for _ in range(4):
            insert(store, np.zeros(shape, np.uint8))  # compressed, next to nothing
        list(dataset(store, "t", max_batches=80, timeout=0.2, **options))
    assert sizes == blocks


def test_blocks_of_what_is_big_as_it_is_kept_begin_small(sizes):
    noise = np.random.default_rng(0)
    with Store([Table("t")]) as store:
        for _ in range(4):
            insert(store, noise.integers(0, 256, (1, 2**20), np.uint8))
        list(dataset(store, "t", max_batches=4))
    assert sizes[0] == 3, "what an item needs beside its bytes counts, too"


def test_blocks_grow_with_a_table_that_was_empty_and_with_other_items(sizes):
    with Store([Table("t", sampler=selectors.Lifo())]) as store:
        found = iter(dataset(store, "t", timeout=10))
        filling = threading.Timer(0.1, lambda: insert(store, np.zeros(2**20, np.uint8)))
        filling.start()
        for _ in range(40):
            next(found)
        assert sizes == [16, 4]
        insert(store, np.zeros(1, np.uint8))
        for _ in range(4_000):
            next(found)
        assert 32 < sizes[-1] <= 64
        assert len(sizes) < 10
        found.close()


def test_a_batch_of_many_blocks_is_joined_once(monkeypatch):
    joined = []
    concatenate = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda arrays: joined.append(len(arrays)) or concatenate(arrays))
    with Store([queue()]) as store:
        fill(store, [2] * 50)
        [element, rest] = dataset(store, "t", steps=True, batch_size=80, timeout=0.1)
    assert xs([element, rest]) == [list(range(80)), list(range(80, 100))]
    assert set(joined) == {40, 10}


# --- how long a reader waits ----------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.001])
@pytest.mark.parametrize("options", [{"batch_size": 2}, {}, {"steps": True, "batch_size": 4}])
@pytest.mark.parametrize("table", [queue(), Table("t")])
def test_what_is_there_comes_however_short_the_timeout_is(open_store, table, options, timeout):
    store = open_store(table)
    fill(store, [2] * 4)
    for _ in range(3 if table.max_times_sampled is None else 1):
        assert len(list(islice(dataset(store, "t", timeout=timeout, **options), 1))) == 1


@pytest.mark.parametrize("options", [{"batch_size": 2}, {}, {"steps": True}, {"steps": True, "batch_size": 4}])
def test_all_that_is_there_comes_without_a_timeout(open_store, options):
    store = open_store(queue())
    fill(store, [2] * 80)
    found = [np.ravel(element.data["x"]) for element in dataset(store, "t", timeout=0, **options)]
    assert np.concatenate(found).tolist() == list(range(160))


def test_batches_read_together_look_around():
    """Whoever reads them may stop where there are none: without that, a reader waits for ever."""
    with Store([Table("t")]) as store:
        asked = table_reader.TableReader(store, "t", batch_size=2).read_together(len, 3, ConsumptionTracker(), 0.01)
        found = BackgroundCall(lambda: [next(asked) for _ in range(2)])
        assert found.result() == [None, None]
        fill(store, [1] * 2)
        assert 1 <= next(each for each in asked if each is not None) <= 3
        asked.close()


def test_what_is_there_is_had_at_once(open_store):
    store = open_store(queue())
    fill(store, [2] * 2)
    assert len(list(islice(Dataset(store, "t", timeout=0), 1))) == 1
    assert list(Dataset(store, "t", 3, timeout=0)) == [], "there is one"
    held = iter(Dataset(store, "t"))
    next(held)
    assert list(Dataset(store, "t", timeout=0)) == [], "the last item is on lease"


# --- refusals ------------------------------------------------------------------------------------


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
            "`pad` is for whole items: steps of items of any lengths need none; leave it out",
        ),
        ({"pad": True}, "`pad` fills items up to the longest of their batch: give a `batch_size`, too"),
    ],
)
def test_bad_options(options, text):
    with Store([queue()]) as store, raises(InvalidArgumentError, text):
        dataset(store, "t", **options)


def test_bad_arguments():
    with Store([queue()]) as store:
        with raises(InvalidArgumentError, "`store` must be an engram.Store or an engram.Client; got 't' (str)"):
            dataset("t", store)
        with raises(InvalidArgumentError, "`table` must be a str, the name of a table; got 3 (int)"):
            dataset(store, 3)
        text = (
            "dataset() has no option `batchsize`; beside its own it has `batch_size`, `drop_remainder`, `max_batches`, "
            "`pad`, `prefetch`, `steps`, `timeout`"
        )
        with raises(TypeError, text):
            dataset(store, "t", batchsize=3)


def test_sizes_may_be_numpys():
    with Store([queue()]) as store:
        fill(store, [1] * 300)
        sizes = {"batch_size": np.uint8(200), "max_batches": np.uint8(200), "prefetch": np.uint8(2)}
        [first, last] = dataset(store, "t", steps=True, timeout=np.float32(0.05), **sizes)
    assert (len(first.data["x"]), len(last.data["x"])) == (200, 100)
