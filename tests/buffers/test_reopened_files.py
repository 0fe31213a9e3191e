"""Replay buffers in mapped files that continue with the steps of an earlier one, which may have had other settings."""

import numpy as np
import pytest
from helpers.buffer_model import items_by_key, priorities_by_key, row, stacked

from engram import selectors
from engram.buffers import MappedFile, ReplayBuffer, Sequences, Steps, Transitions
from engram.errors import PriorityError

PRIORITIZED = selectors.Prioritized(0.5)


def test_items_and_samplers_may_change(tmp_path):
    path = tmp_path / "file"
    options = {"capacity": 12, "num_envs": 2, "storage": MappedFile(path), "seed": 0}
    transitions = {"items": Transitions(n_step=2, discount=1.0), "sampler": PRIORITIZED}
    with ReplayBuffer(**options, **transitions) as buffer:
        for number in range(4):
            buffer.add_batch(stacked([row(number), row(10 + number)]))
        buffer.update_priorities([0, 1], [3.0, 0.0])
        priorities = priorities_by_key(buffer)
        assert priorities == {0: 3.0, 1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}
        items = items_by_key(buffer)
    with ReplayBuffer(**options, **transitions) as buffer:
        assert (priorities_by_key(buffer), items_by_key(buffer)) == (priorities, items)
    # New items get the largest priority.
    with ReplayBuffer(**options, items=Steps()) as buffer:
        assert buffer.num_items == 8
        buffer.add_batch(stacked([row(4, truncated=True), row(14)]))
    with ReplayBuffer(**options, **transitions) as buffer:
        assert priorities_by_key(buffer) == priorities | dict.fromkeys([6, 7, 8], 3.0)
        assert items_by_key(buffer)[8]["num_steps"] == 1
    with ReplayBuffer(**options, items=Sequences(length=2)) as buffer:
        assert items_by_key(buffer)[8]["action"] == [4, 0]


def test_buffers_that_do_not_use_episodes_and_priorities_keep_them(tmp_path):
    options = {"capacity": 12, "storage": MappedFile(tmp_path / "file"), "seed": 0}
    transitions = {"items": Transitions(n_step=3, discount=1.0), "sampler": PRIORITIZED}
    with ReplayBuffer(**options, **transitions) as buffer:
        buffer.add_steps(stacked([stacked([row(number) for number in range(3)])]))
        buffer.end_episodes()
        buffer.add_steps(stacked([stacked([row(number) for number in range(3, 8)])]))
        buffer.update_priorities([0, 1, 2], [7.0, 8.0, 0.0])
        items, priorities = items_by_key(buffer), priorities_by_key(buffer)
        assert [items[key]["num_steps"] for key in range(6)] == [3, 2, 1, 3, 3, 3]
    for sampler in (selectors.Uniform(), PRIORITIZED):
        with ReplayBuffer(**options, sampler=sampler) as buffer:
            assert len(items_by_key(buffer)) == 8
        with ReplayBuffer(**options, **transitions) as buffer:
            assert (items_by_key(buffer), priorities_by_key(buffer)) == (items, priorities)
    # It adds steps, ends an episode, and overwrites the oldest steps.
    with ReplayBuffer(**options) as buffer:
        buffer.add_steps(stacked([stacked([row(number) for number in range(8, 13)])]))
        buffer.end_episodes()
        buffer.add(row(13))
    with ReplayBuffer(**options, **transitions) as buffer:
        assert priorities_by_key(buffer) == {2: 0.0} | {key: priorities[key] for key in (3, 4, 5)} | dict.fromkeys(
            range(6, 13), 1.0
        )
        assert {key: item["num_steps"] for key, item in items_by_key(buffer).items()} == (
            {2: 1} | dict.fromkeys(range(3, 11), 3) | {11: 2, 12: 1}
        )


def test_steps_that_no_item_begins_with_lose_their_priority_but_can_be_sampled_later(tmp_path):
    options = {"capacity": 8, "sampler": PRIORITIZED, "storage": MappedFile(tmp_path / "file"), "seed": 0}
    with ReplayBuffer(**options) as buffer:
        buffer.add_steps(stacked([stacked([row(number) for number in range(20)])]))
        buffer.update_priorities(np.arange(12, 20), [2.0, 2.0, 2.0, 0.0, -0.0, 3.0, 2.0, 2.0])
    with ReplayBuffer(**options, items=Sequences(length=2, burn_in=3)) as buffer:
        kept = {15: 0.0, 16: 0.0, 17: 3.0, 18: 2.0}
        assert priorities_by_key(buffer) == kept
        buffer.add(row(20))
        kept.pop(15)
        assert priorities_by_key(buffer) == kept | {19: 3.0}
    with ReplayBuffer(**options) as buffer:
        assert priorities_by_key(buffer) == dict.fromkeys(range(13, 21), 3.0) | kept
        assert sorted(set(buffer.sample(1000).info.key.tolist())) == [13, 14, 15, 17, 18, 19, 20]


@pytest.mark.parametrize("count", [11, 15, 20, 23])
def test_steps_that_never_began_an_item_are_not_items_of_priority_0(tmp_path, count):
    options = {"capacity": 10, "sampler": PRIORITIZED, "storage": MappedFile(tmp_path / "file"), "seed": 0}
    with ReplayBuffer(**options, items=Sequences(length=2, burn_in=3)) as buffer:
        buffer.add_steps(stacked([stacked([row(number) for number in range(count)])]))
        assert priorities_by_key(buffer) == dict.fromkeys(range(count - 7, count - 1), 1.0)
    with ReplayBuffer(**options) as buffer:
        assert priorities_by_key(buffer) == dict.fromkeys(range(count - 10, count), 1.0)


def test_priorities_of_items_that_the_end_of_an_episode_completes_are_kept(tmp_path):
    def opened():
        items = Transitions(n_step=3, discount=1.0)
        return ReplayBuffer(12, items=items, sampler=PRIORITIZED, storage=MappedFile(tmp_path / "file"), seed=0)

    buffer = opened()
    for number in range(3):
        buffer.add(row(number))
    buffer.end_episodes()
    buffer.update_priorities([0, 1, 2], [2.0, 3.0, 4.0])
    del buffer
    assert priorities_by_key(opened()) == {0: 2.0, 1: 3.0, 2: 4.0}


def test_priorities_of_steps_that_a_uniform_buffer_removes_are_lost(tmp_path):
    options = {"capacity": 6, "storage": MappedFile(tmp_path / "file"), "seed": 0}
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        buffer.add_steps({"x": np.arange(6)[None]})
        buffer.update_priorities(np.arange(6), [5.0] * 6)
    with ReplayBuffer(**options) as buffer:
        buffer.clear()
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        buffer.add({"x": 6})
        buffer.update_priorities([6], [0.5])
        buffer.add({"x": 7})
        assert priorities_by_key(buffer) == {6: 0.5, 7: 0.5}


def test_priorities_must_be_allowed_with_the_exponent(tmp_path):
    options = {"capacity": 6, "storage": MappedFile(tmp_path / "file"), "seed": 0}
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        buffer.add_steps({"x": np.arange(3)[None]})
        buffer.update_priorities([1], [1e200])
    text = r"its weight, `priority \*\* 2` .* must be at most 1e290; got inf"
    for _ in range(2):
        with pytest.raises(PriorityError, match=text):
            ReplayBuffer(**options, sampler=selectors.Prioritized(2.0))
    with ReplayBuffer(**options, sampler=PRIORITIZED) as buffer:
        assert priorities_by_key(buffer) == {0: 1.0, 1: 1e200, 2: 1.0}


def test_clear_and_ends_of_episodes_are_kept(tmp_path):
    def opened():
        items = Transitions(n_step=3, discount=1.0)
        return ReplayBuffer(12, items=items, storage=MappedFile(tmp_path / "file"), seed=0)

    step = {"reward": 1.0, "next_obs": 0.0, "terminated": False, "truncated": False}
    buffer = opened()
    for _ in range(5):
        buffer.add(step)
    buffer.clear()
    del buffer
    buffer = opened()
    assert (len(buffer), buffer.num_items) == (0, 0)
    for _ in range(3):
        buffer.add(step)
    buffer.end_episodes()
    assert sorted(items_by_key(buffer)) == [5, 6, 7]
    del buffer
    buffer = opened()
    buffer.add(step)
    assert {key: item["num_steps"] for key, item in items_by_key(buffer).items()} == {5: 3, 6: 2, 7: 1}


def test_the_random_state_of_a_file_replaces_the_seed(tmp_path):
    samples = []
    with ReplayBuffer(20, 2, storage=MappedFile(tmp_path / "file"), seed=1) as buffer:
        buffer.add_steps({"x": np.arange(20).reshape(2, 10)})
    for seed in (5, 6):
        buffer = ReplayBuffer(20, 2, storage=MappedFile(tmp_path / "file"), seed=seed)
        samples.append(buffer.sample(8).info.key.tolist())
        del buffer
    assert samples[0] == samples[1]
