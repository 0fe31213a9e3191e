"""Episodes for adders, the items that adders create from them, and a model of those items."""

from itertools import pairwise

import dm_env
import numpy as np
from hypothesis import strategies as st

import engram
from engram import Pattern, Table, rate_limiters, selectors
from engram.adders import (
    EpisodeAdder,
    MultiSequenceAdder,
    NonOverlappingRNNSequenceAdder,
    NStepTransitionAdder,
    SequenceAdder,
    StructuredAdder,
)

# Makes an adder from a store; its items enter the table `priority_table`.
MAKERS = {
    "one step": lambda store, **kw: NStepTransitionAdder(store, 1, 0.9, **kw),
    "transition": lambda store, **kw: NStepTransitionAdder(store, 2, 0.9, **kw),
    "sequence": lambda store, **kw: SequenceAdder(store, 2, 1, **kw),
    "truncated": lambda store, **kw: SequenceAdder(store, 2, 1, end_of_episode_behavior="truncate", **kw),
    "multi": lambda store, **kw: MultiSequenceAdder(store, {"priority_table": 2}, {"priority_table": 1}, **kw),
    "rnn": lambda store, **kw: NonOverlappingRNNSequenceAdder(store, 2, **kw),
    "episode": lambda store, **kw: EpisodeAdder(store, 10, **kw),
    "structured": lambda store, **kw: StructuredAdder(store, [Pattern("priority_table", num_steps=1)], **kw),
}


def queue(name="priority_table"):
    """Returns a table whose items are sampled once each, in order."""
    return Table(name, sampler=selectors.Fifo(), max_times_sampled=1)


def blocked():
    """Returns a queue that accepts one item until `unblock` is called."""
    limiter = rate_limiters.Queue(1)
    return Table("priority_table", sampler=selectors.Fifo(), max_times_sampled=1, rate_limiter=limiter)


def unblock(store):
    """Makes a `blocked` queue accept all items."""
    store.set_rate_limiter("priority_table", rate_limiters.MinSize(1))


def timesteps(rewards, *, discounts=None, first=1):
    """Returns the time steps of an episode; observations are numbered from `first` on.

    By default, the episode terminates: its last discount is 0, all others are 1.
    """
    discounts = [1.0] * (len(rewards) - 1) + [0.0] if discounts is None else discounts
    steps = [dm_env.restart(observation=np.int64(first))]
    for number, (reward, discount) in enumerate(zip(rewards, discounts, strict=True), 1):
        kind = dm_env.StepType.LAST if number == len(rewards) else dm_env.StepType.MID
        steps.append(dm_env.TimeStep(kind, np.float64(reward), np.float64(discount), np.int64(first + number)))
    return steps


def play(adder, steps, *, extras=None):
    """Adds an episode; each action is a tenth of its observation, and `extras(t)` returns the extras of step `t`."""
    adder.add_first(steps[0])
    for t, (step, next_step) in enumerate(pairwise(steps)):
        action = np.float32(step.observation / 10)
        adder.add(action, next_step) if extras is None else adder.add(action, next_step, extras(t))


def items(store, table="priority_table"):
    """Samples all items of a queue; returns each as a nest of lists."""
    all_items = []
    while store.info()[table].size:
        all_items.append(to_lists(store.sample(table, 1, timeout=10).data))
    return all_items


def to_lists(data):
    """Returns the only item of a batch as a nest of lists of rounded numbers."""
    leaves, _, structure = engram._engram.flatten(data)
    lists = [np.round(leaf[0].astype(float), 6).tolist() for leaf in leaves]
    return engram._engram.unflatten(structure, lists)


def rows(item):
    """Returns the rows of a sequence, each as `(observation, reward, discount, start_of_episode)`."""
    return list(zip(item.observation, item.reward, item.discount, map(bool, item.start_of_episode), strict=True))


# --- A model of the items of an episode; its rows are those of `rows` ---

PAD = (0, 0.0, 0.0, False)
"""A row of padding."""


def episode_rows(rewards, first):
    """Returns the rows of an episode: its transitions, and the final row."""
    last = len(rewards) - 1
    transitions = [(first + t, reward, float(t != last), t == 0) for t, reward in enumerate(rewards)]
    return [*transitions, (first + len(rewards), 0.0, 0.0, False)]


def expected_sequences(episode, length, period, behavior):
    """Returns the sequences that a sequence adder creates from the rows of an episode."""
    ends = range(length, len(episode) + 1, period)
    sequences = [episode[end - length : end] for end in ends]
    covered = ends[-1] if ends else 0
    if covered == len(episode):
        return sequences
    next_end = covered + period if ends else length
    start = next_end - length
    if behavior == "zero_pad" and start < len(episode):
        padded = episode + [PAD] * (next_end - len(episode))
        sequences.append(padded[start:next_end])
    elif behavior == "truncate" and start < len(episode):
        sequences.append(episode[start:])
    elif behavior == "write":
        sequences.append(episode[-length:])
    return sequences


rewards = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)
