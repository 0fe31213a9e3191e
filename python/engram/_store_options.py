"""Checks of the arguments that create and open stores."""

import logging
import secrets
from collections.abc import Iterable, Mapping

from engram import _checks, _engram
from engram.errors import InvalidArgumentError
from engram.rate_limiters import AnyRateLimiter
from engram.table import Table

__all__ = ["checked_recovery_options", "checked_seed", "checked_tables", "warn_of_limiter"]

_LOG = logging.getLogger("engram")


def warn_of_limiter(table: str, limiter: AnyRateLimiter) -> None:
    """Warns of a rate limiter that blocks both sides: earlier releases and dm-reverb accept it."""
    try:
        _engram.check_progress(limiter)
    except InvalidArgumentError as error:
        _LOG.warning("rate limiter of table `%s`: %s, with `set_rate_limiter`", table, error)


def checked_tables(tables: Iterable[Table]) -> list[Table]:
    if isinstance(tables, Table):
        raise InvalidArgumentError(f"`tables` must be a sequence of tables; got the table `{tables.name}` itself")
    listed = _checks.elements("`tables`", tables, "a sequence of tables")
    for table in listed:
        _checks.instance_of("each of `tables`", table, Table, "an engram.Table")
    return listed


def checked_recovery_options(
    rename: Mapping[str, str] | None, drop: Iterable[str], *, repair: bool
) -> tuple[dict[str, str], set[str], bool]:
    """Returns the options that `Store.open` and `Store.restore` share, in the order of the arguments."""
    _checks.boolean("`repair`", repair)
    return _checks.table_renames("`rename`", rename), _checks.table_names("`drop`", drop), repair


def checked_seed(seed: int | None) -> int:
    """Returns the seed; a random one for None."""
    return secrets.randbits(64) if seed is None else _checks.integer("`seed`", seed, low=0, high=_checks.MAX_U64)
