"""The order of calls that all adders ask for."""

import dm_env
import numpy as np
import pytest
from episodes import play, queue, timesteps
from support import raises

from engram import Pattern, Store, Table, rate_limiters
from engram.adders import (
    EpisodeAdder,
    MultiSequenceAdder,
    NonOverlappingRNNSequenceAdder,
    NStepTransitionAdder,
    SequenceAdder,
    StructuredAdder,
)
from engram.errors import DeadlineExceededError, InvalidArgumentError

MAKERS = {
    "transition": lambda store, **kw: NStepTransitionAdder(store, 2, 0.9, **kw),
    "sequence": lambda store, **kw: SequenceAdder(store, 2, 1, **kw),
    "truncated": lambda store, **kw: SequenceAdder(store, 2, 1, end_of_episode_behavior="truncate", **kw),
    "multi": lambda store, **kw: MultiSequenceAdder(store, {"priority_table": 2}, {"priority_table": 1}, **kw),
    "rnn": lambda store, **kw: NonOverlappingRNNSequenceAdder(store, 2, **kw),
    "episode": lambda store, **kw: EpisodeAdder(store, 10, **kw),
    "structured": lambda store, **kw: StructuredAdder(store, [Pattern("priority_table", num_steps=1)], **kw),
}


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
        play(adder, steps)
        assert store.info()["priority_table"].size > 0


def test_closed_twice(make):
    with Store([queue()]) as store:
        adder = make(store)
        play(adder, timesteps([1, 2, 3]))
        adder.close()
        adder.close()


def test_an_end_that_must_wait_has_ended(make):
    with Store([Table.queue("priority_table", max_size=1)]) as store, make(store, timeout=0.05) as adder:
        with pytest.raises(DeadlineExceededError):
            for _ in range(3):
                play(adder, timesteps([1, 2, 3]))
        store.set_rate_limiter("priority_table", rate_limiters.MinSize(1))
        adder.flush(timeout=10)
        before = store.info()["priority_table"].inserts
        play(adder, timesteps([1, 2, 3]))
        assert store.info()["priority_table"].inserts > before
