"""Errors of this package in addition to the builtins. `_errors` converts the engine's errors."""

__all__ = ["DeadlineExceededError", "ReverbError"]


class ReverbError(Exception):
    """Base class of this package's own errors, of which there is one. Most errors are builtins or `engram.errors`."""


class DeadlineExceededError(ReverbError):
    """A call did not complete within its timeout. The message states what it waited for."""
