"""Distributions of samples: chi-square tests with fixed seeds."""

import numpy as np
import pytest
from helpers.store_types import doors
from helpers.support import fill

from engram import Table, selectors

ITEMS, DRAWS = 50, 50_000


def quantile(degrees, z=3.09):
    """The chi-square quantile at 99.9 % (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + z * spread**0.5) ** 3


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_quantile_matches_published_values():
    assert quantile(49) == pytest.approx(85.35, abs=0.1)


def draws(open_store, table, priorities):
    store = open_store(table, seed=11)
    fill(store, "t", range(len(priorities)), priority=lambda value: float(priorities[value]))
    return store, store.sample("t", DRAWS)


def test_uniform_draws_every_item_equally_often(open_store):
    _, batch = draws(open_store, Table("t"), np.ones(ITEMS))
    counts = np.bincount(batch.data["x"], minlength=ITEMS)
    assert chi_square(counts, np.full(ITEMS, DRAWS / ITEMS)) < quantile(ITEMS - 1)
    assert (batch.info.probability == 1 / ITEMS).all()


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_prioritized_draws_in_proportion_to_weights(open_store, exponent):
    priorities = np.linspace(0.2, 3.0, ITEMS)
    store, batch = draws(open_store, Table("t", sampler=selectors.Prioritized(exponent)), priorities)
    expected = priorities**exponent / (priorities**exponent).sum()
    x = batch.data["x"]
    assert chi_square(np.bincount(x, minlength=ITEMS), expected * DRAWS) < quantile(ITEMS - 1)
    np.testing.assert_allclose(batch.info.probability, expected[x], rtol=1e-9)
    np.testing.assert_allclose(batch.info.priority, priorities[x])

    # Updates and deletions leave no trace in the distribution.
    keys = dict(zip(x.tolist(), batch.info.key.tolist(), strict=True))
    new_priorities = priorities[::-1].copy()
    store.update_priorities("t", [keys[n] for n in range(ITEMS)], new_priorities)
    store.delete("t", [keys[n] for n in range(0, ITEMS, 5)])
    new_priorities[::5] = 0
    expected = new_priorities**exponent / (new_priorities**exponent).sum()
    x = store.sample("t", DRAWS).data["x"]
    remaining = expected > 0
    counts = np.bincount(x, minlength=ITEMS)
    assert counts[~remaining].sum() == 0
    assert chi_square(counts[remaining], expected[remaining] * DRAWS) < quantile(remaining.sum() - 1)


def test_the_test_detects_a_wrong_distribution(open_store):
    _, batch = draws(open_store, Table("t", sampler=selectors.Prioritized(0.1)), np.linspace(0.2, 3.0, ITEMS))
    counts = np.bincount(batch.data["x"], minlength=ITEMS)
    assert chi_square(counts, np.full(ITEMS, DRAWS / ITEMS)) > quantile(ITEMS - 1)


@pytest.mark.parametrize("open_store", doors(slow=["remote", "sharded"]), indirect=True)
def test_a_uniform_remover_evicts_equally_exposed_items_equally(open_store):
    survivors = np.zeros(ITEMS)
    for seed in range(400):
        store = open_store(Table("t", max_size=10, remover=selectors.Uniform(), seed=seed))
        fill(store, "t", range(20))
        survivors += np.bincount(np.unique(store.sample("t", 200).data["x"]), minlength=ITEMS)
        store.close()
    # The first eleven items were exposed to ten removals (each includes the new item), later ones to fewer.
    assert survivors[:10].mean() < survivors[15:20].mean()
    expected = np.full(10, survivors[:10].mean())
    assert chi_square(survivors[:10], expected) < quantile(9)
