"""Errors of replay buffers whose steps are on a device; a rejected call changes nothing in memory and on the device."""

import sys

import numpy as np
import pytest
from helpers.device_buffers import CASES, NUM_ENVS, SIGNATURE, STORAGES, Driver, assert_same_contents, open_pair, step
from helpers.forks import PROGRAM, needs_fork
from helpers.support import raises, run_python

from engram import ArraySpec
from engram.buffers import JaxArrays, ReplayBuffer, Sequences, Steps, TorchTensors, Transitions
from engram.errors import EngramError, InvalidArgumentError, OutOfMemoryError, SignatureError, UnsatisfiableError

pytestmark = pytest.mark.usefixtures("fast_compilation")

per_storage = pytest.mark.parametrize("storage", STORAGES)


def with_leaf(name, value, shape=()):
    return step(np.zeros(shape), shape) | {name: value}


REJECTED = {
    "another structure": ("add", {"obs": 1.0}, {"env_id": 0}),
    "another shape on the device": ("add", with_leaf("small", np.zeros(3, np.int16)), {"env_id": 0}),
    "another shape": ("add", with_leaf("goal", np.zeros(4, np.float32)), {"env_id": 0}),
    "another dtype": ("add", with_leaf("goal", np.zeros(3, complex)), {"env_id": 0}),
    "text": ("add", with_leaf("action", "left"), {"env_id": 0}),
    "a masked array": ("add", with_leaf("goal", np.ma.zeros(3)), {"env_id": 0}),
    "an integer out of range": ("add", with_leaf("small", np.array([0, 2**20])), {"env_id": 0}),
    "an unknown environment": ("add", step(1), {"env_id": 7}),
    "a repeated environment": ("add_batch", step(np.arange(2), (2,)), {"env_ids": [1, 1]}),
    "too few environments": ("add_batch", step(np.arange(2), (2,)), {}),
    "an episode without steps": ("add_episode", step(np.arange(0), (0,)), {"env_id": 1}),
    "two episodes": ("add_episode", step(np.arange(3), (3,), ended=[False, True, True]), {"env_id": 1}),
    "several numbers of steps": (
        "add_steps",
        with_leaf("goal", np.zeros((NUM_ENVS, 3, 3), np.float32), (NUM_ENVS, 2)),
        {},
    ),
}


@per_storage
def test_rejected_steps_change_nothing(monkeypatch, storage):
    pair = open_pair(monkeypatch, storage, 100, **CASES["transitions"])
    driver = Driver(*pair)
    for case, (method, steps, options) in REJECTED.items():
        driver.change()
        texts = []
        for buffer in pair:
            with pytest.raises(EngramError) as caught:
                getattr(buffer, method)(steps, **options)
            texts.append((type(caught.value), str(caught.value)))
        assert texts[0] == texts[1], case
        try:
            assert_same_contents(*pair)
        except AssertionError as error:
            error.add_note(case)
            raise
    driver.change()
    assert_same_contents(*pair)


@per_storage
def test_a_first_step_that_is_rejected_leaves_the_buffer_without_columns(monkeypatch, storage):
    pair = open_pair(monkeypatch, storage, 2**24, signature=None, items=Transitions(discount=0.9))
    for buffer in pair:
        with raises(
            SignatureError,
            "items=Transitions(...) needs steps that are dicts with `next_obs`, `reward`, `terminated`, `truncated`; "
            "got a single array",
        ):
            buffer.add(np.zeros(5), env_id=0)
        with raises(InvalidArgumentError, "`env_id` must be from 0 to 2; got 9"):
            buffer.add(step(1), env_id=9)
    driver = Driver(*pair)
    driver.change(20)
    assert_same_contents(*pair)


@per_storage
@pytest.mark.parametrize("name", ["reward", "terminated", "truncated"])
def test_columns_that_the_host_computes_with_are_checked(storage, name):
    signature = SIGNATURE | {name: ArraySpec((3,), np.float32)}
    texts = []
    for options in ({}, {"storage": storage}):
        with pytest.raises(SignatureError) as caught:
            ReplayBuffer(9, signature=signature, items=Transitions(discount=0.9), **options)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "float32[3]" in texts[0]


@per_storage
def test_out_is_rejected(storage):
    buffer = ReplayBuffer(9, storage=storage)
    kind = type(storage).__name__
    text = f"`out` must be None with storage={kind}(...), whose batches are always new; got {{}}"
    with raises(InvalidArgumentError, text):
        buffer.sample(1, out={})
    buffer.add({"x": np.zeros(3, np.float32)})
    with raises(InvalidArgumentError, text):
        buffer.sample(1, out={})


@per_storage
def test_an_empty_buffer_cannot_be_sampled_or_flushed(storage):
    buffer = ReplayBuffer(9, storage=storage)
    with raises(UnsatisfiableError, "the replay buffer is empty; add steps before sampling"):
        buffer.sample(1)
    buffer.add({"x": np.zeros(3, np.float32)})
    buffer.clear()
    with raises(UnsatisfiableError, "the replay buffer is empty; add steps before sampling"):
        buffer.sample(1)
    with raises(
        InvalidArgumentError,
        "`flush` needs a buffer in a file; create it with `storage=MappedFile(...)`, or use `save`",
    ):
        buffer.flush()


@per_storage
def test_an_error_of_the_device_adds_nothing(monkeypatch, storage):
    pair = open_pair(monkeypatch, storage, 100)
    driver = Driver(*pair)
    driver.call("add_batch", driver.steps(NUM_ENVS))
    arrays = pair[1]._native._cells.arrays

    def fail(*_):
        raise RuntimeError("lost device")

    with monkeypatch.context() as patch:
        patch.setattr(arrays, "write", fail)
        for _ in range(2):
            with raises(RuntimeError, "lost device"):
                pair[1].add_batch(driver.steps(NUM_ENVS))
            with raises(RuntimeError, "lost device"):
                pair[1].sample(1)
    pair[0].sample(1)  # the random choices of one sample that failed
    pair[0].sample(1)
    assert_same_contents(*pair)


@per_storage
def test_memory_that_the_device_does_not_have_is_an_error(storage):
    with pytest.raises(OutOfMemoryError, match=r"\Athe replay buffer: (PyTorch|JAX) cannot reserve the memory on "):
        ReplayBuffer(2**20, signature={"x": ArraySpec((2**26,), np.float32)}, storage=storage)


@pytest.mark.jax
@pytest.mark.parametrize(
    ("dtype", "cut"), [("float64", "float32"), ("int64", "int32"), ("uint64", "uint32"), ("complex128", "complex64")]
)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_jax_rejects_columns_of_64_bits(dtype, cut, shape):
    buffer = ReplayBuffer(9, storage=JaxArrays())
    value = np.zeros(shape, dtype)
    text = (
        f"JaxArrays: column `x` is {dtype}, which JAX would cut to {cut}; declare {cut} in `signature`, or set "
        "jax_enable_x64"
    )
    with raises(SignatureError, text):
        buffer.add({"x": value})
    with raises(SignatureError, text.replace("column `x`", "the data")):
        buffer.add(value)
    buffer.add({"x": value.astype(cut)})
    assert len(buffer) == 1


@pytest.mark.jax
def test_jax_rejects_a_reward_of_64_bits_that_would_be_in_a_batch():
    signature = SIGNATURE | {"reward": ArraySpec((), np.float64)}
    text = (
        "JaxArrays: column `reward` is float64, which JAX would cut to float32; declare float32 in `signature`, or set "
        "jax_enable_x64"
    )
    for items in (Steps(), Sequences(length=2)):
        with raises(SignatureError, text):
            ReplayBuffer(9, signature=signature, items=items, storage=JaxArrays())


@pytest.mark.jax
def test_jax_rejects_more_cells_than_int32_counts(monkeypatch):
    from engram.buffers import _jax_arrays  # noqa: PLC0415, the extra

    monkeypatch.setattr(_jax_arrays, "_MAX_CELLS", 10)
    signature = {"x": ArraySpec((3,), np.float32)}
    ReplayBuffer(9, signature=signature, storage=JaxArrays())
    with raises(InvalidArgumentError, "`capacity` must be below 10 with storage=JaxArrays(...); got 10"):
        ReplayBuffer(10, signature=signature, storage=JaxArrays())


@pytest.mark.jax
@pytest.mark.parametrize("device", ["gpu", 0])
def test_an_unknown_device_of_jax_is_rejected(device):
    with raises(
        InvalidArgumentError,
        f"`device` must be a jax.Device, for example jax.devices()[0]; got {device!r} ({type(device).__name__})",
    ):
        ReplayBuffer(9, storage=JaxArrays(device))


@pytest.mark.frameworks
@pytest.mark.torch
@pytest.mark.parametrize("device", ["gpu", 1.5])
def test_an_unknown_device_of_torch_is_rejected(device):
    with pytest.raises(
        InvalidArgumentError, match=rf"\A`device` must be a device that PyTorch can use here; got {device!r}: "
    ):
        ReplayBuffer(9, storage=TorchTensors(device))


@pytest.mark.parametrize(
    ("storage", "module", "package", "extra"),
    [(TorchTensors(), "torch", "PyTorch", "torch"), (JaxArrays(), "jax", "JAX", "jax")],
)
def test_a_missing_framework_is_named(monkeypatch, storage, module, package, extra):
    for name in list(sys.modules):
        if name == module or name.startswith(("engram.buffers._torch", "engram.buffers._jax", "engram._torch")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with raises(
        ModuleNotFoundError,
        f"engram.buffers.{type(storage).__name__} needs {package}, which is not installed; install it with "
        f"`pip install 'engram-replay[{extra}]'`",
    ):
        ReplayBuffer(9, storage=storage)


def test_storage_must_be_of_a_known_kind():
    kinds = "one of engram.buffers: MappedFile(...), TorchTensors(...), JaxArrays(...); or None"
    with raises(InvalidArgumentError, f"`storage` must be {kinds}; got 'cuda' (str)"):
        ReplayBuffer(9, storage="cuda")
    with raises(InvalidArgumentError, f"`storage` must be {kinds}; got the class JaxArrays itself; call it"):
        ReplayBuffer(9, storage=JaxArrays)


@needs_fork
@pytest.mark.frameworks
@pytest.mark.torch
def test_a_child_does_not_wait_for_a_thread_of_its_parent():
    code = """
from engram.buffers import ReplayBuffer, TorchTensors
buffer = ReplayBuffer(10, storage=TorchTensors("cpu"))
buffer.add({"x": np.zeros(5)})
buffer.sample(1)

def work():
    calls = lambda: buffer.sample(1), lambda: buffer.add({"x": np.zeros(5)}), lambda: buffer.save("x"), buffer.close
    for call in calls:
        expect_forked_error("replay buffer", call)

locked = threading.Event()
def hold():
    with buffer._native._cells.lock:
        locked.set()
        time.sleep(1)

threading.Thread(target=hold).start()
locked.wait()
in_child(work)
"""
    assert run_python(PROGRAM + code) == ""
