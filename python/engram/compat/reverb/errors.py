"""What Reverb's calls raise beside the builtins; see `_errors` for which error becomes which."""

__all__ = ["DeadlineExceededError", "ReverbError"]


class ReverbError(Exception):
    """Base of the errors of this package that are no builtins."""


class DeadlineExceededError(ReverbError):
    """A call waited for its whole timeout and could not be served. The text says for what."""
