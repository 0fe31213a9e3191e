"""Bugs of the published population-based training that Engram does not have; see docs/coming-from-ftw.md."""

import copy

import numpy as np
import pytest
from helpers.ftw_published import agent, environment_spec
from helpers.support import raises

from engram.agents.ftw import pbt
from engram.compat import ftw
from engram.errors import InvalidArgumentError

pytestmark = pytest.mark.jax

EVOLUTION = pbt.Evolution(min_steps=10)


def test_bug_9_ratings_change_after_each_game():
    blue, red = pbt.update_ratings([1000.0], [1000.0], 0.0)
    assert blue.tolist() == [1008.0]
    assert red.tolist() == [992.0]


def test_bug_10_inheritance_copies_and_mutates_only_the_copy():
    state = pbt.AgentState({"w": np.ones(3)}, {"ms": np.ones(3)}, {"learning_rate": 1e-3}, np.ones(2))
    before = copy.deepcopy(state)
    members = [pbt.Member(rating=900, steps=20), pbt.Member(rating=1200, steps=30)]
    evolution = pbt.Evolution(min_steps=10, mutation_probability=1.0)
    rng = np.random.default_rng(0)
    assert {pbt.choose_parent(members, 0, evolution, rng) for _ in range(50)} == {1}  # never itself
    member, child, _ = pbt.inherit(members, state, child=0, parent=1, evolution=evolution, rng=rng)
    assert state.hypers == before.hypers
    assert np.array_equal(state.internal_rewards, before.internal_rewards)
    assert child.hypers["learning_rate"] != 1e-3
    assert (member.rating, member.steps, member.last_evolved) == (1200, 20, 20)


def test_bug_10_the_results_of_evolution_can_be_set():
    """`perturb` returned None, which `set_hypers` and `set_rewards` then received."""
    evolution = pbt.Evolution(min_steps=10, mutation_probability=1.0)
    rng = np.random.default_rng(0)
    with agent(num_environment_events=2, environment_spec=environment_spec(events=(2,))) as agent_:
        hypers, rewards = agent_.get_hypers().get(), agent_.get_rewards().get()
        mutated = pbt.mutate(hypers, evolution, rng)
        weights = pbt.mutate({"w": rewards}, evolution, rng)["w"]
        agent_.set_hypers(mutated)
        agent_.set_rewards(weights)
        found = agent_._learner.hypers()
        assert {name: getattr(found, name) for name in mutated} == mutated
        assert found.internal_rewards.tolist() == weights.tolist()
        assert all(mutated[name] != hypers[name] for name in hypers if name != "slow_core_period")
        assert not np.any(weights == rewards)


def test_hyperparameters_and_internal_rewards_of_an_agent_are_its_own_objects():
    with agent(num_environment_events=2, environment_spec=environment_spec(events=(2,))) as agent_:
        hypers, rewards = agent_.get_hypers(), agent_.get_rewards()
        assert isinstance(hypers, ftw.HyperparametersContainer)
        assert isinstance(rewards, ftw.InternalRewards)
        before = hypers.get(), rewards.get()
        hypers.perturb()
        rewards.perturb()
        assert before[0]["learning_rate"] != hypers.get()["learning_rate"] == agent_._learner.hypers().learning_rate
        assert not np.any(before[1] == rewards.get())
        assert agent_._learner.hypers().internal_rewards.tolist() == rewards.get().tolist()


def test_an_agent_copies_hyperparameters_and_internal_rewards_of_any_kind():
    with agent(num_environment_events=2, environment_spec=environment_spec(events=(2,))) as agent_:
        new = ftw.initialize_hypers(seed=5)
        expected = ftw.HyperparametersContainer(new).get()
        for given in (ftw.HyperparametersContainer(new), new, expected, {**expected, "other": 1}):
            agent_.get_hypers().perturb()
            assert agent_.get_hypers().get() != expected
            agent_.set_hypers(given)
            assert agent_.get_hypers().get() == expected
        rewards = ftw.initialize_internal_rewards(2, seed=5)
        for given_rewards in (rewards, rewards.get(), rewards.get().tolist()):
            agent_.get_rewards().perturb()
            agent_.set_rewards(given_rewards)
            assert agent_.get_rewards().get().tolist() == rewards.get().tolist()
        agent_.get_hypers().perturb()
        agent_.get_rewards().perturb()
        assert ftw.HyperparametersContainer(new).get() == expected
        assert not np.any(agent_.get_rewards().get() == rewards.get())


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"learning_rate": 0.5, "slow_core_period": 0},
            "`values['slow_core_period']`: `value` must be at least 1; got 0",
        ),
        ({"learning_rate": 0.5, "period": -3}, "`values['period']`: `value` must be at least 1; got -3"),
        (
            {"entropy_cost": 0.5, "learning_rate": "x"},
            "`values['learning_rate']`: `value` must be a number; got 'x' (str)",
        ),
    ],
)
def test_invalid_hyperparameters_change_nothing(values, text):
    with agent() as agent_:
        before = agent_.get_hypers().get()
        with raises(InvalidArgumentError, text):
            agent_.set_hypers(values)
        assert agent_.get_hypers().get() == before


@pytest.mark.parametrize("rewards", ["x", None, [0.1, 0.2], [np.inf], {"a": 1}, [[0.1], []]])
def test_invalid_internal_rewards_change_nothing(rewards):
    with agent() as agent_:
        before = agent_.get_rewards().get()
        with raises(InvalidArgumentError, f"`value` must be finite numbers of the shape (1,); got {rewards!r}"):
            agent_.set_rewards(rewards)
        assert agent_.get_rewards().get() == before


def test_bug_11_matchmaking_uses_probabilities_of_winning():
    ratings = [0.0, 5000.0, -5000.0, 100.0]
    probabilities = pbt.opponent_probabilities(ratings, 0)
    assert np.isfinite(probabilities).all()
    assert probabilities.sum() == pytest.approx(1)
    with pytest.raises(InvalidArgumentError):
        pbt.sample_match([0.0, 1.0, 2.0], 2, np.random.default_rng(0))


def test_bug_12_the_threshold_is_a_probability_of_winning():
    assert pbt.rating_gap(0.7) == pytest.approx(147.19, abs=0.01)
    assert pbt.win_probability(1200, 1000) == pytest.approx(0.7597, abs=1e-4)
    members = [pbt.Member(rating=1000, steps=20), pbt.Member(rating=1148, steps=20)]
    assert pbt.choose_parent(members, 0, EVOLUTION, np.random.default_rng(0)) == 1
    members[1] = members[1]._replace(rating=1147)
    assert pbt.choose_parent(members, 0, EVOLUTION, np.random.default_rng(0)) is None
