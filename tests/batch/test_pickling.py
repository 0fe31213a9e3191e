"""Batches, their metadata and single samples can be pickled and copied."""

import copy
import pickle
from typing import NamedTuple

import numpy as np
import pytest
from helpers.store_types import doors
from helpers.support import raises, run_python

import engram
from engram import Dataset, Pattern, Table, selectors
from engram.buffers import ReplayBuffer


class Point(NamedTuple):
    x: object
    y: object


INFO = ("key", "probability", "priority", "times_sampled", "table_size")
BETAS = (0.0, 0.4, 1.0, 2.0)


def filled_store(open_store):
    """A store whose table `t` has items of 1, 2 and 3 steps, with priorities from 0.3 to 7."""
    store = open_store(Table("t", sampler=selectors.Prioritized(0.7)))
    with store.writer() as writer:
        for length, priority in ((1, 0.3), (2, 7.0), (3, 1.0)):
            for step in range(length):
                nested = {"b": (np.float16(step), [Point(np.full((2, 3), step, np.float32), "text")])}
                writer.append({"a": nested, "c": step % 2 == 0})
            history = writer.history
            point = history["a"]["b"][1][0]
            item = {"ragged": history["a"]["b"][0][:], "nest": (Point(point.x[-1], [point.y[-1]]), history["c"][-1:])}
            writer.create_item("t", priority, item)
            writer.end_episode()
    return store


def copies(value):
    """The value after each way of copying it."""
    return [
        *(pickle.loads(pickle.dumps(value, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),  # noqa: S301, its own
        copy.deepcopy(value),
    ]


def assert_same_arrays(copied, original):
    assert copied.dtype == original.dtype
    assert copied.shape == original.shape
    if original.dtype == object:
        assert copied.tolist() == original.tolist()
    else:
        assert copied.tobytes() == original.tobytes()
    assert not np.shares_memory(copied, original)


def assert_same_nests(copied, original):
    assert type(copied) is type(original)
    if isinstance(original, dict):
        assert copied.keys() == original.keys()
        original, copied = original.values(), copied.values()
    if isinstance(original, np.ndarray):
        assert_same_arrays(copied, original)
    elif original is not None:
        for one, other in zip(copied, original, strict=True):
            assert_same_nests(one, other)


def assert_same_info(copied, original):
    for name in INFO:
        assert_same_arrays(getattr(copied, name), getattr(original, name))


@pytest.mark.parametrize("pad", [False, True])
def test_copies_have_the_same_values(open_store, pad):
    batch = filled_store(open_store).sample("t", 50, pad=pad)
    assert (batch.lengths if pad else batch.row_splits) is not None
    for copied in copies(batch):
        assert len(copied) == 50
        for name in ("data", "row_splits", "lengths", "mask"):
            assert_same_nests(getattr(copied, name), getattr(batch, name))
        assert copied.squeezed == batch.squeezed
        assert_same_info(copied.info, batch.info)
        assert repr(copied) == repr(batch)


@pytest.mark.parametrize("beta", BETAS)
def test_copies_have_the_same_importance_weights(open_store, beta):
    batch = filled_store(open_store).sample("t", 50)
    copied, again = copies(batch)[-1], copies(copies(batch)[-1])[0]
    for each in (copied, again):
        for normalize in ("batch", "table", None):
            weights = each.importance_weights(beta, normalize=normalize)
            assert weights.dtype == np.float32
            np.testing.assert_allclose(weights, batch.importance_weights(beta, normalize=normalize), rtol=3e-7)


@pytest.mark.parametrize("sampler", [selectors.Uniform(), selectors.Fifo(), selectors.MaxHeap()])
def test_importance_weights_of_copies_for_other_samplers(open_store, sampler):
    store = open_store(Table("t", sampler=sampler, max_size=5))
    with store.batched_writer(4, [Pattern("t", num_steps=1)]) as writer:
        for _ in range(4):
            writer.append_batch({"x": np.arange(4)})
    batch = store.sample("t", 20)
    for normalize in ("batch", "table", None):
        expected = batch.importance_weights(0.4, normalize=normalize)
        np.testing.assert_array_equal(copy.deepcopy(batch).importance_weights(0.4, normalize=normalize), expected)


def test_priorities_are_updated_by_the_keys_of_a_copy(open_store):
    store = filled_store(open_store)
    batch = pickle.loads(pickle.dumps(store.sample("t", 50)))  # noqa: S301, its own
    assert store.update_priorities("t", batch.info.key, np.full(50, 0.5)) == 50
    assert set(store.sample("t", 50).info.priority) == {0.5}


def test_copies_of_metadata_and_single_samples(open_store):
    store = filled_store(open_store)
    info = store.sample("t", 5).info
    for copied in copies(info):
        assert_same_info(copied, info)
    sample = next(iter(Dataset(store, "t")))
    for copied in copies(sample):
        assert type(copied) is type(sample)
        assert_same_nests(copied.data, sample.data)
        assert_same_info(copied.info, sample.info)


def test_changes_of_a_batch_are_copied(open_store):
    batch = filled_store(open_store).sample("t", 5)
    batch.data = {"other": np.arange(5)}
    batch.info.priority[:] = 9.0
    for copied in copies(batch):
        assert copied.data["other"].tolist() == [0, 1, 2, 3, 4]
        assert copied.info.priority.tolist() == [9.0] * 5


@pytest.mark.parametrize("open_store", doors(slow=["in_process", "sharded"]), indirect=True)
def test_another_process_reads_a_pickle(open_store, tmp_path):
    """Its named tuples are of new classes with the same names and fields, as those that a client samples there."""
    batch = filled_store(open_store).sample("t", 5, pad=True)
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps(batch))
    code = f"""
import pickle, pathlib
batch = pickle.loads(pathlib.Path({str(file)!r}).read_bytes())
point, flags = batch.data["nest"]
print(type(point).__name__, point._fields, point.x.sum(), flags.shape, batch.lengths["ragged"], batch.info.key)
"""
    point, flags = batch.data["nest"]
    expected = f"Point ('x', 'y') {point.x.sum()} {flags.shape} {batch.lengths['ragged']} {batch.info.key}"
    assert run_python(code).split() == expected.split()


def test_what_cannot_be_pickled_states_what_to_do():
    store, buffer = engram.Store([Table("t")]), ReplayBuffer(10)
    with engram.Server(store) as server:
        cases = {
            store: "a Store cannot be pickled or copied: its tables are in this process; serve it with "
            "engram.Server(store), and pass an engram.Client to other processes",
            server: "a Server cannot be pickled or copied; pass its `address` to other processes, or an engram.Client",
            buffer: "a ReplayBuffer cannot be pickled or copied: its steps are in this process; `save` it, and "
            "`restore` it in the other process, or pass batches",
        }
        for value, text in cases.items():
            with raises(TypeError, text):
                pickle.dumps(value)
