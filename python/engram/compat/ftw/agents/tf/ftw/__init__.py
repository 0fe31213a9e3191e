"""The FTW agent: actor, learner, and what creates their adders, datasets and tables."""

from engram.compat.ftw._names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
