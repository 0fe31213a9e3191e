"""Replay buffers with steps on a device, next to ones with the same steps in memory."""

import ml_dtypes
import numpy as np
import optree
import pytest

from engram import ArraySpec, selectors
from engram.buffers import (
    HER,
    Episodes,
    FrameStack,
    JaxArrays,
    RecentMix,
    ReplayBuffer,
    Sequences,
    Steps,
    TorchTensors,
    Transitions,
    _device_buffer,
)

LENGTH, NUM_ENVS = 11, 3
STORAGES = [
    pytest.param(JaxArrays(), id="jax", marks=pytest.mark.jax),
    pytest.param(TorchTensors("cpu"), id="torch", marks=[pytest.mark.frameworks, pytest.mark.torch]),
]
BLOCKS = [100, 2**24]
"""Maximum sizes of a block in bytes: less than two steps, and more than all."""


def reward_of(achieved, goal):
    assert isinstance(achieved, np.ndarray)
    return (achieved.sum(-1) * 1000 + goal.sum(-1)).astype(np.float32)


CASES = {
    "steps": {"items": Steps()},
    "steps-her": {"items": Steps(), "transforms": [HER(reward_of, goal="goal", achieved="achieved")]},
    "transitions": {"items": Transitions(n_step=3, discount=0.9), "sampler": selectors.Prioritized(0.6)},
    "transitions-her": {
        "items": Transitions(discount=0.9),
        "transforms": [HER(reward_of, strategy="final", goal="goal", achieved="achieved"), FrameStack("obs", 3)],
    },
    "transitions-stack": {"items": Transitions(n_step=2, discount=0.9), "transforms": [FrameStack("obs", 4)]},
    "sequences": {"items": Sequences(length=3, burn_in=2), "sampler": RecentMix(0.5, newest=4)},
    "sequences-continue": {"items": Sequences(length=3, burn_in=1, at_end="continue")},
    "sequences-stack": {
        "items": Sequences(length=2, burn_in=1),
        "transforms": [FrameStack("obs/screen", 2), FrameStack("small", 2)],
    },
    "episodes": {"items": Episodes(max_length=4), "sampler": selectors.Prioritized(1.0)},
}
SCREEN = {"screen": ArraySpec((4, 3), np.uint8), "vector": ArraySpec((3,), np.float32)}
SIGNATURE = {
    "obs": SCREEN,
    "next_obs": SCREEN,
    "action": ArraySpec((), np.int32),
    "small": ArraySpec((2,), np.int16),
    "reward": ArraySpec((), np.float32),
    "terminated": ArraySpec((), np.bool_),
    "truncated": ArraySpec((), np.bool_),
    "goal": ArraySpec((3,), np.float32),
    "achieved": ArraySpec((3,), np.float32),
    "others": (
        ArraySpec((5, 1), "bfloat16"),
        ArraySpec((9,), "float8_e5m2"),
        ArraySpec((7,), np.float16),
        ArraySpec((2,), np.complex64),
        ArraySpec((9,), np.bool_),
        ArraySpec((5,), np.uint16),
        ArraySpec((3,), np.uint32),
    ),
}


def step(number, shape=(), *, ended=False):
    """Steps with these leading axes; all values of a step follow from its number."""
    numbers = np.asarray(number, np.int64).reshape(shape)

    def leaf(spec):
        dtype = np.dtype(spec.dtype if not isinstance(spec.dtype, str) else getattr(ml_dtypes, spec.dtype))
        cell = np.arange(int(np.prod(spec.shape)), dtype=np.int64).reshape(spec.shape)
        values = numbers.reshape(shape + (1,) * cell.ndim) % 50 + cell
        return values.astype(bool if dtype == np.bool_ else dtype)

    values = optree.tree_map(leaf, SIGNATURE)
    ended = np.broadcast_to(np.asarray(ended), shape)
    values["terminated"], values["truncated"] = ended & (numbers % 2 == 0), ended & (numbers % 2 == 1)
    values["next_obs"] = optree.tree_map(lambda each: each + each.dtype.type(1), values["obs"])
    return values


class Driver:
    """Does the same random things to several buffers."""

    def __init__(self, *buffers, seed=0):
        self.buffers, self.rng, self.number = buffers, np.random.default_rng(seed), 0

    def call(self, method, *args, **options):
        results = [getattr(buffer, method)(*args, **options) for buffer in self.buffers]
        assert results.count(results[0]) == len(results)

    def steps(self, *shape, ended=None):
        count = int(np.prod(shape))
        numbers = np.arange(self.number, self.number + count)
        self.number += count
        return step(numbers, shape, ended=self.rng.random(shape) < 0.2 if ended is None else ended)

    def change(self, calls=8):
        """Adds steps, ends episodes and changes priorities."""
        for _ in range(calls):
            env_ids = self.rng.permutation(NUM_ENVS)[: self.rng.integers(1, NUM_ENVS + 1)]
            kind = self.rng.integers(0, 6)
            if kind == 0:
                self.call("add", self.steps(), env_id=int(env_ids[0]))
            elif kind == 1:
                self.call("add_batch", self.steps(len(env_ids)), env_ids=env_ids)
            elif kind == 2:
                self.call("add_batch", self.steps(NUM_ENVS))
            elif kind == 3:
                length = int(self.rng.choice([0, 1, 5, LENGTH + 3]))
                self.call("add_steps", self.steps(len(env_ids), length), env_ids=env_ids)
            elif kind == 4:
                self.call("add_episode", self.steps(int(self.rng.integers(1, 5)), ended=False), env_id=int(env_ids[0]))
            else:
                self.call("end_episodes", env_ids=env_ids)
        if isinstance(self.buffers[0]._sampler, selectors.Prioritized):
            keys = self.rng.integers(0, self.number + 1, 20, dtype=np.int64)
            self.call("update_priorities", keys, self.rng.choice([0.0, 0.5, 1, 3], 20))


def open_pair(monkeypatch, storage, block, seed=0, capacity=LENGTH * NUM_ENVS, **options):
    """Returns a buffer in memory, and one on a device whose blocks have at most this size in bytes."""
    monkeypatch.setattr(_device_buffer, "_BLOCK_BYTES", block)
    options = {"signature": SIGNATURE, "seed": seed} | options
    return ReplayBuffer(capacity, NUM_ENVS, **options), ReplayBuffer(capacity, NUM_ENVS, storage=storage, **options)


def is_on_device(leaf):
    return type(leaf).__module__.split(".")[0] in {"torch", "jax", "jaxlib"}


def on_host(leaf):
    """The name of a leaf's dtype, and its values as NumPy array."""
    assert is_on_device(leaf)
    dtype = str(leaf.dtype).removeprefix("torch.")
    if type(leaf).__module__ == "torch":
        # PyTorch has no NumPy arrays of these.
        leaf = (leaf.float() if dtype in {"bfloat16", "float8_e5m2"} else leaf).cpu()
    return dtype, np.asarray(leaf)


def assert_same_batches(expected, found):
    """Checks a batch on a device against one in memory."""
    assert len(expected) == len(found)
    names = ("key", "env_id", "position", "probability", "priority", "relabeled")
    for name in names:
        np.testing.assert_array_equal(getattr(expected.info, name), getattr(found.info, name), err_msg=name)
    weights = [batch.importance_weights(0.5) for batch in (expected, found)]
    np.testing.assert_array_equal(*weights)
    paths, leaves, structure = optree.tree_flatten_with_path(expected.data)
    found_leaves, found_structure = optree.tree_flatten(found.data)
    assert found_structure == structure
    for path, leaf, found_leaf in zip(paths, leaves, found_leaves, strict=True):
        dtype, values = on_host(found_leaf)
        assert (dtype, values.shape) == (leaf.dtype.name, leaf.shape), path
        np.testing.assert_array_equal(values.astype(leaf.dtype), leaf, err_msg=str(path))


def assert_same_contents(expected, found):
    """Checks all that can be read of a buffer on a device against one in memory, with the same random choices."""
    assert (len(expected), expected.num_items) == (len(found), found.num_items)
    if expected.num_items:
        for n in (1, 4):
            assert_same_batches(expected.sample(n), found.sample(n))
    # Batches of equal sizes: JAX compiles the code for each size.
    readers = [(each.epoch(4), each.scan(4), each.scan(4, steps=True)) for each in (expected, found)]
    for one, other in zip(*readers, strict=True):
        for batch, found_batch in zip(one, other, strict=True):
            assert_same_batches(batch, found_batch)
