"""A part of each batch is drawn from the newest items."""

import numpy as np
import pytest
from helpers.support import raises

from engram.buffers import HER, Episodes, RecentMix, ReplayBuffer, Transitions
from engram.errors import InvalidArgumentError


def open_buffer(sampler, counts=(3, 10, 40), length=15, seed=7, **options):
    """A buffer whose environments have 3, 10 and 15 steps; only the ring of the last has wrapped."""
    buffer = ReplayBuffer(length * len(counts), len(counts), sampler=sampler, seed=seed, **options)
    for env, count in enumerate(counts):
        buffer.add_steps({"x": np.arange(count)[None]}, env_ids=[env])
    return buffer


def newest_of(buffer, newest):
    """The keys of the newest items, an equal number of each environment."""
    infos = [batch.info for batch in buffer.epoch(1000)]
    keys, envs = (np.concatenate([getattr(info, name) for info in infos]) for name in ("key", "env_id"))
    return set(np.concatenate([np.sort(keys[envs == env])[-newest:] for env in np.unique(envs)]).tolist()), set(
        keys.tolist()
    )


@pytest.mark.parametrize(("fraction", "recent_draws"), [(0.1, 1), (0.3, 3), (0.5, 5), (1.0, 10)])
@pytest.mark.parametrize("newest", [1, 6, 13, 100])
def test_each_part_of_a_batch_is_uniform(fraction, recent_draws, newest):
    buffer = open_buffer(RecentMix(fraction, newest=newest))
    recent, every = newest_of(buffer, -(-newest // 3))
    assert len(every) == 28
    batches = [buffer.sample(10) for _ in range(2000)]
    keys = np.stack([batch.info.key for batch in batches])
    for part, items in [(keys[:, :recent_draws], recent), (keys[:, recent_draws:], every)]:
        if part.size:
            found, counts = np.unique(part, return_counts=True)
            assert set(found.tolist()) == items
            expected = part.size / len(items)
            limit = len(items) + 4 * (2 * len(items)) ** 0.5  # mean and 4 standard deviations
            assert ((counts - expected) ** 2 / expected).sum() < limit
    # The documented probability of each item, and weights that follow from it.
    part = recent_draws / 10
    probability = {key: (1 - part) / 28 + (part / len(recent) if key in recent else 0) for key in every}
    batch = batches[0]
    drawn = np.array([probability[key] for key in batch.info.key.tolist()])
    np.testing.assert_allclose(batch.info.probability, drawn)
    possible = [p for p in probability.values() if p > 0]
    weights = (1 / (len(possible) * drawn)) ** 0.5
    np.testing.assert_allclose(batch.importance_weights(0.5, normalize=None), weights, rtol=1e-6)
    largest = (1 / (len(possible) * min(possible))) ** 0.5
    np.testing.assert_allclose(batch.importance_weights(0.5, normalize="buffer"), weights / largest, rtol=1e-6)


@pytest.mark.parametrize(("fraction", "size"), [(0.04, 4), (0.26, 10), (0.999, 7), (1e-4, 1)])
def test_a_part_that_is_not_a_whole_number_of_items_is_rounded_at_random(fraction, size):
    buffer = ReplayBuffer(1_000_000, sampler=RecentMix(fraction, newest=1), seed=0)
    buffer.add_steps({"x": np.zeros((1, 1_000_000), np.int8)})  # the newest item is hardly ever drawn from all
    batches = [buffer.sample(size) for _ in range(20_000)]
    is_recent = np.stack([batch.info.position for batch in batches]) == 999_999
    numbers = is_recent.sum(axis=1)
    mean = fraction * size
    assert set(numbers.tolist()) <= {int(mean), int(mean) + 1}
    assert (is_recent == (np.arange(size) < numbers[:, None])).all()  # they are the first ones
    variance = (mean % 1) * (1 - mean % 1)
    assert abs(numbers.mean() - mean) < 4 * (variance / 20_000) ** 0.5
    probability = np.where(is_recent[:9], fraction, 0) + (1 - fraction) / 1_000_000
    np.testing.assert_allclose(np.stack([batch.info.probability for batch in batches[:9]]), probability)


def test_the_newest_item_can_be_in_every_batch():
    for size in (8, 49):
        buffer = ReplayBuffer(100, sampler=RecentMix(1 / size, newest=1), seed=0)
        for x in range(300):
            buffer.add({"x": x})
            assert buffer.sample(size).data["x"][0] == x


def test_the_newest_items_are_those_of_each_environment():
    buffer = ReplayBuffer(300, 3, sampler=RecentMix(1 / 8, newest=1), seed=0)
    ages = []
    for x in range(302):
        buffer.add({"x": x}, env_id=x % 3)
        ages.append(int(x - buffer.sample(8).data["x"][0]))
    found, counts = np.unique(ages[2:], return_counts=True)
    assert found.tolist() == [0, 1, 2]
    assert ((counts - 100) ** 2 / 100).sum() < 13.8  # quantile 0.999 with 2 degrees of freedom


def test_all_items_are_equally_likely_while_no_environment_has_more_than_the_newest():
    # With newest=10, 4 items of each of 3 environments are recent.
    assert set(open_buffer(RecentMix(0.5, newest=10), (4, 1, 4)).sample(99).info.probability) == {1 / 9}
    uneven = open_buffer(RecentMix(0.5, newest=10), (5, 1, 1)).sample(99).info
    is_oldest = (uneven.env_id == 0) & (uneven.position == 0)
    np.testing.assert_allclose(uneven.probability, np.where(is_oldest, 0.5 / 7, 0.5 / 7 + 0.5 / 6))


def test_episodes_and_new_goals_are_mixed():
    buffer = ReplayBuffer(200, items=Episodes(max_length=7), sampler=RecentMix(0.5, newest=2), seed=0)
    for number in range(40):
        flags = {"terminated": np.zeros(5, bool), "truncated": np.zeros(5, bool)}
        buffer.add_episode({"x": np.full(5, number), **flags})
    x = np.stack([buffer.sample(4).data["x"][:, 0] for _ in range(200)])
    assert set(x[:, :2].flat) == {38, 39}
    assert set(x[:, 2:].flat) == set(range(40))

    her = HER(lambda achieved, goal: (achieved == goal) * 1.0, goal="goal", achieved="next_obs", strategy="final")
    buffer = ReplayBuffer(
        200, items=Transitions(discount=1.0), transforms=[her], sampler=RecentMix(0.5, newest=10), seed=0
    )
    for x in range(300):
        buffer.add({"x": x, "goal": -1, "next_obs": x, "reward": 0.5, "terminated": False, "truncated": x % 10 == 9})
    batch = buffer.sample(100)
    assert (batch.data["x"][:50] >= 290).all()
    np.testing.assert_array_equal(
        batch.data["goal"], np.where(batch.info.relabeled, batch.data["x"] // 10 * 10 + 9, -1)
    )


def test_equal_seeds_give_equal_batches():
    def keys(seed):
        return open_buffer(RecentMix(0.5, newest=6), seed=seed).sample(50).info.key.tolist()

    assert keys(3) == keys(3) != keys(4)


def test_wrong_arguments_are_rejected():
    with raises(InvalidArgumentError, "RecentMix: `fraction` must be from 0 to 1; got 25"):
        RecentMix(25, newest=1)
    with raises(InvalidArgumentError, "RecentMix: `fraction` must be above 0; got 0; use selectors.Uniform()"):
        RecentMix(0, newest=1)
    with raises(InvalidArgumentError, "RecentMix: `newest` must be at least 1; got 0"):
        RecentMix(0.5, newest=0)
    buffer = open_buffer(RecentMix(0.5, newest=6))
    with raises(InvalidArgumentError, "`replacement` must be True with a RecentMix sampler; got False"):
        buffer.sample(2, replacement=False)
    with raises(
        InvalidArgumentError,
        "priorities need a Prioritized sampler; create the buffer with `sampler=selectors.Prioritized(...)`",
    ):
        buffer.update_priorities([1], [1.0])
