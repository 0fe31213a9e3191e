"""A tiny agent of `engram.compat.ftw`, and a scripted environment for it."""

from collections.abc import Iterable

import numpy as np
from dm_env import specs

from engram.compat import ftw
from engram.envs import OAR
from helpers.ftw_agent import FRAME, Scripted, first_of

BOTH_TASKS = {"use_pixel_control": True, "use_reward_prediction": True}
LENGTHS = ((7, 0.0), (5, 1.0), (1, 0.0))  # transitions, and the last discount


def environment_spec(groups=None, events=(), frame=FRAME, dtype=np.uint8):
    actions = specs.DiscreteArray(3)
    if groups is not None:
        actions = specs.BoundedArray((len(groups),), np.int32, 0, np.array(groups) - 1)
    rewards = specs.Array(events, np.float32)
    oar = OAR(specs.Array(frame, dtype), actions, rewards)
    return ftw.EnvironmentSpec(oar, actions, rewards, specs.BoundedArray((), np.float32, 0, 1))


class Environment:
    """One scripted environment, whose episodes are repeated; `episodes` as in `Scripted`."""

    def __init__(self, lengths=LENGTHS, **options):
        self.scripted = Scripted([lengths], **options)
        self.started = False
        self.ended = False

    def reset(self):
        if self.started:
            return self.step(np.zeros(self.scripted.groups, np.int32))
        self.started = True
        return first_of(self.scripted.reset())

    def step(self, action):
        return first_of(self.scripted.step(np.asarray(action)[None]))

    @property
    def episodes(self):
        return [self.scripted.episodes[key] for key in sorted(self.scripted.episodes)]


def play(actor, environment, num_steps, after_step=lambda: False, timestep=None):
    """Takes steps until `after_step` returns True; begins with a new episode, or after a time step.

    Returns the last time step.
    """
    if timestep is None:
        timestep = environment.reset()
        actor.observe_first(timestep)
    for _ in range(num_steps):
        if timestep.last():
            timestep = environment.reset()
            actor.observe_first(timestep)
        action = actor.select_action(timestep.observation)
        timestep = environment.step(action)
        actor.observe(action, timestep)
        if after_step():
            break
    return timestep


def torso():
    return ftw.FtwTorso(((4, 3, 2),), ((4, 3, 1),), 8)


class Networks:
    """Policy network, and the networks of the auxiliary tasks."""

    def __init__(self, num_actions=3, rewards=None, period=3, seed=0):
        self.rewards = ftw.InternalRewards(1, 0.7) if rewards is None else rewards
        self.torso = torso()
        self.embed = ftw.OAREmbedding(self.torso, num_actions, self.rewards)
        self.core = ftw.RPTH(period, 6, 4, scale_gradients_fast_to_slow=0.5)
        self.policy = ftw.FtwNetwork(self.embed, self.core, num_actions, 5, seed=seed).build(FRAME)
        wrapper = ftw.RPTHZWrapper(self.core)
        self.control = ftw.RNNPixelControlNetwork(self.embed, wrapper, num_actions, num_cells=4, channels=2, seed=1)
        self.prediction = ftw.RewardPredictionNetwork(self.torso, 4, seed=2)
        self.period = period

    def learner(self, dataset, control=None, nonzero=None, zero=None, **options):
        defaults = {"learning_rate": 0.01, "seed": 3, "can_sample_auxiliary": control is not None}
        return ftw.FtwLearner(
            self.policy,
            dataset,
            slow_core_period=self.period,
            internal_rewards=self.rewards,
            pixel_control_network=self.control,
            reward_prediction_network=self.prediction,
            pixel_control_dataset=control,
            nonzero_reward_prediction_dataset=nonzero,
            zero_reward_prediction_dataset=zero,
            **{**defaults, **options},
        )


def extra_spec(policy, num_logits=3):
    """Returns the specs of one step's extras."""
    import jax  # noqa: PLC0415, an extra, not needed to collect the tests

    state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], policy.initial_state(1))
    return {"core_state": state, "logits": np.zeros(num_logits, np.float32)}


def agent(**options):
    """Returns a tiny FTW for `Environment`, without auxiliary tasks by default."""
    defaults = {
        "environment_spec": environment_spec(),
        "sequence_length": 4,
        "embed": torso(),
        "max_queue_size": 8,
        "batch_size": 2,
        "hidden_size": 6,
        "num_dimensions": 4,
        "use_pixel_control": False,
        "use_reward_prediction": False,
        "seed": 0,
    }
    return options.pop("kind", ftw.FTW)(**{**defaults, **options})


def equal(one: Iterable, other: Iterable) -> bool:
    """Returns whether two weights of `get_weights` are equal, bit for bit."""
    return all(np.array_equal(a, b) for name in one for a, b in zip(one[name], other[name], strict=True)) and set(
        one
    ) == set(other)
