"""The options that all writers and adders share."""

from typing import Literal, TypeAlias, TypedDict

from engram import _checks

__all__ = ["Compression", "WriterOptions"]

DEFAULT_MAX_WAITING_ITEMS = 16
"""Default of `max_waiting_items`."""

Compression: TypeAlias = Literal["auto", "delta", "off"]
"""Compression of chunks; see `WriterOptions`."""


class WriterOptions(TypedDict, total=False):
    """Keyword options that all writers and adders accept.

    A row of an adder is a step of its writer. Where calls of a writer wait, `add` and `reset` of an adder wait.

    Attributes:
        chunk_length: Number of steps per chunk; for several environments, steps of each of them. Items become visible
            at the first append after their chunk is full, at the end of an episode, or on `flush`. Default: None, as
            many as fit into about 16 KiB, from 1 to 16. If a step of several environments is below 1 KiB each,
            environments share a chunk of up to about 128 KiB.
        max_in_flight_items: Maximum number of items in flight: sent, and not yet known to be in their tables. `append`
            and `create_item` wait while this many items are in flight. They also wait briefly while more than 4 MiB are
            in flight to a server. Default: 1,024; 65,536 for all environments together of a `BatchedWriter` or an
            `engram.gymnasium.VectorWriter`.
        max_waiting_items: Maximum number of items that wait because the rate limiters of their tables block inserts.
            `append` and `create_item` wait while this many items wait. Items whose chunk is not full count too, but
            only while others that were sent wait: alone, they never make a call wait. A call that creates or sends
            several items may exceed the limit by their number. Default: 16. `None`: only `max_in_flight_items` applies.
        timeout: Seconds that `append` and `create_item` wait at these limits, while the write buffer of a durable store
            is full, or for a server's description of a table. Default: None, wait forever; but in the only thread of a
            process, a wait for its own tables ends with a `BackpressureError`. With 0, a call waits only for replies of
            a server: up to 0.4 s each, up to 5 s for the first one on a connection.
        compression: `"auto"` compresses large columns if that saves memory. `"off"` never compresses. `"delta"`
            compresses integers as differences between steps, which suits images that change little. Chunks that
            several environments share are not compressed. Default: `"auto"`.
    """

    chunk_length: int | None
    max_in_flight_items: int
    max_waiting_items: int | None
    timeout: float | None
    compression: Compression


def checked_options(given: WriterOptions, max_in_flight_items: int = 1_024) -> WriterOptions:
    """Returns all options, after checking those that were given.

    Args:
        given: The options that were given.
        max_in_flight_items: Default of the option.

    Raises:
        InvalidArgumentError: An option has a type or value that `WriterOptions` does not allow.
        TypeError: An option is unknown.
    """
    options: WriterOptions = {
        "chunk_length": None,
        "max_in_flight_items": max_in_flight_items,
        "max_waiting_items": DEFAULT_MAX_WAITING_ITEMS,
        "timeout": None,
        "compression": "auto",
    }
    for name in given:
        if name not in options:
            listed = ", ".join(f"`{each}`" for each in options)
            raise TypeError(f"unknown argument `{name}`; the options that all writers and adders accept are {listed}")
    options |= given
    _checks.choice("`compression`", options["compression"], ("auto", "delta", "off"))
    options["chunk_length"] = _checks.optional_integer("`chunk_length`", options["chunk_length"])
    options["max_in_flight_items"] = _checks.integer("`max_in_flight_items`", options["max_in_flight_items"])
    options["max_waiting_items"] = _checks.optional_integer("`max_waiting_items`", options["max_waiting_items"])
    options["timeout"] = _checks.seconds("`timeout`", options["timeout"])
    return options
