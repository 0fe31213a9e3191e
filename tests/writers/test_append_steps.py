"""`PatternWriter.append_steps`: the same items as one `append` per step."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from support import raises

from engram import ArraySpec, Pattern, Store, Table, selectors
from engram.errors import InvalidArgumentError, PriorityError, SignatureError
from engram.patterns import end_of_episode, step_index, td_error


def contents(store, table="t"):
    """All items of a table, oldest first, as comparable values."""
    items = []
    for item in store.scan(table, batch_size=None):
        columns = [(name, array.dtype, array.shape, array.tobytes()) for name, array in item.data.items()]
        items.append((columns, item.info.priority[0]))
    return items


def episode(length, rng):
    return {
        "obs": rng.standard_normal((length, 3)).astype(np.float32),
        "reward": rng.standard_normal(length),
        "flag": rng.random(length) > 0.5,
        "id": np.arange(length, dtype=np.int16),
    }


def patterns():
    return [
        Pattern("t", num_steps=2),
        Pattern("t", lambda step: {"a": step["obs"][-3:], "b": step["reward"][-1]}, when=[step_index() % 2 == 0]),
        Pattern("t", lambda step: {"last": step["id"][-2:]}, when=[end_of_episode()]),
        Pattern("t", num_steps=1, priority=td_error(lambda step: step["reward"])),
    ]


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=4),
    splits=st.lists(st.integers(1, 15), min_size=1, max_size=5),
    chunk_length=st.sampled_from([None, 1, 3, 16]),
    clear=st.booleans(),
)
def test_the_items_equal_those_of_single_appends(lengths, splits, chunk_length, clear):
    with Store([Table("t")], seed=1) as one, Store([Table("t")], seed=1) as other:
        rng = np.random.default_rng(1)
        with (
            one.pattern_writer(patterns(), chunk_length=chunk_length) as single,
            other.pattern_writer(patterns(), chunk_length=chunk_length) as bulk,
        ):
            for length in lengths:
                steps, begin, number = episode(length, rng), 0, 0
                for index in range(length):
                    single.append({name: column[index] for name, column in steps.items()})
                while begin < length:
                    end = begin + splits[number % len(splits)]
                    bulk.append_steps({name: column[begin:end] for name, column in steps.items()})
                    begin, number = end, number + 1
                assert bulk.episode_steps == length
                for writer in (single, bulk):
                    writer.end_episode(clear=clear)
        assert contents(other) == contents(one)


def test_many_steps_of_several_types(open_store):
    store = open_store(Table("t", max_size=10_000))
    steps = 5_000
    data = {
        "text": np.array([f"n{i}" for i in range(steps)]),
        "names": np.array([[b"a" * (i % 3), b"b"] for i in range(steps)], dtype=object),
        "columns": np.arange(2 * steps).reshape(2, steps).T,  # not in C order
        "swapped": np.arange(steps, dtype=">f8"),
        "nothing": np.zeros((steps, 0), np.float32),
    }
    with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
        writer.append_steps(data)
        writer.append_steps({name: column[:0] for name, column in data.items()})
        writer.append({name: column[7] for name, column in data.items()})
        assert writer.episode_steps == steps + 1
    batches = list(store.scan("t", batch_size=10_000))
    (batch,) = batches
    assert len(batch) == steps + 1
    for name, column in data.items():
        got = batch.data[name][:steps, 0]
        expected = (
            np.vectorize(lambda x: x if isinstance(x, bytes) else x.encode(), otypes=[object])(column)
            if name in ("text", "names")
            else column
        )
        assert (got == expected).all(), name


def test_an_array_and_nested_steps(open_store):
    store = open_store(Table("t"))
    with store.pattern_writer([Pattern("t", num_steps=2)]) as writer:
        writer.append_steps(np.arange(4))
    (batch,) = store.scan("t")
    assert batch.data.tolist() == [[0, 1], [1, 2], [2, 3]]
    store.reset("t")
    with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
        writer.append_steps({"obs": (np.arange(3), {"x": np.ones((3, 2))})})
    (batch,) = store.scan("t")
    assert batch.data["obs"][0].tolist() == [[0], [1], [2]]


def test_rejected_steps_store_nothing(open_store):
    spec = {"x": ArraySpec((1, 2), np.float32), "y": ArraySpec((1,), np.int64)}
    store = open_store(Table("t", signature=spec))
    good = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4)}
    with store.pattern_writer([Pattern("t", num_steps=1)]) as writer:
        with raises(
            SignatureError, "column `y` must have shape [4, ...], with as many steps as column `x`; got shape [3]"
        ):
            writer.append_steps({**good, "y": np.arange(3)})
        with raises(SignatureError, "column `y` must have shape [T, ...] with T steps; got a value without axes"):
            writer.append_steps({**good, "y": 3})
        with pytest.raises(SignatureError, match="column `y` has the unsupported dtype datetime64"):
            writer.append_steps({**good, "y": np.zeros(4, "datetime64[s]")})
        with pytest.raises(SignatureError, match="`x`"):
            writer.append_steps({**good, "x": np.zeros((4, 3), np.float32)})
        assert writer.episode_steps == 0
        writer.append_steps(good)
        with raises(SignatureError, "column `y` must keep its dtype; got float64[] after int64[]"):
            writer.append_steps({**good, "y": np.zeros(4)})
        with pytest.raises(SignatureError, match="all steps of a writer must have the same columns"):
            writer.append_steps({"x": good["x"]})
        assert writer.episode_steps == 4
        writer.append({"x": good["x"][0]}, partial_step=True)
        with raises(InvalidArgumentError, "the last step is not complete; complete it with `append` first"):
            writer.append_steps(good)
        writer.append({"y": 9})
    assert store.scan("t").num_items == 5


def test_a_rejected_priority_does_not_stop_the_other_items(open_store):
    table = Table("t", sampler=selectors.Prioritized(1.0))
    store = open_store(table)
    reward = np.ones(3_000)
    reward[[5, 2_000]] = np.nan
    with store.pattern_writer([Pattern("t", num_steps=1, priority=td_error(lambda step: step["reward"]))]) as writer:
        with pytest.raises(PriorityError, match="NaN"):
            writer.append_steps({"reward": reward})
        assert writer.episode_steps == 3_000
    assert store.scan("t").num_items == 2_998
