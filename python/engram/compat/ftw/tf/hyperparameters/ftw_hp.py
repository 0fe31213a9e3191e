"""Classes of FTW's hyperparameters: those of `engram.compat.ftw.tf.hyperparameters.base`."""

from engram.compat.ftw.tf.hyperparameters.base import (
    FloatHyperparameter,
    HyperparametersContainer,
    IntHyperparameter,
)

__all__ = ["FloatHyperparameter", "HyperparametersContainer", "IntHyperparameter"]
