"""Converts the engine's errors to the types that code written for Reverb expects."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from engram import errors as native
from engram.compat.reverb.errors import DeadlineExceededError

__all__ = ["is_stopping", "translated", "unreachable_text"]

_UNKNOWN_TABLE = re.compile(r"no table `(?P<name>.*?)`; (?P<rest>known tables: .*)", re.DOTALL)


@contextmanager
def translated() -> Iterator[None]:
    """Context manager: raises the engine's errors as Reverb's, with the engine's error as cause.

    Errors of the engine that are a `ValueError` (invalid arguments or data), a `RuntimeError` (a closed store, a fork)
    or a `MemoryError` are raised unchanged.

    Raises:
        DeadlineExceededError: A call did not complete within its timeout.
        RuntimeError: The table does not exist, the server is unreachable, a directory cannot be written, or another
            thread is using the same writer.
    """
    try:
        yield
    except native.DeadlineExceededError as error:
        raise DeadlineExceededError(str(error)) from error
    except native.UnavailableError as error:
        raise RuntimeError(unreachable_text(error)) from error
    except native.UnknownTableError as error:
        raise RuntimeError(_not_found_text(str(error))) from error
    except native.EngramError as error:
        if isinstance(error, ValueError | RuntimeError | MemoryError):
            raise
        raise RuntimeError(str(error)) from error


def is_stopping(error: native.ClosedError) -> bool:
    """True if a server ended a waiting call because it is stopping. Another server may replace it."""
    return str(error).endswith(" is stopping")


def unreachable_text(error: native.UnavailableError) -> str:
    """Returns the engine's text, without the argument that only its own client has."""
    return str(error).replace(" (`reconnect_timeout`)", "")


def _not_found_text(text: str) -> str:
    """Converts the engine's text of an unknown table to Reverb's."""
    match = _UNKNOWN_TABLE.search(text)
    if match is None:
        return text
    return f"Priority table {match['name']} was not found; {match['rest']}"
