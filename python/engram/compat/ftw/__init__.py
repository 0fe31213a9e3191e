"""The API of FTW, an implementation of the agent For The Win for TensorFlow, on Engram's engine.

The modules have the paths of FTW's own modules, below `engram.compat.ftw` instead of `ftw`; this one has all their
names. Everything is imported on first use. The agent needs the extra `agents`, and nothing of TensorFlow.
"""

from engram.compat.ftw._names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
