"""The order of calls that all adders ask for."""

from contextlib import suppress

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
