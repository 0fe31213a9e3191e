"""The order of calls that all adders ask for."""

from contextlib import suppress
from types import SimpleNamespace

import dm_env
import numpy as np
import pytest
from episodes import MAKERS, blocked, items, play, queue, timesteps, unblock
from support import raises

from engram import Store
from engram.errors import DeadlineExceededError, InvalidArgumentError


@pytest.fixture(params=sorted(MAKERS))
def make(request):
    return MAKERS[request.param]


def test_calls_out_of_order(make):
    with Store([queue()]) as store, make(store) as adder:
        steps = timesteps([1, 2, 3])
        with raises(
            InvalidArgumentError, "`add` goes on with an episode, and none is under way; call `add_first` first"
        ):
            adder.add(np.float32(0), steps[1])
        with raises(InvalidArgumentError, "`add_first` takes an episode's first time step; got one that is not first"):
            adder.add_first(steps[1])
        adder.add_first(steps[0])
        with raises(
            InvalidArgumentError,
            "`add_first` begins an episode, and one is under way; `add` its last time step first, or `reset`",
        ):
            adder.add_first(steps[0])
        with raises(
            InvalidArgumentError,
            "`add` takes what an action led to; got a first time step: `add_first` begins the next episode",
        ):
            adder.add(np.float32(0), dm_env.restart(np.int64(0)))
        adder.reset()
        play(adder, steps)
        found = items(store)
        play(adder, steps)
        assert items(store) == found != []


def test_no_time_steps(make):
    text = (
        "a time step has `reward`, `discount`, `observation`, `first()` and `last()`, as dm_env.TimeStep; got "
        "(1.0, 'obs')"
    )
    with Store([queue()]) as store, make(store) as adder:
        with raises(InvalidArgumentError, text):
            adder.add_first((1.0, "obs"))
        steps = timesteps([1, 2])
        adder.add_first(steps[0])
        with raises(InvalidArgumentError, text):
            adder.add(np.float32(0), (1.0, "obs"))


@pytest.mark.parametrize("lacking", ["reward", "discount", "observation", "last"])
def test_time_steps_that_lack_something_keep_nothing(make, lacking):
    with Store([queue()]) as store, make(store) as adder:
        steps = timesteps([1, 2])
        play(adder, steps)
        wanted = items(store)
        has = {name: getattr(steps[1], name) for name in ("reward", "discount", "observation", "first", "last")}
        partly = SimpleNamespace(**{name: value for name, value in has.items() if name != lacking})
        text = "a time step has `reward`, `discount`, `observation`, `first()` and `last()`, as dm_env.TimeStep; got "
        if lacking == "observation":
            with raises(InvalidArgumentError, f"{text}{partly!r}"):
                adder.add_first(partly)
        adder.add_first(steps[0])
        with raises(InvalidArgumentError, f"{text}{partly!r}"):
            adder.add(np.float32(9), partly)
        adder.add(np.float32(0.1), steps[1])
        adder.add(np.float32(0.2), steps[2])
        assert items(store) == wanted


@pytest.mark.parametrize(
    ("timeout", "text"),
    [
        ("x", "`timeout` must be a number of seconds, at least 0, or None to wait forever; got 'x' (str)"),
        (-1, "`timeout` must be a number of seconds, at least 0, or None to wait forever; got -1"),
    ],
)
def test_timeouts_that_mean_nothing(make, timeout, text):
    with Store([queue()]) as store, make(store) as adder:
        adder.add_first(timesteps([1])[0])
        for call in (adder.flush, adder.close):
            with raises(InvalidArgumentError, text):
                call(timeout=timeout)
        adder.add(np.float32(0), timesteps([1])[1])


def test_closed_twice(make):
    with Store([queue()]) as store:
        adder = make(store)
        play(adder, timesteps([1, 2, 3]))
        adder.close()
        adder.close()


def test_an_end_that_must_wait_has_ended(make):
    with Store([queue()]) as store, make(store) as adder:
        play(adder, timesteps([1, 2, 3]))
        wanted = items(store)
    with Store([blocked()]) as store, make(store, timeout=0.02) as adder:
        for _ in range(3):
            with suppress(DeadlineExceededError):
                play(adder, timesteps([1, 2, 3]))
        with pytest.raises(DeadlineExceededError):
            adder.flush(timeout=0.01)
        unblock(store)
        adder.flush(timeout=10)
        assert items(store) == wanted * 3
