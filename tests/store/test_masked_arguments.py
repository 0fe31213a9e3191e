"""Keys, priorities and flags of masked arrays, or of lists of them, are rejected: masked elements have no value."""

import numpy as np
import pytest
from helpers.support import raises

from engram import Pattern, Table, selectors
from engram.buffers import ReplayBuffer
from engram.errors import InvalidArgumentError

PRIORITIES = np.ma.masked_equal([1.0, 99.0], 99.0)
KEYS = np.ma.masked_equal(np.array([1, 2], np.uint64), 2)
FLAGS = np.ma.masked_equal([True, False], value=False)


def text(name):
    return f"`{name}` must not be a masked array; pass `{name}.filled(value)` instead"


@pytest.mark.parametrize("given", [np.asanyarray, list], ids=["array", "list"])
def test_masked_arguments_of_tables_are_rejected(open_store, given):
    store = open_store(Table("t", sampler=selectors.Prioritized(1.0)))
    keys = store.insert_batch("t", {"x": np.zeros(2)})
    writer = store.batched_writer(2, [Pattern("t", num_steps=1)])
    for name, call in {
        "priorities": lambda: store.insert_batch("t", {"x": np.zeros(2)}, given(PRIORITIES)),
        "priorities ": lambda: store.update_priorities("t", keys, given(PRIORITIES)),
        "keys": lambda: store.update_priorities("t", given(KEYS), [1.0, 1.0]),
        "keys ": lambda: store.delete("t", given(KEYS)),
        "episode_ends": lambda: writer.append_batch({"x": np.zeros(2)}, episode_ends=given(FLAGS)),
        "episode_ends ": lambda: writer.append_steps(
            {"x": np.zeros((2, 2))}, episode_ends=[given(FLAGS), given(FLAGS)]
        ),
    }.items():
        with raises(InvalidArgumentError, text(name.strip())):
            call()
    writer.close()
    assert store.info()["t"].size == 2


@pytest.mark.parametrize("given", [np.asanyarray, list], ids=["array", "list"])
def test_masked_arguments_of_replay_buffers_are_rejected(given):
    buffer = ReplayBuffer(10, 2, sampler=selectors.Prioritized(1.0))
    buffer.add_batch({"x": np.zeros(2)})
    keys = buffer.sample(2).info.key
    for name, call in {
        "priorities": lambda: buffer.update_priorities(keys, given(PRIORITIES)),
        "keys": lambda: buffer.update_priorities(given(KEYS), [1.0, 1.0]),
        "env_ids": lambda: buffer.add_batch({"x": np.zeros(1)}, env_ids=list(np.ma.masked_equal([0, 1], 1))),
    }.items():
        with raises(InvalidArgumentError, text(name)):
            call()
    assert len(buffer) == 2
