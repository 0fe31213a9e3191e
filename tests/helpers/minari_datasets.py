"""Local datasets of Minari, and their episodes for the naive model of items."""

import warnings

import gymnasium
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer

from helpers.vector_envs import Episode

BOX = gymnasium.spaces.Box(-1000, 1000, (2,), np.float32)
DISCRETE = gymnasium.spaces.Discrete(1000)


def without_warnings(create, *args, **kwargs):
    """Minari warns of missing metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create(*args, **kwargs)


def cartpole(name="cartpole/random-v0", episodes=12, max_steps=15):
    """Episodes of random actions, of which some terminate and some are truncated."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=max_steps)
    collector = without_warnings(minari.DataCollector, env, record_infos=False)
    rng = np.random.default_rng(0)
    for seed in range(episodes):
        collector.reset(seed=seed)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = collector.step(int(rng.integers(2)))
            ended = terminated or truncated
    return without_warnings(collector.create_dataset, name)


def buffer(steps, *, terminated=False, truncated=False, infos=None, start=0):
    """An episode of made-up values."""
    flags = np.zeros(steps, bool)
    ends = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        observations=np.arange(start, start + 2 * steps + 2, dtype=np.float32).reshape(-1, 2),
        actions=np.arange(start, start + steps),
        rewards=np.arange(steps) / 4,
        terminations=flags | (ends & terminated),
        truncations=flags | (ends & truncated),
        infos=infos or {},
    )


def dataset_of(*buffers, name="made-up-v0", observation_space=BOX, action_space=DISCRETE):
    return without_warnings(
        minari.create_dataset_from_buffers,
        name,
        list(buffers),
        observation_space=observation_space,
        action_space=action_space,
    )


def model_episode(data):
    """An episode of a dataset, for the naive model."""

    def rows(nest, row):
        if isinstance(nest, dict):
            return {name: rows(each, row) for name, each in nest.items()}
        return nest[row]

    steps = range(len(data.rewards))
    return Episode(
        obs=[rows(data.observations, row) for row in range(len(data.rewards) + 1)],
        actions=[rows(data.actions, row) for row in steps],
        rewards=[float(reward) for reward in data.rewards],
        terminated=[bool(each) for each in data.terminations],
        truncated=[bool(each) for each in data.truncations],
        ended=True,
    )


def item(**changes):
    """An episode of two steps."""
    return {
        "obs": np.zeros((3, 2), np.float32),
        "action": np.zeros(2, np.int64),
        "reward": np.zeros(2, np.float32),
        "terminated": np.array([False, True]),
        "truncated": np.zeros(2, bool),
        **changes,
    }
