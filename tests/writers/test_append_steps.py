"""`append_steps`: the same items as one `append` or `append_batch` per step, in the same order."""

import re

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.store_types import STORE_TYPES, doors
from helpers.support import BackgroundCall, raises, run_python, wait_until
from hypothesis import given

from engram import ArraySpec, Pattern, Store, Table, rate_limiters, selectors
from engram.errors import BackpressureError, ClosedError, InvalidArgumentError, PriorityError, SignatureError
from engram.patterns import column, end_of_episode, history_length, step_index, steps_since_applied, td_error


def contents(store, table="t"):
    """All items of a table, oldest first, as comparable values."""
    items = []
    for item in store.scan(table, batch_size=None):
        columns = [
            (name, array.dtype, array.shape, array.tolist() if array.dtype == object else array.tobytes())
            for name, array in item.data.items()
        ]
        items.append((columns, item.info.priority[0]))
    return items


def steps_of(rng, *lead, width=3, text=False):
    """Random steps `[*lead, ...]`."""
    steps = {
        "flag": rng.random(lead) > 0.5,
        "id": rng.integers(0, 4, lead).astype(np.int16),
        "nothing": np.zeros((*lead, 0), np.float32),
        "obs": rng.standard_normal((*lead, width)).astype(np.float32),
        "reward": rng.standard_normal(lead),
    }
    if text:
        numbers = rng.integers(0, 9, int(np.prod(lead)))
        # A chunk with long text is full early.
        texts = [f"n{number}" * (number % 3) + "x" * (5_000 if number == 8 else 0) for number in numbers]
        steps["text"] = np.array(texts, object).reshape(lead)
    return steps


class Labelled:
    """A column whose items are found by label, as in a Series of pandas."""

    def __init__(self, values):
        self._values = values

    def __getitem__(self, label):
        return self._values[label]

    def __array__(self, dtype=None, copy=None):
        values = list(self._values.values())
        return np.array(values, object if isinstance(values[0], str) else dtype)


def at(steps, index):
    """One step, or some steps, of arrays of steps."""
    return {name: column[index] for name, column in steps.items()}


def some_patterns(chosen):
    """The chosen ones of patterns with windows, strides, conditions, offsets and computed priorities."""
    patterns = [
        Pattern("t", num_steps=2),
        Pattern("t", num_steps=5, priority=td_error(lambda step: step["reward"])),
        Pattern("t", lambda s: {"a": s["obs"][-3:], "b": s["reward"][-1]}, when=[step_index() % 3 == 1]),
        Pattern("t", lambda s: {"a": s["obs"][-7::3], "b": s["id"][-4]}),
        Pattern("t", lambda s: {"last": s["id"][-2:]}, when=[end_of_episode()]),
        Pattern("t", lambda s: {"x": s["obs"][-4:-2], "n": s["nothing"][-1]}, when=[steps_since_applied() >= 3]),
        Pattern("t", lambda s: {"x": s["flag"][-2:]}, when=[column(lambda s: s["id"]) == 1]),
        Pattern("t", lambda s: {"x": s["reward"][-40:]}, when=[history_length() == 40]),
    ]
    return [patterns[number] for number in sorted(chosen)]


@pytest.fixture(scope="module", params=sorted(STORE_TYPES))
def two_stores(request):
    """Two stores of one type."""
    stores = [STORE_TYPES[request.param]([Table("t", max_size=100_000)], seed=1) for _ in range(2)]
    yield stores
    for store in stores:
        store.close()
        if hasattr(store, "close_servers"):
            store.close_servers()


def write_parts(length, append, append_steps, parts, singles):
    """Appends `length` steps in parts, each with or without a single step before it."""
    begin = number = 0
    while begin < length:
        if singles[number % len(singles)]:
            append(begin)
            begin += 1
        part = slice(begin, min(length, begin + parts[number % len(parts)]))
        append_steps(part)
        begin, number = part.stop, number + 1


@st.composite
def ways(draw):
    """Patterns, options of writers, and how steps are divided among calls."""
    return (
        some_patterns(draw(st.sets(st.integers(0, 7), min_size=1, max_size=4))),
        {"chunk_length": draw(st.sampled_from([None, None, 1, 3, 16])), "max_waiting_items": None},
        draw(st.lists(st.integers(0, 45), min_size=1, max_size=4).filter(any)),
        draw(st.lists(st.booleans(), min_size=1, max_size=5)),
    )


class TestPatternWriter:
    @pytest.mark.parametrize("two_stores", doors(slow=["sharded"]), indirect=True)
    @given(
        ways=ways(),
        lengths=st.lists(st.integers(0, 70), max_size=3),
        clear=st.booleans(),
        kinds=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=3),
    )
    def test_the_items_equal_those_of_single_appends(self, two_stores, ways, lengths, clear, kinds):
        patterns, options, parts, singles = ways
        text = kinds[0][1]
        one, other = two_stores
        for store in two_stores:
            store.reset("t")
        rng = np.random.default_rng(1)
        errors = {}

        def call(writer, method, *arguments, **options):
            try:
                getattr(writer, method)(*arguments, **options)
            except SignatureError as error:
                # An item would have cells of different shapes. The other items are created.
                assert "cells of different shapes" in str(error)  # noqa: PT017, most calls raise none
                errors[writer] = True

        with one.pattern_writer(patterns, **options) as single, other.pattern_writer(patterns, **options) as bulk:
            for episode, length in enumerate(lengths):
                steps = steps_of(rng, length, width=kinds[episode % len(kinds)][0], text=text)
                for index in range(length):
                    call(single, "append", at(steps, index))
                write_parts(
                    length,
                    lambda index, steps=steps: call(bulk, "append", at(steps, index)),
                    lambda part, steps=steps: call(bulk, "append_steps", at(steps, part)),
                    parts,
                    singles,
                )
                assert bulk.episode_steps == length
                for writer in (single, bulk):
                    call(writer, "end_episode", clear=clear)
            assert errors.get(single) == errors.get(bulk)
        assert contents(other) == contents(one)

    def test_columns_without_values(self, two_stores):
        one, other = two_stores
        for store in two_stores:
            store.reset("t")
        patterns = [Pattern("t", lambda s: {"x": s["x"][-3:]}), Pattern("t", lambda s: {"y": s["y"][-2:]})]
        x, y = np.arange(60), np.arange(60.0)
        parts = [
            (slice(0, 7), True, False),
            (slice(7, 30), True, True),
            (slice(30, 40), False, True),
            (slice(40, 60), True, True),
        ]
        with one.pattern_writer(patterns) as single, other.pattern_writer(patterns) as bulk:
            for part, has_x, has_y in parts:
                bulk.append_steps({"x": x[part] if has_x else None, "y": y[part] if has_y else None})
                for index in range(part.start, part.stop):
                    single.append({"x": x[index] if has_x else None, "y": y[index] if has_y else None})
            bulk.append({"x": 1}, partial_step=True)
            with raises(
                InvalidArgumentError,
                "the last step is not complete; complete it with `append` before `append_steps`",
            ):
                bulk.append_steps({"x": x, "y": y})
            bulk.append({"y": 2.0})
            single.append({"x": 1, "y": 2.0})
        assert contents(other) == contents(one)

    def test_columns_that_are_indexed_by_label(self, open_store):
        store = open_store(Table("t"))
        text, x = Labelled({3: "a", 0: "b", 2: "c", 1: "d"}), Labelled({3: 1, 0: 2, 2: 3, 1: 4})
        with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
            writer.append_steps({"text": text, "x": x})
        (batch,) = store.scan("t")
        assert batch.data["text"][:, 0].tolist() == ["a", "b", "c", "d"]
        assert batch.data["x"][:, 0].tolist() == [1, 2, 3, 4]
        store.reset("t")
        store.insert_batch("t", {"text": text, "x": x})
        (batch,) = store.scan("t")
        assert batch.data["text"].tolist() == ["a", "b", "c", "d"]

    def test_an_array_alone_and_other_memory_layouts(self, open_store):
        store = open_store(Table("t"))
        with store.pattern_writer([Pattern("t", num_steps=2)]) as writer:
            writer.append_steps(np.arange(8, dtype=">i8").reshape(2, 4).T)
        (batch,) = store.scan("t")
        assert batch.data.tolist() == [[[0, 4], [1, 5]], [[1, 5], [2, 6]], [[2, 6], [3, 7]]]

    def test_rejected_steps_store_nothing(self, open_store):
        spec = {"x": ArraySpec((1, 2), np.float32), "y": ArraySpec((1,), np.int64)}
        store = open_store(Table("t", signature=spec))
        good = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4)}
        masked = np.ma.array(np.arange(4), mask=[0, 1, 0, 0])
        with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:

            def rejects_all(episode_steps):
                with raises(
                    SignatureError, "column `y` must have shape [4, ...], for steps, as column `x` has; got shape [3]"
                ):
                    writer.append_steps({**good, "y": np.arange(3)})
                with raises(
                    SignatureError, "column `y` must have shape [4, ...], for steps, as column `x` has; got shape []"
                ):
                    writer.append_steps({**good, "y": 3})
                with raises(
                    SignatureError,
                    "column `y` is a masked array, and its masked elements would be stored as if they were valid; pass "
                    "`array.filled(value)`, or its data and its mask as two columns",
                ):
                    writer.append_steps({**good, "y": masked})
                with pytest.raises(SignatureError, match="column `y` is a masked array"):
                    writer.append(at({**good, "y": masked.reshape(4, 1)}, 1))
                with pytest.raises(SignatureError, match="column `y` has the unsupported dtype datetime64"):
                    writer.append_steps({**good, "y": np.zeros(4, "datetime64[s]")})
                with pytest.raises(SignatureError, match="`x`"):
                    writer.append_steps({**good, "x": np.zeros((4, 3), np.float32)})
                with pytest.raises(SignatureError, match="`y`"):
                    writer.append_steps({**good, "y": np.zeros(4)})
                with pytest.raises(SignatureError):
                    writer.append_steps({"x": good["x"]})
                writer.append_steps(at(good, slice(0)))
                assert writer.episode_steps == episode_steps

            rejects_all(0)
            writer.append_steps(good)
            rejects_all(4)
            with raises(SignatureError, "column `y` must keep its dtype; got float64[] after int64[]"):
                writer.append_steps({**good, "y": np.zeros(4)})
            writer.append_steps(good)
        assert store.scan("t").num_items == 8

    def test_calls_without_steps_change_nothing(self, open_store):
        store = open_store(Table("t"))
        with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
            for steps in ({"a": None}, {}, {"b": np.zeros((0, 3))}):
                writer.append_steps(steps)
            writer.append_steps({"x": np.arange(3)})
            writer.append_steps({"x": np.zeros(0, object)})
            writer.append_steps({"x": np.arange(3, 5)})
        (batch,) = store.scan("t")
        assert batch.data["x"][:, 0].tolist() == [*range(5)]

    def test_a_rejected_priority_does_not_stop_the_other_items(self, open_store):
        store = open_store(Table("t", sampler=selectors.Prioritized(1.0)))
        reward = np.ones(300)
        reward[[5, 200]] = np.nan
        pattern = Pattern("t", num_steps=1, priority=td_error(lambda step: step["reward"]))
        with store.pattern_writer([pattern]) as writer:
            with pytest.raises(PriorityError, match=r"NaN.*; all 300 steps are stored\Z"):
                writer.append_steps({"reward": reward})
            assert writer.episode_steps == 300
        assert store.scan("t").num_items == 298

    def test_a_durable_store_opened_again(self, tmp_path):
        steps = steps_of(np.random.default_rng(0), 500, text=True)
        with Store.open(tmp_path / "one", [Table("t")]) as one, Store([Table("t")]) as other:
            for store in (one, other):
                with store.pattern_writer(some_patterns({0, 1, 3, 4})) as writer:
                    writer.append_steps(steps)
                    writer.end_episode()
            expected = contents(other)
            assert contents(one) == expected
        with Store.open(tmp_path / "one") as store:
            assert contents(store) == expected


class TestBatchedWriter:
    @pytest.mark.parametrize("two_stores", doors(slow=["sharded"]), indirect=True)
    @given(
        ways=ways(),
        lead=st.tuples(st.integers(1, 5), st.integers(1, 80)),
        kind=st.tuples(st.sampled_from([0, 3, 300]), st.booleans()),
        probability=st.sampled_from([None, 0.03, 0.3, 1]),
    )
    def test_the_items_equal_those_of_single_appends(self, two_stores, ways, lead, kind, probability):
        patterns, options, parts, singles = ways
        num_envs, length = lead
        one, other = two_stores
        for store in two_stores:
            store.reset("t")
        rng = np.random.default_rng(1)
        steps = steps_of(rng, *lead, width=kind[0], text=kind[1])
        ends = None if probability is None else rng.random(lead) < probability

        def flags(index):
            return None if ends is None else ends[:, index]

        with (
            one.batched_writer(num_envs, patterns, **options) as single,
            other.batched_writer(num_envs, patterns, **options) as bulk,
        ):
            for index in range(length):
                single.append_batch(at(steps, (slice(None), index)), episode_ends=flags(index))
            write_parts(
                length,
                lambda index: bulk.append_batch(at(steps, (slice(None), index)), episode_ends=flags(index)),
                lambda part: bulk.append_steps(at(steps, (slice(None), part)), episode_ends=flags(part)),
                parts,
                singles,
            )
        assert contents(other) == contents(one)
        assert other.info()["t"].num_episodes == one.info()["t"].num_episodes

    def test_rejected_steps_store_nothing(self, open_store):
        store = open_store(Table("t", signature={"x": ArraySpec((1,), np.int64)}))
        writer = store.batched_writer(2, [Pattern("t", num_steps=1)])
        x = np.arange(6).reshape(2, 3)
        for _ in range(2):
            with raises(
                SignatureError, "column `x` must have shape [2, T, ...], for environments and steps; got shape [3, 2]"
            ):
                writer.append_steps({"x": x.T})
            with raises(
                SignatureError, "column `x` must have shape [2, T, ...], for environments and steps; got shape [2]"
            ):
                writer.append_steps({"x": x[:, 0]})
            with raises(
                SignatureError, "column `x` must have shape [2, 4, ...], for environments and steps; got shape [2, 3]"
            ):
                writer.append_steps({"x": x}, episode_ends=np.zeros((2, 4), bool))
            with raises(
                InvalidArgumentError,
                "`episode_ends` must have shape [2, T], one bool per environment (`num_envs`) and step; got [3, 2]",
            ):
                writer.append_steps({"x": x}, episode_ends=np.zeros((3, 2), bool))
            with pytest.raises(InvalidArgumentError, match="`episode_ends` must be bools"):
                writer.append_steps({"x": x}, episode_ends=x)
            with pytest.raises(SignatureError, match="column `x` is a masked array"):
                writer.append_steps({"x": np.ma.array(x, mask=x == 2)})
            with pytest.raises(SignatureError, match="got None"):
                writer.append_steps({"x": None})
            with pytest.raises(SignatureError):
                writer.append_steps({"x": x * 1.0})
            writer.append_steps({"x": x[:, :0]}, episode_ends=np.zeros((2, 0)))
            writer.append_steps({"x": x}, episode_ends=np.zeros((2, 3), np.int8))
        writer.close()
        (batch,) = store.scan("t")
        assert batch.data["x"].tolist() == [[0], [3], [1], [4], [2], [5]] * 2

    def test_a_lost_flag_is_reported(self, open_store):
        store = open_store(Table("t"))
        writer = store.batched_writer(1, [Pattern("t", lambda s: {"x": s["x"][-2:], "done": s["done"][-2]})])
        done = np.arange(40)[None] % 10 == 9
        with pytest.warns(UserWarning, match="column `done` is True at the last step"):
            writer.append_steps({"x": np.zeros((1, 40)), "done": done}, episode_ends=done)
        writer.close()
        assert store.scan("t").num_items == 36


def test_masked_arrays_are_rejected_by_every_call(open_store):
    store = open_store(Table("t"))
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    text = (
        "column `x` is a masked array, and its masked elements would be stored as if they were valid; pass "
        "`array.filled(value)`, or its data and its mask as two columns"
    )
    with store.writer() as writer, store.pattern_writer([Pattern("t", num_steps=1)]) as patterns:
        patterns.append({"x": np.zeros(2)})
        calls = [
            lambda: store.insert({"x": masked}, {"t": 1.0}),
            lambda: writer.append({"x": masked}),
            lambda: writer.append({"x": masked[1]}),
            lambda: patterns.append({"x": masked}),
            lambda: store.batched_writer(2, [Pattern("t", num_steps=1)]).append_batch({"x": masked}),
        ]
        for call in calls:
            with raises(SignatureError, text):
                call()
    assert store.info()["t"].size == 1


# --- limiters ---------------------------------------------------------------------------------------


def append_to(store, kind, patterns=None, **options):
    """Opens a writer of one environment.

    Returns it, a function that appends steps `{"x": [T]}`, and one that appends a single step `{"x": []}`.
    """
    patterns = patterns or [Pattern("q", num_steps=1)]
    if kind == "pattern":
        writer = store.pattern_writer(patterns, **options)
        return writer, lambda x: writer.append_steps({"x": x}), lambda x: writer.append({"x": x})
    writer = store.batched_writer(1, patterns, **options)
    return (
        writer,
        lambda x: writer.append_steps({"x": x[None]}),
        lambda x: writer.append_batch({"x": np.array([x])}),
    )


KINDS = ["pattern", "batched"]


def stored_steps(error):
    """The number of steps that an error states as stored."""
    found = re.search(r"; the first (\d+) of \d+ steps are stored\Z", str(error))
    return int(found[1]) if found else 0


@pytest.mark.usefixtures("other_thread")
@pytest.mark.parametrize("limit", [1, 3, 16, 100, None])
@pytest.mark.parametrize("chunk_length", [None, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_as_many_steps_are_stored_as_by_single_appends_when_a_limiter_closes(kind, chunk_length, limit):
    options = {"chunk_length": chunk_length, "max_waiting_items": limit, "max_in_flight_items": 200, "timeout": 0}
    with Store([Table.queue("q", max_size=50)]) as store:
        writer, _, append = append_to(store, kind, **options)
        single = 0
        with pytest.raises(BackpressureError):
            while True:
                append(single)
                single += 1
        store.set_rate_limiter("q", rate_limiters.MinSize(1))
        writer.close(10)
    with Store([Table.queue("q", max_size=50)]) as store:
        writer, append_steps, _ = append_to(store, kind, **options)
        with pytest.raises(BackpressureError) as error:
            append_steps(np.arange(1_000))
        bulk = stored_steps(error.value)
        assert bulk == single
        assert kind == "batched" or writer.episode_steps == bulk
        # The other steps can be written later.
        reader = BackgroundCall(lambda: [store.sample("q", 50, timeout=10).data["x"] for _ in range(20)])
        while bulk < 1_000:
            try:
                append_steps(np.arange(bulk, 1_000))
                bulk = 1_000
            except BackpressureError as again:
                bulk += stored_steps(again)
        writer.flush(10)
        assert np.concatenate(reader.result())[:, 0].tolist() == [*range(1_000)]


@pytest.mark.usefixtures("other_thread")
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_waits_while_the_limiter_is_closed(open_store, kind):
    store = open_store(Table.queue("q", max_size=30))
    writer, append_steps, _ = append_to(store, kind)

    def write():
        append_steps(np.arange(2_000))
        writer.close()

    call = BackgroundCall(write)
    wait_until(lambda: store.info()["q"].waiting_inserts == 1)
    values = []
    for _ in range(100):
        values += store.sample("q", 20, timeout=10).data["x"][:, 0].tolist()
    call.result()
    assert values == [*range(2_000)]


@pytest.mark.usefixtures("other_thread")
@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_ends_with_its_table(open_store, kind):
    store = open_store(Table.queue("q", max_size=30))
    _, append_steps, _ = append_to(store, kind)
    call = BackgroundCall(lambda: append_steps(np.arange(2_000)))
    wait_until(lambda: store.info()["q"].waiting_inserts == 1)
    store.drop_table("q")
    with pytest.raises(ClosedError, match=r"; the first \d+ of 2000 steps are stored\Z"):
        call.result()


def test_a_deadlock_is_reported():
    program = """
import numpy as np, engram
engram._engram.set_only_thread_checks(0.1, 0.1)
store = engram.Store([engram.Table.queue("q", max_size=20)])
writer = store.pattern_writer([engram.Pattern("q", num_steps=1)])
try:
    writer.append_steps(np.arange(1_000))
except engram.errors.BackpressureError as error:
    print(error)
    print(writer.episode_steps)
store.sample("q", 20)
writer.close()
"""
    text, steps = run_python(program).splitlines()
    assert "this is the only thread of the process" in text
    assert text.endswith(f"; the first {steps} of 1000 steps are stored")
    assert int(steps) == 36
