"""The order of calls that all adders require."""

from contextlib import suppress
from types import SimpleNamespace

import dm_env
import numpy as np
import pytest
from helpers.episodes import MAKERS, blocked, items, play, queue, timesteps, unblock
from helpers.support import raises

from engram import Store
from engram.errors import DeadlineExceededError, InvalidArgumentError


@pytest.fixture(params=sorted(MAKERS))
def make(request):
    return MAKERS[request.param]


def test_calls_out_of_order_are_rejected(make):
    with Store([queue()]) as store, make(store) as adder:
        steps = timesteps([1, 2, 3])
        with raises(
            InvalidArgumentError, "`add` continues an episode, but none is in progress; call `add_first` first"
        ):
            adder.add(np.float32(0), steps[1])
        with raises(InvalidArgumentError, "`add_first` requires the first time step of an episode; got a later one"):
            adder.add_first(steps[1])
        adder.add_first(steps[0])
        with raises(
            InvalidArgumentError,
            "`add_first` starts an episode, but one is in progress; pass its last time step to `add`, or call `reset`",
        ):
            adder.add_first(steps[0])
        with raises(
            InvalidArgumentError,
            (
                "`add` requires the time step that an action led to; got a first time step: "
                "call `add_first` to start the next episode"
            ),
        ):
            adder.add(np.float32(0), dm_env.restart(np.int64(0)))
        adder.reset()
        play(adder, steps)
        items_before = items(store)
        play(adder, steps)
        assert items(store) == items_before != []


def test_objects_that_are_no_time_steps_are_rejected(make):
    text = (
        "a time step must have `reward`, `discount`, `observation`, `first()` and `last()`, like dm_env.TimeStep; got "
        "(1.0, 'obs')"
    )
    with Store([queue()]) as store, make(store) as adder:
        with raises(InvalidArgumentError, text):
            adder.add_first((1.0, "obs"))
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        with raises(InvalidArgumentError, text):
            adder.add(np.float32(0), (1.0, "obs"))


@pytest.mark.parametrize("missing", ["reward", "discount", "observation", "last"])
def test_nothing_is_kept_of_incomplete_time_steps(make, missing):
    with Store([queue()]) as store, make(store) as adder:
        steps = timesteps([1, 2])
        play(adder, steps)
        expected = items(store)
        attributes = {name: getattr(steps[1], name) for name in ("reward", "discount", "observation", "first", "last")}
        incomplete = SimpleNamespace(**{name: value for name, value in attributes.items() if name != missing})
        text = (
            "a time step must have `reward`, `discount`, `observation`, `first()` and `last()`, like dm_env.TimeStep; "
            f"got {repr(incomplete)[:100]}..."
        )
        if missing == "observation":
            with raises(InvalidArgumentError, text):
                adder.add_first(incomplete)
        adder.add_first(steps[0])
        with raises(InvalidArgumentError, text):
            adder.add(np.float32(9), incomplete)
        adder.add(np.float32(0.1), steps[1])
        adder.add(np.float32(0.2), steps[2])
        assert items(store) == expected


@pytest.mark.parametrize(
    ("timeout", "text"),
    [
        ("x", "`timeout` must be a number of seconds, at least 0, or None to wait forever; got 'x' (str)"),
        (-1, "`timeout` must be a number of seconds, at least 0, or None to wait forever; got -1"),
    ],
)
def test_bad_timeouts_are_rejected(make, timeout, text):
    with Store([queue()]) as store, make(store) as adder:
        adder.add_first(timesteps([1])[0])
        for call in (adder.flush, adder.close):
            with raises(InvalidArgumentError, text):
                call(timeout=timeout)
        adder.add(np.float32(0), timesteps([1])[1])


def test_unknown_options_are_rejected(make):
    text = (
        "unknown argument `max_waiting`; the options that all writers and adders accept are `chunk_length`, "
        "`max_in_flight_items`, `max_waiting_items`, `timeout`, `compression`"
    )
    with Store([queue()]) as store, raises(TypeError, text):
        make(store, max_waiting=3)


def test_closing_twice_is_allowed(make):
    with Store([queue()]) as store:
        adder = make(store)
        play(adder, timesteps([1, 2, 3]))
        adder.close()
        adder.close()


def test_an_episode_whose_end_times_out_has_ended(make):
    with Store([queue()]) as store, make(store) as adder:
        play(adder, timesteps([1, 2, 3]))
        expected = items(store)
    with Store([blocked()]) as store, make(store, timeout=0.02) as adder:
        for _ in range(3):
            with suppress(DeadlineExceededError):
                play(adder, timesteps([1, 2, 3]))
        with pytest.raises(DeadlineExceededError):
            adder.flush(timeout=0.01)
        unblock(store)
        adder.flush(timeout=10)
        assert items(store) == expected * 3
