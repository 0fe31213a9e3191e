"""Batches of a replay buffer as PyTorch tensors and JAX arrays, drawn in advance by a thread."""

import itertools
import threading

import numpy as np
import pytest
from helpers.support import raises, wait_until

from engram import selectors
from engram.buffers import ReplayBuffer, Sequences
from engram.errors import ClosedError, InvalidArgumentError, UnsatisfiableError


@pytest.fixture(
    params=[
        pytest.param("torch", marks=[pytest.mark.frameworks, pytest.mark.torch]),
        pytest.param("jax", marks=pytest.mark.jax),
    ]
)
def framework(request):
    return request.param


@pytest.fixture
def batches(framework):
    if framework == "torch":
        from engram.data import torch as data  # noqa: PLC0415, the extra
    else:
        from engram.data import jax as data  # noqa: PLC0415, the extra
    return data.batches


@pytest.fixture
def device(framework):
    if framework == "torch":
        return "cpu"
    import jax  # noqa: PLC0415, the extra

    return jax.devices()[0]


@pytest.fixture
def array_type(framework):
    if framework == "torch":
        import torch  # noqa: PLC0415, the extra

        return torch.Tensor
    import jax  # noqa: PLC0415, the extra

    return jax.Array


def filled(n=100, **options):
    """Returns a buffer of `n` steps, whose columns all have the number of the step."""
    buffer = ReplayBuffer(n, seed=0, **options)
    numbers = np.arange(n, dtype=np.float32)
    ends = np.zeros((1, n), bool)
    obs = {"x": np.tile(numbers[:, None], 3)[None]}
    buffer.add_steps({"obs": obs, "reward": numbers[None], "terminated": ends, "truncated": ends})
    return buffer


@pytest.mark.parametrize("prefetch", [0, 3])
def test_data_is_that_of_sample(batches, device, array_type, prefetch):
    buffer, other = filled(), filled()
    for batch in itertools.islice(batches(buffer, 8, device=device, prefetch=prefetch), 20):
        expected = other.sample(8)
        assert isinstance(batch.data["obs"]["x"], array_type)
        assert isinstance(batch.data["reward"], array_type)
        np.testing.assert_array_equal(np.asarray(batch.data["obs"]["x"]), expected.data["obs"]["x"])
        np.testing.assert_array_equal(np.asarray(batch.data["reward"]), expected.data["reward"])
        np.testing.assert_array_equal(batch.info.key, expected.info.key)


def test_without_replacement(batches):
    batch = next(batches(filled(), 100, replacement=False))
    assert sorted(np.asarray(batch.data["reward"]).tolist()) == list(range(100))


def test_priorities_can_be_updated(batches):
    buffer = filled(sampler=selectors.Prioritized(1.0))
    for batch in itertools.islice(batches(buffer, 100), 50):
        assert batch.importance_weights(0.4).shape == (100,)
        # Only step 7 keeps its priority.
        assert buffer.update_priorities(batch.info.key, np.asarray(batch.data["reward"]) == 7) == 100
    assert set(np.asarray(buffer.sample(10).data["reward"]).tolist()) == {7}


def test_a_thread_draws_in_advance_up_to_the_limit(batches):
    buffer = filled()
    drawn, sample = [], buffer.sample

    def counted(*arguments, **options):
        drawn.append(threading.current_thread())
        return sample(*arguments, **options)

    buffer.sample = counted
    elements = batches(buffer, 4, prefetch=2)
    next(elements)
    wait_until(lambda: len(drawn) == 3)
    next(elements)
    wait_until(lambda: len(drawn) == 4)
    elements.close()
    assert len(drawn) <= 5
    assert threading.current_thread() not in drawn
    assert not drawn[0].is_alive()


def test_sequences(batches):
    batch = next(batches(filled(items=Sequences(length=5, at_end="continue")), 6))
    assert tuple(batch.data["obs"]["x"].shape) == (6, 5, 3)


def test_errors_of_the_thread_are_raised_in_the_loop(batches):
    with raises(UnsatisfiableError, "the replay buffer is empty; add steps before sampling"):
        next(batches(ReplayBuffer(10), 4))
    buffer = filled()
    elements = batches(buffer, 4, prefetch=1)
    next(elements)
    buffer.close()
    with raises(ClosedError, "the replay buffer is closed"):
        list(elements)


def test_bad_arguments(batches):
    buffer = filled()
    with raises(InvalidArgumentError, "`buffer` must be an engram.buffers.ReplayBuffer(...); got [1] (list)"):
        batches([1], 4)
    with raises(InvalidArgumentError, "`batch_size` must be at least 1; got 0"):
        batches(buffer, 0)
    with raises(InvalidArgumentError, "`prefetch` must be at least 0; got -1"):
        batches(buffer, 4, prefetch=-1)
    with raises(InvalidArgumentError, "`replacement` must be True or False; got 1 (int)"):
        batches(buffer, 4, replacement=1)
    with pytest.raises(InvalidArgumentError, match="`device` must be a "):
        batches(buffer, 4, device="a device")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_copies_to_a_gpu(batches, framework, prefetch):
    if framework == "torch":
        import torch  # noqa: PLC0415, the extra

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU that PyTorch can use")
        device = "cuda:0"
    else:
        import jax  # noqa: PLC0415, the extra

        devices = [device for device in jax.devices() if device.platform == "gpu"]
        if not devices:
            pytest.skip("needs a GPU that JAX can use")
        device = devices[0]
    buffer, other = filled(), filled()
    for batch in itertools.islice(batches(buffer, 8, device=device, prefetch=prefetch), 20):
        assert "cuda" in str(batch.data["reward"].device).lower()
        reward = batch.data["reward"].cpu() if framework == "torch" else batch.data["reward"]
        np.testing.assert_array_equal(np.asarray(reward), other.sample(8).data["reward"])
