"""Vector environments that log the episodes of each environment, and a naive model of the items of these episodes."""

from dataclasses import dataclass, field

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

MODES = [mode.name for mode in AutoresetMode]


@dataclass
class Episode:
    """What a single environment returned in one episode."""

    obs: list
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    terminated: list = field(default_factory=list)
    truncated: list = field(default_factory=list)
    ended: bool = False

    def __len__(self) -> int:
        return len(self.actions)


class Logged(gymnasium.Wrapper):
    """Logs the episodes of a single environment. It knows nothing of vector environments and their autoreset."""

    def __init__(self, env) -> None:
        super().__init__(env)
        self.episodes = []

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        if self.episodes:
            self.episodes[-1].ended = True  # a reset abandons an episode that has not ended
        self.episodes.append(Episode([obs]))
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        episode = self.episodes[-1]
        episode.obs.append(obs)
        episode.actions.append(np.asarray(action))
        episode.rewards.append(float(reward))
        episode.terminated.append(bool(terminated))
        episode.truncated.append(bool(truncated))
        episode.ended = terminated or truncated
        return obs, reward, terminated, truncated, info


class Scripted(gymnasium.Env):
    """Episodes of given lengths, again and again; a negative length means that the episode is truncated."""

    action_space = gymnasium.spaces.Discrete(1000)

    def __init__(self, number, lengths, *, nested=False) -> None:
        self.number, self.lengths, self.nested, self.episode = number, lengths, nested, -1
        box = gymnasium.spaces.Box(-1000, 1000, (3,), np.float32)
        self.observation_space = (
            gymnasium.spaces.Dict({"x": box, "step": gymnasium.spaces.Discrete(1000)}) if nested else box
        )

    def observation(self):
        x = np.array([self.number, self.episode, self.time], np.float32)
        return {"x": x, "step": np.int64(self.time)} if self.nested else x

    def reset(self, *, seed=None, options=None):  # noqa: ARG002, arguments of every environment
        self.episode += 1
        self.time = 0
        return self.observation(), {}

    def step(self, action):  # noqa: ARG002, the lengths are scripted
        self.time += 1
        length = self.lengths[self.episode % len(self.lengths)]
        ended = self.time >= abs(length)
        reward = self.number + 0.5 * self.time - 0.25 * self.episode
        return self.observation(), reward, ended and length > 0, ended and length < 0, {}


def vector_of(envs, mode):
    """A vector environment of logged environments, and the logs of their episodes."""
    logged = [Logged(env) for env in envs]
    vector = SyncVectorEnv([lambda env=env: env for env in logged], autoreset_mode=AutoresetMode[mode])
    return vector, [env.episodes for env in logged]


def run(writer, envs, steps, *, rng, interrupt=None, flush=None, extras=False):
    """Steps the environments with random actions, and passes everything to the writer.

    `interrupt` maps the number of a step to a mask of environments that are reset after it.
    """
    writer.reset(*envs.reset(seed=0))
    for step in range(steps):
        actions = rng.integers(0, envs.single_action_space.n, envs.num_envs)
        results = envs.step(actions)
        kwargs = {"extras": {"log_prob": -actions.astype(np.float32)}} if extras else {}
        writer.step(actions, *results, **kwargs)
        _, _, terminated, truncated, _ = results
        mask = np.array((interrupt or {}).get(step, [False] * envs.num_envs))
        if envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED:
            mask |= terminated | truncated
        if mask.any():
            writer.reset(*envs.reset(options={"reset_mask": mask.copy()}), mask=mask)
        if flush and step % flush == 0:
            writer.flush()


def leaves(nest):
    """The leaves of a nest of dicts, in the order of sorted keys."""
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in leaves(nest[key])]
    return [np.ascontiguousarray(nest)]


def key_of(item):
    """Something to compare items by: dtypes, shapes and bytes."""
    return [(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves(item)]


def stack(values):
    """Stacks nests."""
    if isinstance(values[0], dict):
        return {key: stack([value[key] for value in values]) for key in values[0]}
    return np.stack(values)


def transitions(episode, n_step, discount):
    """The n-step transitions of an episode."""
    for start in range(len(episode)):
        stop = min(start + n_step, len(episode))
        if stop - start < n_step and not episode.ended:
            return
        reward = sum(discount**i * r for i, r in enumerate(episode.rewards[start:stop]))
        yield {
            "obs": episode.obs[start],
            "action": episode.actions[start],
            "reward": np.float32(reward),
            "discount": np.float32(0 if episode.terminated[stop - 1] else discount ** (stop - start)),
            "next_obs": episode.obs[stop],
        }


def sequences(episode, length, period, at_end):
    """The sequences of an episode."""
    covered = 0
    for start in range(0, len(episode), period):
        stop = min(start + length, len(episode))
        is_cut = stop - start < length
        if is_cut and (not episode.ended or at_end == "drop" or covered == len(episode)):
            return
        covered = stop

        def part(values, dtype=None, start=start, stop=stop):
            return np.array(values[start:stop], dtype)

        item = {
            "obs": stack(episode.obs[start : stop + 1]),
            "action": part(episode.actions),
            "reward": part(episode.rewards, np.float32),
            "terminated": part(episode.terminated),
            "truncated": part(episode.truncated),
            "valid": np.ones(stop - start, bool),
        }
        yield padded(item, length - (stop - start)) if is_cut and at_end == "pad" else item
        if is_cut:
            return


def padded(nest, rows):
    """Appends zeros to each leaf."""
    if isinstance(nest, dict):
        return {key: padded(value, rows) for key, value in nest.items()}
    return np.concatenate([nest, np.zeros((rows, *nest.shape[1:]), nest.dtype)])
