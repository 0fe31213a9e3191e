"""Rate limiters: how fast a table may be written relative to how fast it is sampled.

Let `I` be the number of items inserted so far, `S` the number of samples drawn and `D` the number of items deleted.

* A sample is allowed while `I - D >= min_size` and `I * samples_per_insert - S - 1 >= min_diff`.
* An insert is allowed while `I + 1 - D <= min_size` or `(I + 1) * samples_per_insert - S <= max_diff`.

Each limiter in this module is a choice of these four parameters. Creating a limiter under which inserts and samples
would block each other forever raises an error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias, get_args

from engram import _checks, _engram
from engram._text import number_text
from engram.errors import InvalidArgumentError

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """The general rate limiter, with all four parameters.

    Attributes:
        samples_per_insert: Number of samples that each insert allows. Above 0.
        min_size: Minimum number of items in the table before sampling starts. At least 1.
        min_diff: Minimum of `I * samples_per_insert - S`. With `-inf`, samples do not wait for inserts.
        max_diff: Maximum of `I * samples_per_insert - S`, which only inserts up to `min_size` items may exceed. With
            `inf`, inserts never wait. If both are finite, inserts and samples would block each other forever in a
            range that is too small. `min_diff + 1 + samples_per_insert` is always large enough; with
            `samples_per_insert` = p / q, a range of `(p + q - 1) / q` that begins at a multiple of `1 / q` is, too.
    """

    kind: ClassVar[str] = "RateLimiter"
    samples_per_insert: float
    min_size: int
    min_diff: float
    max_diff: float

    def __post_init__(self) -> None:
        checked = {
            "samples_per_insert": _checks.positive("`samples_per_insert`", self.samples_per_insert),
            "min_size": _checks.integer("`min_size`", self.min_size),
            "min_diff": _checks.number("`min_diff`", self.min_diff),
            "max_diff": _checks.number("`max_diff`", self.max_diff),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        low, high = self.min_diff, self.max_diff
        if low > high:
            raise InvalidArgumentError(
                f"`min_diff` must be at most `max_diff`; got {number_text(low)} and {number_text(high)}"
            )
        if low == math.inf:
            raise InvalidArgumentError(
                "`min_diff` must be less than infinity, or nothing could ever be sampled; got inf"
            )
        _engram.check_progress(self)


@dataclass(frozen=True, slots=True)
class MinSize:
    """Samples wait until the table has `min_size` items; inserts never wait.

    Attributes:
        min_size: Minimum number of items in the table before sampling starts. At least 1.
    """

    kind: ClassVar[str] = "MinSize"
    samples_per_insert: ClassVar[float] = 1.0
    min_diff: ClassVar[float] = -math.inf
    max_diff: ClassVar[float] = math.inf
    min_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_size", _checks.integer("`min_size`", self.min_size))


@dataclass(frozen=True, slots=True)
class SampleToInsertRatio:
    """Keeps the number of samples per inserted item close to `samples_per_insert`.

    Attributes:
        samples_per_insert: Target ratio of samples to inserts. Above 0.
        min_size: Minimum number of items in the table before sampling starts. At least 1.
        error_buffer: Allowed range of `I * samples_per_insert - S`, in samples. A number allows that much below and
            above `samples_per_insert * min_size`; a pair is `(min_diff, max_diff)`. The range must be at least
            `2 * max(1, samples_per_insert)` wide, or writers and readers could block each other. Two limiters that give
            the same range in these two ways are equal.
    """

    kind: ClassVar[str] = "SampleToInsertRatio"
    samples_per_insert: float
    min_size: int
    error_buffer: float | tuple[float, float]

    def __post_init__(self) -> None:
        ratio = _checks.positive("`samples_per_insert`", self.samples_per_insert)
        object.__setattr__(self, "samples_per_insert", ratio)
        object.__setattr__(self, "min_size", _checks.integer("`min_size`", self.min_size))
        object.__setattr__(self, "error_buffer", _error_buffer(self.error_buffer))

        width, needed = self.max_diff - self.min_diff, 2 * max(1.0, ratio)
        if not width >= needed:  # also rejects NaN, the difference of equal infinities
            raise InvalidArgumentError(
                f"`error_buffer` must allow a range of at least {number_text(needed)} samples for "
                f"`samples_per_insert` = {number_text(ratio)}; got {self.error_buffer}, a range of {width:.15g}; "
                f"pass at least {number_text(needed / 2)}, or a pair whose difference is at least {number_text(needed)}"
            )
        if self.min_diff > ratio * self.min_size:
            at_min_size = number_text(ratio * self.min_size)
            raise InvalidArgumentError(
                f"`error_buffer[0]` must be at most `samples_per_insert * min_size` = {at_min_size}; "
                f"got {number_text(self.min_diff)}; otherwise sampling could not start at `min_size` items"
            )

    def __eq__(self, other: object) -> bool:
        return _parameters(self) == _parameters(other) if isinstance(other, SampleToInsertRatio) else NotImplemented

    def __hash__(self) -> int:
        return hash(_parameters(self))

    @property
    def min_diff(self) -> float:
        """Minimum of `I * samples_per_insert - S`."""
        if isinstance(self.error_buffer, tuple):
            return self.error_buffer[0]
        return self.samples_per_insert * self.min_size - self.error_buffer

    @property
    def max_diff(self) -> float:
        """Maximum of `I * samples_per_insert - S`."""
        if isinstance(self.error_buffer, tuple):
            return self.error_buffer[1]
        return self.samples_per_insert * self.min_size + self.error_buffer


@dataclass(frozen=True, slots=True)
class _EachItemOnce:
    samples_per_insert: ClassVar[float] = 1.0
    min_size: ClassVar[int] = 1
    min_diff: ClassVar[float] = 0.0
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _checks.integer("`size`", self.size))

    @property
    def max_diff(self) -> float:
        """Maximum of `I * samples_per_insert - S`: `size`."""
        return float(self.size)


@dataclass(frozen=True, slots=True)
class Queue(_EachItemOnce):
    """Each item is sampled once; inserts wait while `size` items have not been sampled.

    For a table with Fifo selectors and `max_times_sampled=1`; see `Table.queue`.

    Attributes:
        size: Maximum number of unsampled items, at least 1. Items that are removed unsampled, for example by a `ttl`,
            count until the table is reset. A table without items to sample always accepts one, up to its `max_size`.
    """

    kind: ClassVar[str] = "Queue"


@dataclass(frozen=True, slots=True)
class Stack(_EachItemOnce):
    """Each item is sampled once; inserts wait while `size` items have not been sampled.

    For a table with Lifo selectors and `max_times_sampled=1`; see `Table.stack`.

    Attributes:
        size: As in `Queue`.
    """

    kind: ClassVar[str] = "Stack"


AnyRateLimiter: TypeAlias = RateLimiter | MinSize | SampleToInsertRatio | Queue | Stack

_LIMITERS: dict[str, type[AnyRateLimiter]] = {limiter.kind: limiter for limiter in get_args(AnyRateLimiter)}


def from_native(
    kind: str, samples_per_insert: float, min_size: int, min_diff: float, max_diff: float
) -> AnyRateLimiter:
    """Returns the limiter that the native engine describes by kind and parameters.

    The limiter is not checked, since a table has it already. If another program created it, and its kind is unknown or
    cannot have these parameters, it is returned as a `RateLimiter`.
    """
    values: dict[str, object] = {
        "samples_per_insert": samples_per_insert,
        "min_size": min_size,
        "min_diff": min_diff,
        "max_diff": max_diff,
        "error_buffer": (min_diff, max_diff),
        "size": int(max_diff) if math.isfinite(max_diff) else 0,
    }
    limiter = _unchecked(_LIMITERS.get(kind, RateLimiter), values)
    if _parameters(limiter) == (samples_per_insert, min_size, min_diff, max_diff):
        return limiter
    return _unchecked(RateLimiter, values)


def _unchecked(limiter: type[AnyRateLimiter], values: Mapping[str, object]) -> AnyRateLimiter:
    created = object.__new__(limiter)
    for each in fields(limiter):
        object.__setattr__(created, each.name, values[each.name])
    return created


def _parameters(limiter: AnyRateLimiter) -> tuple[float, int, float, float]:
    return limiter.samples_per_insert, limiter.min_size, limiter.min_diff, limiter.max_diff


def _error_buffer(value: object) -> float | tuple[float, float]:
    if not isinstance(value, tuple | list):
        return _checks.finite("`error_buffer`", value)
    if len(value) != 2:  # noqa: PLR2004, a pair
        raise InvalidArgumentError(
            f"`error_buffer` must be a number or a pair (min_diff, max_diff); "
            f"got {_checks.short_repr(value)}, {len(value)} values"
        )
    return (
        _checks.number("`error_buffer[0]`", value[0]),
        _checks.number("`error_buffer[1]`", value[1]),
    )
