"""`NStepTransitionAdder`, compared with sums computed by the definition."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.episodes import items, play, queue, timesteps, to_lists
from helpers.support import raises
from hypothesis import given
from hypothesis import strategies as st

from engram import Pattern, Store
from engram.adders import NStepTransitionAdder, Transition
from engram.errors import InvalidArgumentError, SignatureError


def expected_items(rewards, discounts, n, gamma, first=1):
    """Returns every transition of an episode, computed by the definition."""
    transitions = []
    length = len(rewards)
    for start in range(length):
        end = min(start + n, length)
        reward, weight = 0.0, 1.0
        for t in range(start, end):
            reward += weight * rewards[t]
            weight *= gamma * discounts[t]
        product = gamma ** (end - start - 1) * np.prod(discounts[start:end])
        transitions.append((first + start, (first + start) / 10, reward, product, first + end))
    return transitions


numbers = st.floats(-4, 4, width=16)
episodes = st.lists(st.tuples(numbers, st.floats(0, 1, width=16)), min_size=1, max_size=9)


@given(st.lists(episodes, min_size=1, max_size=3), st.integers(1, 5), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_transitions_match_the_definition(given_episodes, n, gamma):
    with Store([queue()]) as store, NStepTransitionAdder(store, n, gamma) as adder:
        expected = []
        for number, episode in enumerate(given_episodes):
            rewards, discounts = map(list, zip(*episode, strict=True))
            play(adder, timesteps(rewards, discounts=discounts, first=100 * number))
            expected += expected_items(rewards, discounts, n, gamma, 100 * number)
        actual = [item[:5] for item in items(store)]
        assert len(actual) == len(expected)
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_the_documented_targets_are_n_step_returns():
    """Of the adder, whose `discount` lacks one gamma, and of a pattern, which leaves all of them to the learner."""
    n, gamma, value = 3, 0.9, 7.0
    rewards, discounts = [1.0, 2.0, 4.0, 8.0], [0.5, 1.0, 0.25, 1.0]
    expected = []
    for start in range(len(rewards)):
        target = value
        for reward, discount in reversed([*zip(rewards, discounts, strict=True)][start : start + n]):
            target = reward + gamma * discount * target
        expected.append(target)

    with Store([queue("adder"), queue("pattern")]) as store:
        with NStepTransitionAdder(store, n, gamma, priority_fns={"adder": 1.0}) as adder:
            play(adder, timesteps(rewards, discounts=discounts))
        transitions = store.sample("adder", 4).data
        actual = transitions.reward + gamma * transitions.discount * value
        np.testing.assert_allclose(actual, expected, rtol=1e-6)

        with store.pattern_writer([Pattern("pattern", num_steps=n + 1)]) as writer:
            for reward, discount in zip([*rewards, 0.0], [*discounts, 0.0], strict=True):
                writer.append({"r": reward, "d": discount})
        windows = store.sample("pattern", 2).data
        actual = value
        for t in reversed(range(n)):
            actual = windows["r"][:, t] + gamma * windows["d"][:, t] * actual
        np.testing.assert_allclose(actual, expected[:2])


def test_transitions_have_the_extras_of_their_first_step(open_store):
    store = open_store(queue())
    with NStepTransitionAdder(store, 2, 0.5) as adder:
        play(adder, timesteps([1, 2, 4]), extras=lambda t: {"logits": np.float32([t, -t])})
    assert items(store) == [
        Transition(1, 0.1, 2.0, 0.5, 3, {"logits": [0, 0]}),
        Transition(2, 0.2, 4.0, 0.0, 4, {"logits": [1, -1]}),
        Transition(3, 0.3, 4.0, 0.0, 4, {"logits": [2, -2]}),
    ]


def test_each_table_has_its_own_priority():
    with Store([queue("a"), queue("b"), queue("c")]) as store:
        priorities = {"a": 2.0, "b": None, "c": lambda item: item.reward + 10 * item.observation}
        with NStepTransitionAdder(store, 1, 0.9, priority_fns=priorities) as adder:
            play(adder, timesteps([1, 2]))
        sampled = {table: store.sample(table, 2).info.priority.tolist() for table in "abc"}
    assert sampled == {"a": [2, 2], "b": [1, 1], "c": [11, 22]}


def test_rewards_may_be_nests():
    steps = timesteps([1, 2])
    steps = [
        step._replace(reward={"a": np.float32(step.reward or 0), "b": [np.asarray(int(step.reward or 0))]})
        for step in steps
    ]
    with Store([queue()]) as store:
        with NStepTransitionAdder(store, 2, 0.5) as adder:
            play(adder, steps)
        data = store.sample("priority_table", 1).data
    assert (data.reward["a"].dtype, data.reward["b"][0].dtype) == (np.float32, np.float64)
    assert to_lists(data).reward == {"a": 2.0, "b": [2.0]}


def test_observations_and_actions_may_be_text():
    steps = [step._replace(observation=f"see {step.observation}") for step in timesteps([1, 2])]
    with Store([queue()]) as store:
        with NStepTransitionAdder(store, 1, 1.0) as adder:
            adder.add_first(steps[0])
            adder.add("left", steps[1])
            adder.add("right", steps[2])
        data = store.sample("priority_table", 2).data
    assert data.action.tolist() == ["left", "right"]
    assert data.next_observation.tolist() == ["see 2", "see 3"]


def test_reset_creates_the_complete_transitions():
    with Store([queue()]) as store, NStepTransitionAdder(store, 2, 1.0) as adder:
        steps = timesteps([1, 2, 4, 8])
        adder.add_first(steps[0])
        for step, next_step in pairwise(steps[:4]):
            adder.add(np.float32(step.observation / 10), next_step)
        adder.reset()
        play(adder, timesteps([5], first=50))
        assert [item[:5] for item in items(store)] == [
            (1, 0.1, 3.0, 1.0, 3),
            (2, 0.2, 6.0, 1.0, 4),
            (50, 5.0, 5.0, 0.0, 51),
        ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 0.5), "`n_step` must be at least 1; got 0"),
        ((1, 1.5), "`discount` must be from 0 to 1; got 1.5"),
        ((1, 1.0000001), "`discount` must be from 0 to 1; got 1.0000001"),
        ((1, "x"), "`discount` must be a number; got 'x' (str)"),
    ],
)
def test_bad_arguments_are_rejected(arguments, text):
    with Store([queue()]) as store, raises(InvalidArgumentError, text):
        NStepTransitionAdder(store, *arguments)


def test_bad_clients_are_rejected():
    with raises(InvalidArgumentError, "`client` must be an engram.Store or an engram.Client; got 'localhost:1' (str)"):
        NStepTransitionAdder("localhost:1", 1, 0.5)


def test_nothing_is_kept_of_a_row_with_another_dtype():
    with Store([queue()]) as store, NStepTransitionAdder(store, 1, 1.0) as adder:
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        adder.add(np.float32(0.1), steps[1])
        with pytest.raises(SignatureError, match="action"):
            adder.add(np.float64(0.2), steps[2])
        adder.add(np.float32(0.2), steps[2])
        assert [item.observation for item in items(store)] == [1, 2]


def test_with_one_step_rewards_and_discounts_are_stored_unchanged():
    with Store([queue()]) as store, NStepTransitionAdder(store, 1, 0.9) as adder:
        steps = timesteps([0, 0, 0])
        steps = [steps[0], *(step._replace(reward=2**53 + 1, discount=np.uint8(1)) for step in steps[1:])]
        adder.add_first(steps[0])
        adder.add(0, steps[1])
        text = "`reward` must have the dtype and shape of earlier rewards, int64[]; got float64[]"
        with raises(SignatureError, text):
            adder.add(0, steps[2]._replace(reward=0.75))
        text = "`discount` must have the dtype and shape of earlier discounts, uint8[]; got float64[]"
        with raises(SignatureError, text):
            adder.add(0, steps[2]._replace(discount=0.5))
        adder.add(0, steps[2])
        adder.add(0, steps[3])
        data = store.sample("priority_table", 3).data
    assert data.reward.tolist() == [2**53 + 1] * 3
    assert (data.reward.dtype, data.discount.dtype) == (np.int64, np.uint8)


@pytest.mark.parametrize(
    ("discount", "text"),
    [
        ((1.0, {}), "a discount must be a real number or an array of real numbers; got (1.0, {})"),
        ("x", "a discount must be a real number or an array of real numbers; got 'x'"),
        (
            np.ones(2),
            (
                "a discount must be a number, or an array that broadcasts to each reward; "
                "got shape (2,) for a reward of shape ()"
            ),
        ),
    ],
)
def test_bad_discounts_are_rejected(discount, text):
    with Store([queue()]) as store, NStepTransitionAdder(store, 2, 1.0) as adder:
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        with raises(SignatureError, text):
            adder.add(np.float32(0.1), steps[1]._replace(discount=discount))
        for step, next_step in pairwise(steps):
            adder.add(np.float32(step.observation / 10), next_step)
        assert [item.reward for item in items(store)] == [3.0, 2.0]


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("number", [2**64, 10**400], ids=["2**64", "10**400"])
def test_integers_that_are_too_large(n_step, number):
    with Store([queue()]) as store, NStepTransitionAdder(store, n_step, 1.0) as adder:
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        adder.add(np.float32(0.1), steps[1])
        with pytest.raises(SignatureError, match="a discount must be a real number or an array of real numbers; got 1"):
            adder.add(np.float32(0.2), steps[2]._replace(discount=number))
        with pytest.raises(
            SignatureError, match="a reward must be a real number, an array of real numbers, or a nest of these; got 1"
        ):
            adder.add(np.float32(0.2), steps[2]._replace(reward=number))
        adder.add(np.float32(0.2), steps[2])


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        (None, "`reward` must not contain None; got None"),
        ("much", "a reward must be a real number, an array of real numbers, or a nest of these; got 'much'"),
        (1j, "a reward must be a real number, an array of real numbers, or a nest of these; got 1j"),
        ({"a": 1.0}, "`reward` must have the same structure as in earlier steps: a single value; got {'a': 1.0}"),
        ([1.0, 2.0], "`reward` must have the same structure as in earlier steps: a single value; got [1.0, 2.0]"),
        (np.ones(2), "`reward` must have the dtype and shape of earlier rewards, float64[]; got float64[2]"),
    ],
)
def test_bad_rewards_are_rejected(reward, text):
    with Store([queue()]) as store, NStepTransitionAdder(store, 2, 1.0) as adder:
        steps = timesteps([1, 2, 3])
        adder.add_first(steps[0])
        adder.add(np.float32(0.1), steps[1])
        with raises(SignatureError, text):
            adder.add(np.float32(0.2), steps[2]._replace(reward=reward))
        adder.add(np.float32(0.2), steps[2])
        adder.add(np.float32(0.3), steps[3])
        assert [item.reward for item in items(store)] == [3.0, 5.0, 3.0]


def test_rewards_and_discounts_may_be_arrays():
    steps = [
        step._replace(reward=np.float32([step.reward or 0, 1]), discount=np.float32([step.discount or 0, 0.5]))
        for step in timesteps([1, 2])
    ]
    with Store([queue()]) as store:
        with NStepTransitionAdder(store, 2, 1.0) as adder:
            play(adder, steps)
        assert [(item.reward, item.discount) for item in items(store)] == [
            ([3.0, 1.5], [0.0, 0.25]),
            ([2.0, 1.0], [0.0, 0.5]),
        ]
