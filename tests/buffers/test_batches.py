"""Batches: nests, memory, dtypes, `out`; what keys, `repr` and threads do."""

import inspect
import sys
import threading
from typing import NamedTuple

import numpy as np
import pytest
from helpers.buffer_model import priorities_by_key
from helpers.support import raises, wait_until

from engram import ArraySpec, Store, selectors
from engram.buffers import BufferBatch, ReplayBuffer, Sequences, Steps, Transitions
from engram.errors import SignatureError


class Step(NamedTuple):
    obs: dict
    action: np.ndarray


def test_steps_are_any_nest():
    buffer = ReplayBuffer(4, seed=0)
    for number in range(3):
        buffer.add(Step({"b": number, "a": (np.full((2, 0), 1.0), np.complex64(1j))}, np.bool_(1)))
    data = buffer.sample(5).data
    assert type(data) is Step
    assert data.obs["b"].dtype == np.int64
    assert data.obs["a"][0].shape == (5, 2, 0)
    assert data.obs["a"][1].dtype == np.complex64
    assert data.action.all()
    assert data.obs["b"].shape == (5,)


def test_a_step_may_be_one_array():
    buffer = ReplayBuffer(4, seed=0)
    buffer.add(np.arange(3))
    batch = buffer.sample(2)
    np.testing.assert_array_equal(batch.data, [[0, 1, 2]] * 2)
    assert buffer.sample(2, out=batch.data).data is batch.data


def test_values_are_converted_to_their_column_if_they_are_of_the_same_kind():
    signature = {
        "f": ArraySpec((), "float32"),
        "i": ArraySpec((), "int8"),
        "u": ArraySpec((), "uint8"),
        "x": ArraySpec((2,), "float64"),
        "h": ArraySpec((), "float16"),
    }
    buffer = ReplayBuffer(10, signature=signature, seed=0)
    buffer.add({"f": np.float64(0.1), "i": np.int64(-128), "u": 255, "x": np.array([1, 2], ">i4"), "h": 0.5})
    buffer.add(
        {"f": True, "i": -128, "u": np.uint16(255), "x": np.arange(4, dtype=np.float32)[1:3], "h": np.float32(0.5)}
    )
    buffer.add({"f": 0.1, "i": np.int16(-128), "u": np.array(255, np.uint64), "x": np.arange(6.0)[2:6:2], "h": 1})
    [batch] = buffer.epoch(3)
    data = {name: column[np.argsort(batch.info.key)] for name, column in batch.data.items()}
    assert data["f"].tolist() == [np.float32(0.1), 1.0, np.float32(0.1)]
    assert data["i"].tolist() == [-128] * 3
    assert data["u"].tolist() == [255] * 3
    assert data["x"].tolist() == [[1, 2], [1, 2], [2, 4]]
    assert data["h"].tolist() == [0.5, 0.5, 1]
    assert {name: column.dtype.name for name, column in data.items()} == {k: v.dtype for k, v in signature.items()}


@pytest.mark.parametrize("value", [np.int64(128), np.int16(-129)])
def test_integers_out_of_range_are_rejected(value):
    buffer = ReplayBuffer(10, signature=ArraySpec((), "int8"))
    with raises(SignatureError, f"the data has {value}, which int8 cannot hold"):
        buffer.add(value)
    assert len(buffer) == 0


@pytest.mark.parametrize("items", [Steps(), Transitions(n_step=2, discount=0.5), Sequences(length=3, burn_in=1)])
def test_out_is_filled_completely(items):
    buffers = [ReplayBuffer(40, items=items, seed=0) for _ in range(2)]
    for number in range(30):
        step = {"x": np.full(3, number, np.int16), "reward": number, "next_obs": number}
        for buffer in buffers:
            buffer.add(step | {"terminated": number % 5 == 4, "truncated": False})
    expected = buffers[0].sample(16)
    out = {name: np.full_like(column, 77) for name, column in expected.data.items()}
    assert buffers[1].sample(16, out=out).data is out
    for name, column in expected.data.items():
        np.testing.assert_array_equal(out[name], column)


def test_batches_do_not_change_later():
    buffer = ReplayBuffer(2, seed=0)
    buffer.add({"x": np.arange(100_000)})
    batch = buffer.sample(2)
    before = batch.data["x"].copy()
    for number in range(4):
        buffer.add({"x": np.full(100_000, number)})
        buffer.sample(2)
    np.testing.assert_array_equal(batch.data["x"], before)


def test_large_batches_are_copied_by_several_threads():
    buffer = ReplayBuffer(64, items=Sequences(length=8), seed=0)
    frames = np.random.default_rng(0).integers(0, 256, (64, 84, 84), np.uint8)
    flags = {"terminated": np.zeros((1, 64), bool), "truncated": np.zeros((1, 64), bool)}
    buffer.add_steps({"frame": frames[None], **flags})
    batch = buffer.sample(200)
    for position, frame in zip(batch.info.position.tolist(), batch.data["frame"], strict=True):
        np.testing.assert_array_equal(frame, frames[position : position + 8])


def test_keys_are_not_used_again_after_clear():
    buffer = ReplayBuffer(8, 2, sampler=selectors.Prioritized(1.0), seed=0)
    buffer.add_batch({"x": np.arange(2)})
    old = buffer.sample(8).info.key
    buffer.clear()
    assert (len(buffer), buffer.num_items) == (0, 0)
    buffer.add_batch({"x": np.arange(2)})
    assert buffer.update_priorities(old, np.full(8, 5.0)) == 0
    batch = buffer.sample(8)
    assert not set(batch.info.key.tolist()) & set(old.tolist())
    assert batch.info.position.tolist() == [1] * 8


def test_a_new_item_gets_the_largest_priority_of_those_that_remain():
    buffer = ReplayBuffer(3, sampler=selectors.Prioritized(1.0), seed=0)
    buffer.add_steps({"x": np.arange(3)[None]})
    buffer.update_priorities([0, 1, 2], [9.0, 0.5, 0.25])
    buffer.add({"x": 3})
    assert priorities_by_key(buffer) == {1: 0.5, 2: 0.25, 3: 0.5}
    buffer.update_priorities([1], [7.0])
    buffer.add_steps({"x": np.arange(2)[None]})
    assert priorities_by_key(buffer) == {3: 0.5, 4: 0.5, 5: 0.5}
    buffer.add_steps({"x": np.arange(5)[None]})
    assert priorities_by_key(buffer) == {8: 1.0, 9: 1.0, 10: 1.0}
    for capacity, num_envs in ((1, 1), (2, 2)):
        buffer = ReplayBuffer(capacity, num_envs, sampler=selectors.Prioritized(1.0), seed=0)
        for _ in range(2):
            buffer.add_batch({"x": np.zeros(num_envs)})
            keys = next(buffer.scan(2)).info.key
            assert set(priorities_by_key(buffer).values()) == {1.0}
            buffer.update_priorities(keys, np.full(num_envs, 5.0))


def test_capacity_is_rounded_up():
    buffer = ReplayBuffer(10, 4)
    assert (buffer.capacity, buffer.num_envs, len(buffer), buffer.num_items) == (12, 4, 0, 0)
    buffer.add_steps({"x": np.zeros((4, 7))})
    assert (len(buffer), buffer.num_items) == (12, 12)


def test_epochs():
    buffer = ReplayBuffer(10, seed=0)
    assert list(buffer.epoch(3)) == []
    buffer.add_steps({"x": np.arange(10)[None]})
    assert [len(batch) for batch in buffer.epoch(4)] == [4, 4, 2]
    assert [len(batch) for batch in buffer.epoch(4, drop_last=True)] == [4, 4]
    # Steps that are overwritten meanwhile are left out; new ones are not included.
    epoch = buffer.epoch(2)
    seen = next(epoch).data["x"].tolist()
    buffer.add_steps({"x": np.arange(100, 105)[None]})
    for batch in epoch:
        seen += batch.data["x"].tolist()
    assert set(range(5, 10)) <= set(seen) <= set(range(10))
    assert len(seen) == len(set(seen))


def test_the_last_batch_of_an_epoch_has_the_remaining_items():
    buffer = ReplayBuffer(10, seed=0)
    buffer.add_steps({"x": np.arange(10)[None]})
    epoch = buffer.epoch(6)
    assert len(next(epoch)) == 6
    assert len(next(epoch)) == 4


def test_scans():
    buffer = ReplayBuffer(10, 2, items=Transitions(n_step=3, discount=0.5), sampler=selectors.Prioritized(1.0), seed=0)
    assert list(buffer.scan(3)) == list(buffer.scan(3, steps=True)) == []
    step = {"reward": np.ones((2, 4)), "terminated": np.zeros((2, 4), bool), "truncated": np.zeros((2, 4), bool)}
    buffer.add_steps(step | {"next_obs": np.array([[0, 1, 2, 3], [10, 11, 12, 13]])})
    buffer.update_priorities([2], [7.0])
    twin = ReplayBuffer(10, 2, items=Transitions(n_step=3, discount=0.5), sampler=selectors.Prioritized(1.0), seed=0)
    twin.add_steps(step | {"next_obs": np.array([[0, 1, 2, 3], [10, 11, 12, 13]])})
    twin.update_priorities([2], [7.0])
    [first, second] = buffer.scan(3)
    assert first.data["next_obs"].tolist() + second.data["next_obs"].tolist() == [2, 3, 12, 13]
    assert first.info.key.tolist() + second.info.key.tolist() == [0, 2, 1, 3]
    assert first.info.priority.tolist() == [1.0, 7.0, 1.0]
    assert first.info.probability.tolist() == [1.0] * 3
    assert first.importance_weights(0.5).tolist() == [1.0] * 3
    assert first.importance_weights(0.5, normalize=None).tolist() == [1.0] * 3
    [batch] = buffer.scan(100, steps=True)
    assert sorted(batch.data) == ["next_obs", "reward", "terminated", "truncated"]
    assert batch.data["next_obs"].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert (batch.info.env_id.tolist(), batch.info.position.tolist()) == ([0] * 4 + [1] * 4, [0, 1, 2, 3] * 2)
    assert batch.info.priority is None
    # Scans have made no random choices.
    assert buffer.sample(20).info.key.tolist() == twin.sample(20).info.key.tolist()


def test_the_batches_of_a_scan_are_as_large_as_those_of_a_store():
    buffer = ReplayBuffer(600, 2, seed=0)
    buffer.add_steps({"x": np.arange(600).reshape(2, 300)})
    assert [len(batch) for batch in buffer.scan()] == [256, 256, 88]
    parameters = [inspect.signature(scan).parameters for scan in (ReplayBuffer.scan, Store.scan)]
    assert parameters[0]["batch_size"].default == parameters[1]["batch_size"].default == 256


def test_a_scan_has_the_items_of_its_beginning_and_the_priorities_of_each_batch():
    buffer = ReplayBuffer(10, sampler=selectors.Prioritized(1.0), seed=0)
    buffer.add_steps({"x": np.arange(4)[None]})
    scan, epoch = buffer.scan(2), buffer.epoch(2)
    buffer.add({"x": 4})
    buffer.update_priorities([0, 2, 4], [5.0, 6.0, 7.0])
    first = next(scan)
    assert (first.info.key.tolist(), first.info.priority.tolist()) == ([0, 1], [5.0, 1.0])
    buffer.update_priorities([0, 2], [8.0, 9.0])
    [second] = scan
    assert (second.info.key.tolist(), second.info.priority.tolist()) == ([2, 3], [9.0, 1.0])
    assert sorted(key for batch in epoch for key in batch.info.key.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("steps", [False, True])
def test_scans_leave_out_what_is_overwritten_meanwhile(steps):
    buffer = ReplayBuffer(20, 2, seed=0)
    buffer.add_steps({"x": np.arange(20).reshape(2, 10)})
    scan = buffer.scan(3, steps=steps)
    assert next(scan).data["x"].tolist() == [0, 1, 2]
    buffer.add_steps({"x": np.full((2, 6), 100)})
    assert [batch.data["x"].tolist() for batch in scan] == [[6, 7, 8], [9, 16, 17], [18, 19]]
    scan = buffer.scan(3, steps=steps)
    next(scan)
    buffer.clear()
    assert list(scan) == []
    scan = buffer.scan(3, steps=steps)
    buffer.add_batch({"x": np.arange(2)})
    assert list(scan) == []


def test_scans_have_the_nest_and_dtypes_of_steps():
    buffer = ReplayBuffer(4, seed=0)
    for number in range(6):
        buffer.add(Step({"b": np.int16(number), "a": (np.zeros((2, 0)), np.complex64(number))}, np.bool_(1)))
    [batch] = buffer.scan(4, steps=True)
    assert type(batch.data) is Step
    assert batch.data.obs["b"].tolist() == [2, 3, 4, 5]
    assert batch.data.obs["b"].dtype == np.int16
    assert batch.data.obs["a"][0].shape == (4, 2, 0)
    large = ReplayBuffer(100, seed=0)
    large.add_steps({"x": np.arange(100 * 20_000, dtype=np.int32).reshape(1, 100, 20_000)})
    [batch] = large.scan(100, steps=True)
    np.testing.assert_array_equal(batch.data["x"].ravel(), np.arange(100 * 20_000))


def test_repr():
    buffer = ReplayBuffer(
        1000, 2, items=Transitions(n_step=3, discount=0.5), sampler=selectors.Prioritized(0.6), seed=0
    )
    settings = "Transitions(n_step=3, discount=0.5), Prioritized(exponent=0.6)"
    assert repr(buffer) == f"ReplayBuffer(0 of 1,000 steps, 2 environments, 0 items, {settings})"
    buffer = ReplayBuffer(1, seed=0)
    buffer.add({"x": np.zeros(2, np.float32)})
    assert repr(buffer) == "ReplayBuffer(1 of 1 step, 1 item, Steps(), Uniform())"
    batch = buffer.sample(2)
    assert isinstance(batch, BufferBatch)
    assert repr(batch) == "BufferBatch(2 items)\n  x  float32  [2, 2]"
    assert "<td>float32</td>" in batch._repr_html_()
    assert repr(batch.info) == (
        "BufferBatchInfo(2 items)\n"
        "  key          uint64   [0, 0]\n"
        "  env_id       int64    [0, 0]\n"
        "  position     uint64   [0, 0]\n"
        "  probability  float64  [1., 1.]"
    )
    assert batch.info.priority is None


def test_no_batch_has_a_step_that_is_partly_written():
    """One thread overwrites a small ring with steps whose elements are all equal, while two others sample."""
    buffer = ReplayBuffer(4, 2, sampler=selectors.Prioritized(0.6), seed=0)
    buffer.add_batch({"x": np.zeros((2, 50_000)), "y": np.zeros(2)})
    stop, failures = threading.Event(), []

    def sample():
        while not stop.is_set():
            batch = buffer.sample(8)
            x, y = batch.data["x"], batch.data["y"]
            if not (x == y[:, None]).all():
                failures.append(batch)
            buffer.update_priorities(batch.info.key, np.arange(1.0, 9))

    threads = [threading.Thread(target=sample) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 150):
        buffer.add_batch({"x": np.full((2, 50_000), float(number)), "y": np.full(2, float(number))})
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_other_threads_run_while_long_transitions_are_read():
    """The batch is small, but its items have 10,000 steps each."""
    buffer = ReplayBuffer(20_000, items=Transitions(n_step=10_000, discount=1.0), seed=0)
    columns = {"reward": np.float32, "next_obs": np.int8, "terminated": bool, "truncated": bool}
    buffer.add_steps({name: np.zeros((1, 20_000), dtype) for name, dtype in columns.items()})
    runs, stop = [], threading.Event()

    def run():
        while not stop.wait(0.001):
            runs.append(None)

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # so that threads change only where the GIL is released
    try:
        thread.start()
        wait_until(lambda: runs)
        before = len(runs)
        buffer.sample(5_000)
        assert len(runs) > before + 3  # the GIL is also released before or after the call
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_a_subclass_may_override_methods():
    class Counting(ReplayBuffer):
        added = 0

        def add(self, step, *, env_id=None):
            self.added += 1
            super().add(step, env_id=env_id)

    buffer = Counting(5)
    for _ in range(3):
        buffer.add({"x": 1})
    assert (buffer.added, len(buffer)) == (3, 3)
