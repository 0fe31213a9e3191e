"""Rate limiters: how fast a table may be written and sampled, one relative to the other.

With `I` items inserted, `S` samples taken and `D` items deleted so far, one more

* sample is allowed while `I - D >= min_size` and `I * samples_per_insert - S - 1 >= min_diff`;
* insert is allowed while `I + 1 - D <= min_size` or
  `(I + 1) * samples_per_insert - S <= max_diff`.

Every limiter here is a choice of those four numbers. A limiter that could never let anybody sample
is refused when it is made.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from engram import _checks
from engram.errors import InvalidArgumentError

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """The general form: any choice of the four numbers.

    Attributes:
        samples_per_insert: How many samples each insert pays for. Above 0.
        min_size: How many items the table must hold before it is sampled. At least 1.
        min_diff: Lowest allowed `I * samples_per_insert - S`; `-inf`: samples never wait for it.
        max_diff: Highest allowed `I * samples_per_insert - S`; `inf`: inserts never wait.
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
        _check_can_sample(self)


@dataclass(frozen=True, slots=True)
class MinSize:
    """Sampling waits until the table holds `min_size` items; inserts never wait.

    Attributes:
        min_size: At least 1.
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
    """Holds the samples taken per item inserted near `samples_per_insert`.

    Attributes:
        samples_per_insert: The ratio aimed at. Above 0.
        min_size: How many items the table must hold before it is sampled. At least 1.
        error_buffer: How far `I * samples_per_insert - S` may stray, in samples. One number: that
            far to either side of its value at `min_size`. A pair: `(min_diff, max_diff)`
            themselves. The range must be at least `2 * max(1, samples_per_insert)` wide, or
            writers and readers could block each other.
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
        if not width >= needed:  # so that NaN, from equal infinities, is refused too
            raise InvalidArgumentError(
                f"`error_buffer` {self.error_buffer} leaves a range of {width:g}; "
                f"{ratio:g} samples per insert need at least {needed:g}"
            )
        if self.min_diff > ratio * self.min_size:
            raise InvalidArgumentError(
                f"`min_diff` {self.min_diff:g} is above `samples_per_insert * min_size` "
                f"= {ratio * self.min_size:g}: sampling could not start at `min_size` items"
            )

    @property
    def min_diff(self) -> float:
        """Lowest allowed `I * samples_per_insert - S`."""
        if isinstance(self.error_buffer, tuple):
            return self.error_buffer[0]
        return self.samples_per_insert * self.min_size - self.error_buffer

    @property
    def max_diff(self) -> float:
        """Highest allowed `I * samples_per_insert - S`."""
        if isinstance(self.error_buffer, tuple):
            return self.error_buffer[1]
        return self.samples_per_insert * self.min_size + self.error_buffer


@dataclass(frozen=True, slots=True)
class Queue:
    """Each item is sampled once; inserts wait while `size` items have not been sampled.

    Meant for a table with Fifo selectors and `max_times_sampled=1`: see `Table.queue`.

    Attributes:
        size: At least 1.
    """

    kind: ClassVar[str] = "Queue"
    samples_per_insert: ClassVar[float] = 1.0
    min_size: ClassVar[int] = 1
    min_diff: ClassVar[float] = 0.0
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _checks.integer("`size`", self.size))

    @property
    def max_diff(self) -> float:
        """`size`, as the general form counts it."""
        return float(self.size)


@dataclass(frozen=True, slots=True)
class Stack:
    """Each item is sampled once; inserts wait while `size` items have not been sampled.

    Meant for a table with Lifo selectors and `max_times_sampled=1`: see `Table.stack`.

    Attributes:
        size: At least 1.
    """

    kind: ClassVar[str] = "Stack"
    samples_per_insert: ClassVar[float] = 1.0
    min_size: ClassVar[int] = 1
    min_diff: ClassVar[float] = 0.0
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _checks.integer("`size`", self.size))

    @property
    def max_diff(self) -> float:
        """`size`, as the general form counts it."""
        return float(self.size)


AnyRateLimiter: TypeAlias = RateLimiter | MinSize | SampleToInsertRatio | Queue | Stack


def _error_buffer(given: object) -> float | tuple[float, float]:
    if not isinstance(given, tuple | list):
        return _checks.finite("`error_buffer`", given)
    if len(given) != 2:  # noqa: PLR2004, a pair
        raise InvalidArgumentError(
            f"`error_buffer` must be a number or a pair (min_diff, max_diff); got {len(given)} values"
        )
    return (
        _checks.number("`error_buffer[0]`", given[0]),
        _checks.number("`error_buffer[1]`", given[1]),
    )


def _check_can_sample(limiter: RateLimiter) -> None:
    """Refuse a limiter that inserts alone can never open.

    Before the first sample, inserts stop at the larger of `min_size` and what `max_diff` allows;
    the first sample must be possible by then.
    """
    ratio, low, high = limiter.samples_per_insert, limiter.min_diff, limiter.max_diff
    if low > high:
        raise InvalidArgumentError(f"`min_diff` {low:g} is above `max_diff` {high:g}")
    inserts = high / ratio
    if math.isfinite(inserts):
        inserts = math.floor(inserts)
    most = ratio * max(limiter.min_size, inserts)
    if low == math.inf or most - 1 < low:
        raise InvalidArgumentError(
            f"nothing could ever be sampled: inserts bring `I * samples_per_insert - S` to "
            f"{most:g} at most, the first sample needs `min_diff` + 1 = {low + 1:g}"
        )
