"""Rate limiters: how fast a table may be written and sampled, one relative to the other.

With `I` items inserted, `S` samples taken and `D` items deleted so far, one more

* sample is allowed while `I - D >= min_size_to_sample` and `I * samples_per_insert - S - 1 >= min_diff`;
* insert is allowed while `I + 1 - D <= min_size_to_sample` or `(I + 1) * samples_per_insert - S <= max_diff`.

Every limiter here is a choice of those four numbers. A limiter belongs to one table.
"""

import logging
import sys
from typing import Any

import numpy as np

from engram import rate_limiters as native
from engram.compat.reverb import _arguments

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

_NEVER = sys.float_info.max
"""A bound that is never reached."""

_log = logging.getLogger(__name__)


class RateLimiter:
    """The general form: any choice of the four numbers."""

    def __init__(self, samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float) -> None:
        """Makes a limiter.

        Args:
            samples_per_insert: How many samples each insert pays for. Above 0.
            min_size_to_sample: How many items the table must hold before it is sampled. At least 1.
            min_diff: Lowest allowed `inserts * samples_per_insert - samples`; `-inf`: samples never wait for it.
            max_diff: Highest allowed value of the same; `inf`: inserts never wait.

        Raises:
            TypeError: `min_size_to_sample` is no integer, or another argument no number.
            ValueError: A number is NaN or out of its range, `min_diff` is above `max_diff`, or nothing could ever be
                sampled.
        """
        self._samples_per_insert = _arguments.number("samples_per_insert", samples_per_insert)
        self._min_size_to_sample = _arguments.integer("min_size_to_sample", min_size_to_sample)
        self._min_diff = _arguments.number("min_diff", min_diff)
        self._max_diff = _arguments.number("max_diff", max_diff)
        if self._samples_per_insert <= 0:
            raise ValueError(f"samples_per_insert ({samples_per_insert}) must be > 0")
        if self._min_size_to_sample < 1:
            raise ValueError(f"min_size_to_sample ({min_size_to_sample}) must be a positive integer")
        self._native = self._as_native()
        self._table: str | None = None

    def _as_native(self) -> native.AnyRateLimiter:
        return native.RateLimiter(self._samples_per_insert, self._min_size_to_sample, self._min_diff, self._max_diff)

    def _claim(self, table: str) -> None:
        """Notes which table it belongs to."""
        if self._table is not None:
            raise ValueError(
                f"the rate limiter of table '{table}' belongs to table '{self._table}' already; "
                "give each table a limiter of its own"
            )
        self._table = table

    def _fresh(self) -> "RateLimiter":
        """One with the same numbers for another table."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._table = None  # noqa: SLF001, its own kind
        return made

    def __repr__(self) -> str:
        return (
            f"RateLimiter(samples_per_insert={self._samples_per_insert:g}, min_diff_={self._min_diff:g}, "
            f"max_diff={self._max_diff:g}, min_size_to_sample={self._min_size_to_sample})"
        )


class MinSize(RateLimiter):
    """Sampling waits until the table holds `min_size_to_sample` items; inserts never wait."""

    def __init__(self, min_size_to_sample: int) -> None:
        """Makes a limiter.

        Args:
            min_size_to_sample: At least 1.

        Raises:
            TypeError: It is no integer.
            ValueError: It is below 1, or above 2**63 - 1.
        """
        super().__init__(1.0, min_size_to_sample, -_NEVER, _NEVER)

    def _as_native(self) -> native.AnyRateLimiter:
        return native.MinSize(self._min_size_to_sample)


class SampleToInsertRatio(RateLimiter):
    """Holds the samples taken per item inserted near `samples_per_insert`."""

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
    ) -> None:
        """Makes a limiter.

        Args:
            samples_per_insert: The ratio aimed at. Above 0.
            min_size_to_sample: How many items the table must hold before it is sampled. At least 1.
            error_buffer: How far `inserts * samples_per_insert - samples` may stray, in samples. One number: that far
                to either side of `min_size_to_sample * samples_per_insert`. A pair: `(min_diff, max_diff)` themselves;
                where that ends below `min_size_to_sample * samples_per_insert`, a warning is logged.

        Raises:
            TypeError: `min_size_to_sample` is no integer, `samples_per_insert` no number, or `error_buffer` neither a
                number nor a pair of numbers.
            ValueError: A number is NaN or out of its range, the range of `error_buffer` is narrower than
                `2 * max(1, samples_per_insert)`, or it begins above `min_size_to_sample * samples_per_insert`.
        """
        ratio = _arguments.number("samples_per_insert", samples_per_insert)
        size = _arguments.integer("min_size_to_sample", min_size_to_sample)
        offset = ratio * size
        min_diff, max_diff = _range(error_buffer, offset)
        if ratio <= 0:
            raise ValueError(f"samples_per_insert ({samples_per_insert}) must be > 0")
        if not max_diff - min_diff >= 2 * max(1.0, ratio):
            raise ValueError(
                f"error_buffer ({error_buffer}) leaves a range of {max_diff - min_diff:g}: it must be >= "
                f"2 * max(1.0, samples_per_insert) = {2 * max(1.0, ratio):g}, as less could block samples and inserts"
            )
        if max_diff < offset:
            _log.warning(
                "The range of error_buffer ends at %g, below samples_per_insert * min_size_to_sample = %g: whoever "
                "inserts and samples in one thread may wait for ever.",
                max_diff,
                offset,
            )
        if min_diff > offset:
            raise ValueError(
                f"error_buffer begins at {min_diff:g}, above samples_per_insert * min_size_to_sample = {offset:g}: "
                "sampling could not start once min_size_to_sample items are inserted"
            )
        super().__init__(ratio, size, min_diff, max_diff)

    def _as_native(self) -> native.AnyRateLimiter:
        return native.SampleToInsertRatio(
            self._samples_per_insert, self._min_size_to_sample, (self._min_diff, self._max_diff)
        )


class Queue(RateLimiter):
    """Each item is sampled once; inserts wait while `size` items have not been sampled. See `Table.queue`."""

    def __init__(self, size: int) -> None:
        """Makes a limiter.

        Args:
            size: At least 1: how many items may wait to be sampled.

        Raises:
            TypeError: It is no integer.
            ValueError: It is below 1, or above 2**63 - 1.
        """
        _size(size)
        super().__init__(1.0, 1, 0.0, size)

    def _as_native(self) -> native.AnyRateLimiter:
        return native.Queue(int(self._max_diff))


class Stack(RateLimiter):
    """Each item is sampled once; inserts wait while `size` items have not been sampled. See `Table.stack`."""

    def __init__(self, size: int) -> None:
        """Makes a limiter.

        Args:
            size: At least 1: how many items may wait to be sampled.

        Raises:
            TypeError: It is no integer.
            ValueError: It is below 1, or above 2**63 - 1.
        """
        _size(size)
        super().__init__(1.0, 1, 0.0, size)

    def _as_native(self) -> native.AnyRateLimiter:
        return native.Stack(int(self._max_diff))


def _size(size: int) -> None:
    if _arguments.integer("size", size) < 1:
        raise ValueError(f"size ({size}) must be a positive integer")


def _range(error_buffer: Any, offset: float) -> tuple[float, float]:  # noqa: ANN401, anything
    """The lowest and the highest difference that are allowed."""
    if isinstance(error_buffer, int | float | np.number):
        return offset - float(error_buffer), offset + float(error_buffer)
    try:
        low, high = error_buffer
    except (TypeError, ValueError):
        raise TypeError(
            f"`error_buffer` must be a number or a pair (min_diff, max_diff); got {_arguments.describe(error_buffer)}"
        ) from None
    return _arguments.number("error_buffer[0]", low), _arguments.number("error_buffer[1]", high)
