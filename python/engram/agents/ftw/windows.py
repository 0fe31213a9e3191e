"""Windows for reward prediction: a few consecutive observations, and the reward that follows the last of them.

There are two tables, for windows that a reward follows and for those that none follows.
"""

from typing import Any, NamedTuple

import numpy as np

import engram
from engram import ArraySpec, Nest, Pattern
from engram.agents.ftw.environment import BatchedTimeStep
from engram.patterns import column

NONZERO_REWARD = "replay_buffer_nonzero_reward_prediction"
"""Windows that a reward other than zero follows; of events, if any is other than zero."""
ZERO_REWARD = "replay_buffer_zero_reward_prediction"
"""Windows that a reward of zero follows."""

_LAST_STEP = 2  # of `dm_env.StepType`


class Window(NamedTuple):
    """One item.

    Attributes:
        observation: `[K, ...]`, K consecutive observations.
        reward: The reward, or the events `[E]`, of the action at the last of them.
    """

    observation: Any
    reward: Any


class _Row(NamedTuple):
    """What is written for each step of an environment.

    Attributes:
        observation: Before the action.
        reward: For the action.
        has_reward: 1 or 0; for the last observation of an episode, after which there is no action, -1.
    """

    observation: Any
    reward: Any
    has_reward: Any


def window_signature(observation: Nest, reward: Nest, length: int) -> Window:
    """Returns the signature of windows of `length` observations, given an observation and a reward."""
    frames = ArraySpec((length, *np.shape(observation)), np.asarray(observation).dtype)
    return Window(frames, ArraySpec(np.shape(reward), np.asarray(reward).dtype))


class WindowRecorder:
    """Writes the windows of N environments: one call per step for all of them."""

    def __init__(self, store: engram.Store, num_envs: int, length: int) -> None:
        """Records windows of `length` observations; consecutive windows of an episode overlap by all but one."""

        def pattern(table: str, has_reward: int) -> Pattern:
            return Pattern(
                table,
                lambda row: Window(row.observation[-length:], row.reward[-1]),
                when=[column(lambda row: row.has_reward) == has_reward],
            )

        self._writer = store.batched_writer(num_envs, [pattern(NONZERO_REWARD, 1), pattern(ZERO_REWARD, 0)])

    def record(self, before: BatchedTimeStep, after: BatchedTimeStep) -> None:
        """Records a step: the time steps before and after it."""
        is_last = np.asarray(before.step_type) == _LAST_STEP
        reward = np.asarray(after.reward)
        has_reward = (reward != 0).reshape(len(reward), -1).any(1)
        row = _Row(before.observation.observation, reward, np.where(is_last, -1, has_reward).astype(np.int8))
        self._writer.append_batch(row, episode_ends=is_last)

    def flush(self) -> None:
        """Makes all windows visible."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the writer."""
        self._writer.close(timeout=0)
