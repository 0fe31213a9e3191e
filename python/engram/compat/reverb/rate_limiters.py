"""Rate limiters: they limit samples relative to inserts, and inserts relative to samples.

With `I` items inserted, `S` items sampled and `D` items deleted so far, one more

* sample is allowed while `I - D >= min_size_to_sample` and `I * samples_per_insert - S - 1 >= min_diff`;
* insert is allowed while `I + 1 - D <= min_size_to_sample` or `(I + 1) * samples_per_insert - S <= max_diff`.

Every limiter is a choice of these four numbers. A limiter belongs to one table.
"""

import logging
import math
import sys
import warnings
from typing import Any

import numpy as np

from engram import _engram
from engram import rate_limiters as native
from engram._text import number_text
from engram.compat.reverb import _arguments
from engram.errors import InvalidArgumentError

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

_NEVER = sys.float_info.max
"""A bound that is never reached."""

_log = logging.getLogger(__name__)


class RateLimiter:
    """The general rate limiter, with any choice of the four numbers."""

    def __init__(self, samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float) -> None:
        """Creates a rate limiter.

        Args:
            samples_per_insert: Number of samples that each insert allows, above 0.
            min_size_to_sample: Number of items in the table required for sampling, at least 1.
            min_diff: Minimum of `inserts * samples_per_insert - samples`: a sample waits if it would take the
                difference below this minimum. `-inf` means no minimum.
            max_diff: Maximum of the same difference: an insert waits if it would take the difference above this
                maximum, unless the table then still has at most `min_size_to_sample` items. `inf` means no maximum.

        Raises:
            TypeError: `min_size_to_sample` is not an integer, or another argument is not a number.
            ValueError: A number is NaN or out of range, `min_diff` is infinite, or it is above `max_diff`.

        As in Reverb, inserts and samples may block each other forever. Then a warning states which numbers would not.
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
        numbers = (self._samples_per_insert, self._min_size_to_sample, self._min_diff, self._max_diff)
        if self._min_diff <= self._max_diff and self._min_diff < math.inf:
            limiter = native.from_native("RateLimiter", *numbers)
            try:
                _engram.check_progress(limiter)
            except InvalidArgumentError as error:
                warnings.warn(f"{error}; Reverb accepts this rate limiter, too", stacklevel=3)
            return limiter
        return native.RateLimiter(*numbers)  # raises an error

    def _claim(self, table: str) -> None:
        """Records the table that this limiter belongs to."""
        if self._table is not None:
            raise ValueError(
                f"the rate limiter of table '{table}' already belongs to table '{self._table}'; "
                "create a separate rate limiter for each table"
            )
        self._table = table

    def _unclaimed_copy(self) -> "RateLimiter":
        """Returns a copy that belongs to no table."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._table = None  # noqa: SLF001, same class
        return copy

    def __repr__(self) -> str:
        # As in Reverb, with the underscore after `min_diff`.
        return (
            f"RateLimiter(samples_per_insert={self._samples_per_insert:g}, min_diff_={self._min_diff:g}, "
            f"max_diff={self._max_diff:g}, min_size_to_sample={self._min_size_to_sample})"
        )


class MinSize(RateLimiter):
    """Samples wait until the table has `min_size_to_sample` items; inserts never wait."""

    def __init__(self, min_size_to_sample: int) -> None:
        """Creates a rate limiter.

        Args:
            min_size_to_sample: Number of items required for sampling, at least 1.

        Raises:
            TypeError: `min_size_to_sample` is not an integer.
            ValueError: `min_size_to_sample` is below 1 or above 2**63 - 1.
        """
        super().__init__(1.0, min_size_to_sample, -_NEVER, _NEVER)

    def _as_native(self) -> native.AnyRateLimiter:
        return native.MinSize(self._min_size_to_sample)


class SampleToInsertRatio(RateLimiter):
    """Keeps the number of samples per insert close to `samples_per_insert`."""

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
    ) -> None:
        """Creates a rate limiter.

        Args:
            samples_per_insert: The target ratio, above 0.
            min_size_to_sample: Number of items in the table required for sampling, at least 1.
            error_buffer: Allowed range of `inserts * samples_per_insert - samples`, in samples. A number is the allowed
                deviation from `min_size_to_sample * samples_per_insert`. A pair is `(min_diff, max_diff)`; if
                `max_diff` is below `min_size_to_sample * samples_per_insert`, a warning is logged.

        Raises:
            TypeError: `min_size_to_sample` is not an integer, `samples_per_insert` is not a number, or `error_buffer`
                is neither a number nor a pair of numbers.
            ValueError: A number is NaN or out of range, the range of `error_buffer` is narrower than
                `2 * max(1, samples_per_insert)`, or the range begins above `min_size_to_sample * samples_per_insert`.
        """
        ratio = _arguments.number("samples_per_insert", samples_per_insert)
        size = _arguments.integer("min_size_to_sample", min_size_to_sample)
        offset = ratio * size
        min_diff, max_diff = _range(error_buffer, offset)
        if ratio <= 0:
            raise ValueError(f"samples_per_insert ({samples_per_insert}) must be > 0")
        if not max_diff - min_diff >= 2 * max(1.0, ratio):
            needed = number_text(2 * max(1.0, ratio))
            raise ValueError(
                f"error_buffer ({error_buffer}) leaves a range of {max_diff - min_diff:.15g}: the range must be "
                f">= 2 * max(1.0, samples_per_insert) = {needed}, or samples and inserts could block "
                "each other"
            )
        if max_diff < offset:
            _log.warning(
                "The range of error_buffer ends at %s, below samples_per_insert * min_size_to_sample = %s: a thread "
                "that both inserts and samples may block forever.",
                number_text(max_diff),
                number_text(offset),
            )
        if min_diff > offset:
            raise ValueError(
                f"error_buffer begins at {number_text(min_diff)}, above samples_per_insert * min_size_to_sample = "
                f"{number_text(offset)}: sampling could not start once min_size_to_sample items are inserted"
            )
        super().__init__(ratio, size, min_diff, max_diff)

    def _as_native(self) -> native.AnyRateLimiter:
        return native.SampleToInsertRatio(
            self._samples_per_insert, self._min_size_to_sample, (self._min_diff, self._max_diff)
        )


class _EachItemOnce(RateLimiter):
    _native_class: type[native.Queue | native.Stack]

    def __init__(self, size: int) -> None:
        """Creates a rate limiter.

        Args:
            size: Maximum number of unsampled items, at least 1. Items that are removed unsampled count until the table
                is reset. An empty table always accepts an item.

        Raises:
            TypeError: `size` is not an integer.
            ValueError: `size` is below 1 or above 2**63 - 1.
        """
        self._size = _arguments.positive("size", size)
        super().__init__(1.0, 1, 0.0, self._size)

    def _as_native(self) -> native.AnyRateLimiter:
        return self._native_class(self._size)


class Queue(_EachItemOnce):
    """Each item is sampled once; inserts wait while there are `size` unsampled items. See `Table.queue`."""

    _native_class = native.Queue


class Stack(_EachItemOnce):
    """Each item is sampled once; inserts wait while there are `size` unsampled items. See `Table.stack`."""

    _native_class = native.Stack


def _range(error_buffer: Any, offset: float) -> tuple[float, float]:  # noqa: ANN401, anything
    """Returns `min_diff` and `max_diff`."""
    if isinstance(error_buffer, int | float | np.number) and not isinstance(error_buffer, bool):
        return offset - float(error_buffer), offset + float(error_buffer)
    try:
        low, high = error_buffer
    except (TypeError, ValueError):
        raise TypeError(
            f"`error_buffer` must be a number or a pair (min_diff, max_diff); got {_arguments.describe(error_buffer)}"
        ) from None
    return _arguments.number("error_buffer[0]", low), _arguments.number("error_buffer[1]", high)
