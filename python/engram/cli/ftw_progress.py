"""What `engram train ftw` shows of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engram.cli.training_progress import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engram.agents.ftw.config import FtwConfig
    from engram.agents.ftw.training import Progress


def take_snapshot(progress: Progress, returns: Sequence[float], frames_per_s: float, config: FtwConfig) -> Snapshot:
    """Returns what is shown of a run, given the returns of its newest episodes and its current speed."""
    losses = progress.metrics.losses
    return Snapshot(
        title=f"FTW on {config.environment}, seed {config.seed}",
        seconds=progress.seconds,
        returns=returns,
        figures={
            "frames": f"{progress.frames:,}",
            "frames/s": f"{frames_per_s:,.0f}",
            "learner steps": f"{progress.learner_steps:,}",
            "mean return": f"{np.mean(returns):.3f}" if returns else "-",
            "loss": f"{float(losses.loss):.3f}",
            "gradient norm": f"{float(progress.metrics.gradient_norm):.3f}",
        },
        completed=progress.frames,
        budget=config.max_frames,
    )
