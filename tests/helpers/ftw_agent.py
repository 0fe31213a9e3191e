"""A scripted environment and tiny networks, for the tests of FTW's actors and learner."""

from collections.abc import Sequence

import dm_env
import numpy as np

from engram.agents.ftw.config import NetworkConfig, ReplayConfig
from engram.agents.ftw.environment import EnvironmentSpec
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.networks import OAR, CoreConfig

FRAME = (8, 8, 3)
TERMINATION, TRUNCATION = 0.0, 1.0


class Scripted:
    """Environments with episodes of given lengths, endings and rewards, which are repeated; frames are random.

    The first three numbers of a frame are its environment, episode and step.
    """

    def __init__(self, scripts: Sequence[Sequence[tuple[int, float]]], *, rewards=None, groups=(), events=(), seed=0):
        """`scripts` has (transitions, discount of the last) of each episode of each environment."""
        self.scripts, self.num_envs = scripts, len(scripts)
        self.rewards = rewards or (lambda _env, _episode, step: float(step + 1))
        self.groups, self.events = groups, events
        self.rng = np.random.default_rng(seed)
        self.position = [(-1, 0)] * self.num_envs
        self.ended = [True] * self.num_envs
        self.episodes = {}  # (environment, episode): list of (observation, action, reward, discount), last: final one
        self.history = []  # where all environments were when each action was chosen

    def reset(self):
        return self.step(np.zeros((self.num_envs, *self.groups), np.int32))

    def step(self, actions):
        actions = np.asarray(actions)
        self.history.append(list(self.position))
        each = [self._step_one(env, actions[env]) for env in range(self.num_envs)]
        types, rewards, discounts, oars = zip(*each, strict=True)
        observation = OAR(*(np.stack(part) for part in zip(*oars, strict=True)))
        return dm_env.TimeStep(np.array(types), np.stack(rewards), np.array(discounts, np.float32), observation)

    def _step_one(self, env, action):
        episode, step = self.position[env]
        zero = np.zeros(self.events, np.float32)
        if self.ended[env]:
            self.position[env], self.ended[env] = (episode + 1, 0), False
            oar = OAR(self._frame(env), np.zeros(self.groups, np.int32), zero)
            self.episodes[env, episode + 1] = [[oar]]
            return dm_env.StepType.FIRST, zero, 1.0, oar
        length, last_discount = self.scripts[env][episode % len(self.scripts[env])]
        reward = zero + np.float32(self.rewards(env, episode, step))
        self.position[env], self.ended[env] = (episode, step + 1), step + 1 == length
        discount = last_discount if self.ended[env] else 1.0
        oar = OAR(self._frame(env), np.asarray(action, np.int32), reward)
        self.episodes[env, episode][-1] += [np.asarray(action, np.int32), reward, discount]
        self.episodes[env, episode].append([oar])
        return dm_env.StepType.LAST if self.ended[env] else dm_env.StepType.MID, reward, discount, oar

    def _frame(self, env):
        frame = self.rng.integers(256, size=FRAME, dtype=np.uint8)
        frame[0, 0] = (env, *self.position[env])
        return frame


def first_of(timestep):
    """Returns the time step of the first environment."""
    oar = OAR(*(part[0] for part in timestep.observation))
    return dm_env.TimeStep(int(timestep.step_type[0]), timestep.reward[0], timestep.discount[0], oar)


def where(frame):
    """Returns (environment, episode, step) of a frame of `Scripted`."""
    return tuple(map(int, frame[0, 0]))


def spec(num_actions=3, num_events=1):
    return EnvironmentSpec(FRAME, np.uint8, num_actions, num_events)


def network_config(core_type="rpth", **options):
    core = CoreConfig(
        core_type=core_type, hidden_size=6, num_dimensions=4, dnc_memory_size=3, dnc_word_size=2, dnc_num_reads=1
    )
    defaults = {
        "conv_filters": ((4, 3, 2),),
        "residual_filters": ((4, 3, 1),),
        "torso_size": 8,
        "core": core,
        "head_hidden_size": 5,
        "pixel_control_cells": 4,
        "pixel_control_channels": 2,
        "reward_prediction_hidden_size": 4,
    }
    return NetworkConfig(**{**defaults, **options})


def replay_config(**options):
    return ReplayConfig(**{"sequence_length": 4, "batch_size": 4, "max_queue_size": 1000, **options})


HYPERS = Hypers.create(
    learning_rate=1e-2,
    entropy_cost=0.01,
    reward_prediction_cost=0.2,
    pixel_control_cost=0.05,
    kld_prior_fixed_cost=0.02,
    kld_prior_posterior_cost=0.03,
    scale_grads_fast_to_slow=0.5,
    slow_core_period=3,
    internal_rewards=[0.7],
)
