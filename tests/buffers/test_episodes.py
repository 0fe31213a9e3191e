"""Whole episodes: which are sampled, how often, and how they are added."""

import numpy as np
import pytest
from helpers import records
from helpers.support import raises

from engram import ArraySpec, selectors
from engram.buffers import HER, Episodes, FrameStack, MappedFile, RecentMix, ReplayBuffer, Sequences, Steps, Transitions
from engram.errors import InvalidArgumentError, SignatureError, StorageError, UnsatisfiableError

PRIORITIZED = selectors.Prioritized(1.0)


def episode(numbers, *, terminated=False):
    """The steps of an episode, with these numbers."""
    numbers = np.asarray(numbers)
    ended = np.zeros(len(numbers), bool)
    return {
        "x": numbers,
        "terminated": np.append(ended[1:], terminated),
        "truncated": ended,
    }


def add_running(buffer, numbers):
    """Adds steps with these numbers, which do not end their episode."""
    for number in numbers:
        buffer.add({"x": number, "terminated": False, "truncated": False})


def contents(buffer):
    """The steps of all items, in order of the keys."""
    batches = list(buffer.epoch(100))
    keys = np.concatenate([batch.info.key for batch in batches])
    x, valid = (np.concatenate([batch.data[name] for batch in batches]) for name in ("x", "valid"))
    return [x[index][valid[index]].tolist() for index in np.argsort(keys)]


def test_an_episode_is_padded_with_zeros():
    buffer = ReplayBuffer(100, items=Episodes(max_length=5), seed=0)
    buffer.add_episode(episode([1, 2, 3], terminated=True))
    batch = buffer.sample(2)
    assert {name: column.shape for name, column in batch.data.items()} == dict.fromkeys(batch.data, (2, 5))
    assert batch.data["x"].tolist() == [[1, 2, 3, 0, 0]] * 2
    assert batch.data["terminated"].tolist() == [[False, False, True, False, False]] * 2
    assert batch.data["valid"].tolist() == [[True, True, True, False, False]] * 2
    assert batch.data["is_first"].tolist() == [[True, False, False, False, False]] * 2
    assert batch.info.position.tolist() == [0, 0]


def test_unfinished_and_partly_overwritten_episodes_are_not_sampled():
    buffer = ReplayBuffer(7, items=Episodes(max_length=4), seed=0)
    add_running(buffer, [1, 2])
    with raises(
        UnsatisfiableError,
        "the replay buffer has 2 steps and no item yet; an item needs 4 consecutive steps of one environment, or the "
        "end of an episode",
    ):
        buffer.sample(1)
    buffer.end_episodes()
    assert contents(buffer) == [[1, 2]]
    buffer.add_episode(episode([3, 4, 5, 6]))
    assert contents(buffer) == [[1, 2], [3, 4, 5, 6]]
    add_running(buffer, [7, 8])
    assert contents(buffer) == [[3, 4, 5, 6]]


def test_long_episodes_are_cut():
    buffer = ReplayBuffer(12, items=Episodes(max_length=4), seed=0)
    buffer.add_episode(episode(range(10)))
    assert contents(buffer) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    [batch] = buffer.scan()
    # This distinguishes the parts of an episode, although its last step is not marked as the last one.
    assert batch.data["is_first"].tolist() == [[True] + [False] * 3, [False] * 4, [False] * 4]
    assert not batch.data["truncated"].any()
    add_running(buffer, range(10, 25))
    assert contents(buffer) == [[14, 15, 16, 17], [18, 19, 20, 21]]


@pytest.mark.parametrize("sampler", [selectors.Uniform(), selectors.Prioritized(0.5)])
def test_a_restored_buffer_cuts_an_episode_at_the_same_steps(tmp_path, sampler):
    def create(items, capacity=12):
        return ReplayBuffer(capacity, items=items, sampler=sampler, seed=0)

    buffer = create(Episodes(max_length=4))
    add_running(buffer, range(25))
    if isinstance(sampler, selectors.Prioritized):
        buffer.update_priorities(next(buffer.epoch(9)).info.key, [0.5, 2.0])
    buffer.save(tmp_path / "save")
    same, shorter, other, sequences = (
        create(Episodes(max_length=4)), create(Episodes(max_length=4), 9), create(Episodes(max_length=3)),
        create(Sequences(length=3)),
    )  # fmt: skip
    for each in (same, shorter, other, sequences):
        each.restore(tmp_path / "save")
    drawn = [(batch.info.key.tolist(), batch.info.probability.tolist()) for batch in (same.sample(9), buffer.sample(9))]
    assert drawn[0] == drawn[1]
    assert contents(same) == [[16, 17, 18, 19], [20, 21, 22, 23]]
    assert contents(shorter) == contents(same)
    # The first cut after the oldest step is retained, those after it are 3 steps apart.
    assert contents(other) == [[16, 17, 18], [19, 20, 21], [22, 23, 24]]
    # A buffer with other items keeps the cuts.
    sequences.save(tmp_path / "save")
    again = create(Episodes(max_length=4))
    again.restore(tmp_path / "save")
    assert contents(again) == contents(same)
    # Neither the first step of the episode nor a cut is in this save.
    sequences = create(Sequences(length=3))
    add_running(sequences, range(25))
    sequences.save(tmp_path / "save")
    again = create(Episodes(max_length=4))
    again.restore(tmp_path / "save")
    assert contents(again) == [[13, 14, 15, 16], [17, 18, 19, 20], [21, 22, 23, 24]]
    for each in (same, again):
        add_running(each, range(25, 30))
    assert contents(same) == [[20, 21, 22, 23], [24, 25, 26, 27]]
    assert contents(again) == [[21, 22, 23, 24], [25, 26, 27, 28]]


@pytest.mark.parametrize("sampler", [selectors.Uniform(), PRIORITIZED])
def test_episodes_of_a_restore_that_failed_are_forgotten(tmp_path, sampler):
    def create(**options):
        return ReplayBuffer(20, items=Episodes(max_length=4), sampler=sampler, seed=0, **options)

    saved = create()
    for first in range(0, 60, 6):
        saved.add_episode(episode(range(first, first + 6)))
    saved.save(tmp_path / "save")
    [end] = [record for record in records.records(tmp_path / "save") if record.kind == "end"]
    records.cut(tmp_path / "save", end.offset)
    signature = {"x": ArraySpec((), int), "terminated": ArraySpec((), bool), "truncated": ArraySpec((), bool)}
    buffer = create(signature=signature)
    with pytest.raises(StorageError, match="cannot be used: it is incomplete"):
        buffer.restore(tmp_path / "save")
    assert (len(buffer), buffer.num_items) == (0, 0)
    for first in range(0, 18, 6):
        buffer.add_episode(episode(range(first, first + 6)))
        assert sorted(map(min, contents(buffer))) == sorted([*range(0, first + 1, 6), *range(4, first + 5, 6)])
    assert buffer.sample(10).info.position.max() < 18


def test_all_finished_episodes_are_equally_likely():
    buffer = ReplayBuffer(300, 3, items=Episodes(max_length=20), seed=5)
    number = 0
    for env, lengths in enumerate([[1, 20, 3], [7], [2, 2, 11, 50]]):
        for length in lengths:
            buffer.add_episode(episode(np.arange(number, number + length)), env_id=env)
            number += length
    drawn = np.concatenate([buffer.sample(100).info.key for _ in range(300)])
    _, counts = np.unique(drawn, return_counts=True)
    assert len(counts) == buffer.num_items == 10  # the longest episode has become three
    expected = 3000
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # quantile 0.999 with 9 degrees of freedom


def test_an_added_episode_begins_and_ends_one():
    buffer = ReplayBuffer(100, 2, items=Transitions(n_step=3, discount=0.5), seed=0)

    def steps(rewards, *, terminated):
        return {"reward": np.array(rewards), "next_obs": np.array(rewards), **episode(rewards, terminated=terminated)}

    buffer.add({"reward": 1.0, "next_obs": 1.0, "x": 1.0, "terminated": False, "truncated": False}, env_id=1)
    buffer.add_episode(steps([2.0, 4.0], terminated=False), env_id=1)
    buffer.add_episode(steps([8.0], terminated=True), env_id=1)
    buffer.add_episode(steps([16.0], terminated=False), env_id=0)
    [batch] = buffer.epoch(10)
    order = np.argsort(batch.info.position, kind="stable")
    data = {name: column[order].tolist() for name, column in batch.data.items()}
    items = dict(zip(data["x"], zip(data["reward"], data["discount"], data["num_steps"], strict=True), strict=True))
    assert items == {1.0: (1, 0.5, 1), 2.0: (4, 0.25, 2), 4.0: (4, 0.5, 1), 8.0: (8, 0, 1), 16.0: (16, 0.5, 1)}


@pytest.mark.parametrize("sampler", [selectors.Uniform(), PRIORITIZED])
def test_an_episode_can_be_longer_than_the_buffer(tmp_path, sampler):
    for storage in (None, MappedFile(tmp_path / "buffer")):
        buffer = ReplayBuffer(10, items=Episodes(max_length=4), sampler=sampler, storage=storage, seed=0)
        add_running(buffer, [-1])
        buffer.add_episode(episode(range(23), terminated=True))
        assert (len(buffer), contents(buffer)) == (10, [[16, 17, 18, 19], [20, 21, 22]])
        buffer.add_episode(episode([30, 31]))
        assert contents(buffer) == [[16, 17, 18, 19], [20, 21, 22], [30, 31]]
        [batch] = buffer.epoch(9)
        assert batch.data["terminated"].sum() == 1


def test_episodes_are_added_to_a_buffer_of_steps():
    buffer = ReplayBuffer(100, seed=0)
    buffer.add_episode({"x": np.arange(3)})
    buffer.add_episode({"x": np.arange(2)})
    assert len(buffer) == 5
    buffer = ReplayBuffer(100, seed=0)
    buffer.add_episode(episode(range(4)) | {"terminated": np.ones(4, bool)})  # which `Steps()` do not use
    assert len(buffer) == 4


def test_wrong_episodes_are_rejected():
    buffer = ReplayBuffer(100, items=Episodes(max_length=5), seed=0)
    with raises(
        SignatureError,
        "column `terminated` must have shape [T, ...]; got []; for a single step, use `ReplayBuffer.add`",
    ):
        buffer.add_episode({"x": 1, "terminated": True, "truncated": False})
    for attempt in range(2):  # before the first step and after it
        step = {"x": 1, "terminated": False, "truncated": False}
        with raises(
            SignatureError,
            "`steps` must be one nest of arrays; got a list of 2 steps; stack each column, as with numpy.stack",
        ):
            buffer.add_episode([step, step])
        for name in ("terminated", "truncated"):
            with raises(
                InvalidArgumentError,
                "`steps` must be one episode, which only its last step may end; got 4 steps, and "
                f"`{name}` is True at step 2; for several episodes, use `add_steps`",
            ):
                buffer.add_episode(episode(range(4)) | {name: np.arange(4) == 2})
        with raises(InvalidArgumentError, "`steps` must have at least one step; got an episode of 0 steps"):
            buffer.add_episode({name: column[:0] for name, column in episode([1]).items()})
        assert len(buffer) == 3 * attempt
        if attempt == 0:
            add_running(buffer, [1, 2, 3])
    with raises(SignatureError, "column `x` must have shape [3], with the T steps of the episode first; got [2]"):
        buffer.add_episode(episode([1, 2, 3]) | {"x": np.zeros(2, int)})
    with raises(SignatureError, "column `x` must have shape [1], with the T steps of the episode first; got []"):
        buffer.add_episode(episode([1]) | {"x": 1})
    with raises(InvalidArgumentError, "`env_id` must be from 0 to 0; got 1"):
        buffer.add_episode(episode([1]), env_id=1)
    assert buffer.num_items == 0  # the episode of 3 steps was not ended by these calls


def test_wrong_items_are_rejected():
    with raises(InvalidArgumentError, "Episodes: `max_length` must be at least 1; got 0"):
        Episodes(max_length=0)
    stacked = " and 3 steps before them, for FrameStack"
    for capacity, transforms, least, before in [(36, (), 38, ""), (38, [FrameStack("x", 4)], 44, stacked)]:
        with raises(
            InvalidArgumentError,
            f"`capacity` must be at least {least} for 2 environments and items of up to 10 steps{before}, each "
            f"stored until the next one is complete; got {capacity}",
        ):
            ReplayBuffer(capacity, 2, items=Episodes(max_length=10), transforms=transforms)
        assert ReplayBuffer(least, 2, items=Episodes(max_length=10), transforms=transforms).num_items == 0
    buffer = ReplayBuffer(19, items=Episodes(max_length=10))
    for name in ("valid", "is_first"):
        with raises(
            SignatureError,
            f"items=Episodes(...) adds `{name}` to each item, so steps must not have an entry of that name; rename it",
        ):
            buffer.add({name: True, "terminated": True, "truncated": True})
    with raises(
        SignatureError,
        "items=Episodes(...) needs steps with `terminated`, `truncated`; `truncated` missing; got `terminated`, `x`",
    ):
        buffer.add({"x": 1, "terminated": True})


@pytest.mark.parametrize(("max_length", "frames"), [(1, 1), (1, 3), (4, 1), (4, 3)])
def test_the_smallest_buffer_always_has_an_item(max_length, frames):
    capacity = 2 * max_length + frames - 2
    transforms = [FrameStack("x", frames)] if frames > 1 else []
    buffer = ReplayBuffer(capacity, items=Episodes(max_length=max_length), transforms=transforms, seed=0)
    add_running(buffer, range(max_length))
    for x in range(max_length, 50):
        add_running(buffer, [x])
        assert buffer.num_items > 0
    buffer.clear()
    for first in range(0, 50, max_length):
        buffer.add_episode(episode(range(first, first + max_length)))
        assert buffer.num_items > 0


def test_only_the_first_step_of_an_episode_has_a_key():
    buffer = ReplayBuffer(100, items=Episodes(max_length=5), sampler=selectors.Prioritized(1.0), seed=0)
    buffer.add_episode(episode([1, 2, 3]))
    buffer.add_episode(episode([4, 5, 6]))
    assert buffer.update_priorities(np.arange(6), [0.0, 9, 9, 4, 9, 9]) == 2
    batch = buffer.sample(50)
    assert set(batch.info.key.tolist()) == {3}
    assert set(batch.info.priority.tolist()) == {4.0}


def test_a_scan_reads_each_episode_once():
    buffer = ReplayBuffer(100, 2, items=Episodes(max_length=4), seed=0)
    for first, env in [(10, 0), (20, 1), (30, 0), (40, 1), (50, 1)]:
        buffer.add_episode(episode(range(first, first + 6)), env_id=env)
    for size in (1, 3, 100):
        batches = list(buffer.scan(size))
        assert all(len(batch) == size for batch in batches[:-1])
        first_steps = np.concatenate([batch.data["x"][:, 0] for batch in batches]).tolist()
        assert first_steps == [10, 14, 30, 34, 20, 24, 40, 44, 50, 54]
    assert sum(len(batch) for batch in buffer.scan(7, steps=True)) == 30


def test_other_items_in_a_mapped_file_keep_cuts_and_priorities_of_episodes(tmp_path):
    def opened(items, sampler=PRIORITIZED, **options):
        storage = MappedFile(tmp_path / "buffer")
        return ReplayBuffer(20, items=items, sampler=sampler, storage=storage, seed=0, **options)

    def priorities(buffer):
        [batch] = buffer.scan()
        return dict(zip(batch.info.position.tolist(), batch.info.priority.tolist(), strict=True))

    steps = {"goal": 0, "achieved": 0, "next_obs": 0, "reward": 0.0}
    with opened(Episodes(max_length=4)) as buffer:
        for x in range(26):  # of one episode, whose first step is overwritten
            buffer.add(steps | {"x": x, "terminated": False, "truncated": False})
        buffer.update_priorities([8, 12, 16, 20], [1.0, 2.0, 0.0, 4.0])
        expected = {8: 1.0, 12: 2.0, 16: 0.0, 20: 4.0}
        assert priorities(buffer) == expected
    her = HER(lambda achieved, goal: (achieved == goal) * 1.0, goal="goal", achieved="achieved")
    others = [
        (Steps(), selectors.Uniform(), ()),
        (Transitions(discount=1.0), selectors.Uniform(), [her]),
        (Episodes(max_length=4), RecentMix(0.5, newest=2), ()),
        (Transitions(discount=1.0), PRIORITIZED, [her]),
        (Steps(), PRIORITIZED, ()),
    ]
    for items, sampler, transforms in others:
        with opened(items, sampler, transforms=transforms) as buffer:
            buffer.sample(10)
        with opened(Episodes(max_length=4)) as buffer:
            assert priorities(buffer) == expected
            assert contents(buffer) == [list(range(first, first + 4)) for first in expected]
    for position, (items, sampler, transforms) in enumerate(others, 26):  # each adds a step
        with opened(items, sampler, transforms=transforms) as buffer:
            buffer.add(steps | {"x": position, "terminated": False, "truncated": position == 29})
    with opened(Episodes(max_length=4)) as buffer:
        kept = {12: 2.0, 16: 0.0, 20: 4.0}
        assert priorities(buffer) == kept | {24: 4.0, 28: 4.0}
        assert contents(buffer)[-2:] == [[24, 25, 26, 27], [28, 29]]
        buffer.add_episode({name: np.array([value]) for name, value in steps.items()} | episode([40]))
        assert priorities(buffer) == kept | {24: 4.0, 28: 4.0, 30: 4.0, 31: 4.0}


def test_a_file_without_the_first_step_of_an_episode_is_cut(tmp_path):
    def opened(items):
        return ReplayBuffer(12, items=items, seed=0, storage=MappedFile(tmp_path / "buffer"))

    with opened(Sequences(length=3)) as buffer:
        add_running(buffer, range(25))
    for _ in range(2):
        with opened(Episodes(max_length=4)) as buffer:
            assert contents(buffer) == [[13, 14, 15, 16], [17, 18, 19, 20], [21, 22, 23, 24]]
    with opened(Episodes(max_length=4)) as buffer:
        add_running(buffer, range(25, 30))
        assert contents(buffer) == [[21, 22, 23, 24], [25, 26, 27, 28]]


def test_a_mapped_file_keeps_the_priorities_of_episodes(tmp_path):
    def opened(items):
        storage = MappedFile(tmp_path / "buffer")
        return ReplayBuffer(20, items=items, sampler=selectors.Prioritized(1.0), storage=storage, seed=0)

    with opened(Episodes(max_length=4)) as buffer:
        buffer.add_episode(episode(range(14)))
        buffer.add_episode(episode([20, 21]))
        buffer.update_priorities([0, 4, 8, 12, 14], [1.0, 2.0, 3.0, 4.0, 5.0])
        add_running(buffer, range(30, 35))  # overwrites the first step, and begins an item of priority 5
    with opened(Episodes(max_length=4)) as buffer:
        [batch] = buffer.scan()
        assert batch.info.position.tolist() == [4, 8, 12, 14, 16]
        assert batch.info.priority.tolist() == [2, 3, 4, 5, 5]
    with opened(
        Steps()
    ) as buffer:  # steps between the beginnings of episodes were no items, and get the largest priority
        [batch] = buffer.scan()
        assert batch.info.position.tolist() == list(range(1, 21))
        assert batch.info.priority.tolist()[3:] == [2, 5, 5, 5, 3, 5, 5, 5, 4, 5, 5, 5, 5, 5, 5, 5, 5]
