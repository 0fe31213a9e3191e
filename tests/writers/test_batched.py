"""The batched writer: environments that step together, each with its own episodes."""

from collections import Counter

import numpy as np
import pytest
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

import engram
from engram import Pattern, Table, selectors
from engram.errors import ClosedError, InvalidArgumentError, SignatureError
from engram.patterns import column, end_of_episode, step_index, steps_since_applied


@pytest.fixture
def store(open_store):
    return open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))


def drained(store):
    """Data of all items, each sampled once."""
    n = store.info()["t"].size
    return [store.sample("t", 1, timeout=0).data for _ in range(n)]


def test_each_environment_has_its_own_episodes(store):
    with store.batched_writer(3, [Pattern("t", num_steps=2)]) as writer:
        for t in range(3):
            steps = {"x": np.arange(3) * 10 + t, "y": np.full((3, 2), t, np.float32)}
            writer.append_batch(steps, episode_ends=[False, t == 1, False])
    sequences = sorted(data["x"][0].tolist() for data in drained(store))
    assert sequences == [[0, 1], [1, 2], [10, 11], [20, 21], [21, 22]]


def test_steps_may_be_nests_of_text(store):
    with store.batched_writer(2, [Pattern("t", lambda s: (s["a"]["b"][-1],))]) as writer:
        writer.append_batch({"a": {"b": np.array(["x", "yy"])}})
    assert sorted(data[0][0] for data in drained(store)) == ["x", "yy"]


def test_arrays_of_text_may_be_empty(store):
    with store.batched_writer(2, [Pattern("t", num_steps=1)]) as writer:
        writer.append_batch({"a": np.zeros((2, 0), "S1")})
    assert [data["a"].shape for data in drained(store)] == [(1, 1, 0)] * 2


def test_shapes_may_change_between_steps(store):
    with store.batched_writer(2, [Pattern("t", num_steps=1)]) as writer:
        for size in (2, 3):
            writer.append_batch({"x": np.full((2, size), size)})
    assert [data["x"].shape for data in drained(store)] == [(1, 1, 2)] * 2 + [(1, 1, 3)] * 2


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ({"x": np.zeros(3)}, "column `x` must have shape [2, ...] with 2 environments; got shape [3]"),
        ({"x": 1.0}, "column `x` must have shape [2, ...] with 2 environments; got shape []"),
        ({"x": None}, "column `x` must be an array, a number or a string; got None"),
        ({"y": np.zeros(2)}, "all steps of a writer must have the same columns, `x`; got `y`"),
        ({"x": np.zeros(2, int)}, "column `x` of the step must have dtype float64, as in the first step; got int64"),
    ],
)
def test_bad_steps_are_rejected(store, steps, text):
    with store.batched_writer(2, [Pattern("t", num_steps=1)]) as writer:
        writer.append_batch({"x": np.zeros(2)})
        with raises(SignatureError, text):
            writer.append_batch(steps)
        writer.append_batch({"x": np.ones(2)})
    assert len(drained(store)) == 4


def test_bad_arguments_are_rejected(store):
    writer = store.batched_writer(2, [Pattern("t", num_steps=1)])
    text = "`episode_ends` must have shape [2], one bool per environment (`num_envs`); got [1, 2]"
    with raises(InvalidArgumentError, text):
        writer.append_batch({"x": np.zeros(2)}, episode_ends=[[True, False]])
    with pytest.raises(InvalidArgumentError, match="3"):
        writer.append_batch({"x": np.zeros(2)}, episode_ends=[True, False, True])
    writer.close()
    assert store.info()["t"].size == 0
    with raises(ClosedError, "this writer is closed"):
        writer.append_batch({"x": np.zeros(2)})
    with raises(InvalidArgumentError, "`num_envs` must be at least 1; got 0"):
        store.batched_writer(0, [Pattern("t", num_steps=1)])


# --- the same as a pattern writer per environment ------------------------------------------------

conditions = st.one_of(
    st.tuples(
        st.sampled_from([step_index, steps_since_applied]),
        st.sampled_from(["==", "!=", "<", ">=", "%", "~%"]),
        st.integers(1, 4),
    ),
    st.tuples(
        st.just(lambda: column(lambda s: s["c"])),
        st.sampled_from(["==", "!=", "<", ">=", "%", "~%"]),
        st.integers(0, 3),
    ),
    st.tuples(st.just(end_of_episode), st.sampled_from(["", "~"]), st.just(0)),
)


def condition(drawn):
    subject, comparison, operand = drawn
    compare = {
        "": lambda s: s,
        "~": lambda s: ~s,
        "==": lambda s: s == operand,
        "!=": lambda s: s != operand,
        "<": lambda s: s < operand,
        ">=": lambda s: s >= operand,
        "%": lambda s: s % (operand + 1) == 1,
        "~%": lambda s: ~(s % (operand + 1) != 0),
    }
    return compare[comparison](subject())


windows = st.tuples(st.integers(-4, -1), st.integers(1, 4), st.integers(1, 2)).map(
    lambda w: slice(w[0], min(0, w[0] + w[1]) or None, w[2])
)
leaves = st.one_of(windows, st.integers(-3, -1))
declared = st.lists(
    st.tuples(st.one_of(st.integers(1, 4), st.tuples(leaves, leaves)), st.lists(conditions, max_size=2)),
    min_size=1,
    max_size=3,
)


def pattern(number, drawn):
    shape, when = drawn
    when = [condition(each) for each in when]
    if isinstance(shape, int):
        return Pattern("t", num_steps=shape, when=when, priority=number)
    return Pattern("t", lambda s: {"x": s["x"][shape[0]], "c": s["c"][shape[1]]}, when=when, priority=number)


def contents(store):
    counts = Counter()
    for _ in range(store.info()["t"].size):
        sample = next(iter(engram.Dataset(store, "t")))
        counts[sample.info.priority.item(), sample.data["x"].tobytes(), sample.data["c"].tobytes()] += 1
    return counts


@given(
    patterns=declared,
    envs=st.integers(1, 3),
    drawn_steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7), st.booleans()), max_size=12),
    chunk_length=st.sampled_from([None, 1, 3]),
)
def test_a_batched_writer_equals_one_pattern_writer_per_environment(patterns, envs, drawn_steps, chunk_length):
    patterns = [pattern(number, drawn) for number, drawn in enumerate(patterns)]
    table = Table("t", sampler=selectors.Fifo(), max_times_sampled=1)
    with engram.Store([table]) as batched_store, engram.Store([table]) as single_store:
        batched = batched_store.batched_writer(envs, patterns, chunk_length=chunk_length)
        single = [single_store.pattern_writer(patterns, chunk_length=chunk_length) for _ in range(envs)]
        for t, (c, ends, flush) in enumerate(drawn_steps):  # `ends`: a bit per environment
            steps = {"x": np.arange(envs) * 1000 + t, "c": (np.arange(envs) + c) % 4}
            ended = [bool(ends >> env & 1) for env in range(envs)]
            batched.append_batch(steps, episode_ends=ended)
            for env, writer in enumerate(single):
                writer.append({name: values[env] for name, values in steps.items()})
                if ended[env]:
                    writer.end_episode()
            if flush:
                batched.flush()
        batched.close()
        for writer in single:
            writer.close()
        assert contents(batched_store) == contents(single_store)


def test_numbers_of_environments_are_not_flags(store):
    with store.batched_writer(4, [Pattern("t", num_steps=1)]) as writer:
        steps = {"x": np.zeros(4)}
        text = (
            "`episode_ends` must be bools; got [0, 3, 0, 0]; an environment's number is not allowed in place of its "
            "flag"
        )
        with raises(InvalidArgumentError, text):
            writer.append_batch(steps, episode_ends=[0, 3, 0, 0])
        writer.append_batch(steps, episode_ends=np.array([0, 1, 0, 1]))
    assert store.info()["t"].size == 4


TRANSITION = Pattern("t", lambda s: {"x": s["x"][-2], "terminated": s["terminated"][-2], "next_x": s["x"][-1]})


def test_flags_that_no_item_has_cause_a_warning(store):
    text = (
        "column `terminated` is True at the last step of an episode, but patterns select this column of earlier steps "
        "only, so no item contains this value. If it marks the end of the episode, `episode_ends` must be True one "
        "step later, at a step with the last observation. For vector environments of Gymnasium, use "
        "engram.gymnasium.VectorWriter"
    )
    with store.batched_writer(2, [TRANSITION]) as writer:

        def append(terminated):
            writer.append_batch({"x": np.zeros(2), "terminated": terminated}, episode_ends=terminated)

        append(np.array([False, False]))
        with pytest.warns(UserWarning, match="VectorWriter") as warned:
            append(np.array([False, True]))
        assert [str(each.message) for each in warned] == [text]
        assert warned[0].filename == __file__
        append(np.array([False, False]))
        append(np.array([True, False]))  # each column is reported once


def test_flags_one_step_before_the_last_cause_no_warning(store):
    with store.batched_writer(1, [TRANSITION]) as writer:
        for flag, ends in [(False, False), (True, False), (True, True), (False, False), (False, True)]:
            writer.append_batch({"x": np.zeros(1), "terminated": np.array([flag])}, episode_ends=[ends])
    assert store.info()["t"].size == 3
