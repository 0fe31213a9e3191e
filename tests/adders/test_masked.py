"""Masked arrays are rejected by every argument of every adder, and nothing of the call is kept."""

import dm_env
import numpy as np
import pytest
from helpers.episodes import MAKERS, queue
from helpers.support import raises

from engram import Store
from engram.adders import EpisodeAdder
from engram.errors import InvalidArgumentError, SignatureError

MASKED = np.ma.masked_equal([1.0, 2.0], 2.0)
GOOD = {"observation": np.zeros(2), "reward": np.zeros(2), "discount": np.ones(2)}
TEXT = (
    "column `{}` is a masked array, and its masked elements would be stored as if they were valid; pass "
    "`array.filled(value)`, or its data and its mask as two columns"
)


def later(kind=dm_env.StepType.MID, **changes):
    return dm_env.TimeStep(kind, **(GOOD | changes))


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_masked_arrays_are_rejected(kind):
    with Store([queue()]) as store, MAKERS[kind](store) as adder:
        for observation, column in [(MASKED, "observation"), ({"x": MASKED}, "observation/x")]:
            with raises(SignatureError, TEXT.format(column)):
                adder.add_first(dm_env.restart(observation=observation))
        adder.add_first(dm_env.restart(observation=np.zeros(2)))
        for _ in range(2):  # the first row, and a later one
            for name, wrong in (
                ("observation", (0, later(observation=MASKED), np.zeros(2))),
                ("action", (MASKED, later(), np.zeros(2))),
                ("reward", (0, later(reward=MASKED), np.zeros(2))),
                ("discount", (0, later(discount=MASKED), np.zeros(2))),
                ("extras", (0, later(), MASKED)),
            ):
                with raises(SignatureError, TEXT.format(name)):
                    adder.add(*wrong)
            adder.add(0, later(), np.zeros(2))
        adder.add(0, later(dm_env.StepType.LAST), np.zeros(2))
        adder.flush()
        assert store.info()["priority_table"].size > 0


def test_masked_rewards_of_numbers_are_rejected():
    with Store([queue()]) as store, MAKERS["transition"](store) as adder:
        adder.add_first(dm_env.restart(observation=np.zeros(2)))
        adder.add(0, later(reward=1.0, discount=1.0))
        for changes in ({"reward": np.ma.masked, "discount": 1.0}, {"reward": 1.0, "discount": np.ma.masked}):
            name = "reward" if changes["reward"] is np.ma.masked else "discount"
            with raises(SignatureError, TEXT.format(name)):
                adder.add(0, later(**changes))


def test_masked_padding_is_rejected():
    padding = {"padding_fn": np.ma.masked_all}
    with Store([queue()]) as store, EpisodeAdder(store, 10, **padding) as adder:
        adder.add_first(dm_env.restart(observation=np.zeros(2)))
        text = "`padding_fn(...)` must not be a masked array; pass `padding_fn(...).filled(value)` instead"
        with raises(InvalidArgumentError, text):
            adder.add(0, later(dm_env.StepType.LAST))
