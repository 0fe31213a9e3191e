"""What is stored: the steps of a player, how an episode becomes items, and the tables they are in."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import engram
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Spaces

REPLAY = "replay"
"""Items to learn from."""
WEIGHTS = "weights"
"""The newest network, for actors in other processes."""
EPISODES = "episodes"
"""Finished episodes of actors in other processes, for the learner."""


class Step(NamedTuple):
    """What an actor writes at each step; a drawn batch has the same nest with two axes in front.

    A batch has S + n observations, the first S of them the stack seen at the first step, the last S the one after n
    steps, and n + 1 of all else: [B, S + n, ...] and [B, n + 1].
    """

    observation: Any  # f32[O] or u8[H, W]: the newest one only, so each is stored once
    action: Any  # i32[], taken after seeing `observation`
    reward: Any  # f32[], received for it
    discount: Any  # f32[]: gamma, or 0 if the action ended the episode


def make_pattern(config: DQNConfig, spaces: Spaces) -> engram.Pattern:
    """Items of n + 1 consecutive steps, and of the S - 1 observations before them that complete the first stack."""
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
    """Fill the first stack up with the first observation; these steps only lend their observations to items."""
    for _ in range(stack - 1):
        writer.append(Step(observation, np.int32(0), np.float32(0), np.float32(0)))


def pad_episode(writer: engram.PatternWriter, observation: npt.NDArray[Any], *, terminated: bool, n_step: int) -> None:
    """Close an episode so that each of its steps starts an item, the last one included.

    The final observation is repeated `n_step` times without reward. Behind a terminal step the padding is worth
    nothing. Behind a truncation its discount is 1: standing still costs nothing, so the last steps get shorter n-step
    returns that bootstrap from the final observation, as if the time limit were not there. (A stack shows it standing
    still, too: an approximation, of `n_step` items per truncated episode.)
    """
    padding = Step(observation, np.int32(0), np.float32(0), np.float32(not terminated))
    for _ in range(n_step):
        writer.append(padding)
    writer.end_episode()


def make_replay(
    config: DQNConfig, spaces: Spaces, rate_limiter: engram.rate_limiters.AnyRateLimiter | None = None
) -> engram.Table:
    """The replay table: drawn by priority, oldest out first, shut to the learner until it holds enough."""
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
    """What a learner serves to actors in other processes.

    Nobody takes turns there, so the replay table keeps the pace: a batch for every `learn_period` steps, as in one
    process, give or take what `actor_lead` allows.
    """
    samples_per_insert = config.batch_size / config.learn_period
    pace = engram.rate_limiters.SampleToInsertRatio(
        samples_per_insert,
        min_size=config.min_replay_size,
        error_buffer=max(config.actor_lead * samples_per_insert, config.batch_size),
    )
    return [
        make_replay(config, spaces, pace),
        engram.Table(WEIGHTS, max_size=1),
        engram.Table.queue(EPISODES, max_size=1_000),
    ]
