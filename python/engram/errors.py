"""Every error that Engram raises on purpose.

All of them are `EngramError`s. Each is also the builtin that fits it best, so code that knows
nothing of Engram can still say `except TimeoutError`. The text says what was asked, what was found
and what is allowed.
"""

__all__ = [
    "BackpressureError",
    "ClosedError",
    "DeadlineExceededError",
    "EngramError",
    "ExpiredStepError",
    "ForkedError",
    "HandshakeError",
    "InvalidArgumentError",
    "ItemError",
    "OutOfMemoryError",
    "PriorityError",
    "SignatureError",
    "StorageError",
    "UnavailableError",
    "UnknownTableError",
    "UnsatisfiableError",
]


class EngramError(Exception):
    """Base of every error that Engram raises on purpose."""


class InvalidArgumentError(EngramError, ValueError):
    """An argument has a type or a value that is not allowed.

    Raised where the argument is given: tables, selectors and rate limiters check themselves when
    they are made, so a rate limiter that could never let anybody sample is found here too.
    """


class UnknownTableError(EngramError, LookupError):
    """A call names a table that the store does not have.

    The text lists the tables that it has.
    """


class SignatureError(EngramError, ValueError):
    """Data does not fit: its structure, dtype or shape is not what was seen or declared before.

    Raised when an item contradicts its table's signature, and when a step contradicts the earlier
    steps of its writer. Nothing of the offending step or item is kept.
    """


class PriorityError(EngramError, ValueError):
    """A priority is NaN, or is negative or infinite where the table's selector is Prioritized.

    One bad priority rejects the whole call: none of the others is applied.
    """


class DeadlineExceededError(EngramError, TimeoutError):
    """A call waited for its whole `timeout` and could not be served.

    What it had already taken is given back; the text says how far it came and what it waited for.
    """


class UnsatisfiableError(EngramError, ValueError):
    """A call asks for what no amount of waiting can bring.

    Raised at once, whatever the timeout: a sample of more items than a table that hands each out so
    many times can ever hold, or an item larger than its table's `max_bytes`.
    """


class OutOfMemoryError(EngramError, MemoryError):
    """A batch, or a chunk of a writer, needs more memory than the system gives.

    What was drawn goes back where sampling uses items up, and counts as sampled elsewhere; nothing of
    the step or item is kept.
    """


class ItemError(EngramError, RuntimeError):
    """An adder took a transition, but could not make an item that ends with it.

    What went wrong is its `__cause__`. Other items were made; go on with the next transition.
    """


class ClosedError(EngramError, RuntimeError):
    """A store or writer is used after it was closed, or a call waits when its store or table goes.

    The text says whether the store was closed or the table dropped.
    """


class ExpiredStepError(EngramError, ValueError):
    """An item refers to a step that its writer no longer keeps.

    A writer keeps the last `history` steps of the current episode.
    """


class ForkedError(EngramError, RuntimeError):
    """A store or writer made before `fork` is used in the child process.

    Its threads and locks stayed with the parent. Open a new one in the child.
    """


class BackpressureError(EngramError, RuntimeError):
    """A writer reached its bound of unacknowledged items and was told not to wait."""


class UnavailableError(EngramError, ConnectionError):
    """A server cannot be reached, or has been gone for longer than `reconnect_timeout`.

    The text names the server and, for a writer, how many items are not acknowledged. A writer keeps
    those: `flush` tries again.
    """


class HandshakeError(EngramError, ConnectionError):
    """A server is there and does not let this client in.

    The text says why: a token is missing or wrong, certificates do not fit, or the two speak different
    versions of the protocol.
    """


class StorageError(EngramError, OSError):
    """A store's directory cannot be used, or something cannot be written to it.

    A change that is in memory and cannot be written yet is written as soon as that is possible; the store goes on.
    """
