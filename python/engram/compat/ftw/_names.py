"""The published names of each module, which its packages import on first use, and have as attributes, too."""

from collections.abc import Callable
from typing import Any

from engram import _lazy_modules

__all__ = ["lazy_names"]

_ROOT = "engram.compat.ftw."

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
    "tf.hyperparameters.ftw_hp": (),
    "tf.internal_reward.ftw_internal_reward": ("InternalRewards",),
    "specs": ("EnvironmentSpec", "make_environment_spec"),
    "counting": ("Counter",),
    "loggers": ("TerminalLogger",),
}
"""Names of each module, by its path below the root."""


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package (PEP 562): the names of all modules below it, and these."""
    prefix = f"{package}.".removeprefix(_ROOT)
    below = {module.removeprefix(prefix): names for module, names in _NAMES.items() if module.startswith(prefix)}
    return _lazy_modules.lazy_names(package, below)
