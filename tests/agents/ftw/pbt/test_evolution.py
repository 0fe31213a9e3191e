"""Evolution: who inherits from whom, and what."""

import copy

import numpy as np
import pytest
from helpers.support import raises
from scipy import stats

from engram.agents.ftw.pbt import (
    AgentState,
    Evolution,
    Member,
    choose_parent,
    inherit,
    is_eligible,
    mutate,
    rating_gap,
)
from engram.errors import InvalidArgumentError

EVOLUTION = Evolution(min_steps=100)
GAP = rating_gap(0.7)


def choices(members, child, times=100, evolution=EVOLUTION):
    rng = np.random.default_rng(0)
    return [choose_parent(members, child, evolution, rng) for _ in range(times)]


def parent_state():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=2)}
    hypers = {"learning_rate": 1e-3, "entropy_cost": 0.01, "slow_core_period": 7, "scale_grads_fast_to_slow": 0.95}
    return AgentState(params, {"ms": np.ones(3)}, hypers, np.array([0.5, -0.5, 1.0]))


def test_a_parent_beats_the_child_with_more_than_the_threshold():
    members = [Member(rating=1000, steps=100), Member(rating=1000 + GAP - 0.01), Member(rating=900)]
    assert set(choices(members, 0)) == {None}
    members[1] = Member(rating=1000 + GAP + 0.01)
    assert set(choices(members, 0)) == {1, None}  # None: the weak candidate was drawn
    assert set(choices(members[:2], 0)) == {1}


def test_candidates_are_uniform():
    members = [Member(rating=0, steps=100), *[Member(rating=2000 + 100 * n) for n in range(4)]]
    counts = np.bincount(choices(members, 0, 2000), minlength=5)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 0.01


def test_an_agent_evolves_once_per_burn_in():
    members = [Member(rating=1000, steps=99), Member(rating=2000)]
    assert set(choices(members, 0)) == {None}
    members[0] = Member(rating=1000, steps=350, last_evolved=250)
    assert set(choices(members, 0)) == {1}
    child, _, _ = inherit(members, parent_state(), child=0, parent=1, evolution=EVOLUTION, rng=np.random.default_rng(0))
    assert child.last_evolved == child.steps == 350
    assert not is_eligible(child, EVOLUTION)
    assert is_eligible(child._replace(steps=450), EVOLUTION)


def test_frozen_agents_neither_evolve_nor_reproduce():
    frozen = Member(rating=0, steps=1000, frozen=True)
    assert set(choices([frozen, Member(rating=2000)], 0)) == {None}
    assert set(choices([Member(rating=0, steps=1000), frozen._replace(rating=2000)], 0)) == {None}


def test_an_agent_alone_has_no_parent():
    assert choices([Member(steps=1000)], 0) == [None] * 100


def test_the_child_equals_the_parent_except_for_mutations():
    state = parent_state()
    before = copy.deepcopy(state)
    members = [Member(rating=900, steps=300, generation=2, frames=5, games=6), Member(rating=1500, steps=7)]
    always = Evolution(min_steps=100, mutation_probability=1.0)
    child, child_state, event = inherit(
        members, state, child=0, parent=1, evolution=always, rng=np.random.default_rng(0)
    )
    assert child == Member(1500, 300, 300, frames=5, games=6, generation=3, parent=1)
    for mine, others in (
        (child_state.params["w"], before.params["w"]),
        (child_state.params["b"], before.params["b"]),
        (child_state.optimizer_state["ms"], before.optimizer_state["ms"]),
    ):
        np.testing.assert_array_equal(mine, others)
    floats = [name for name in before.hypers if name != "slow_core_period"]
    assert all(child_state.hypers[name] != before.hypers[name] for name in floats)
    assert (child_state.internal_rewards != before.internal_rewards).all()
    assert event.inherited["learning_rate"] == 1e-3
    assert event.mutated["learning_rate"] == child_state.hypers["learning_rate"]
    assert (event.child, event.parent, event.child_rating, event.parent_rating) == (0, 1, 900, 1500)
    child_state.params["w"][:] = 0
    child_state.optimizer_state["ms"][:] = 0
    child_state.internal_rewards[:] = 0
    np.testing.assert_array_equal(state.params["w"], before.params["w"])
    np.testing.assert_array_equal(state.optimizer_state["ms"], before.optimizer_state["ms"])
    np.testing.assert_array_equal(state.internal_rewards, before.internal_rewards)
    assert state.hypers == before.hypers


def test_values_mutate_with_a_probability_each():
    rng = np.random.default_rng(0)
    values = {"a": 1.0, "b": -2.0, "slow_core_period": 7, "internal_rewards": np.ones(50)}
    changed = dict.fromkeys(values, 0)
    for _ in range(1000):
        mutated = mutate(values, EVOLUTION, rng)
        for name, value in mutated.items():
            changed[name] += int(np.sum(np.asarray(value) != values[name]))
        assert 0.8 <= mutated["a"] <= 1.2
        assert -2.4 <= mutated["b"] <= -1.6
        assert 5 <= mutated["slow_core_period"] <= 20
        assert type(mutated["slow_core_period"]) is int
        assert type(mutated["a"]) is float
    assert 30 < changed["a"] < 70
    assert 30 < changed["b"] < 70
    assert 25 < changed["slow_core_period"] < 70
    assert 2200 < changed["internal_rewards"] < 2800
    np.testing.assert_array_equal(values["internal_rewards"], 1)


def test_mutations_stay_within_bounds():
    always = Evolution(min_steps=0, mutation_probability=1.0)
    rng = np.random.default_rng(0)
    values = [mutate({"scale_grads_fast_to_slow": 1.0}, always, rng)["scale_grads_fast_to_slow"] for _ in range(100)]
    assert max(values) == 1
    assert min(values) < 0.9


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Evolution(min_steps=-1), "`min_steps` must be at least 0; got -1"),
        (lambda: Evolution(min_steps=1, threshold=70), "`threshold` must be from 0 to 1; got 70"),
        (lambda: Evolution(min_steps=1, period_range=(5, 4)), "`period_range[1]` must be at least 5; got 4"),
    ],
)
def test_settings_are_checked(make, text):
    with raises(InvalidArgumentError, text):
        make()


def test_inheritance_is_checked():
    members = [Member(), Member(frozen=True)]
    arguments = {"evolution": EVOLUTION, "rng": np.random.default_rng(0)}
    with raises(InvalidArgumentError, "`parent`: an agent cannot inherit from itself; got 0 as child and parent"):
        inherit(members, parent_state(), child=0, parent=0, **arguments)
    with raises(InvalidArgumentError, "`child`: a frozen agent does not evolve; got 1"):
        inherit(members, parent_state(), child=1, parent=0, **arguments)
