"""Datasets for NumPy, PyTorch, JAX and TensorFlow, one module for each: `engram.data.numpy`, `.torch`, `.jax`, ...

Each module has a function `dataset(store, table, ...)` that yields `Element`s with arrays of that framework. A module,
and with it the framework, is imported when it is first used.
"""

from typing import TYPE_CHECKING

from engram._lazy_modules import lazy_modules
from engram.data.elements import Element, Info, Options, Ragged

__all__ = ["Element", "Info", "Options", "Ragged"]

if TYPE_CHECKING:
    # Not the frameworks: type checkers would read them in every program that imports Engram.
    from engram.data import numpy as numpy
else:
    __getattr__ = lazy_modules("engram.data", ("jax", "numpy", "tensorflow", "torch"))
