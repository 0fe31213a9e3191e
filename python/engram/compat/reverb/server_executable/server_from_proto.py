"""Creates tables from the messages of a server's configuration.

    from engram.compat import reverb
    from engram.compat.reverb.server_executable import server_from_proto

    config = server_from_proto.parse_config(text)
    server = reverb.Server(server_from_proto.tables_from_proto(config.tables), port=config.port)

The messages may be of any classes with Reverb's fields, for example those of an installed dm-reverb. Only
`parse_config` and `reverb_config_pb2` need the package protobuf.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from engram._extras import importing_extra
from engram.compat.reverb import _arguments, item_selectors
from engram.compat.reverb.item_selectors import Selector
from engram.compat.reverb.rate_limiters import RateLimiter
from engram.compat.reverb.server_executable._structured_value import Message, signature_from_proto
from engram.compat.reverb.table import Table

__all__ = ["parse_config", "rate_limiter_from_proto", "selector_from_proto", "tables_from_proto"]

_BOOL_SELECTORS = {
    "fifo": item_selectors.Fifo,
    "lifo": item_selectors.Lifo,
    "uniform": item_selectors.Uniform,
}
_UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "\w+"')


def parse_config(text: str) -> Message:
    """Parses `text`, a server's configuration in protobuf's text format: the fields of a `ReverbServerConfig`.

    Returns:
        A `reverb_config_pb2.ReverbServerConfig`.

    Raises:
        ValueError: The text is not in this format, or has an unknown field. The message states line and column.
        ModuleNotFoundError: protobuf is not installed.
    """
    with importing_extra("protobuf", "a server's configuration in protobuf's text format"):
        from google.protobuf import text_format  # noqa: PLC0415, optional

        from engram.compat.reverb.server_executable.reverb_config_pb2 import (  # noqa: PLC0415, needs protobuf
            ReverbServerConfig,
            field_names,
        )
    try:
        return text_format.Parse(text, ReverbServerConfig())
    except text_format.ParseError as error:
        reason = re.sub(r"^(\d+):(\d+) : ", r"line \1, column \2: ", str(error)).removesuffix(".")
        if unknown := _UNKNOWN_FIELD.search(reason):
            reason += f"; its fields are {', '.join(field_names(unknown[1]))}"
        raise ValueError(reason) from None


def tables_from_proto(configs: Iterable[Message]) -> list[Table]:
    """Creates tables, each with its signature if the message has one.

    The items and counts of a checkpoint's message are ignored, as in Reverb.

    Args:
        configs: `PriorityTableCheckpoint` messages.

    Raises:
        TypeError: A config is not such a message, or `max_size` is above 2**31 - 1.
        ValueError: A table has no rate limiter, or a value that `Table` does not accept. The text names the table.
        NotImplementedError: A table has no sampler or no remover.
    """
    return [_table_from_proto(config) for config in configs]


def selector_from_proto(s: Message) -> Selector:
    """Creates a selector from `s`, a `KeyDistributionOptions` message.

    Raises:
        TypeError: `priority_exponent` is not a number.
        ValueError: The field that is set is False, or `priority_exponent` is NaN or infinite.
        NotImplementedError: No selector is set.
    """
    kind = s.WhichOneof("distribution")
    if kind == "heap":
        return item_selectors.HeapSelector(s.heap.min_heap)
    if kind == "prioritized":
        return item_selectors.Prioritized(s.prioritized.priority_exponent)
    if kind not in _BOOL_SELECTORS:
        raise NotImplementedError("no selector is set; set one of fifo, lifo, uniform, prioritized, heap")
    if not getattr(s, kind):
        raise ValueError(f"`{kind}` must be true; got False")
    return _BOOL_SELECTORS[kind]()


def rate_limiter_from_proto(proto: Message) -> RateLimiter:
    """Creates a rate limiter from `proto`, a `RateLimiterCheckpoint` message, whose counts are ignored.

    Raises:
        TypeError: A field is not a number.
        ValueError: `RateLimiter` does not accept the numbers.
    """
    return RateLimiter(
        samples_per_insert=proto.samples_per_insert,
        min_size_to_sample=proto.min_size_to_sample,
        min_diff=proto.min_diff,
        max_diff=proto.max_diff,
    )


def _table_from_proto(config: Message) -> Table:
    if not (hasattr(config, "HasField") and hasattr(config, "table_name") and hasattr(config, "sampler")):
        raise TypeError(f"each of `configs` must be a PriorityTableCheckpoint; got {_arguments.describe(config)}")
    table = f"table `{config.table_name}`"
    with _errors_prefixed(f"{table}: sampler"):
        sampler = selector_from_proto(config.sampler)
    with _errors_prefixed(f"{table}: remover"):
        remover = selector_from_proto(config.remover)
    if not config.HasField("rate_limiter"):
        raise ValueError(f"{table}: no `rate_limiter`")
    with _errors_prefixed(f"{table}: rate_limiter"):
        rate_limiter = rate_limiter_from_proto(config.rate_limiter)
    with _errors_prefixed(f"{table}: signature"):
        signature = signature_from_proto(config.signature) if config.HasField("signature") else None
    with _errors_prefixed(table):
        return Table(
            name=config.table_name,
            sampler=sampler,
            remover=remover,
            max_size=config.max_size,
            rate_limiter=rate_limiter,
            max_times_sampled=config.max_times_sampled,
            signature=signature,
        )


@contextmanager
def _errors_prefixed(place: str) -> Iterator[None]:
    """Context manager: prefixes the texts of errors with `place`, unless they begin with it."""
    try:
        yield
    except (ValueError, TypeError, NotImplementedError) as error:
        raise type(error)(f"{place}: {str(error).removeprefix(f'{place}: ')}") from error
