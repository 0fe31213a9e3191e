"""Items of sharded tables: where they go, in which order they return, and how they are changed."""

import pickle

import numpy as np
import pytest

import engram
from engram import Dataset, Table, rate_limiters, selectors
from engram.sharded import divide


def shard_of(keys):
    return np.asarray(keys, np.uint64) >> np.uint64(53)


def test_keys_contain_the_shard_id_and_are_below_2_to_the_63(connect):
    client, shards = connect([Table("t"), Table("u"), Table("w")])
    for number, shard in enumerate(shards, 1):
        keys = shard.insert_batch("t", {"x": np.arange(2000)}).tolist()
        keys.append(shard.insert({"x": 1}, {"t": 1.0, "u": 1.0}))
        with shard.writer() as writer:
            writer.append({"x": 1})
            keys.append(writer.create_item("w", 1.0, num_steps=1))
        assert set(shard_of(keys).tolist()) == {number}
        assert max(keys) < 2**63
        assert len(set(keys)) == len(keys)
    assert client.info()["t"].size == 3 * 2001
    sampled = np.concatenate([client.sample("t", 500).info.key for _ in range(3)])
    assert set(shard_of(sampled).tolist()) == {1, 2, 3}


def test_writers_of_one_client_use_different_shards(connect):
    client, shards = connect([Table("t")])
    writers = [client.writer() for _ in range(3)]
    for number, writer in enumerate(writers):
        writer.append({"x": number})
        writer.create_item("t", 1.0, num_steps=1)
        writer.flush()
    assert [shard.info()["t"].size for shard in shards] == [1, 1, 1]


def test_all_kinds_of_writers_write_to_one_shard(connect):
    client, shards = connect([Table("t")])
    with client.writer() as writer:
        for step in range(10):
            writer.append({"x": step})
            writer.create_item("t", 1.0, num_steps=1)
    assert sorted(shard.info()["t"].size for shard in shards) == [0, 0, 10]


def test_a_queue_is_fair_over_shards_and_keeps_the_order_within_one(connect):
    client, shards = connect([Table.queue("q", max_size=100)])
    for number, shard in enumerate(shards):
        shard.insert_batch("q", {"shard": np.full(20, number), "x": np.arange(20)})
    batch = client.sample("q", 30)
    counts = np.bincount(batch.data["shard"])
    assert counts.tolist() == [10, 10, 10]
    rest = [sample.data for sample in Dataset(client, "q", timeout=0.0)]
    order = {number: batch.data["x"][batch.data["shard"] == number].tolist() for number in range(3)}
    for data in rest:
        order[int(data["shard"])].append(int(data["x"]))
    assert order == {shard: list(range(20)) for shard in range(3)}
    assert client.info()["q"].size == 0


def test_a_queue_with_items_on_one_shard_returns_all_of_them(connect):
    client, shards = connect([Table.queue("q", max_size=100)])
    shards[1].insert_batch("q", {"x": np.arange(9)})
    assert client.sample("q", 9).data["x"].tolist() == list(range(9))
    shards[0].insert({"x": 50}, {"q": 1.0})
    assert client.sample("q", 5, at_least=1).data["x"].tolist() == [50]


def test_items_that_a_failed_sample_had_drawn_return(connect):
    client, shards = connect([Table.queue("q", max_size=100)])
    for shard in shards:
        shard.insert({"x": 1}, {"q": 1.0})
    with pytest.raises(engram.errors.DeadlineExceededError):
        client.sample("q", 4, timeout=0.2)
    assert [shard.info()["q"].size for shard in shards] == [1, 1, 1]
    assert len(client.sample("q", 3)) == 3


def test_updates_and_deletions_reach_the_shards_of_their_keys(connect):
    client, shards = connect([Table("t", sampler=selectors.Prioritized(1.0))])
    keys = [shard.insert_batch("t", {"x": np.arange(5)}) for shard in shards]
    updated = np.concatenate([part[:2] for part in keys])
    assert client.update_priorities("t", updated, np.arange(2.0, 8.0)) == 6
    by_key = {
        key: priority
        for batch in client.scan("t")
        for key, priority in zip(batch.info.key.tolist(), batch.info.priority.tolist(), strict=True)
    }
    assert [by_key[key] for key in updated.tolist()] == list(np.arange(2.0, 8.0))
    assert client.info()["t"].total_weight == sum(by_key.values())
    unknown = np.array([5, 2**62 + 3], np.uint64)
    assert client.delete("t", np.concatenate([updated, unknown])) == 6
    assert client.delete("t", updated) == 0
    assert [shard.info()["t"].size for shard in shards] == [3, 3, 3]


def test_keys_without_the_id_of_a_shard_reach_all(connect):
    client, shards = connect([Table("t")])
    foreign = engram.Server([Table("t")], shard_id=77)
    with foreign, engram.Client(foreign.address) as other:
        key = other.insert({"x": 1}, {"t": 1.0})
    assert shard_of([key]).tolist() == [77]
    own = shards[0].insert({"x": 1}, {"t": 1.0})
    assert client.update_priorities("t", [key, own], [1.0, 2.0]) == 1


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(
    ("sampler", "invalid"),
    [
        (selectors.Prioritized(1.0), [5.0, 5.0, float("nan")]),
        (selectors.Prioritized(1.0), [5.0, 1e300, 5.0]),
        (selectors.Prioritized(-1.0), [5.0, 1e-300, 5.0]),
        (selectors.MinHeap(), [5.0, -1.0, float("nan")]),
    ],
)
def test_an_invalid_priority_changes_nothing_on_any_shard(connect, sampler, invalid, wait):
    client, shards = connect([Table("t", sampler=sampler)])
    keys = [int(shard.insert({"x": 1}, {"t": 1.0})) for shard in shards]
    with pytest.raises(engram.errors.PriorityError):
        client.update_priorities("t", keys, invalid, wait=wait)
    assert [shard.peek("t").items[0].priority for shard in shards] == [1.0, 1.0, 1.0]


def test_a_scan_reads_the_items_of_all_shards(connect):
    client, shards = connect([Table("t")])
    for number, shard in enumerate(shards):
        shard.insert_batch("t", {"x": 10 * number + np.arange(10)})
    scan = client.scan("t", batch_size=4)
    assert scan.num_items == 30
    assert np.concatenate([batch.data["x"] for batch in scan]).tolist() == list(range(30))


def test_info_has_the_sums_of_all_shards(connect):
    client, shards = connect([Table("t", max_size=10, max_bytes=1 << 20, rate_limiter=rate_limiters.MinSize(2))])
    for shard in shards[:2]:
        shard.insert({"x": 1}, {"t": 1.0})
    info = client.info()["t"]
    assert (info.size, info.inserts, info.max_size, info.max_bytes) == (2, 2, 30, 3 << 20)
    assert "shard 0 (at " in info.sampling_blocked
    client.reset("t")
    assert client.info()["t"].inserts == 0


def test_info_has_the_rejected_calls_of_all_shards(connect):
    client, shards = connect([Table("t")])
    for shard in shards:
        keys = [shard.insert({"x": 1}, {"t": 1.0})]
        with pytest.raises(engram.errors.PriorityError):
            shard.update_priorities("t", keys, [float("nan")])
    assert client.info()["t"].rejected_calls == {"PriorityError": len(shards)}


def test_ragged_padded_and_text_columns_of_several_shards_are_merged(connect):
    client, shards = connect([Table.queue("q", max_size=100)])
    lengths = (2, 3, 5)
    for number, (shard, length) in enumerate(zip(shards, lengths, strict=True)):
        data = {"x": np.full(length, number), "s": np.array([f"text {number}"] * length, dtype=object)}
        for _ in range(2):
            shard.insert(data, {"q": 1.0}, time_axis=True)
    ragged = client.sample("q", 3)
    assert ragged.row_splits["x"].tolist() == [0, 2, 5, 10]
    assert ragged.data["x"].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert [str(text) for text in ragged.data["s"]][::4] == ["text 0", "text 1", "text 2"]
    padded = client.sample("q", 3, pad=True)
    assert padded.data["x"].tolist() == [[0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [2, 2, 2, 2, 2]]
    assert padded.lengths["x"].tolist() == list(lengths)
    assert padded.data["s"].shape == (3, 5)
    assert padded.data["s"][1].tolist()[2:] == ["text 1", "", ""]


def test_items_that_differ_between_shards_cannot_be_in_one_batch(connect):
    client, shards = connect([Table("t")])
    shards[0].insert({"x": 1}, {"t": 1.0})
    shards[1].insert({"x": 1.0}, {"t": 1.0})
    text = "the items of different shards cannot be in one batch: column `x` differs in dtype"
    with pytest.raises(engram.errors.SignatureError, match=text):
        client.sample("t", 100)
    shards[1].reset("t")
    shards[1].insert({"y": 1}, {"t": 1.0})
    with pytest.raises(engram.errors.SignatureError, match="their columns differ in names or nesting"):
        client.sample("t", 100)


def test_a_pickled_client_connects_again(connect):
    client, _ = connect([Table("t")])
    client.insert({"x": 1}, {"t": 1.0})
    with pickle.loads(pickle.dumps(client)) as copy:  # noqa: S301, its own pickle
        assert copy.sample("t", 1).data["x"].tolist() == [1]


@pytest.mark.parametrize(
    ("limiter", "expected"),
    [
        (rate_limiters.MinSize(10), rate_limiters.MinSize(4)),
        (rate_limiters.Queue(9), rate_limiters.Queue(3)),
        (
            rate_limiters.SampleToInsertRatio(4.0, 30, 60.0),
            rate_limiters.SampleToInsertRatio(4.0, 10, (20.0, 60.0)),
        ),
        (
            rate_limiters.RateLimiter(2.0, 6, -float("inf"), 30.0),
            rate_limiters.RateLimiter(2.0, 2, -float("inf"), 10.0),
        ),
    ],
)
def test_divide_divides_the_limits(limiter, expected):
    table = Table("t", max_size=100, max_bytes=1000, rate_limiter=limiter)
    divided = divide(table, 3)
    assert (divided.max_size, divided.max_bytes, divided.rate_limiter) == (34, 334, expected)


def test_a_limit_that_is_too_small_cannot_be_divided():
    table = Table("t", rate_limiter=rate_limiters.SampleToInsertRatio(4.0, 1, 4.0))
    with pytest.raises(engram.errors.InvalidArgumentError, match="table `t` cannot be divided over 3 shards: "):
        divide(table, 3)
    table = Table("t", rate_limiter=rate_limiters.RateLimiter(2.0, 6, 0, 3))
    text = r"table `t` cannot be divided over 3 shards: `max_diff` must be at least 2 .*got 1; raise `max_diff` to 2"
    with pytest.raises(engram.errors.InvalidArgumentError, match=text):
        divide(table, 3)
