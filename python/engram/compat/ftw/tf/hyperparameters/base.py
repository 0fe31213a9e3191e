"""Classes of hyperparameters; they are the agent's own."""

from engram.agents.ftw.hyperparameters import (
    FloatHyperparameter,
    Hyperparameter,
    HyperparametersContainer,
    IntHyperparameter,
)

__all__ = ["FloatHyperparameter", "Hyperparameter", "HyperparametersContainer", "IntHyperparameter"]
