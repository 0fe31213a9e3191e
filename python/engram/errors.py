"""Errors that Engram raises on purpose.

Every class derives from `EngramError`, and from the builtin exception that fits it best, so that code can also catch
`TimeoutError`, `ValueError` and so on. Texts state the argument, table or file, what is wrong with it, and where it
helps, the value given, what is allowed and what to do.
"""

from typing import TYPE_CHECKING

from engram._text import printable

if TYPE_CHECKING:
    from engram.batch import Batch

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
    """Base class of all errors that Engram raises on purpose.

    Attributes:
        batch: What `sample` has received, if it failed only because the server did not confirm that it has removed the
            items. Use it: if the server has removed them, no other call returns them; otherwise they are sampled again.
    """

    batch: "Batch | None" = None

    def __str__(self) -> str:
        r"""Returns the text with control characters escaped, such as `\x1b` in a table's name. Line breaks stay."""
        return "\n".join(map(printable, super().__str__().split("\n")))


class InvalidArgumentError(EngramError, ValueError):
    """An argument has a type or a value that is not allowed.

    Tables, selectors and rate limiters check their arguments when they are created. That includes a rate limiter under
    which nothing could ever be sampled.
    """


class UnknownTableError(EngramError, LookupError):
    """The store has no table of this name. The text lists its tables."""


class SignatureError(EngramError, ValueError):
    """The structure, dtype or shape of data differs from a table's signature or from earlier steps.

    A rejected step or item is not stored. Where only an item is rejected, the method states what happens to its steps.
    """


class PriorityError(EngramError, ValueError):
    """A priority is NaN, or a Prioritized selector does not allow it.

    Also raised for TD errors that are not one float32, float64, int32 or int64 per step.

    Prioritized allows finite priorities of at least 0 whose weight, `priority ** exponent`, is at most 1e290. With a
    negative exponent, a priority can therefore be too close to 0.

    One invalid priority in an argument rejects the whole call: none of the other priorities is applied. If a writer
    computes the priority of an item from TD errors, only that item is rejected, and the step is stored.
    """


class DeadlineExceededError(EngramError, TimeoutError):
    """A call did not complete within its `timeout`.

    Items that the call had already drawn return to the table. The text states the progress and what the call waited
    for.
    """


class UnsatisfiableError(EngramError, ValueError):
    """No amount of waiting could complete the call.

    Usually raised at once, whatever the timeout. Examples: a sample of more items than a table with `max_times_sampled`
    can ever provide, or an item larger than its table's `max_bytes`.

    Also raised after five seconds by `sample` of a `Store`, or by a `Dataset` of one, without a timeout, if it waits in
    the only thread of a process that has neither a server nor another open dataset, so that nothing can be inserted.
    """


class OutOfMemoryError(EngramError, MemoryError):
    """A batch, a chunk of a writer or a replay buffer needs more memory than the system provides or a limit allows.

    Or a server has too many open scans. Items that a `Dataset` or `sample` has drawn return to their table, except
    those that a server has already sent from a table without `max_times_sampled`: these count as sampled. Nothing of
    the step or item is stored.
    """


class ItemError(EngramError, RuntimeError):
    """An adder added a transition, but could not create an item that ends with it.

    Its `__cause__` is the reason. Other items were created; continue with the next transition.
    """


class ClosedError(EngramError, RuntimeError):
    """A store, writer or adder is used after `close`, or the store was closed or the table dropped during a call.

    The text states which.
    """


class ExpiredStepError(EngramError, ValueError):
    """An item refers to a step that is no longer in its writer's history.

    A writer keeps its last `history` steps, and discards them at the end of an episode unless `clear=False`.
    """


class ForkedError(EngramError, RuntimeError):
    """A store, server, writer, scan or replay buffer created before `fork` is used in the child process.

    Its threads and locks exist in the parent only. Create a new one in the child. To share the tables of a store, serve
    them with a `Server`, and use a `Client` in the child.
    """


class BackpressureError(EngramError, RuntimeError):
    """A writer's `timeout` has passed while too many of its items waited for rate limiters or were in flight.

    See `max_waiting_items` and `max_in_flight_items` of `engram.WriterOptions`. Also raised if the disk of a durable
    store could not keep up during that time, and by a call that waits in the only thread of a process, so that nothing
    can be sampled. `append`, `append_batch` and `create_item` have then stored nothing, and can be repeated. After
    `append_steps` and `insert_batch`, the text states how many steps or items are stored.
    """


class UnavailableError(EngramError, ConnectionError):
    """A server cannot be reached, has been unreachable for longer than `reconnect_timeout`, or was lost during a scan.

    The text names the server and, for a writer, the number of items in flight. The writer keeps those; `flush` sends
    them again. Also raised if the connection is lost during a call that must not be repeated, which may or may not have
    taken effect, and if the system provides no thread or no random numbers.
    """


class HandshakeError(EngramError, ConnectionError):
    """A server rejects the client, or is none that this client can use.

    The text states the reason: a missing or wrong token, certificates that do not match, TLS on one side only,
    different versions of the protocol, or a gRPC server of another kind.
    """


class StorageError(EngramError, OSError):
    """A store's directory, or another file or dataset, cannot be used, or writing to it failed.

    After a failed write the store continues: the change is in memory, and is written as soon as that is possible. After
    a failed sync, nothing more is acknowledged until the store is opened again.
    """
