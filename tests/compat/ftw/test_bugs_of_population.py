"""Bugs of the published population-based training that Engram does not have; see docs/coming-from-ftw.md."""

import copy

import numpy as np
import pytest

from engram.agents.ftw import pbt
from engram.compat import ftw
from engram.errors import InvalidArgumentError

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
    hypers = ftw.HyperparametersContainer(ftw.initialize_hypers(seed=0))
    rewards = ftw.initialize_internal_rewards(2, seed=0)
    mutated = pbt.mutate(hypers.get(), EVOLUTION, np.random.default_rng(0))
    hypers.set(mutated)
    assert hypers.get() == mutated
    rewards.set(pbt.mutate({"w": rewards.get()}, EVOLUTION, np.random.default_rng(0))["w"])


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
