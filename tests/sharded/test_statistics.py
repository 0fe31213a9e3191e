"""Samples of uneven shards have the probabilities of one table with all items."""

import numpy as np
import pytest

import engram
from engram import Dataset, Table, selectors

SIZES = (40, 7, 133)

# Of the chi-square distribution with 179 degrees of freedom, the part above this is 1e-4.
CHI_SQUARE_179 = 254.0


def fill(clients, exponent):
    """Inserts items of uneven number and priority; returns the probability of each by key."""
    rng = np.random.default_rng(3)
    weights = {}
    for client, size in zip(clients, SIZES, strict=True):
        priorities = rng.uniform(0.5, 3.0, size)
        keys = client.insert_batch("t", {"x": np.arange(size)}, priorities)
        weights |= dict(zip(keys.tolist(), (priorities**exponent).tolist(), strict=True))
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()}


def chi_square(keys, probabilities):
    counts = dict(zip(*[part.tolist() for part in np.unique(keys, return_counts=True)], strict=True))
    expected = {key: probability * len(keys) for key, probability in probabilities.items()}
    return sum((counts.get(key, 0) - each) ** 2 / each for key, each in expected.items())


@pytest.mark.parametrize(("sampler", "exponent"), [(selectors.Uniform(), 0.0), (selectors.Prioritized(0.7), 0.7)])
@pytest.mark.parametrize("way", ["sample", "dataset"])
def test_items_are_drawn_in_proportion_to_their_weight(connect, sampler, exponent, way):
    client, shards = connect([Table("t", sampler=sampler, seed=11)])
    probabilities = fill(shards, exponent)
    if way == "sample":
        batches = [client.sample("t", 100) for _ in range(400)]
    else:
        batches = list(Dataset(client, "t", 100, max_batches=400))
    keys = np.concatenate([batch.info.key for batch in batches])
    assert chi_square(keys, probabilities) < CHI_SQUARE_179
    stated = np.concatenate([batch.info.probability for batch in batches])
    np.testing.assert_allclose(stated, [probabilities[key] for key in keys.tolist()], rtol=1e-9)
    assert {size for batch in batches for size in batch.info.table_size.tolist()} == {sum(SIZES)}


@pytest.mark.parametrize("sampler", [selectors.Uniform(), selectors.Prioritized(0.6)])
@pytest.mark.parametrize("normalize", ["batch", "table", None])
def test_importance_weights_are_those_of_one_store_with_the_same_items(connect, sampler, normalize):
    client, shards = connect([Table("t", sampler=sampler)])
    single = engram.Store([Table("t", sampler=sampler)])
    priorities = np.random.default_rng(0).uniform(0.0, 5.0, sum(SIZES))
    priorities[[3, 44, 90]] = 0.0  # cannot be drawn by Prioritized
    values = np.arange(sum(SIZES))
    single.insert_batch("t", {"x": values}, priorities)
    ends = np.cumsum(SIZES)
    for shard, part, part_priorities in zip(
        shards, np.split(values, ends[:-1]), np.split(priorities, ends[:-1]), strict=True
    ):
        shard.insert_batch("t", {"x": part}, part_priorities)

    def weights(store):
        by_item = {}
        for _ in range(60):
            batch = store.sample("t", 200)
            drawn = batch.importance_weights(0.5, normalize=normalize)
            if normalize == "batch":  # relative to the largest of the batch, which differs
                unnormalized = batch.importance_weights(0.5, normalize=None)
                np.testing.assert_allclose(drawn, unnormalized / unnormalized.max(), rtol=1e-5)
                drawn = unnormalized
            by_item |= dict(zip(batch.data["x"].tolist(), drawn.tolist(), strict=True))
        return by_item

    expected, actual = weights(single), weights(client)
    common = sorted(expected.keys() & actual.keys())
    assert len(common) > 150
    np.testing.assert_allclose([actual[x] for x in common], [expected[x] for x in common], rtol=1e-5)


# A request per 256 items, the default, and per 3 of the 8 items of a batch.
@pytest.mark.parametrize(("items_per_request", "shards_per_batch"), [(256, 1), (3, 2)])
def test_the_draws_of_few_shards_have_the_right_probabilities(connect, items_per_request, shards_per_batch):
    client, shards = connect([Table("t", sampler=selectors.Prioritized(1.0))], 9, items_per_request)
    weights = {}
    for number, shard in enumerate(shards):
        keys = shard.insert_batch("t", {"x": np.arange(number)}, np.full(number, 1.0 + number)) if number else []
        weights |= dict.fromkeys([int(key) for key in keys], 1.0 + number)
    total = sum(weights.values())
    batches = [client.sample("t", 8).info.key for _ in range(2000)]
    assert max(len(set((keys >> 53).tolist())) for keys in batches) == shards_per_batch
    keys = np.concatenate(batches)
    counts = np.array([np.count_nonzero(keys == key) for key in weights])
    expected = np.array(list(weights.values())) / total * len(keys)
    # Up to 8 items of a batch are drawn together, so their number varies more than that of independent draws.
    assert np.all(np.abs(counts - expected) < 6 * np.sqrt(8 / shards_per_batch * expected))


def test_batches_have_items_of_as_many_shards_as_requested(connect):
    client, shards = connect([Table("t")])
    for shard in shards:
        shard.insert_batch("t", {"x": np.arange(10)}, np.ones(10))
    keys = client.sample("t", 100).info.key
    assert set((keys >> 53).tolist()) == {1, 2, 3}


def test_a_shard_that_is_emptied_gets_no_more_draws(connect):
    client, shards = connect([Table("t")])
    shards[0].insert({"x": 0}, {"t": 1.0})
    key = shards[1].insert({"x": 1}, {"t": 1.0})
    assert set(client.sample("t", 50).data["x"].tolist()) == {0, 1}
    shards[1].delete("t", [key])
    # The client may not know it yet: then it asks the shard, and draws from the other one instead.
    assert set(client.sample("t", 50, timeout=5.0).data["x"].tolist()) == {0}
    assert client.sample("t", 4).info.table_size.tolist() == [1] * 4


@pytest.mark.usefixtures("other_thread")
def test_a_sample_waits_until_any_shard_has_an_item(connect):
    client, shards = connect([Table("t")])
    with pytest.raises(engram.errors.DeadlineExceededError, match="table `t`"):
        client.sample("t", 3, timeout=0.1)
    dataset = iter(Dataset(client, "t", 3))
    shards[2].insert({"x": 2}, {"t": 1.0})
    assert client.sample("t", 3).data["x"].tolist() == [2, 2, 2]
    assert next(dataset).data["x"].tolist() == [2, 2, 2]
    dataset.close()
