"""Priorities that patterns compute from TD errors."""

import itertools

import numpy as np
import pytest
from helpers.support import case, raises

from engram import Pattern, Table, selectors
from engram.errors import InvalidArgumentError, PriorityError
from engram.patterns import td_error


@pytest.fixture
def store(open_store):
    return open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))


def td_error_pattern(length):
    """A pattern whose items have the TD errors of the newest `length` steps in `td`, and the newest one in `newest`."""
    return Pattern(
        "t",
        lambda s: {"newest": s["td"][-1:], "x": s["x"][-1], "td": s["td"][-length:]},
        priority=td_error(lambda s: s["td"], max_weight=0.25),
    )


def priorities(store):
    all_priorities = []
    while store.info()["t"].size:
        all_priorities += store.sample("t", 1, timeout=0).info.priority.tolist()
    return all_priorities


def test_priorities_combine_maximum_and_mean_of_td_errors(store):
    """Of several columns that are slices of the TD errors, the last one (here `td`) determines the priority."""
    dtypes, shapes, chunk_lengths = (np.float32, np.float64, np.int32, np.int64), ((), (1, 1)), (None, 1, 2)
    for dtype, shape, chunk_length in itertools.product(dtypes, shapes, chunk_lengths):
        with store.pattern_writer([td_error_pattern(2)], chunk_length=chunk_length) as writer:
            for value in (-8, 4, -12, 0):
                writer.append({"x": 1, "td": np.full(shape, value, dtype)})
        with case(dtype, shape, chunk_length):
            assert priorities(store) == [0.25 * 8 + 0.75 * 6, 0.25 * 12 + 0.75 * 8, 0.25 * 12 + 0.75 * 6]


@pytest.mark.parametrize("wide", [0, 2_000])
def test_batched_and_pattern_writers_compute_the_same_priorities(store, wide):
    """With `wide=0`, environments share chunks; large steps are stored in compressed chunks of each environment."""
    for num_envs, chunk_length in itertools.product((1, 3), (None, 1, 3)):
        values = np.arange(11 * num_envs).reshape(11, num_envs) * 7 % 13 - 6.0
        steps = {"td": values, "x": np.ones((11, num_envs)), "pad": np.zeros((11, num_envs, wide), np.uint8)}
        with store.batched_writer(num_envs, [td_error_pattern(4)], chunk_length=chunk_length) as writer:
            for index in range(11):
                writer.append_batch({name: column[index] for name, column in steps.items()})
        batched = sorted(priorities(store))
        for env in range(num_envs):
            with store.pattern_writer([td_error_pattern(4)], chunk_length=chunk_length) as writer:
                for index in range(11):
                    writer.append({name: column[index, env] for name, column in steps.items()})
        with case(num_envs, chunk_length):
            assert batched == sorted(priorities(store))
            assert len(set(batched)) > 3


@pytest.mark.parametrize(
    ("value", "problem"),
    [(np.ones(2, np.float32), "float32[2]"), (np.int8(1), "int8[]"), (True, "bool[]"), ("text", "str[]")],
)
def test_values_that_are_no_td_errors_are_rejected(open_store, value, problem):
    """The step is stored nevertheless, and other patterns create their items."""
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1), Table("u"))
    text = f"TD errors must be one float32, float64, int32 or int64 per step; column `td` of the item has {problem}"
    patterns = [td_error_pattern(1), Pattern("u", lambda s: s["x"][-2:])]
    writer = store.pattern_writer(patterns)
    batched = store.batched_writer(2, patterns)
    for number in range(2):
        with raises(PriorityError, text):
            writer.append({"x": number, "td": value})
        assert writer.episode_steps == number + 1
        with raises(PriorityError, text):
            batched.append_batch({"x": np.full(2, number), "td": np.stack([np.asarray(value)] * 2)})
    writer.close()
    batched.close()
    assert (store.info()["t"].size, store.info()["u"].size) == (0, 3)


def test_a_table_can_reject_priorities(open_store):
    """A rejected priority of one environment does not affect the others."""
    store = open_store(Table("t", sampler=selectors.Fifo(), max_times_sampled=1))
    text = (
        "the TD errors in column `td` of the item give an invalid priority: priority for table `t` is NaN; it must be "
        "a number"
    )
    with store.pattern_writer([td_error_pattern(1)]) as writer:
        writer.append({"x": 0, "td": 2.0})
        with raises(PriorityError, text):
            writer.append({"x": 1, "td": float("nan")})
        writer.append({"x": 2, "td": -3.0})
    with store.batched_writer(3, [td_error_pattern(1)]) as batched, raises(PriorityError, text):
        batched.append_batch({"x": np.zeros(3), "td": np.array([4.0, np.nan, 5.0])})
    batched.close()
    assert priorities(store) == [2.0, 3.0, 4.0, 5.0]


def test_bad_td_errors_are_rejected(store):
    with raises(InvalidArgumentError, "`source` of TD errors must be a function of a step; got 'td'"):
        td_error("td")
    with raises(InvalidArgumentError, "`max_weight` must be from 0 to 1; got 1.5"):
        td_error(lambda s: s, max_weight=1.5)
    text = 'pattern for table `t`: `source` of TD errors must select one column, such as s["x"]; got dict'
    with raises(InvalidArgumentError, text):
        store.pattern_writer([Pattern("t", num_steps=1, priority=td_error(lambda s: s))]).append({"x": 1})
    text = (
        "pattern for table `t`: its priority needs the column `y`, which its items do not contain; "
        "add a slice of it to the item"
    )
    pattern = Pattern("t", lambda s: s["x"][-1], priority=td_error(lambda s: s["y"]))
    with raises(InvalidArgumentError, text):
        store.pattern_writer([pattern]).append({"x": 1, "y": 1.0})
