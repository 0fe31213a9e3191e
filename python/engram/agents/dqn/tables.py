"""The tables of the agent, the steps that actors write, and the items that are created from them."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import engram
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Spaces

REPLAY = "replay"
"""Table of the items to learn from."""
WEIGHTS = "weights"
"""Table with the newest network, for actors in other processes."""
EPISODES = "episodes"
"""Table with the return of each finished episode, one number per item, from actors in other processes."""


class Step(NamedTuple):
    """One step of an actor. A sampled batch has the same fields, with two additional leading axes.

    In a batch, observations are [B, S + n, ...], all other fields are [B, n + 1], where S is `Spaces.stack` and n is
    `DQNConfig.n_step`. The first S observations are the stack at the first step, the last S the stack n steps later.
    """

    observation: Any  # f32[O] or u8[H, W]: only the newest one, so that each is stored once
    action: Any  # i32[], the action at `observation`
    reward: Any  # f32[], the reward for the action
    discount: Any  # f32[]: gamma, or 0 if the action terminated the episode


def make_pattern(config: DQNConfig, spaces: Spaces) -> engram.Pattern:
    """Returns the pattern of n + 1 consecutive steps, after S - 1 observations for the first stack; see `Step`."""
    length = config.n_step + 1

    def trajectory(step: Step) -> Step:
        return Step(
            observation=step.observation[-(length + spaces.stack - 1) :],
            action=step.action[-length:],
            reward=step.reward[-length:],
            discount=step.discount[-length:],
        )

    return engram.Pattern(REPLAY, trajectory)


def begin_episode(writer: engram.PatternWriter, observation: npt.NDArray[Any], *, stack: int) -> None:
    """Writes steps that fill the first stack with the first observation; items use only their observations."""
    for _ in range(stack - 1):
        writer.append(Step(observation, np.int32(0), np.float32(0), np.float32(0)))


def pad_episode(writer: engram.PatternWriter, observation: npt.NDArray[Any], *, terminated: bool, n_step: int) -> None:
    """Ends an episode with padding, so that each of its steps, including the last, starts an item.

    The padding repeats the final observation `n_step` times, with a reward of 0. After a terminal step its discount is
    0. After a truncation its discount is 1: the returns of the last steps are shorter and bootstrap from the final
    observation, as if there were no time limit. In a stack, the repeated observation shows no motion: an approximation
    that affects the last `n_step - 1` items of a truncated episode.
    """
    padding = Step(observation, np.int32(0), np.float32(0), np.float32(not terminated))
    for _ in range(n_step):
        writer.append(padding)
    writer.end_episode()


def make_replay(
    config: DQNConfig, spaces: Spaces, rate_limiter: engram.rate_limiters.AnyRateLimiter | None = None
) -> engram.Table:
    """Returns the replay table: sampled by priority from `min_replay_size` items on, oldest item removed first.

    Without a `rate_limiter`, samples wait for these items, and inserts never wait.
    """
    length = config.n_step + 1
    return engram.Table(
        REPLAY,
        max_size=config.replay_size,
        sampler=engram.selectors.Prioritized(config.priority_exponent),
        remover=engram.selectors.Fifo(),
        rate_limiter=rate_limiter or engram.rate_limiters.MinSize(config.min_replay_size),
        signature=Step(
            observation=engram.ArraySpec((length + spaces.stack - 1, *spaces.shape), spaces.dtype),
            action=engram.ArraySpec((length,), np.int32),
            reward=engram.ArraySpec((length,), np.float32),
            discount=engram.ArraySpec((length,), np.float32),
        ),
    )


def make_shared_tables(config: DQNConfig, spaces: Spaces) -> list[engram.Table]:
    """Returns the tables for training in several processes.

    The rate limiter of the replay table keeps actors and learner in step: one batch per `learn_period` steps, as in one
    process, with a tolerance of `actor_lead` steps or one batch, if that is more.
    """
    samples_per_insert = config.batch_size / config.learn_period
    rate_limiter = engram.rate_limiters.SampleToInsertRatio(
        samples_per_insert,
        min_size=config.min_replay_size,
        error_buffer=max(config.actor_lead * samples_per_insert, config.batch_size),
    )
    return [
        make_replay(config, spaces, rate_limiter),
        engram.Table(WEIGHTS, max_size=1),
        engram.Table.queue(EPISODES, max_size=1_000),
    ]
