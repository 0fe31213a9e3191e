"""Errors of this package in addition to the builtins. `_errors` converts the engine's errors."""

__all__ = ["DeadlineExceededError", "ReverbError"]


class ReverbError(Exception):
    """Base class of `DeadlineExceededError`, this package's only own error. Others are builtins or `engram.errors`."""


class DeadlineExceededError(ReverbError):
    """A call did not complete within its timeout. The message states what it waited for."""
