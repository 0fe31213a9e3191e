"""The history of a training run: its episodes, and reports of its progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engram.agents.dqn.result import Progress, Result, StopReason, mean_of_last
from engram.agents.dqn.tables import REPLAY

if TYPE_CHECKING:
    from collections.abc import Callable

    import engram
    from engram.agents.dqn.config import DQNConfig
    from engram.agents.dqn.learner import Learner
    from engram.agents.dqn.network import Params


class RunHistory:
    """The finished episodes of a run."""

    def __init__(self, config: DQNConfig, report: Callable[[Progress], None] | None, report_period: float) -> None:
        """Starts the clock. `report`, unless None, is called at most every `report_period` seconds."""
        self._config, self._report, self._report_period = config, report, report_period
        self._started = self._reported = time.perf_counter()
        self._returns: list[float] = []
        self._episode_ends: list[int] = []

    def add_episode(self, undiscounted_return: float, step: int) -> None:
        """Adds a finished episode, and the number of environment steps at its end."""
        self._returns.append(undiscounted_return)
        self._episode_ends.append(step)

    @property
    def solved(self) -> bool:
        """True if the mean of the last episodes has reached the target; False without a target or enough episodes."""
        target = self._config.solved_return
        return target is not None and mean_of_last(self._returns, self._config.solved_episodes) >= target

    def report(self, step: int, epsilon: float, store: engram.Store, learner: Learner) -> None:
        """Reports the progress if `report_period` has passed since the last report."""
        now = time.perf_counter()
        if self._report is None or now - self._reported < self._report_period:
            return
        self._reported = now
        self._report(
            Progress(
                step=step,
                returns=self._returns,
                mean_return=mean_of_last(self._returns, self._config.solved_episodes),
                epsilon=epsilon,
                seconds=now - self._started,
                table=store.info()[REPLAY],
                mean_loss=learner.mean_loss,
                store=store,
            )
        )

    def result(
        self, stopped: StopReason, steps: int, learner_steps: int, params: Params, table: engram.TableInfo
    ) -> Result:
        """Stops the clock and returns the result."""
        return Result(
            config=self._config,
            stopped=stopped,
            steps=steps,
            learner_steps=learner_steps,
            returns=self._returns,
            episode_ends=self._episode_ends,
            seconds=time.perf_counter() - self._started,
            table=table,
            params=params,
        )
