"""`EpisodeAdder` and `StructuredAdder`."""

import numpy as np
from helpers.episodes import PAD, episode_rows, items, play, queue, rewards, rows, timesteps, to_lists
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram import Pattern, Store
from engram.adders import EpisodeAdder, StructuredAdder
from engram.errors import InvalidArgumentError
from engram.patterns import end_of_episode


@given(st.lists(rewards, min_size=1, max_size=3), st.booleans())
def test_episodes_match_the_model(episodes, padded):
    with Store([queue()]) as store:
        with EpisodeAdder(store, 13, padding_fn=np.zeros if padded else None) as adder:
            for number, episode in enumerate(episodes):
                play(adder, timesteps(episode, first=1 + 100 * number))
        expected = [episode_rows(episode, 1 + 100 * number) for number, episode in enumerate(episodes)]
        if padded:
            expected = [episode + [PAD] * (13 - len(episode)) for episode in expected]
        assert [rows(item) for item in items(store)] == expected


def test_priorities_are_computed_from_whole_episodes(open_store):
    store = open_store(queue())
    priorities = {"priority_table": lambda item: float(item.reward.sum())}
    with EpisodeAdder(store, 4, priority_fns=priorities) as adder:
        play(adder, timesteps([1, 2, 3]))
        play(adder, timesteps([4]))
    assert [store.sample("priority_table", 1).info.priority[0] for _ in range(2)] == [6, 4]


def test_an_episode_that_is_too_long_is_rejected():
    text = (
        "an episode must have at most 2 transitions: `max_sequence_length` is 3, and the last row holds only the final "
        "observation; raise `max_sequence_length`, or call `reset` to abandon this episode"
    )
    with Store([queue()]) as store, EpisodeAdder(store, 3) as adder:
        with raises(InvalidArgumentError, text):
            play(adder, timesteps([1, 2, 3]))
        adder.reset()
        play(adder, timesteps([1, 2], first=7))
        assert [item.observation for item in items(store)] == [[7, 8, 9]]


def test_a_structured_adder_creates_the_items_of_its_patterns(open_store):
    store = open_store(queue("pairs"), queue("ends"))
    pairs = Pattern(
        "pairs", lambda step: {"from": step.observation[-2], "action": step.action[-2], "to": step.observation[-1]}
    )
    ends = Pattern(
        "ends",
        lambda step: {"seen": step.observation[-2:], "start": step.start_of_episode[-2:]},
        when=[end_of_episode()],
    )
    with StructuredAdder(store, [pairs, ends]) as adder:
        play(adder, timesteps([1, 2]))
        adder.add_first(timesteps([1, 2], first=50)[0])
        adder.add(np.float32(5), timesteps([1, 2], first=50)[1])
        adder.reset()
        play(adder, timesteps([3], first=70))
    sampled = [to_lists(store.sample("pairs", 1).data) for _ in range(3)]
    assert sampled == [
        {"from": 1, "action": 0.1, "to": 2},
        {"from": 2, "action": 0.2, "to": 3},
        {"from": 70, "action": 7.0, "to": 71},
    ]
    assert items(store, "ends") == [{"seen": [2, 3], "start": [0, 0]}, {"seen": [70, 71], "start": [1, 0]}]


def test_patterns_create_no_item_from_missing_fields_of_the_final_row():
    pattern = Pattern("priority_table", lambda step: {"action": step.action[-1:]})
    with Store([queue()]) as store:
        with StructuredAdder(store, [pattern]) as adder:
            play(adder, timesteps([1, 2]))
        assert items(store) == [{"action": [0.1]}, {"action": [0.2]}]
