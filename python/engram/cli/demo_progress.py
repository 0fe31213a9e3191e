"""What `engram demo` shows of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engram.cli.training_progress import Snapshot

if TYPE_CHECKING:
    from engram.agents.dqn import DQNConfig, Progress


def take_snapshot(progress: Progress, config: DQNConfig) -> Snapshot:
    """Returns what is shown of a run."""
    return Snapshot(
        title=f"{config.env_id}, seed {config.seed}",
        seconds=progress.seconds,
        returns=progress.returns,
        figures=describe(progress, config),
        completed=progress.step,
        budget=config.max_steps,
    )


def describe(progress: Progress, config: DQNConfig) -> dict[str, str]:
    """Returns the figures of a run by name, formatted."""
    table = progress.table
    mean = "-" if math.isnan(progress.mean_return) else f"{progress.mean_return:.1f}"
    target = "" if config.solved_return is None else f" of {config.solved_return:g}"
    return {
        "step": f"{progress.step:,}",
        "episodes": f"{len(progress.returns):,}",
        "mean return": f"{mean}{target}",
        "epsilon": f"{progress.epsilon:.2f}",
        "inserts/s": f"{table.inserts_per_s:,.0f}",
        "samples/s": f"{table.samples_per_s:,.0f}",
        "samples per insert": f"{table.samples_per_insert:.1f}",
        "items": f"{table.size:,}",
        "stored": f"{table.bytes / 1e6:.1f} MB",
        "blocked": table.blocked or "no",
    }
