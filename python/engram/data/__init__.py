"""Datasets in the words of a framework: `engram.data.numpy`, `.torch`, `.jax` and `.tensorflow`.

Each module has `dataset(store, table, ...)`, which yields `Element`s of that framework's arrays. Import the one you
need: this package imports no framework.
"""

from engram.data.elements import Element, Info, Options, Ragged

__all__ = ["Element", "Info", "Options", "Ragged"]
