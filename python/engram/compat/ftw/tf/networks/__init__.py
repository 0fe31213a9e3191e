"""FTW's networks. As in Sonnet, they make their weights when the sizes of their inputs are known."""

from engram.compat.ftw._names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
