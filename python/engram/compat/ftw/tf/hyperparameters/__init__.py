"""Hyperparameters that population-based training changes."""

from engram.compat.ftw._names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
