"""`SequenceAdder` and `MultiSequenceAdder`, compared with a model that has the whole episode."""

import numpy as np
import pytest
from helpers.episodes import episode_rows, expected_sequences, items, play, queue, rewards, rows, timesteps
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram import ArraySpec, Store, Table
from engram.adders import EndBehavior, MultiSequenceAdder, SequenceAdder, Step
from engram.errors import InvalidArgumentError, SignatureError

lengths = st.integers(1, 6)


@given(
    st.lists(rewards, min_size=1, max_size=3),
    lengths,
    lengths,
    st.sampled_from(["zero_pad", "truncate", "write", "drop"]),
    st.sampled_from([1.0, lambda _: 1.0]),
)
def test_sequences_match_the_model(episodes, length, period, behavior, priority):
    with Store([queue()]) as store:
        expected = []
        arguments = {"end_of_episode_behavior": behavior, "priority_fns": {"priority_table": priority}}
        with SequenceAdder(store, length, period, **arguments) as adder:
            for number, episode in enumerate(episodes):
                play(adder, timesteps(episode, first=1 + 100 * number))
                expected += expected_sequences(episode_rows(episode, 1 + 100 * number), length, period, behavior)
        assert [rows(item) for item in items(store)] == expected


@given(st.lists(rewards, min_size=1, max_size=3), lengths, lengths, st.sampled_from([1.0, lambda _: 1.0]))
def test_sequences_that_continue_across_episodes_match_the_model(episodes, length, period, priority):
    stream = []
    with Store([queue()]) as store:
        arguments = {"priority_fns": {"priority_table": priority}}
        with SequenceAdder(store, length, period, end_of_episode_behavior=EndBehavior.CONTINUE, **arguments) as adder:
            for number, episode in enumerate(episodes):
                play(adder, timesteps(episode, first=1 + 100 * number))
                stream += episode_rows(episode, 1 + 100 * number)
                assert store.info()["priority_table"].size == len(expected_sequences(stream, length, period, "drop"))
        assert [rows(item) for item in items(store)] == expected_sequences(stream, length, period, "drop")


def test_overlapping_sequences_are_padded_with_zeros():
    episode = [2.0, 0.0, -3.0, -3.0, 0.0, 0.0, 0.0]
    with Store([queue()]) as store:
        with SequenceAdder(store, 4, 3) as adder:
            play(adder, timesteps(episode))
        assert [item.observation for item in items(store)] == [[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 0, 0]]


@pytest.mark.parametrize("behavior", ["zero_pad", "truncate"])
def test_items_have_the_given_priorities_and_extras(open_store, behavior):
    store = open_store(queue("a"), queue("b"))
    priorities = {"a": 3.0, "b": lambda item: float(item.reward.sum())}
    with SequenceAdder(store, 2, 2, priority_fns=priorities, end_of_episode_behavior=behavior) as adder:
        play(adder, timesteps([1, 2]), extras=lambda t: (np.float32(t), {"x": np.int8(t)}))
    second = Step([3, 0], [0, 0], [0, 0], [0, 0], [0, 0], ([0, 0], {"x": [0, 0]}))
    if behavior == "truncate":
        second = Step([3], [0], [0], [0], [0], ([0], {"x": [0]}))
    first = Step([1, 2], [0.1, 0.2], [1, 2], [1, 0], [1, 0], ([0, 1], {"x": [0, 1]}))
    sampled = {table: [store.sample(table, 1, timeout=10).info.priority[0] for _ in range(2)] for table in "ab"}
    assert sampled == {"a": [3, 3], "b": [3, 0]}
    with SequenceAdder(store, 2, 2, priority_fns=priorities, end_of_episode_behavior=behavior) as adder:
        play(adder, timesteps([1, 2]), extras=lambda t: (np.float32(t), {"x": np.int8(t)}))
    assert items(store, "a") == items(store, "b") == [first, second]


def test_items_that_do_not_match_the_signature_are_rejected():
    signature = Step(*(ArraySpec((2,), dtype) for dtype in ("int64", "float32", "float32", "float64", "bool")))
    with Store([Table("priority_table", signature=signature)]) as store:
        adder = SequenceAdder(store, 2, 2)
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        with pytest.raises(SignatureError, match="`reward`"):
            adder.add(np.float32(0.1), steps[1])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sequence_length": 0}, "`sequence_length` must be at least 1; got 0"),
        ({"period": 0}, "`period` must be at least 1; got 0"),
        (
            {"end_of_episode_behavior": "pad"},
            "`end_of_episode_behavior` must be one of 'zero_pad', 'truncate', 'write', 'continue', 'drop'; got 'pad'",
        ),
        (
            {"priority_fns": {}},
            "`priority_fns` must map table names to a number, a function of an item's data, or None for 1; got {}",
        ),
        ({"priority_fns": {"t": "x"}}, "the priority of table `t` must be a number; got 'x' (str)"),
        ({"priority_fns": {1: 1.0}}, "each key of `priority_fns` must be a str, the name of a table; got 1 (int)"),
    ],
)
def test_bad_arguments_are_rejected(arguments, text):
    with Store([queue()]) as store, raises(InvalidArgumentError, text):
        SequenceAdder(store, **({"sequence_length": 2, "period": 1} | arguments))


# --- Several tables ---


@given(
    st.lists(rewards, min_size=1, max_size=3),
    st.tuples(lengths, lengths, lengths),
    st.tuples(lengths, lengths, lengths),
    st.booleans(),
    st.sampled_from([1.0, lambda _: 1.0]),
)
def test_each_table_gets_the_items_of_an_adder_for_it_alone(episodes, lengths, periods, padded, priority):
    tables = "abc"
    with Store([queue(table) for table in tables]) as store:
        lengths, periods = dict(zip(tables, lengths, strict=True)), dict(zip(tables, periods, strict=True))
        arguments = {"pad_end_of_episode": padded, "priority_fns": dict.fromkeys(tables, priority)}
        with MultiSequenceAdder(store, lengths, periods, **arguments) as adder:
            for number, episode in enumerate(episodes):
                play(adder, timesteps(episode, first=1 + 100 * number))
        for table in tables:
            expected = []
            for number, episode in enumerate(episodes):
                whole = episode_rows(episode, 1 + 100 * number)
                expected += expected_sequences(whole, lengths[table], periods[table], "zero_pad" if padded else "drop")
            assert [rows(item) for item in items(store, table)] == expected


def test_should_insert_fns_select_items():
    episode = [2.0, 0.0, -3.0, -3.0, 0.0, 0.0, 0.0]
    filters = {"nonzero": lambda steps: steps[-1].reward != 0, "zero": lambda steps: steps[-1].reward == 0}
    with Store([queue("nonzero"), queue("zero")]) as store:
        lengths, periods = dict.fromkeys(filters, 3), dict.fromkeys(filters, 1)
        with MultiSequenceAdder(store, lengths, periods, should_insert_fns=filters, pad_end_of_episode=False) as adder:
            play(adder, timesteps(episode))
        assert [item.observation for item in items(store, "nonzero")] == [[1, 2, 3], [2, 3, 4]]
        assert [item.observation for item in items(store, "zero")] == [[3, 4, 5], [4, 5, 6], [5, 6, 7], [6, 7, 8]]


@pytest.mark.parametrize("name", ["periods", "priority_fns", "should_insert_fns"])
def test_mappings_must_have_the_same_tables(name):
    arguments = {"sequence_lengths": {"a": 1, "b": 1}, "periods": {"a": 1, "b": 1}} | {name: {"a": 1}}
    text = f"`{name}` must have the same tables as `sequence_lengths`, ['a', 'b']; got ['a']"
    with Store([queue("a"), queue("b")]) as store, raises(InvalidArgumentError, text):
        MultiSequenceAdder(store, **arguments)
