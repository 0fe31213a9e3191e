"""The actor records each step in both adders or in none, whatever fails."""

import numpy as np
import pytest
from helpers.ftw_published import Environment, Networks, play
from helpers.support import raises

import engram
from engram.compat import ftw
from engram.compat.ftw.agents.tf.ftw.utils import NONZERO_REWARD, ZERO_REWARD
from engram.errors import (
    BackpressureError,
    DeadlineExceededError,
    InvalidArgumentError,
    ItemError,
    SignatureError,
    UnsatisfiableError,
)

pytestmark = pytest.mark.jax

NOT_SELECTED = "`observe` records the last selected action, but none was; call `select_action`"


class Adder:
    """Keeps what it receives, and raises an error at the next call, if it has one."""

    def __init__(self):
        self.steps, self.error, self.resets = [], None, 0

    def add_first(self, timestep):
        self._raise()
        self.steps.append(timestep.step_type)

    def add(self, action, timestep, extras=()):
        del action, extras
        self._raise()
        self.steps.append(timestep.step_type)

    def reset(self):
        self.resets += 1
        self._raise()

    def _raise(self):
        error, self.error = self.error, None
        if error is not None:
            raise error


def acting(lengths=((3, 0.0),)):
    """Returns an actor after its first observation, its adders, an environment and the time step."""
    main, other = Adder(), Adder()
    actor = ftw.FtwActor(Networks().policy, main, other, seed=0)
    environment = Environment(lengths)
    timestep = environment.reset()
    actor.observe_first(timestep)
    return actor, main, other, environment, timestep


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize(
    "kind", [SignatureError, BackpressureError, DeadlineExceededError, UnsatisfiableError, ItemError]
)
def test_both_adders_have_a_step_or_none_of_them(kind, length):
    actor, main, other, environment, timestep = acting(((length, 0.0),))
    action = actor.select_action(timestep.observation)
    timestep = environment.step(action)
    main.error = kind("no")
    with raises(kind, "no"):
        actor.observe(action, timestep)
    is_kept = kind is ItemError or (timestep.last() and kind in {DeadlineExceededError, UnsatisfiableError})
    assert len(other.steps) == 1 + is_kept
    if is_kept:
        with raises(InvalidArgumentError, NOT_SELECTED):
            actor.observe(action, timestep)
    else:
        actor.observe(action, timestep)
        assert main.steps == other.steps
        assert len(main.steps) == 2


def test_each_step_needs_an_action_of_its_own():
    actor, main, _, environment, timestep = acting()
    action = actor.select_action(timestep.observation)
    actor.observe(action, environment.step(action))
    with raises(InvalidArgumentError, NOT_SELECTED):
        actor.observe(action, environment.step(action))
    assert len(main.steps) == 2


def test_a_first_step_that_fails_changes_nothing():
    actor, main, other, environment, timestep = acting()
    action = actor.select_action(timestep.observation)
    main.error = SignatureError("no")
    with raises(SignatureError, "no"):
        actor.observe_first(timestep)
    actor.observe(action, environment.step(action))
    assert len(main.steps) == len(other.steps) == 2


def test_reset_abandons_the_episode_of_both_adders():
    actor, main, other, environment, timestep = acting()
    action = actor.select_action(timestep.observation)
    main.error = DeadlineExceededError("no")
    with raises(DeadlineExceededError, "no"):
        actor.reset()
    assert main.resets == other.resets == 1
    with raises(InvalidArgumentError, NOT_SELECTED):
        actor.observe(action, environment.step(action))
    ftw.FtwActor(Networks().policy).reset()


def test_the_state_starts_again_after_a_reset():
    actor, *_, timestep = acting()
    for _ in range(2):
        actor.select_action(timestep.observation)
        assert np.all(actor._extras["core_state"].step == 0)
        actor.select_action(timestep.observation)
        assert np.all(actor._extras["core_state"].step == 1)
        actor.reset()


def test_the_end_of_an_episode_that_waits_for_the_queue_ends_it_in_both_adders():
    tables = [engram.Table(name, max_size=100) for name in (NONZERO_REWARD, ZERO_REWARD)]
    with engram.Store([engram.Table.queue("queue", max_size=1), *tables]) as store:
        adders = ftw.create_adders(store, 3, use_reward_prediction=True, pad_end_of_episode=True, timeout=0)
        actor = ftw.FtwActor(Networks().policy, *adders, seed=0)
        environment = Environment(((5, 0.0), (2, 0.0)))
        with pytest.raises(DeadlineExceededError):
            play(actor, environment, 5)
        with pytest.raises(DeadlineExceededError):
            play(actor, environment, 2)
        for adder in adders:
            with pytest.raises(InvalidArgumentError, match="none is in progress"):
                adder.add(0, environment.step(0))
        assert sum(store.info()[name].size for name in (NONZERO_REWARD, ZERO_REWARD)) == 3
        store.reset("queue")
