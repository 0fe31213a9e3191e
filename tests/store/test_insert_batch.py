"""`insert_batch`: many items in one call, the inverse of a scan."""

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.store_types import STORE_TYPES
from helpers.support import BackgroundCall, raises, run_python, wait_until
from hypothesis import given, settings

import engram
from engram import ArraySpec, Pattern, Store, Table, selectors
from engram.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    PriorityError,
    SignatureError,
    UnknownTableError,
    UnsatisfiableError,
)


def equal(one, other):
    """True if two nests of a batch are equal bit for bit."""
    (leaves, names, structure), expected = engram._engram.flatten(one), engram._engram.flatten(other)
    return (names, structure) == expected[1:] and all(
        (a.dtype, a.shape) == (b.dtype, b.shape)
        and (a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes())
        for a, b in zip(leaves, expected[0], strict=True)
    )


def test_each_row_becomes_an_item(open_store):
    store = open_store(Table("t"))
    items = {"obs": np.arange(12.0).reshape(4, 3), "nested": (np.arange(4), {"text": ["a", "", "héllo", "d"]})}
    items["nested"][1]["text"] = np.array(items["nested"][1]["text"])
    keys = store.insert_batch("t", items, [0.5, 1, 2, 3])
    assert (keys.dtype, keys.shape) == (np.uint64, (4,))
    assert len(set(keys.tolist())) == 4
    (batch,) = store.scan("t")
    assert batch.info.key.tolist() == keys.tolist()
    assert batch.info.priority.tolist() == [0.5, 1, 2, 3]
    assert batch.data["obs"].tolist() == items["obs"].tolist()
    assert batch.data["nested"][0].tolist() == [0, 1, 2, 3]
    assert batch.data["nested"][1]["text"].tolist() == ["a", "", "héllo", "d"]
    assert engram._engram.flatten(batch.squeezed)[0] == [True] * 3
    assert store.update_priorities("t", keys[:2], [7, 8]) == 2
    assert store.delete("t", keys) == 4


def test_an_array_alone_and_one_priority_for_all(open_store):
    store = open_store(Table("t"))
    store.insert_batch("t", np.arange(3))
    store.insert_batch("t", np.arange(3, 5), 2.5)
    store.insert_batch("t", np.arange(5, 6), np.float32(4))
    (batch,) = store.scan("t")
    assert batch.data.tolist() == [*range(6)]
    assert batch.info.priority.tolist() == [1, 1, 1, 2.5, 2.5, 4]


def test_with_time_axis_the_items_have_several_steps(open_store):
    store = open_store(Table("t"))
    items = {"x": np.arange(24).reshape(4, 3, 2), "text": np.array([[f"{n}{t}" for t in range(3)] for n in range(4)])}
    store.insert_batch("t", items, time_axis=True)
    # A pattern's items are stacked with them.
    with store.pattern_writer([Pattern("t", num_steps=3)]) as writer:
        writer.append_steps({"x": items["x"][1], "text": items["text"][1]})
    (batch,) = store.scan("t")
    assert batch.squeezed == {"x": False, "text": False}
    assert batch.data["x"].tolist() == [*items["x"].tolist(), items["x"][1].tolist()]
    assert batch.data["text"].tolist() == [*items["text"].tolist(), items["text"][1].tolist()]


def test_the_items_of_one_chunk_are_cut_right(open_store):
    store = open_store(Table("t", max_size=20_000))
    rng = np.random.default_rng(0)
    items = {
        "small": rng.integers(0, 255, (5_000, 3), np.uint8),
        "strided": rng.standard_normal((3, 10_000)).T[::2],
        "swapped": np.arange(5_000, dtype=">i4"),
        "text": np.array(["x" * (n % 1_000) for n in range(5_000)], object),
    }
    store.insert_batch("t", items)
    parts = [batch.data for batch in store.scan("t", batch_size=1_000)]
    for name, column in items.items():
        got = np.concatenate([part[name] for part in parts])
        assert (got == column).all()
        assert got.dtype == column.dtype.newbyteorder("=")
    # Each is sampled as it was inserted.
    batch = store.sample("t", 64)
    rows = batch.data["swapped"]
    assert (batch.data["strided"] == items["strided"][rows]).all()


def test_large_items_are_compressed_as_by_insert(open_store):
    store = open_store(Table("t"))
    frames = np.zeros((3, 84, 84, 4), np.uint8)
    store.insert_batch("t", frames)
    batched = store.info()["t"].bytes
    store.reset("t")
    for frame in frames:
        store.insert(frame, {"t": 1.0})
    assert store.info()["t"].bytes == batched < frames.nbytes / 10


NUMBERS = ["bool", "int8", "uint64", "int64", "float16", "float32", "float64", "complex64"]


@st.composite
def columns(draw, lead):
    """A column of cells of any dtype and shape, with any bits."""
    dtype = draw(st.sampled_from([*NUMBERS, "text", "bytes"]))
    shape = (*lead, *draw(st.lists(st.integers(0, 3), max_size=2)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in NUMBERS:
        bits = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
        return np.frombuffer(bits.tobytes(), dtype).reshape(shape)
    texts = draw(st.lists(st.text(max_size=5), min_size=1))
    texts = texts if dtype == "text" else [text.encode() for text in texts]
    column = np.empty(shape, object)
    for index in np.ndindex(*shape):
        column[index] = texts[rng.integers(len(texts))]
    return column


@pytest.mark.parametrize("kind", sorted(STORE_TYPES))
def test_what_a_scan_or_a_sample_returns_can_be_inserted(kind):
    store = STORE_TYPES[kind]([Table("a"), Table("b")], seed=0)

    def content(table):
        (batch,) = store.scan(table, batch_size=100)
        return batch

    @settings(max_examples=30)
    @given(st.data(), st.integers(1, 40), st.integers(1, 4), st.booleans())
    def check(data, num_items, steps, time_axis):
        lead = (num_items, steps) if time_axis else (num_items,)
        items = {name: data.draw(columns(lead)) for name in data.draw(st.sets(st.sampled_from("xyz"), min_size=1))}
        priorities = data.draw(st.lists(st.floats(0, 10), min_size=num_items, max_size=num_items))
        store.insert_batch("a", items, priorities, time_axis=time_axis)
        first = content("a")
        assert equal(first.data, items)
        store.insert_batch("b", first.data, first.info.priority, time_axis=time_axis)
        second = content("b")
        assert equal(second.data, items)
        assert (second.squeezed, second.info.priority.tolist()) == (first.squeezed, priorities)
        store.reset("b")
        sample = store.sample("a", 5)
        store.insert_batch("b", sample.data, time_axis=time_axis)
        assert equal(content("b").data, sample.data)
        for table in ("a", "b"):
            store.reset(table)

    try:
        check()
    finally:
        store.close()
        if hasattr(store, "close_servers"):
            store.close_servers()


# --- wrong arguments ------------------------------------------------------------------------------


def test_wrong_arguments_insert_nothing(open_store):
    spec = {"x": ArraySpec((2,), np.float32), "y": ArraySpec((), np.int64)}
    store = open_store(Table("t", sampler=selectors.Prioritized(), signature=spec), Table("any"))
    good = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4)}

    def rejects(error, text, items=good, priorities=1.0, **options):
        with raises(error, text):
            store.insert_batch("t", items, priorities, **options)

    rejects(
        SignatureError,
        "column `y` must have shape [4, ...], for items, as column `x` has; got shape [3]",
        {**good, "y": np.arange(3)},
    )
    rejects(
        SignatureError,
        "column `y` must have shape [4, ...], for items, as column `x` has; got shape []",
        {**good, "y": 3},
    )
    rejects(SignatureError, "`items` must have at least one leaf; got an empty nest", {})
    with pytest.raises(SignatureError, match="column `y` has the unsupported dtype datetime64"):
        store.insert_batch("t", {**good, "y": np.zeros(4, "datetime64[s]")})
    with pytest.raises(SignatureError, match="signature of table `t`"):
        store.insert_batch("t", {**good, "y": np.zeros(4)})
    with pytest.raises(SignatureError, match="signature of table `t`"):
        store.insert_batch("t", {"x": good["x"]})
    masked = np.ma.array(np.arange(4), mask=[0, 1, 0, 0])
    rejects(
        SignatureError,
        "column `y` is a masked array, and its masked elements would be stored as if they were valid; pass "
        "`array.filled(value)`, or its data and its mask as two columns",
        {**good, "y": masked},
    )
    rejects(PriorityError, "priority for table `t` is NaN; it must be a number", priorities=[1, 2, np.nan, 4])
    with pytest.raises(PriorityError, match="-1"):
        store.insert_batch("t", good, -1)
    text = "`priorities` must be a number, or have one entry for each of 4 items; got 3"
    rejects(InvalidArgumentError, text, priorities=[1, 2, 3])
    rejects(
        InvalidArgumentError,
        "`priorities` must be a number or have one axis; got shape (1, 1)",
        priorities=[[1]],
    )
    rejects(InvalidArgumentError, "`priorities` must be numbers; got <U1", priorities="a")
    rejects(
        InvalidArgumentError,
        "`timeout` must be a number of seconds, at least 0, or None to wait forever; got -1",
        timeout=-1,
    )
    rejects(InvalidArgumentError, "`time_axis` must be True or False; got 2 (int)", time_axis=2)
    with pytest.raises(UnknownTableError):
        store.insert_batch("other", good)
    with raises(SignatureError, "with time_axis=True the items must have at least 1 step; got shape [N, 0, ...]"):
        store.insert_batch("any", np.zeros((3, 0)), time_axis=True)
    with raises(
        SignatureError, "column `x` must have shape [3, 2, ...], for items and steps, as column `a` has; got shape [3]"
    ):
        store.insert_batch("any", {"a": np.zeros((3, 2)), "x": np.zeros(3)}, time_axis=True)
    with raises(SignatureError, "the data must have shape [N, T, ...], for items and steps; got shape [3]"):
        store.insert_batch("any", np.zeros(3), time_axis=True)
    assert (store.info()["t"].inserts, store.info()["any"].inserts) == (0, 0)
    store.insert_batch("t", good)
    assert store.info()["t"].size == 4


def test_a_list_of_items_is_rejected_with_a_hint(open_store):
    store = open_store(Table("t"))
    with pytest.raises(SignatureError, match="list"):
        store.insert_batch("t", {"x": [1, 2, 3]})


def test_no_items(open_store):
    store = open_store(Table("t", signature={"x": ArraySpec((), np.float32)}))
    keys = store.insert_batch("t", {"x": np.zeros(0, np.float32)}, [])
    assert (keys.dtype, keys.shape) == (np.uint64, (0,))
    with pytest.raises(SignatureError):
        store.insert_batch("t", {"x": np.zeros(0)})
    assert store.info()["t"].size == 0


def test_a_table_replaced_under_its_name_gets_items_of_its_signature(open_store):
    store = open_store(Table("t", signature={"x": ArraySpec((), np.int32)}))
    store.insert_batch("t", {"x": np.zeros(2, np.int32)})
    store.drop_table("t")
    store.create_table(Table("t", signature={"x": ArraySpec((), np.float64)}))
    store.insert_batch("t", {"x": np.zeros(3)})
    with pytest.raises(SignatureError):
        store.insert_batch("t", {"x": np.zeros(2, np.int32)})
    assert store.info()["t"].size == 3


# --- rate limiters and bounds -----------------------------------------------------------------------


@pytest.mark.usefixtures("other_thread")
def test_a_call_waits_for_the_limiter(open_store):
    store = open_store(Table.queue("q", max_size=100))
    items = np.arange(10_000)
    call = BackgroundCall(lambda: store.insert_batch("q", items))
    wait_until(lambda: store.info()["q"].waiting_inserts == 1)
    assert store.info()["q"].size == 100
    values = []
    while len(values) < len(items):
        values += store.sample("q", 50, timeout=10).data.tolist()
    assert len(call.result()) == 10_000
    assert values == items.tolist()


@pytest.mark.usefixtures("other_thread")
def test_a_timeout_states_how_many_items_the_table_has(open_store):
    store = open_store(Table.queue("q", max_size=37))
    reason = "`q`: inserting waits: Queue(37) is full: 37 inserted items are not sampled yet"
    with raises(
        DeadlineExceededError,
        f"table `q` did not accept all items within 0.05 s; it has the first 37 of 10000 items; {reason}",
    ):
        store.insert_batch("q", np.arange(10_000), timeout=0.05)
    with raises(
        DeadlineExceededError, f"table `q` did not accept all items within 0 s; it has none of 3 items; {reason}"
    ):
        store.insert_batch("q", np.arange(3), timeout=0)
    # The others are not inserted later.
    assert store.sample("q", 37).data.tolist() == [*range(37)]
    assert store.info()["q"].size == 0
    store.insert_batch("q", np.arange(37), timeout=0)
    assert store.info()["q"].size == 37


def test_a_call_in_the_only_thread_does_not_wait_forever():
    program = """
import numpy as np, engram
store = engram.Store([engram.Table("t", rate_limiter=engram.rate_limiters.SampleToInsertRatio(16, 1000, 16000))])
try:
    store.insert_batch("t", np.arange(10_000))
except engram.errors.BackpressureError as error:
    print(error)
"""
    assert run_python(program).strip() == (
        "table `t` does not accept more items now; it has the first 2000 of 10000 items; `t`: inserting waits: writers "
        "are 32,000 samples ahead of the learner, the limit of SampleToInsertRatio(16) (2,000 inserted x 16 samples "
        "per insert - 0 sampled = 32,000); this is the only thread of the process, so nothing is sampled while the "
        "call waits: insert fewer items at once, or sample in another thread"
    )


@pytest.mark.usefixtures("other_thread")
@pytest.mark.parametrize("event", ["drop", "close"])
def test_a_wait_ends_with_its_table(open_store, event):
    store = open_store(Table.queue("q", max_size=5))
    call = BackgroundCall(lambda: store.insert_batch("q", np.arange(20_000)))
    wait_until(lambda: store.info()["q"].waiting_inserts == 1)
    if event == "drop":
        store.drop_table("q")
    else:
        store.close()
    with pytest.raises(ClosedError):
        call.result()


def test_a_full_table_evicts(open_store):
    store = open_store(Table("t", max_size=10, remover=selectors.MinHeap()))
    store.insert_batch("t", np.arange(5_000), np.arange(5_000))
    (batch,) = store.scan("t")
    assert batch.data.tolist() == [*range(4_990, 5_000)]


def test_chunks_are_smaller_than_max_bytes(open_store):
    store = open_store(Table("t", max_bytes=8_000))
    store.insert_batch("t", np.arange(5_000))
    info = store.info()["t"]
    assert info.size > 20
    assert info.bytes <= 8_000
    with pytest.raises(UnsatisfiableError, match="never fits into table `t`"):
        store.insert_batch("t", np.random.default_rng(0).random((2, 2_000)))
    assert dataclasses.replace(store.info()["t"], rejected_calls={}) == info
    store.reset("t")
    text = np.array(["x", "y" * 20_000], object)
    with pytest.raises(UnsatisfiableError, match=r"; the table has the first 1 of 2 items\Z"):
        store.insert_batch("t", text)
    assert store.info()["t"].size == 1


def test_one_call_counts_as_one_episode(open_store):
    store = open_store(Table("t"))
    store.insert_batch("t", np.arange(5_000))
    store.insert_batch("t", np.arange(5))
    store.insert(1, {"t": 1.0})
    assert store.info()["t"].num_episodes == 3


def test_items_of_a_durable_store_survive(tmp_path):
    items = {"x": np.arange(3_000), "text": np.array([f"n{n}" for n in range(3_000)])}
    with Store.open(tmp_path, [Table("t", max_size=5_000)]) as store:
        keys = store.insert_batch("t", items, np.arange(3_000))
    with Store.open(tmp_path) as store:
        (batch,) = store.scan("t", batch_size=5_000)
        assert batch.info.key.tolist() == keys.tolist()
        assert batch.info.priority.tolist() == [*range(3_000)]
        assert batch.data["x"].tolist() == items["x"].tolist()
        assert batch.data["text"].tolist() == items["text"].tolist()


def test_many_calls_of_few_items(open_store):
    store = open_store(Table("t", max_size=1_000))
    keys = [key for n in range(100) for key in store.insert_batch("t", np.arange(n, n + 3)).tolist()]
    assert len(set(keys)) == 300
    assert [x for batch in store.scan("t") for x in batch.data.tolist()] == [
        n + i for n in range(100) for i in range(3)
    ]
