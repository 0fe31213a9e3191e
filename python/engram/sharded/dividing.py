"""Divides the limits of a table over shards."""

import math
from dataclasses import replace

from engram import _checks
from engram.errors import InvalidArgumentError
from engram.rate_limiters import AnyRateLimiter, MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack
from engram.server import MAX_SHARD_ID
from engram.table import Table

__all__ = ["divide"]


def divide(table: Table, shards: int) -> Table:
    """Returns the configuration of a table on one of several shards.

    `max_size`, `max_bytes` and the numbers of the rate limiter are divided by the number of shards, and rounded up.
    `samples_per_insert` stays, so all shards together have the ratio of the table. Together they also may hold up to
    `shards - 1` items more than the table.

    Args:
        table: Table, as one server would have it.
        shards: Number of servers, from 1 to 1,023.

    Returns:
        The table of each of them.

    Raises:
        InvalidArgumentError: A limit is too small to be divided, or an argument is invalid.
    """
    _checks.instance_of("`table`", table, Table, "an engram.Table")
    shards = _checks.integer("`shards`", shards, high=MAX_SHARD_ID)
    try:
        return replace(
            table,
            max_size=-(-table.max_size // shards),
            max_bytes=None if table.max_bytes is None else -(-table.max_bytes // shards),
            rate_limiter=_divided_limiter(table.rate_limiter, shards),
        )
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"table `{table.name}` cannot be divided over {shards} shards: {error}") from error


def _divided_limiter(limiter: AnyRateLimiter, shards: int) -> AnyRateLimiter:
    if isinstance(limiter, Queue | Stack):
        return replace(limiter, size=-(-limiter.size // shards))
    min_size = -(-limiter.min_size // shards)
    if isinstance(limiter, MinSize):
        return MinSize(min_size)
    if isinstance(limiter, SampleToInsertRatio):
        # `samples_per_insert * min_size` grows by `rounding` when `min_size` is rounded up. If `error_buffer` is a
        # number, the range is around this product, so it must grow at the top, too.
        rounding = limiter.samples_per_insert * min_size - limiter.samples_per_insert * limiter.min_size / shards
        buffer: float | tuple[float, float] = (limiter.min_diff / shards, limiter.max_diff / shards + rounding)
        return SampleToInsertRatio(limiter.samples_per_insert, min_size, buffer)
    return RateLimiter(
        limiter.samples_per_insert, min_size, _divided(limiter.min_diff, shards), _divided(limiter.max_diff, shards)
    )


def _divided(limit: float, shards: int) -> float:
    return limit if math.isinf(limit) else limit / shards
