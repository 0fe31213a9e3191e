"""FTW (For The Win), a population-based agent, on Engram's engine, with FTW's names.

The modules have the paths of FTW's own modules, below `engram.compat.ftw` instead of `ftw`; this one has all their
names. Everything is imported on first use. The agent needs the extra `agents`, and nothing of TensorFlow.
"""

import importlib
from typing import Any

_AGENT = "agents.tf.ftw"
_NETWORKS = "tf.networks"

_NAMES = {
    f"{_AGENT}.agent": ("FTW", "FTWWithoutActor"),
    f"{_AGENT}.learning_standalone": ("FTWLearnerStandalone",),
    f"{_AGENT}.learning": ("FtwLearner",),
    f"{_AGENT}.acting": ("FtwActor",),
    f"{_AGENT}.utils": (
        "create_adders",
        "create_datasets",
        "create_reverb_tables",
        "initialize_hypers",
        "initialize_internal_rewards",
    ),
    "adders.reverb.rnn_sequence": ("NonOverlappingRNNSequenceAdder",),
    "adders.reverb.sequence": ("SequenceAdder",),
    "adders.reverb.multi_sequence": ("MultiSequenceAdder",),
    "datasets.reverb": ("make_reverb_fifo_sampler_dataset", "make_reverb_rnn_sequence_fifo_sampler_dataset"),
    f"{_NETWORKS}.vision": ("FtwTorso",),
    f"{_NETWORKS}.embedding": ("OAREmbedding",),
    f"{_NETWORKS}.ftw_network": ("FtwNetwork",),
    f"{_NETWORKS}.policy_value": ("PolicyValueHead",),
    f"{_NETWORKS}.distributional": (
        "LocScaleDistributionParameters",
        "MultivariateNormalDiagHead",
        "MultivariateNormalDiagLocScaleHead",
    ),
    f"{_NETWORKS}.recurrence": (
        "LSTM",
        "RPTH",
        "LSTMState",
        "PeriodicRNNState",
        "PeriodicVariationalUnit",
        "RPTHOutput",
        "RPTHZWrapper",
        "VariationalUnit",
    ),
    f"{_NETWORKS}.auxiliary": ("PixelControl", "RNNPixelControlNetwork", "RewardPrediction", "RewardPredictionNetwork"),
    f"{_NETWORKS}.dnc.access": ("AccessState", "MemoryAccess"),
    f"{_NETWORKS}.dnc.addressing": ("CosineWeights", "Freeness", "TemporalLinkage", "TemporalLinkageState"),
    f"{_NETWORKS}.dnc.dnc": ("DNC", "DNCState", "DNCWrapper"),
    "tf.hyperparameters.base": (
        "FloatHyperparameter",
        "Hyperparameter",
        "HyperparametersContainer",
        "IntHyperparameter",
    ),
    "tf.internal_reward.ftw_internal_reward": ("InternalRewards",),
    "specs": ("EnvironmentSpec", "make_environment_spec"),
    "counting": ("Counter",),
    "loggers": ("TerminalLogger",),
}
"""Names of each module."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401, a class or a function
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
