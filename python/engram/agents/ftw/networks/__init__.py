"""The agent's networks, as Equinox modules: time-major, and traced in every hyperparameter."""

from engram._extras import importing_extra

with importing_extra("agents", "engram.agents"):
    import equinox as _equinox  # noqa: F401, all modules of this package need it

from engram.agents.ftw.networks.core_types import CoreConfig, make_core
from engram.agents.ftw.networks.dnc.controller import DNC, DNCState
from engram.agents.ftw.networks.dnc.memory_access import AccessState, MemoryAccess
from engram.agents.ftw.networks.embedding import OAR, OAREmbedding, pixels_to_float
from engram.agents.ftw.networks.gaussian_head import GaussianHead, GaussianHeadConfig, LocScaleDistributionParameters
from engram.agents.ftw.networks.heads import PolicyValueHead
from engram.agents.ftw.networks.lstm import LSTM, LSTMState
from engram.agents.ftw.networks.pixel_control_head import PixelControlHead
from engram.agents.ftw.networks.policy_network import FtwNetwork, NetworkHypers, NetworkOutput
from engram.agents.ftw.networks.reward_prediction_head import RewardPredictionHead
from engram.agents.ftw.networks.rpth import RPTH, PeriodicRNNState, RPTHOutput
from engram.agents.ftw.networks.torso import FtwTorso

__all__ = [
    "DNC",
    "LSTM",
    "OAR",
    "RPTH",
    "AccessState",
    "CoreConfig",
    "DNCState",
    "FtwNetwork",
    "FtwTorso",
    "GaussianHead",
    "GaussianHeadConfig",
    "LSTMState",
    "LocScaleDistributionParameters",
    "MemoryAccess",
    "NetworkHypers",
    "NetworkOutput",
    "OAREmbedding",
    "PeriodicRNNState",
    "PixelControlHead",
    "PolicyValueHead",
    "RPTHOutput",
    "RewardPredictionHead",
    "make_core",
    "pixels_to_float",
]
