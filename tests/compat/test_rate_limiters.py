"""Rate limiters: their limits as the info of a table states them, and invalid arguments."""

import logging
import re

import numpy as np
import pytest
from helpers.compat_tables import table
from helpers.support import raises

from engram.compat.reverb import rate_limiters

LARGEST = np.finfo(np.float64).max


def limits(limiter):
    """Returns the limits in the info of a table: samples per insert, minimum size, minimum and maximum difference."""
    info = table(rate_limiter=limiter).info.rate_limiter_info
    return info.samples_per_insert, info.min_size_to_sample, info.min_diff, info.max_diff


@pytest.mark.parametrize(
    ("limiter", "expected"),
    [
        (rate_limiters.MinSize(3), (1.0, 3, -LARGEST, LARGEST)),
        (rate_limiters.SampleToInsertRatio(2.0, 3, 4.0), (2.0, 3, 2.0, 10.0)),
        (rate_limiters.SampleToInsertRatio(2, 3, 4), (2.0, 3, 2.0, 10.0)),
        (rate_limiters.SampleToInsertRatio(2.0, 3, (1.0, 9.0)), (2.0, 3, 1.0, 9.0)),
        (rate_limiters.SampleToInsertRatio(2.0, 3, [1.0, 9.0]), (2.0, 3, 1.0, 9.0)),
        (rate_limiters.SampleToInsertRatio(2.0, 3, np.float64(4.0)), (2.0, 3, 2.0, 10.0)),
        (rate_limiters.SampleToInsertRatio(1.0, 1, float("inf")), (1.0, 1, -LARGEST, LARGEST)),
        (rate_limiters.Queue(5), (1.0, 1, 0.0, 5.0)),
        (rate_limiters.Stack(5), (1.0, 1, 0.0, 5.0)),
        (rate_limiters.RateLimiter(1.5, 2, -1.0, 7.0), (1.5, 2, -1.0, 7.0)),
    ],
)
def test_the_table_info_contains_the_limits(limiter, expected):
    assert limits(limiter) == expected


def test_repr():
    assert repr(rate_limiters.MinSize(1)) == (
        "RateLimiter(samples_per_insert=1, min_diff_=-1.79769e+308, max_diff=1.79769e+308, min_size_to_sample=1)"
    )
    assert repr(rate_limiters.SampleToInsertRatio(1.0, 1, 1.5)) == (
        "RateLimiter(samples_per_insert=1, min_diff_=-0.5, max_diff=2.5, min_size_to_sample=1)"
    )


def test_float32_is_a_number_too():
    assert limits(rate_limiters.SampleToInsertRatio(2.0, 3, np.float32(4.0))) == (2.0, 3, 2.0, 10.0)


RANGE_TOO_SMALL = (
    "error_buffer (0.5) leaves a range of 1: the range must be >= 2 * max(1.0, samples_per_insert) = 8, "
    "or samples and inserts could block each other"
)
RANGE_BEGINS_TOO_HIGH = (
    "error_buffer begins at 2, above samples_per_insert * min_size_to_sample = 1: "
    "sampling could not start once min_size_to_sample items are inserted"
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 1, 1.0), "samples_per_insert (0) must be > 0"),
        ((-1.0, 0, 1.0), "samples_per_insert (-1.0) must be > 0"),  # checked before the size
        ((4.0, 10, 0.5), RANGE_TOO_SMALL),
        ((4.0, 0, 0.5), RANGE_TOO_SMALL),  # checked before the size
        ((1.0, 1, (2.0, 9.0)), RANGE_BEGINS_TOO_HIGH),
        (
            (1.0, 1_000_000, (1_000_000.5, 2_000_000)),
            RANGE_BEGINS_TOO_HIGH.replace("at 2", "at 1000000.5").replace("= 1:", "= 1000000:"),
        ),
        ((1.0, 0, 8.0), "min_size_to_sample (0) must be a positive integer"),
    ],
)
def test_invalid_ratios_are_rejected(arguments, text):
    with raises(ValueError, text):
        rate_limiters.SampleToInsertRatio(*arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1.0, 1.5, 8.0), "`min_size_to_sample` must be an integer; got 1.5 (float)"),
        (("a", 1, 8.0), "`samples_per_insert` must be a number; got 'a' (str)"),
        ((np.True_, 1, 8.0), f"`samples_per_insert` must be a number; got {np.True_!r} ({type(np.True_).__name__})"),
        ((1.0, 1, True), "`error_buffer` must be a number or a pair (min_diff, max_diff); got True (bool)"),
        ((1.0, 1, (False, 9.0)), "`error_buffer[0]` must be a number; got False (bool)"),
        ((1.0, 1, None), "`error_buffer` must be a number or a pair (min_diff, max_diff); got None"),
        ((1.0, 1, (1, 2, 3)), "`error_buffer` must be a number or a pair (min_diff, max_diff); got (1, 2, 3) (tuple)"),
        ((1.0, 1, ("a", 9.0)), "`error_buffer[0]` must be a number; got 'a' (str)"),
    ],
)
def test_arguments_of_wrong_types_are_rejected(arguments, text):
    with raises(TypeError, text):
        rate_limiters.SampleToInsertRatio(*arguments)


def test_a_range_that_may_block_without_end_causes_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="engram.compat.reverb.rate_limiters"):
        rate_limiters.SampleToInsertRatio(1.0, 10, (-9.0, 2.0))
    text = (
        "The range of error_buffer ends at 2, below samples_per_insert * min_size_to_sample = 10: a thread that "
        "both inserts and samples may block forever."
    )
    assert caplog.messages == [text]


def test_limits_that_block_both_sides_cause_a_warning():
    text = (
        "`max_diff` must be at least 2 with `samples_per_insert` = 2 and `min_diff` = 0, or inserts and samples would "
        "block each other forever; got 1; raise `max_diff` to 2, or lower `min_diff` to -1; Reverb accepts this rate "
        "limiter, too"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
        limiter = rate_limiters.RateLimiter(2, 1, 0, 1)
    assert limits(limiter) == (2.0, 1, 0.0, 1.0)


def test_rate_limiter_checks_its_arguments():
    with raises(ValueError, "samples_per_insert (0.0) must be > 0"):
        rate_limiters.RateLimiter(0.0, 1, 0, 5)
    with raises(ValueError, "min_size_to_sample (0) must be a positive integer"):
        rate_limiters.RateLimiter(1.0, 0, 0, 5)
    with raises(TypeError, "`min_size_to_sample` must be an integer; got 1.5 (float)"):
        rate_limiters.RateLimiter(1.0, 1.5, 0, 5)
    with raises(ValueError, "`min_diff` must be at most `max_diff`; got 5 and 1"):
        rate_limiters.RateLimiter(1.0, 1, 5, 1)
    with pytest.raises(TypeError, match="missing 4 required positional arguments"):
        rate_limiters.RateLimiter()


def test_sizes_are_checked():
    with raises(ValueError, "min_size_to_sample (0) must be a positive integer"):
        rate_limiters.MinSize(0)
    for kind in (rate_limiters.Queue, rate_limiters.Stack):
        with raises(ValueError, "size (0) must be a positive integer"):
            kind(0)
        with raises(TypeError, "`size` must be an integer; got 1.5 (float)"):
            kind(1.5)
        with raises(ValueError, f"`size` must be at most {2**63 - 1}; got {2**63}"):
            kind(2**63)
        assert "max_diff=9.22337e+18" in repr(kind(2**63 - 1))


def test_a_limiter_belongs_to_one_table():
    shared = rate_limiters.MinSize(1)
    first = table("first", rate_limiter=shared)
    text = (
        "the rate limiter of table 'second' already belongs to table 'first'; create a separate rate limiter for each "
        "table"
    )
    with raises(ValueError, text):
        table("second", rate_limiter=shared)
    assert first.can_insert(1)  # the first table still works


def test_a_rejected_table_does_not_own_the_limiter():
    limiter = rate_limiters.MinSize(1)
    with raises(ValueError, "Unsupported signature spec: 3"):
        table(rate_limiter=limiter, signature=3)
    assert table(rate_limiter=limiter).name == "t"
