"""Datasets for NumPy, PyTorch, JAX and TensorFlow, one module for each: `engram.data.numpy`, `.torch`, `.jax`, ...

Each module has a function `dataset(store, table, ...)` that yields `Element`s with arrays of that framework. A module,
and with it the framework, is imported when it is first used. Datasets of other elements are made of blocks of columns:
see `engram.Dataset.read`.
"""

from typing import TYPE_CHECKING

from engram._lazy_modules import lazy_modules
from engram.consumption import ConsumptionTracker
from engram.data.column_block import ColumnBlock, item_block
from engram.data.elements import Element, Info, Options, Ragged

__all__ = ["ColumnBlock", "ConsumptionTracker", "Element", "Info", "Options", "Ragged", "item_block"]

if TYPE_CHECKING:
    # Not the frameworks: type checkers would read them in every program that imports Engram.
    from engram.data import numpy as numpy
else:
    __getattr__ = lazy_modules("engram.data", ("jax", "numpy", "tensorflow", "torch"))
