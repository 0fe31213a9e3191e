"""Converts the engine's errors to the types that code written for Reverb expects."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from engram import errors as native
from engram.compat.reverb.errors import DeadlineExceededError

__all__ = ["is_stopping", "text_without_arguments", "translated"]

_UNKNOWN_TABLE = re.compile(r"no table `(?P<name>.*?)`; (?P<rest>known tables: .*)", re.DOTALL)

_WITHOUT_ARGUMENT = {
    " (`reconnect_timeout`)": "",
    "pass the server's token to the client as `token`, which sends it as metadata `authorization: Bearer TOKEN` "
    "(dm-reverb clients cannot send one)": "Reverb's API has no token: use engram.Client, or a server without one",
    "pass the PEM file of its certificate authority as `ca`": (
        "Reverb's API has no TLS: use engram.Client, or a server without TLS"
    ),
}
"""Replacements for parts of error texts that name arguments which only the engine's own client has."""


@contextmanager
def translated() -> Iterator[None]:
    """Context manager: raises the engine's errors as Reverb's, with the engine's error as cause.

    Errors of the engine that are a `ValueError` (invalid arguments or data), a `RuntimeError` (a closed store, a fork)
    or a `MemoryError` are raised unchanged.

    Raises:
        DeadlineExceededError: A call did not complete within its timeout.
        RuntimeError: The table does not exist, the server is unreachable or requires a token or TLS, a directory cannot
            be written, or another thread is using the same writer.
    """
    try:
        yield
    except native.DeadlineExceededError as error:
        raise DeadlineExceededError(str(error)) from error
    except (native.UnavailableError, native.HandshakeError) as error:
        raise RuntimeError(text_without_arguments(error)) from error
    except native.UnknownTableError as error:
        raise RuntimeError(_not_found_text(str(error))) from error
    except native.EngramError as error:
        if isinstance(error, ValueError | RuntimeError | MemoryError):
            raise
        raise RuntimeError(str(error)) from error


def is_stopping(error: native.ClosedError) -> bool:
    """True if a server ended a waiting call because it is stopping. Another server may replace it."""
    return str(error).endswith(" is stopping")


def text_without_arguments(error: native.UnavailableError | native.HandshakeError) -> str:
    """Returns the engine's text, without the arguments that only its own client has."""
    text = str(error)
    for part, replacement in _WITHOUT_ARGUMENT.items():
        text = text.replace(part, replacement)
    return text


def _not_found_text(text: str) -> str:
    """Converts the engine's text of an unknown table to Reverb's."""
    match = _UNKNOWN_TABLE.search(text)
    if match is None:
        return text
    return f"Priority table {match['name']} was not found; {match['rest']}"
