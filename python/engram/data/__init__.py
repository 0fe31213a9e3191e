"""Datasets for NumPy, PyTorch, JAX and TensorFlow, one module for each: `engram.data.numpy`, `.torch`, `.jax`, ...

Each module has a function `dataset(store, table, ...)` that yields `Element`s with arrays of that framework. Import the
module you need: this package imports no framework.
"""

from engram.data.elements import Element, Info, Options, Ragged

__all__ = ["Element", "Info", "Options", "Ragged"]
