"""Tables, selectors and rate limiters check their arguments; each error has its own text."""

import copy
import dataclasses
import math
import pickle
import re
import typing
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram import Store, Table, errors, selectors
from engram.errors import InvalidArgumentError
from engram.rate_limiters import MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack

INF, NAN = math.inf, math.nan


def check_rejected(create, text):
    """Checks that `create()` raises an error with exactly this text."""
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(text)}$"):
        create()


def pickle_copy(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301, the bytes are from this process


# --- tables --------------------------------------------------------------------------------------


def test_table_defaults():
    table = Table("replay")
    assert table == Table(
        "replay",
        max_size=1_000_000,
        sampler=selectors.Uniform(),
        remover=selectors.Fifo(),
        rate_limiter=MinSize(1),
        max_times_sampled=None,
        max_bytes=None,
        ttl=None,
        signature=None,
        seed=None,
    )


def test_only_the_name_is_positional():
    with pytest.raises(TypeError, match="positional"):
        Table("replay", 100)


def test_table_is_a_value():
    table = Table("replay", max_size=10, signature={"obs": 1})
    assert pickle_copy(table) == copy.deepcopy(table) == table
    assert hash(table) == hash(copy.deepcopy(table))
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.max_size = 11


def test_replace_checks_again():
    table = Table("replay", max_size=10)
    check_rejected(
        lambda: dataclasses.replace(table, max_size=0),
        "table `replay`: `max_size` must be at least 1; got 0",
    )


def test_numpy_scalars_become_plain_numbers():
    table = Table("replay", max_size=np.int64(10), ttl=np.float32(1.5), seed=np.uint8(3))
    assert [type(x) for x in (table.max_size, table.ttl, table.seed)] == [int, float, int]


def test_queue_and_stack_set_these_options():
    queue = Table.queue("q", max_size=5, ttl=2)
    assert queue == Table(
        "q",
        max_size=5,
        sampler=selectors.Fifo(),
        remover=selectors.Fifo(),
        rate_limiter=Queue(5),
        max_times_sampled=1,
        ttl=2.0,
    )
    stack = Table.stack("s", max_size=5, max_bytes=100)
    assert stack == Table(
        "s",
        max_size=5,
        sampler=selectors.Lifo(),
        remover=selectors.Lifo(),
        rate_limiter=Stack(5),
        max_times_sampled=1,
        max_bytes=100,
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_size": 0}, "`max_size` must be at least 1; got 0"),
        ({"max_size": -5}, "`max_size` must be at least 1; got -5"),
        ({"max_size": 2**63}, "`max_size` must be at most 9223372036854775807; got 2**63"),
        ({"max_size": 1e6}, "`max_size` must be an integer; got 1000000.0 (float)"),
        ({"max_size": NAN}, "`max_size` must be an integer; got nan (float)"),
        ({"max_size": INF}, "`max_size` must be an integer; got inf (float)"),
        ({"max_size": "10"}, "`max_size` must be an integer; got '10' (str)"),
        ({"max_size": True}, "`max_size` must be an integer; got True (bool)"),
        ({"max_size": None}, "`max_size` must be an integer; got None"),
        ({"max_times_sampled": 0}, "`max_times_sampled` must be at least 1; got 0"),
        ({"max_times_sampled": 2**31}, "`max_times_sampled` must be at most 2147483647; got 2**31"),
        ({"max_bytes": 0}, "`max_bytes` must be at least 1; got 0"),
        ({"max_bytes": 1.5}, "`max_bytes` must be an integer; got 1.5 (float)"),
        ({"ttl": 0}, "`ttl` must be greater than 0; got 0"),
        ({"ttl": 1e-10}, "`ttl` must be at least 1e-09 seconds; got 1e-10"),
        ({"ttl": -1.5}, "`ttl` must be greater than 0; got -1.5"),
        ({"ttl": NAN}, "`ttl` must be a number; got nan"),
        ({"ttl": INF}, "`ttl` must be finite; got inf"),
        ({"ttl": "5"}, "`ttl` must be a number; got '5' (str)"),
        ({"ttl": 1j}, "`ttl` must be a number; got 1j (complex)"),
        ({"seed": -1}, "`seed` must be at least 0; got -1"),
        ({"seed": 2**64}, "`seed` must be at most 18446744073709551615; got 2**64"),
        (
            {"sampler": "uniform"},
            "`sampler` must be one of engram.selectors, such as Uniform(); got 'uniform' (str)",
        ),
        (
            {"remover": selectors.Fifo},
            ("`remover` must be one of engram.selectors, such as Uniform(); got the class Fifo itself; call it"),
        ),
        (
            {"remover": int},
            "`remover` must be one of engram.selectors, such as Uniform(); got <class 'int'> (type)",
        ),
        (
            {"rate_limiter": None},
            "`rate_limiter` must be one of engram.rate_limiters, such as MinSize(1); got None",
        ),
        (
            {"rate_limiter": selectors.Fifo()},
            ("`rate_limiter` must be one of engram.rate_limiters, such as MinSize(1); got Fifo() (Fifo)"),
        ),
        (
            {"max_size": 5, "rate_limiter": MinSize(6)},
            "nothing could ever be sampled: MinSize waits for 6 items, but `max_size` is 5; increase `max_size`",
        ),
    ],
)
def test_bad_tables_are_rejected(arguments, text):
    text = text.replace("2**63", str(2**63)).replace("2**31", str(2**31)).replace("2**64", str(2**64))
    check_rejected(lambda: Table("replay", **arguments), f"table `replay`: {text}")


@pytest.mark.parametrize("name", ["", None, 3, b"replay"])
def test_bad_names_are_rejected(name):
    check_rejected(lambda: Table(name), f"`name` must be a non-empty str; got {name!r}")


@pytest.mark.parametrize("make", [Table.queue, Table.stack])
def test_bad_queues_and_stacks_are_rejected(make):
    check_rejected(lambda: make("q", max_size=0), "table `q`: `max_size` must be at least 1; got 0")


def test_min_size_may_equal_max_size():
    assert Table("replay", max_size=5, rate_limiter=MinSize(5)).rate_limiter.min_size == 5


# --- selectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("selector_class", typing.get_args(selectors.Selector))
def test_the_kind_of_a_selector_is_its_name(selector_class):
    selector = selector_class()
    assert selector.kind == selector_class.__name__
    with Store([Table("t", sampler=selector, remover=selector)]) as store:
        assert (store.info()["t"].sampler, store.info()["t"].remover) == (selector, selector)


def test_prioritized_has_an_exponent():
    assert selectors.Prioritized().exponent == 0.6
    assert selectors.Prioritized(-0.1).exponent == -0.1
    assert type(selectors.Prioritized(np.float32(1)).exponent) is float


@pytest.mark.parametrize(
    ("exponent", "text"),
    [
        (NAN, "`exponent` must be a number; got nan"),
        (INF, "`exponent` must be finite; got inf"),
        ("1", "`exponent` must be a number; got '1' (str)"),
        (True, "`exponent` must be a number; got True (bool)"),
        (None, "`exponent` must be a number; got None"),
        (10**400, f"`exponent` must be a number; got 1{'0' * 99}... (int)"),
        (np.ones(2), "`exponent` must be a number; got array([1., 1.]) (ndarray)"),
    ],
)
def test_bad_exponents_are_rejected(exponent, text):
    check_rejected(lambda: selectors.Prioritized(exponent), text)


# --- rate limiters -------------------------------------------------------------------------------


def parameters_of(limiter):
    return limiter.samples_per_insert, limiter.min_size, limiter.min_diff, limiter.max_diff


@pytest.mark.parametrize(
    ("limiter", "kind", "numbers"),
    [
        (MinSize(7), "MinSize", (1.0, 7, -INF, INF)),
        (Queue(7), "Queue", (1.0, 1, 0.0, 7.0)),
        (Stack(7), "Stack", (1.0, 1, 0.0, 7.0)),
        (SampleToInsertRatio(4, 10, 8), "SampleToInsertRatio", (4.0, 10, 32.0, 48.0)),
        (SampleToInsertRatio(0.5, 10, 1), "SampleToInsertRatio", (0.5, 10, 4.0, 6.0)),
        (SampleToInsertRatio(4, 10, (-8, 60)), "SampleToInsertRatio", (4.0, 10, -8.0, 60.0)),
        (SampleToInsertRatio(4, 10, [-INF, INF]), "SampleToInsertRatio", (4.0, 10, -INF, INF)),
        (RateLimiter(2, 3, -1, 9), "RateLimiter", (2.0, 3, -1.0, 9.0)),
    ],
)
def test_every_rate_limiter_has_four_parameters(limiter, kind, numbers):
    assert (limiter.kind, parameters_of(limiter)) == (kind, numbers)
    assert [type(x) for x in parameters_of(limiter)] == [float, int, float, float]
    assert pickle_copy(limiter) == limiter


def test_ratios_are_equal_if_their_four_parameters_are():
    number, pair = SampleToInsertRatio(4, 10, 8), SampleToInsertRatio(4, 10, (32, 48))
    assert number == pair
    assert hash(number) == hash(pair)
    assert number not in {SampleToInsertRatio(4, 10, 9), SampleToInsertRatio(4, 11, (32, 48)), MinSize(10)}
    assert number.__eq__(RateLimiter(4, 10, 32, 48)) is NotImplemented


@pytest.mark.parametrize("make", [MinSize, Queue, Stack])
@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "must be at least 1; got 0"),
        (-1, "must be at least 1; got -1"),
        (1.0, "must be an integer; got 1.0 (float)"),
        (NAN, "must be an integer; got nan (float)"),
        (False, "must be an integer; got False (bool)"),
        (None, "must be an integer; got None"),
    ],
)
def test_bad_sizes_are_rejected(make, size, text):
    argument = "`min_size`" if make is MinSize else "`size`"
    check_rejected(lambda: make(size), f"{argument} {text}")


def error_buffer_text(needed, ratio, given, width):
    return (
        f"`error_buffer` must allow a range of at least {needed} samples for `samples_per_insert` = {ratio}; "
        f"got {given}, a range of {width}; pass at least {needed / 2:g}, or a pair whose difference is at least "
        f"{needed}"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 1, 2), "`samples_per_insert` must be greater than 0; got 0"),
        ((-1, 1, 2), "`samples_per_insert` must be greater than 0; got -1"),
        ((NAN, 1, 2), "`samples_per_insert` must be a number; got nan"),
        ((INF, 1, 2), "`samples_per_insert` must be finite; got inf"),
        (("1", 1, 2), "`samples_per_insert` must be a number; got '1' (str)"),
        ((1, 0, 2), "`min_size` must be at least 1; got 0"),
        ((1, 1.5, 2), "`min_size` must be an integer; got 1.5 (float)"),
        ((1, 1, NAN), "`error_buffer` must be a number; got nan"),
        ((1, 1, INF), "`error_buffer` must be finite; got inf"),
        ((1, 1, None), "`error_buffer` must be a number; got None"),
        ((1, 1, True), "`error_buffer` must be a number; got True (bool)"),
        ((1, 1, np.True_), f"`error_buffer` must be a number; got {np.True_!r} ({type(np.True_).__name__})"),
        ((1, 1, (NAN, 1)), "`error_buffer[0]` must be a number; got nan"),
        ((1, 1, (1, "2")), "`error_buffer[1]` must be a number; got '2' (str)"),
        (
            (1, 1, (1, 2, 3)),
            "`error_buffer` must be a number or a pair (min_diff, max_diff); got (1, 2, 3), 3 values",
        ),
        (
            (1, 10, 0.9),
            error_buffer_text(2, 1, "0.9", "1.8"),
        ),
        (
            (0.5, 10, 0.9),
            error_buffer_text(2, 0.5, "0.9", "1.8"),
        ),
        (
            (4, 10, -4),
            error_buffer_text(8, 4, "-4.0", "-8"),
        ),
        (
            (4, 10, (36, 43)),
            error_buffer_text(8, 4, "(36.0, 43.0)", "7"),
        ),
        (
            (1, 10, (-INF, -INF)),
            error_buffer_text(2, 1, "(-inf, -inf)", "nan"),
        ),
        (
            (4, 10, (41, 60)),
            (
                "`error_buffer[0]` must be at most `samples_per_insert * min_size` = 40; "
                "got 41; otherwise sampling could not start at `min_size` items"
            ),
        ),
        (
            (1, 1_000_000, (1_000_000.5, 2_000_000)),
            (
                "`error_buffer[0]` must be at most `samples_per_insert * min_size` = 1000000; "
                "got 1000000.5; otherwise sampling could not start at `min_size` items"
            ),
        ),
    ],
)
def test_bad_ratios_are_rejected(arguments, text):
    check_rejected(lambda: SampleToInsertRatio(*arguments), text)


def blocking(ratio, low, high, got):
    return (
        f"`max_diff` must be at least {high[0]} with `samples_per_insert` = {ratio} and `min_diff` = {low[0]}, or "
        f"inserts and samples would block each other forever; got {got}; raise `max_diff` to {high[0]}, or lower "
        f"`min_diff` to {low[1]}"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 1, 0, 1), "`samples_per_insert` must be greater than 0; got 0"),
        ((1, 0, 0, 1), "`min_size` must be at least 1; got 0"),
        ((1, 1, NAN, 1), "`min_diff` must be a number; got nan"),
        ((1, 1, 0, NAN), "`max_diff` must be a number; got nan"),
        ((1, 1, "0", 1), "`min_diff` must be a number; got '0' (str)"),
        ((1, 1, 0, None), "`max_diff` must be a number; got None"),
        ((1, 1, 2, 1), "`min_diff` must be at most `max_diff`; got 2 and 1"),
        ((1, 1, INF, INF), "`min_diff` must be less than infinity, or nothing could ever be sampled; got inf"),
        ((1, 5, 5, 5), blocking(1, (5, 4), [6], 5)),
        ((2, 1, 0, 1), blocking(2, (0, -1), [2], 1)),
        ((0.5, 1, 0, 0.5), blocking(0.5, (0, -0.5), [1], 0.5)),
        ((2, 3, 6, 7), blocking(2, (6, 5), [8], 7)),
        ((1 / 3, 1, 0, 0.9), blocking(1 / 3, (0, -1 / 2), [1], 0.9)),
        ((1, 1_000_000, 1_000_000, 1_000_000), blocking(1, (1000000, 999999), [1000001], 1000000)),
    ],
)
def test_bad_rate_limiters_are_rejected(arguments, text):
    check_rejected(lambda: RateLimiter(*arguments), text)


def test_rate_limiters_at_the_limit_are_allowed():
    assert RateLimiter(1, 5, 4, 5).max_diff == 5
    assert RateLimiter(2, 1, 0, 2).max_diff == 2
    assert RateLimiter(1 / 3, 1, 0, 1).max_diff == 1
    assert RateLimiter(1, 1, -INF, -INF).max_diff == -INF
    assert RateLimiter(1e-300, 1, 0, 1e300).min_diff == 0
    assert Queue(1).max_diff == 1


def can_block(ratio, min_size, low, high):
    """Searches the states that can be reached for one that allows neither an insert nor a sample."""
    states, todo = set(), [(0, Fraction(0))]
    while todo:
        size, diff = todo.pop()
        if (size, diff) in states:
            continue
        states.add((size, diff))
        following = []
        if size < min_size or diff + ratio <= high:
            following.append((min(size + 1, min_size), diff + ratio))
        if size == min_size and diff - 1 >= low:
            following.append((size, diff - 1))
        if not following:
            return True
        todo += following
    return False


@given(
    ratio=st.builds(Fraction, st.integers(1, 6), st.sampled_from([1, 2, 4])),
    min_size=st.integers(1, 6),
    low=st.integers(-32, 96).map(lambda n: Fraction(n, 8)),
    width=st.integers(0, 64).map(lambda n: Fraction(n, 8)),
)
def test_a_limiter_is_rejected_if_and_only_if_both_sides_can_block_each_other(ratio, min_size, low, width):
    try:
        RateLimiter(float(ratio), min_size, float(low), float(low + width))
    except InvalidArgumentError:
        assert can_block(ratio, min_size, low, low + width)
    else:
        assert not can_block(ratio, min_size, low, low + width)


@given(
    ratio=st.builds(Fraction, st.integers(1, 7), st.sampled_from([3, 5, 7])),
    min_size=st.integers(1, 4),
    low=st.integers(-4, 8),
    width=st.integers(0, 64).map(lambda n: Fraction(2 * n + 1, 30)),
)
def test_ratios_that_floats_round_are_taken_as_fractions(ratio, min_size, low, width):
    try:
        RateLimiter(float(ratio), min_size, low, float(low + width))
    except InvalidArgumentError:
        assert can_block(ratio, min_size, low, low + width)
    else:
        assert not can_block(ratio, min_size, low, low + width)


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.BackpressureError, RuntimeError),
        (errors.ClosedError, RuntimeError),
        (errors.DeadlineExceededError, TimeoutError),
        (errors.ExpiredStepError, ValueError),
        (errors.ForkedError, RuntimeError),
        (errors.InvalidArgumentError, ValueError),
        (errors.UnsatisfiableError, ValueError),
        (errors.OutOfMemoryError, MemoryError),
        (errors.PriorityError, ValueError),
        (errors.SignatureError, ValueError),
        (errors.UnknownTableError, LookupError),
    ],
)
def test_errors_are_engram_errors_and_builtin_errors(error, builtin):
    assert issubclass(error, errors.EngramError)
    assert issubclass(error, builtin)
