"""Draws have the documented distributions: chi-square tests with fixed seeds."""

import numpy as np
import pytest

from engram import selectors
from engram.buffers import ReplayBuffer, Transitions

DRAWS = 60_000
# Quantile 0.999 of the chi-square distribution with 29 degrees of freedom.
LIMIT = 58.3


def open_buffer(sampler, num_steps=30, num_envs=3, seed=7, items=None):
    """A buffer whose environments have 5, 10 and 15 steps; only the ring of the last has wrapped."""
    buffer = ReplayBuffer(45, num_envs, sampler=sampler, seed=seed, **({} if items is None else {"items": items}))
    for env, count in enumerate((5, 10, 40)):
        buffer.add_steps({"x": np.arange(count)[None]}, env_ids=[env])
    assert len(buffer) == num_steps
    return buffer


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def count_keys(keys):
    found, counts = np.unique(keys, return_counts=True)
    assert len(found) == 30
    return found, counts


def test_uniform_draws_each_item_equally_often_however_many_its_environment_has():
    buffer = open_buffer(selectors.Uniform())
    keys = np.concatenate([buffer.sample(100).info.key for _ in range(DRAWS // 100)])
    _, counts = count_keys(keys)
    assert chi_square(counts, np.full(30, 1 / 30)) < LIMIT


def test_draws_without_replacement_are_uniform_at_every_place():
    buffer = open_buffer(selectors.Uniform())
    batches = np.stack([buffer.sample(10, replacement=False).info.key for _ in range(DRAWS // 10)])
    assert all(len(set(batch)) == 10 for batch in batches.tolist())
    for place in (0, 5, 9):
        _, counts = count_keys(batches[:, place])
        assert chi_square(counts, np.full(30, 1 / 30)) < LIMIT
    # The second item of a batch is any of the 29 others with equal probability.
    keys, places = np.unique(batches, return_inverse=True)
    places = places.reshape(batches.shape)
    distances = (places[:, 1] - places[:, 0]) % len(keys)
    counts = np.bincount(distances, minlength=30)[1:]
    assert chi_square(counts, np.full(29, 1 / 29)) < LIMIT


def test_epochs_are_in_random_order():
    buffer = open_buffer(selectors.Uniform())
    epochs = np.stack([next(buffer.epoch(30)).info.key for _ in range(2000)])
    for place in (0, 29):
        _, counts = count_keys(epochs[:, place])
        assert chi_square(counts, np.full(30, 1 / 30)) < LIMIT


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.6, 1.0, 2.0])
def test_prioritized_draws_in_proportion_to_powers(exponent):
    buffer = open_buffer(selectors.Prioritized(exponent))
    keys = next(buffer.epoch(30)).info.key
    priorities = np.linspace(0.5, 3, 30)
    assert buffer.update_priorities(keys, priorities) == 30
    batches = [buffer.sample(100) for _ in range(DRAWS // 100)]
    found, counts = count_keys(np.concatenate([batch.info.key for batch in batches]))
    mass = priorities[np.argsort(keys)] ** exponent
    assert chi_square(counts, mass / mass.sum()) < LIMIT
    known = dict(zip(found.tolist(), (mass / mass.sum()).tolist(), strict=True))
    expected = [known[key] for key in batches[0].info.key.tolist()]
    np.testing.assert_allclose(batches[0].info.probability, expected)


def test_items_of_priority_0_are_drawn_only_if_all_have_it():
    buffer = open_buffer(selectors.Prioritized(1.0))
    keys = next(buffer.epoch(30)).info.key
    buffer.update_priorities(keys, np.r_[np.zeros(29), 1])
    assert set(buffer.sample(500).info.key.tolist()) == {int(keys[29])}
    buffer.update_priorities(keys[29:], [0.0])
    drawn = np.concatenate([buffer.sample(100).info.key for _ in range(DRAWS // 100)])
    _, counts = count_keys(drawn)
    assert chi_square(counts, np.full(30, 1 / 30)) < LIMIT
    np.testing.assert_array_equal(buffer.sample(9).importance_weights(0.5), np.ones(9, np.float32))


@pytest.mark.parametrize("sampler", [selectors.Uniform(), selectors.Prioritized(0.6)])
def test_equal_seeds_give_equal_batches(sampler):
    def keys(seed):
        buffer = open_buffer(sampler, seed=seed)
        drawn = [buffer.sample(50).info.key.tolist(), next(buffer.epoch(30)).info.key.tolist()]
        if sampler == selectors.Uniform():
            drawn.append(buffer.sample(20, replacement=False).info.key.tolist())
        return drawn

    assert keys(3) == keys(3) != keys(4)
    assert keys(None) != keys(None)


def test_transitions_are_drawn_from_complete_windows_only():
    buffer = ReplayBuffer(10, items=Transitions(n_step=3, discount=1.0), seed=0)
    step = {"reward": 1.0, "next_obs": 0.0, "terminated": False, "truncated": False}
    for _ in range(14):
        buffer.add(step)
    drawn = buffer.sample(2000).info.position
    assert sorted(set(drawn.tolist())) == list(range(4, 12))
