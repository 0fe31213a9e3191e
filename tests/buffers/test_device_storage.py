"""Replay buffers whose steps are on a device return the same batches as those in memory."""

import gc
import threading
import weakref

import numpy as np
import optree
import pytest
from helpers.device_buffers import (
    BLOCKS,
    CASES,
    LENGTH,
    NUM_ENVS,
    SIGNATURE,
    STORAGES,
    Driver,
    assert_same_contents,
    is_on_device,
    on_host,
    open_pair,
    step,
)
from helpers.support import raises, runs_all_tests

from engram import ArraySpec
from engram.buffers import JaxArrays, ReplayBuffer, Sequences, TorchTensors, Transitions
from engram.errors import ClosedError

pytestmark = pytest.mark.usefixtures("fast_compilation")

per_storage = pytest.mark.parametrize("storage", STORAGES)
per_block = pytest.mark.parametrize("block", BLOCKS)


def per_case_and_block(cases, always):
    """Parametrizes a test by cases and by sizes of blocks; combinations that are not in `always` are slow."""
    combinations = [(case, block) for case in cases for block in BLOCKS]
    return pytest.mark.parametrize(
        ("case", "block"),
        [pytest.param(*each, marks=[] if each in always else pytest.mark.slow) for each in combinations],
    )


@per_storage
@per_case_and_block(CASES, always=[*((case, BLOCKS[0]) for case in CASES), ("transitions-stack", BLOCKS[1])])
def test_batches_are_those_of_a_buffer_in_memory(monkeypatch, storage, block, case):
    pair = open_pair(monkeypatch, storage, block, **CASES[case])
    driver = Driver(*pair, seed=1)
    for round_number in range(4):
        driver.change()
        assert_same_contents(*pair)
        if round_number == 1:
            driver.call("clear")
            assert_same_contents(*pair)


@per_storage
def test_the_columns_may_follow_from_the_first_step(monkeypatch, storage):
    pair = open_pair(monkeypatch, storage, 2**24, signature=None)
    driver = Driver(*pair)
    assert pair[1].num_items == 0
    driver.call("add_batch", driver.steps(NUM_ENVS))
    assert_same_contents(*pair)


@per_storage
def test_a_step_can_be_a_single_array_or_small(storage):
    single = ReplayBuffer(4, storage=storage)
    for number in range(6):
        single.add(np.full((3, 2), number, np.float32))
    (batch,) = single.scan(4, steps=True)
    dtype, values = on_host(batch.data)
    assert dtype == "float32"
    np.testing.assert_array_equal(values[:, 0, 0], [2, 3, 4, 5])
    small = ReplayBuffer(4, storage=storage)  # without columns on the device
    small.add_steps({"x": np.arange(6, dtype=np.int16)[None]})
    (batch,) = small.scan(4)
    np.testing.assert_array_equal(on_host(batch.data["x"])[1], [2, 3, 4, 5])


@per_storage
def test_values_are_converted_to_the_dtypes_of_the_columns(storage):
    buffer = ReplayBuffer(4, signature={"x": ArraySpec((3,), np.float32)}, storage=storage)
    buffer.add({"x": np.array([0.5, 1, 2])})
    dtype, values = on_host(buffer.sample(1).data["x"])
    assert (dtype, values.tolist()) == ("float32", [[0.5, 1, 2]])


@per_storage
def test_later_steps_do_not_change_a_batch(storage):
    buffer = ReplayBuffer(4, storage=storage)
    buffer.add_steps({"x": np.zeros((1, 4, 5), np.float32)})
    batch = buffer.sample(8)
    buffer.add_steps({"x": np.ones((1, 4, 5), np.float32)})
    assert (on_host(buffer.sample(8).data["x"])[1] == 1).all()
    assert (on_host(batch.data["x"])[1] == 0).all()


@per_storage
def test_the_steps_of_a_call_larger_than_a_block_are_all_written(monkeypatch, storage):
    signature = {"x": ArraySpec((9,), np.float32)}
    pair = open_pair(monkeypatch, storage, 100, capacity=NUM_ENVS * 70, signature=signature)
    for steps in np.random.default_rng(0).normal(size=(2, NUM_ENVS, 61, 9)).astype(np.float32):
        for buffer in pair:
            buffer.add_steps({"x": steps})
    assert_same_contents(*pair)


@per_storage
def test_a_block_has_each_cell_once_and_zeros_as_padding(monkeypatch, storage):
    pair = open_pair(monkeypatch, storage, 2**24, **CASES["steps"])
    driver, arrays, sizes = Driver(*pair, seed=3), pair[1]._native._cells.arrays, []
    write = arrays.write

    def checked_write(numbers, cells):
        padding = numbers == 0
        assert len(set(numbers[~padding].tolist())) == (~padding).sum()
        assert len(numbers).bit_count() == 1 or not arrays.pads_blocks
        for column in cells:
            assert not column[padding].view(np.uint8).any()
        sizes.append(int((~padding).sum()))
        write(numbers, cells)

    monkeypatch.setattr(arrays, "write", checked_write)
    for _ in range(4):
        driver.change(15)
        pair[1].sample(1)
        sizes.clear()
        for _ in range(LENGTH):  # the steps of a whole ring wait for the next batch
            driver.call("add_batch", driver.steps(NUM_ENVS))
        assert not sizes
        driver.call("add_batch", driver.steps(NUM_ENVS))
        assert sizes == [LENGTH * NUM_ENVS]


@per_storage
@per_case_and_block(
    ["steps", "transitions", "sequences-stack", "episodes"],
    always=[("transitions", BLOCKS[1]), ("episodes", BLOCKS[0])],
)
def test_saves_fit_buffers_in_memory_and_on_devices(monkeypatch, tmp_path, storage, block, case):
    pair = open_pair(monkeypatch, storage, block, **CASES[case])
    driver = Driver(*pair, seed=2)
    driver.change(20)
    assert_same_contents(*pair)  # writes the steps to the device
    driver.call("add", driver.steps(), env_id=1)  # this one is not written before the save
    paths = [tmp_path / name for name in ("host", "device")]
    sizes = [buffer.save(path) for buffer, path in zip(pair, paths, strict=True)]
    assert sizes[0] == sizes[1]
    lengths = [(LENGTH, SIGNATURE), (LENGTH - 3, None), *([(40, None)] if runs_all_tests() else [])]
    for length, signature in lengths:
        options = CASES[case] | {"capacity": NUM_ENVS * length, "signature": signature, "seed": 5}
        for files in (paths, paths[::-1]):
            restored = open_pair(monkeypatch, storage, block, **options)
            for buffer, path in zip(restored, files, strict=True):
                buffer.restore(path)
            assert_same_contents(*restored)
            Driver(*restored, seed=3).change()
            assert_same_contents(*restored)
    driver.change()  # a save changes nothing
    assert_same_contents(*pair)


@per_storage
def test_a_failed_restore_leaves_the_buffer_empty(monkeypatch, tmp_path, storage):
    pair = open_pair(monkeypatch, storage, 2**24)
    Driver(*pair).change(20)
    path = tmp_path / "save"
    pair[1].save(path)
    contents = bytearray(path.read_bytes())
    contents[-60] ^= 1
    path.write_bytes(contents)
    for signature in (SIGNATURE, None):
        targets = open_pair(monkeypatch, storage, 2**24, signature=signature)
        texts = []
        for target in targets:
            with pytest.raises(OSError, match="cannot be used") as caught:
                target.restore(path)
            texts.append(str(caught.value))
            assert len(target) == 0
        assert texts[0] == texts[1]
        Driver(*targets).change()
        assert_same_contents(*targets)


@per_storage
@per_block
def test_no_batch_mixes_steps_while_threads_add(monkeypatch, storage, block):
    num_envs, threads = 2, 3
    monkeypatch.setattr("engram.buffers._device_buffer._BLOCK_BYTES", block)
    signature = {"x": ArraySpec((4,), np.int32), "y": ArraySpec((5,), np.int32), "n": ArraySpec((), np.int32)}
    flags = {"terminated": ArraySpec((), np.bool_), "truncated": ArraySpec((), np.bool_)}
    items = Sequences(length=3, at_end="continue")
    buffer = ReplayBuffer(8 * num_envs, num_envs, signature=signature | flags, items=items, storage=storage, seed=0)
    done, errors = threading.Event(), []

    def steps(first):
        numbers = np.arange(first, first + 3, dtype=np.int32)[None, :, None]
        cells = {"x": np.tile(numbers, 4), "y": np.tile(numbers, 5), "n": numbers[..., 0]}
        return cells | {"terminated": np.zeros((1, 3), bool), "truncated": np.zeros((1, 3), bool)}

    def add(env_id):
        for number in range(3, 900, 3):
            buffer.add_steps(steps(number), env_ids=[env_id])
        done.set()

    def sample():
        while not done.is_set():
            try:
                data = optree.tree_map(lambda leaf: on_host(leaf)[1], buffer.sample(16).data)
                numbers = data["n"]
                assert (data["x"] == numbers[..., None]).all()
                assert (data["y"] == numbers[..., None]).all()
                assert (np.diff(numbers, axis=1) == 1).all()
            except BaseException as error:
                errors.append(error)
                raise

    for env_id in range(num_envs):
        buffer.add_steps(steps(0), env_ids=[env_id])
    running = [threading.Thread(target=sample) for _ in range(threads)]
    running += [threading.Thread(target=add, args=(env_id,)) for env_id in range(num_envs)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not errors


@per_storage
def test_an_unused_buffer_frees_its_arrays(storage):
    buffer = ReplayBuffer(4, storage=storage)
    buffer.add({"x": np.zeros(5, np.float32)})
    arrays = weakref.ref(buffer._native._cells.arrays)
    del buffer
    gc.collect()
    assert arrays() is None


@per_storage
def test_a_closed_buffer_frees_its_arrays(storage):
    buffer = ReplayBuffer(4, storage=storage)
    buffer.add({"x": np.zeros(5, np.float32)})
    arrays = buffer._native._cells.arrays
    assert arrays._arrays
    buffer.close()
    assert not arrays._arrays
    buffer.close()
    with raises(ClosedError, "the replay buffer is closed"):
        buffer.sample(1)


@per_storage
def test_a_batch_shows_its_columns(storage):
    buffer = ReplayBuffer(4, storage=storage)
    buffer.add({"x": np.zeros(5, np.float32), "y": np.float32(1)})
    text = repr(buffer.sample(2))
    assert text.startswith("BufferBatch(2 items)")
    assert "float32" in text
    assert "[2, 5]" in text


@pytest.mark.jax
def test_jax_arrays_are_updated_in_place():
    buffer = ReplayBuffer(1000, storage=JaxArrays())
    buffer.add({"x": np.zeros(5, np.float32)})
    buffer.sample(2)
    address = buffer._native._cells.arrays._arrays[0].unsafe_buffer_pointer()
    buffer.add({"x": np.ones(5, np.float32)})
    buffer.sample(2)
    assert buffer._native._cells.arrays._arrays[0].unsafe_buffer_pointer() == address


@pytest.mark.jax
def test_a_reward_of_64_bits_is_summed_on_the_host():
    specs = SIGNATURE | {"reward": ArraySpec((), np.float64)}
    names = ("obs", "next_obs", "reward", "terminated", "truncated")
    signature = {name: specs[name] for name in names}
    buffer = ReplayBuffer(9, signature=signature, items=Transitions(discount=0.9), storage=JaxArrays())
    values = step(0, ended=True) | {"reward": 1.0 + 2**-40}
    buffer.add({name: values[name] for name in names})
    assert on_host(buffer.sample(1).data["reward"])[0] == "float32"
    (batch,) = buffer.scan(steps=True)
    assert is_on_device(batch.data["obs"]["screen"])
    assert batch.data["reward"].tolist() == [1.0 + 2**-40]


@pytest.mark.jax
def test_jax_holds_64_bits_if_they_are_enabled():
    import jax  # noqa: PLC0415, the extra

    with jax.enable_x64(True):  # noqa: FBT003, JAX's signature
        buffer = ReplayBuffer(9, storage=JaxArrays())
        buffer.add({"x": np.full(3, 2**-40), "n": 2**40})
        data = buffer.sample(1).data
        assert on_host(data["x"])[1].tolist() == [[2**-40] * 3]
        assert on_host(data["n"])[1].tolist() == [2**40]


@pytest.mark.frameworks
@pytest.mark.torch
def test_torch_holds_all_dtypes_of_64_bits():
    buffer = ReplayBuffer(9, storage=TorchTensors("cpu"))
    values = {"f": np.full(3, 2**-40), "i": np.full(3, 2**40), "u": np.full(3, 2**63, np.uint64), "c": np.full(2, 1j)}
    buffer.add(values)
    data = buffer.sample(1).data
    for name, expected in values.items():
        dtype, found = on_host(data[name])
        assert (dtype, found.tolist()) == (expected.dtype.name, [expected.tolist()])


@pytest.mark.frameworks
@pytest.mark.torch
def test_batches_of_a_dataset_have_the_tensors_of_the_buffer():
    from engram.data import torch as data  # noqa: PLC0415, the extra

    buffer = ReplayBuffer(9, storage=TorchTensors("cpu"), seed=0)
    buffer.add({"x": np.ones(5, np.float32), "n": np.int64(3)})
    for device in (None, "cpu"):
        batch = next(data.batches(buffer, 2, device=device))
        assert on_host(batch.data["x"])[1].tolist() == [[1] * 5] * 2
        assert on_host(batch.data["n"])[1].tolist() == [3, 3]


@pytest.mark.frameworks
@pytest.mark.torch
def test_tensors_can_be_allocated_in_inference_mode():
    import torch  # noqa: PLC0415, the extra

    with torch.inference_mode():
        buffer = ReplayBuffer(9, storage=TorchTensors("cpu"))
        buffer.add({"x": np.ones(5, np.float32)})
        buffer.sample(1)
    buffer.add({"x": np.ones(5, np.float32)})
    assert on_host(buffer.sample(1).data["x"])[1].tolist() == [[1] * 5]


def _gpu(framework):
    """A GPU of this framework; skips the test without one."""
    if framework == "torch":
        import torch  # noqa: PLC0415, the extra

        if not torch.cuda.is_available():
            pytest.skip("PyTorch has no GPU here")
        return TorchTensors("cuda:0")
    import jax  # noqa: PLC0415, the extra

    devices = [device for device in jax.devices() if device.platform == "gpu"]
    if not devices:
        pytest.skip("JAX has no GPU here")
    return JaxArrays(devices[0])


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("jax", marks=pytest.mark.jax),
        pytest.param("torch", marks=[pytest.mark.frameworks, pytest.mark.torch]),
    ],
)
@pytest.mark.parametrize("case", ["transitions-stack", "sequences", "steps-her"])
def test_batches_on_a_gpu_are_those_of_a_buffer_in_memory(monkeypatch, framework, case):
    pair = open_pair(monkeypatch, _gpu(framework), 200, **CASES[case])
    driver = Driver(*pair, seed=1)
    for _ in range(4):
        driver.change()
        assert_same_contents(*pair)


@pytest.mark.frameworks
@pytest.mark.torch
def test_streams_of_a_gpu_use_the_tensors_in_order():
    import torch  # noqa: PLC0415, the extra

    buffer = ReplayBuffer(8, storage=_gpu("torch"))
    streams = [torch.cuda.Stream() for _ in range(2)]
    for number in range(200):
        with torch.cuda.stream(streams[number % 2]):
            buffer.add_steps({"x": np.full((1, 8, 2**18), number, np.float32)})
        with torch.cuda.stream(streams[(number + 1) % 2]):
            assert (buffer.sample(16).data["x"] == number).all()
