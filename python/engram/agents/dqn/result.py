"""What a training run tells: while it goes on, and at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

import engram
from engram.agents.dqn.config import DQNConfig

Stopped: TypeAlias = Literal["solved", "budget", "interrupted"]
"""`config.solved_return` reached, `config.max_steps` used up, or Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands; handed to the `report` callback of `train`."""

    step: int
    """Environment steps done."""
    returns: Sequence[float]
    """Undiscounted return of each finished training episode; the run's own list, which grows."""
    mean_return: float
    """Mean over the last `config.solved_episodes` of them (NaN before there are that many)."""
    epsilon: float
    """Share of random actions now."""
    seconds: float
    """Since `train` was called."""
    table: engram.TableInfo
    """The replay table: sizes, rates, why it blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run achieved."""

    config: DQNConfig
    stopped: Stopped
    """Why it ended."""
    steps: int
    """Environment steps done."""
    learner_steps: int
    """Gradient steps done."""
    returns: Sequence[float]
    """Undiscounted return of each finished training episode."""
    episode_ends: Sequence[int]
    """Environment steps done when each of them finished."""
    seconds: float
    """Wall time of `train`, compilation included."""
    table: engram.TableInfo
    """The replay table at the end."""
    params: Any
    """The learned network: the `Params` of `network.q_values`, as NumPy arrays."""

    @property
    def mean_return(self) -> float:
        """Mean over the last `config.solved_episodes` finished episodes (NaN before there are that many)."""
        return mean_of_last(self.returns, self.config.solved_episodes)


def mean_of_last(returns: Sequence[float], count: int) -> float:
    """Mean of the last `count` returns, or NaN while there are fewer."""
    return float(np.mean(returns[-count:])) if len(returns) >= count else float("nan")
