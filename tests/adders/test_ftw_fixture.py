"""The adders' fixture of FTW: the items of an episode for the queue and for the tables of reward prediction."""

from itertools import pairwise

import dm_env
import numpy as np
from helpers.episodes import items, queue
from helpers.ftw_fixtures import load

from engram import Store
from engram.adders import MultiSequenceAdder, NonOverlappingRNNSequenceAdder, SequenceAdder

FIELDS = ("observation", "action", "reward", "discount", "start_of_episode")


def play_fixture(adder, episode):
    """Adds the fixture's episode; its last row is the placeholder with the final observation."""
    adder.add_first(dm_env.restart(observation=np.float64(episode[0][0])))
    for row, next_row in pairwise(episode):
        _, action, reward, discount, _, state = row
        kind = dm_env.StepType.LAST if next_row is episode[-1] else dm_env.StepType.MID
        step = dm_env.TimeStep(kind, np.float64(reward), np.float64(discount), np.float64(next_row[0]))
        adder.add(np.int64(action), step, {"core_state": np.float64(state)})


def rows(item):
    return [list(row) for row in zip(*(getattr(item, field) for field in FIELDS), strict=True)]


def sampled(make_adder, episode, *tables):
    """Returns the items of each table."""
    with Store([queue(name) for name in tables]) as store:
        with make_adder(store) as adder:
            play_fixture(adder, episode)
        return [items(store, name) for name in tables]


def test_items_of_the_queue_have_the_first_core_state():
    fixture = load("adders")
    for padded, name in ((False, "non_overlapping_no_pad"), (True, "non_overlapping_pad")):

        def make_adder(store, padded=padded):
            return NonOverlappingRNNSequenceAdder(store, fixture["length"], pad_end_of_episode=padded)

        (found,) = sampled(make_adder, fixture["episode"], "priority_table")
        expected = [{field: item[field] for field in (*FIELDS, "core_state")} for item in fixture[name]]
        got = [{field: list(getattr(item, field)) for field in FIELDS} for item in found]
        got = [fields | {"core_state": item.extras["core_state"]} for fields, item in zip(got, found, strict=True)]
        assert got == expected


def test_windows_of_reward_prediction_are_split_by_their_last_reward():
    fixture = load("adders")
    prediction = fixture["reward_prediction"]
    tables = ("nonzero", "zero")

    def make_adder(store):
        return MultiSequenceAdder(
            store,
            dict.fromkeys(tables, prediction["length"]),
            dict.fromkeys(tables, prediction["period"]),
            should_insert_fns={
                "nonzero": lambda steps: steps[-1].reward != 0,
                "zero": lambda steps: steps[-1].reward == 0,
            },
            pad_end_of_episode=False,
        )

    for name, found in zip(tables, sampled(make_adder, fixture["episode"], *tables), strict=True):
        assert [rows(item) for item in found] == prediction[name]


def test_sliding_sequences_are_padded():
    fixture = load("adders")
    sliding = fixture["sliding_pad"]

    def make_adder(store):
        return SequenceAdder(store, sliding["length"], sliding["period"])

    (found,) = sampled(make_adder, fixture["episode"], "priority_table")
    assert [rows(item) for item in found] == sliding["expected"]
