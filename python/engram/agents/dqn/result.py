"""Progress and result of a training run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

import engram
from engram.agents.dqn.config import DQNConfig

StopReason: TypeAlias = Literal["solved", "budget", "interrupted"]
"""Why a run stopped: `config.solved_return` reached, `config.max_steps` done, or Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run, passed to the `report` callback of `train`."""

    step: int
    """Number of environment steps done."""
    returns: Sequence[float]
    """Undiscounted return of each finished training episode; the run's own list, which grows."""
    mean_return: float
    """Mean of the last `config.solved_episodes` returns; NaN if there are fewer."""
    epsilon: float
    """Current share of random actions."""
    seconds: float
    """Seconds since `train` was called."""
    table: engram.TableInfo
    """State of the replay table."""
    mean_loss: float
    """Mean loss of the last 100 learner steps; NaN before the first one."""
    store: engram.Store = field(repr=False, compare=False)
    """The store with the tables of the run; it is closed when the run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a run."""

    config: DQNConfig
    stopped: StopReason
    """Why the run stopped."""
    steps: int
    """Number of environment steps done."""
    learner_steps: int
    """Number of gradient steps done."""
    returns: Sequence[float]
    """Undiscounted return of each finished training episode."""
    episode_ends: Sequence[int]
    """Number of environment steps at the end of each of these episodes."""
    seconds: float
    """Wall time of `train`, including compilation."""
    table: engram.TableInfo
    """State of the replay table at the end."""
    params: Any
    """The trained network: the `Params` of `network.q_values`, as NumPy arrays."""

    @property
    def mean_return(self) -> float:
        """Mean return of the last `config.solved_episodes` finished episodes; NaN if there are fewer."""
        return mean_of_last(self.returns, self.config.solved_episodes)


def mean_of_last(returns: Sequence[float], count: int) -> float:
    """Returns the mean of the last `count` returns, or NaN if there are fewer."""
    return float(np.mean(returns[-count:])) if len(returns) >= count else float("nan")
