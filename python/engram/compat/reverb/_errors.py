"""The engine's errors, raised as the kinds that code written for Reverb expects."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from engram import errors as native
from engram.compat.reverb.errors import DeadlineExceededError

__all__ = ["is_stopping", "translated"]

_UNKNOWN_TABLE = re.compile(r"no table `(?P<name>.*?)`; (?P<rest>known tables: .*)", re.DOTALL)


@contextmanager
def translated() -> Iterator[None]:
    """Within it, the engine's errors are raised as Reverb's, with the engine's as their cause.

    A bad argument or data that does not fit stays a `ValueError`, what a closed store or a fork raises a
    `RuntimeError`, and a lack of memory a `MemoryError`, which they are already.

    Raises:
        DeadlineExceededError: A call waited for its whole timeout.
        RuntimeError: There is no such table, no server, or a directory that cannot be written, or another thread is in
            the middle of a call of the same writer.
    """
    try:
        yield
    except native.DeadlineExceededError as error:
        raise DeadlineExceededError(str(error)) from error
    except native.UnknownTableError as error:
        raise RuntimeError(_not_found(str(error))) from error
    except native.EngramError as error:
        if isinstance(error, ValueError | RuntimeError | MemoryError):
            raise
        raise RuntimeError(str(error)) from error


def is_stopping(error: native.ClosedError) -> bool:
    """True if a server ended a call that waited because it stops; another may come in its place."""
    return str(error).endswith(" is stopping")


def _not_found(text: str) -> str:
    found = _UNKNOWN_TABLE.search(text)
    if found is None:
        return text
    return f"Priority table {found['name']} was not found; {found['rest']}"
