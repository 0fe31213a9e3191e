"""Small grid environments that agents observe as images, and wrappers for agents like For The Win (FTW).

Wrappers for Gymnasium are in `engram.envs.gymnasium`, data of the repeat-copy task in `engram.envs.repeat_copy`.
"""

from engram.envs.cue import BatchedCue, Cue
from engram.envs.fetch import BatchedFetch, Fetch
from engram.envs.grid_environment import BatchedGridEnvironment, GridEnvironment
from engram.envs.oar import OAR, BatchedObservationActionReward, ObservationActionReward
from engram.envs.pixels import PixelObservation
from engram.envs.renderer import View, render

__all__ = [
    "OAR",
    "BatchedCue",
    "BatchedFetch",
    "BatchedGridEnvironment",
    "BatchedObservationActionReward",
    "Cue",
    "Fetch",
    "GridEnvironment",
    "ObservationActionReward",
    "PixelObservation",
    "View",
    "render",
]
