"""`NonOverlappingRNNSequenceAdder`: sequences with their first recurrent state."""

import numpy as np
import pytest
from helpers.episodes import episode_rows, expected_sequences, items, play, queue, rewards, rows, timesteps
from hypothesis import given
from hypothesis import strategies as st

from engram import Store
from engram.adders import MaskedStep, NonOverlappingRNNSequenceAdder


def extras(t):
    return {"core_state": (np.float32([100 + t, t]), {"c": np.int64(t)}), "logits": np.float32(t)}


@given(st.lists(rewards, min_size=1, max_size=3), st.integers(1, 6), st.booleans())
def test_sequences_match_the_model(episodes, length, padded):
    with Store([queue()]) as store:
        expected = []
        with NonOverlappingRNNSequenceAdder(store, length, pad_end_of_episode=padded) as adder:
            for number, episode in enumerate(episodes):
                play(adder, timesteps(episode, first=1 + 100 * number), extras=extras)
                whole = episode_rows(episode, 1 + 100 * number)
                expected += expected_sequences(whole, length, length, "zero_pad" if padded else "drop")
                assert store.info()["priority_table"].size == len(expected)
        sampled = items(store)
        assert [rows(item) for item in sampled] == expected
        final_observations = {1 + 100 * number + len(episode) for number, episode in enumerate(episodes)}
        for item, sequence in zip(sampled, expected, strict=True):
            t = (sequence[0][0] - 1) % 100
            # The final row has no recurrent state, so zeros are stored.
            starts_with_final_row = sequence[0][0] in final_observations
            state = ([[0, 0]], {"c": [0]}) if starts_with_final_row else ([[100 + t, t]], {"c": [t]})
            assert item.extras["core_state"] == state
            assert len(item.extras["logits"]) == length


@given(st.lists(rewards, min_size=1, max_size=3), st.integers(1, 6))
def test_overlapping_sequences_contain_every_transition(episodes, length):
    with Store([queue()]) as store:
        with NonOverlappingRNNSequenceAdder(store, length, overlap=True) as adder:
            for number, episode in enumerate(episodes):
                play(adder, timesteps(episode, first=1 + 100 * number), extras=extras)
        sampled = items(store)
        assert len(sampled) == sum(-(-len(episode) // length) for episode in episodes)
        valid_transitions = []
        for item in sampled:
            assert type(item) is MaskedStep
            assert len(item.mask) == length + 1
            first = (item.observation[0] - 1) % 100
            assert item.extras["core_state"] == ([[100 + first, first]], {"c": [first]})
            transitions = zip(item.mask, item.observation, item.reward, item.observation[1:], strict=False)
            valid_transitions += [transition for mask, *transition in transitions if mask]
    assert valid_transitions == [
        [1 + 100 * number + t, reward, 2 + 100 * number + t]
        for number, episode in enumerate(episodes)
        for t, reward in enumerate(episode)
    ]


def test_items_have_their_first_state_and_the_given_priority(open_store):
    store = open_store(queue())
    with NonOverlappingRNNSequenceAdder(store, 2, priority_fns={"priority_table": lambda _: 7.0}) as adder:
        play(adder, timesteps([1, 2, 3]), extras=extras)
    batch = store.sample("priority_table", 2)
    assert batch.info.priority.tolist() == [7, 7]
    assert batch.data.extras["core_state"][0].tolist() == [[[100, 0]], [[102, 2]]]
    assert batch.data.observation.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("overlap", [False, True])
def test_only_first_states_are_stored(overlap):
    def stored_bytes(size):
        state = np.random.default_rng(0).integers(256, size=size, dtype=np.uint8)  # cannot be compressed
        with Store([queue()]) as store:
            with NonOverlappingRNNSequenceAdder(store, 8, overlap=overlap) as adder:
                play(adder, timesteps(range(79)), extras=lambda _: {"core_state": state})
            return store.info()["priority_table"].bytes

    states = (stored_bytes(110_000) - stored_bytes(10_000)) / 100_000
    # Items start at 10 of the 80 rows. With `overlap`, a row of padding follows, where the next item would start: it
    # has a state, too.
    assert round(states) == 10 + overlap
