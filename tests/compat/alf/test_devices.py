"""Devices: of the stored steps, of results and of arguments."""

import pytest
from helpers import alf_buffers
from helpers.alf_buffers import fill, ints, replay_buffer, steps, x_of

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]

OPTIONS = {"prioritized_sampling": True, "keep_episodic_info": True, "record_episodic_return": True}


@pytest.fixture
def torch():
    return alf_buffers.torch


@pytest.fixture
def cuda(torch):
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that PyTorch can use")
    return torch.device("cuda", 0)


def use(buffer, device=None):
    """Calls all methods of a buffer, with arguments on a device; returns all tensors of the results."""
    torch = alf_buffers.torch

    def on(tensor):
        return tensor if device is None else tensor.to(device)

    with torch.device("cpu"):
        batches = [steps([i, 10 + i], min(i, 2), 1.0, 1.0 if i < 2 else 0.0) for i in range(3)]
        envs = ints([1, 0])
    for batch in batches:
        buffer.add_batch(torch.utils._pytree.tree_map(on, batch), on(envs))
    batch, info = buffer.get_batch(4, 2)
    buffer.update_priority(on(info.env_ids), on(info.positions), on(info.importance_weights))
    ids, positions = on(info.env_ids), on(info.positions)
    all_steps, all_info = buffer.gather_all()
    results = {
        "batch": batch["nested"]["x"],
        **{f"info.{name}": value for name, value in info._asdict().items() if name != "replay_buffer"},
        "all": all_steps["reward"],
        "all.env_ids": all_info.env_ids,
        "all.positions": all_info.positions,
        "field": buffer.get_field("reward", ids, positions),
        "begin": buffer.get_episode_begin_position(positions, ids),
        "end": buffer.steps_to_episode_end(positions, ids),
        "disc_0": buffer.get_disc_0_begin_position(positions, ids),
        "initial": buffer.initial_priority,
        "size": buffer.total_size,
        "earliest": buffer.get_earliest_position(ids),
        "position": buffer.get_current_position(),
    }
    buffer.remove_up_to(1, on(envs[:1]))
    return results


def test_results_are_on_the_default_device(torch):
    """`meta` stands in for a device other than that of the buffer."""
    buffer, other = replay_buffer(2, 4, **OPTIONS), replay_buffer(2, 4, **OPTIONS)
    assert {value.device.type for value in use(buffer).values()} == {"cpu"}
    for batch in [steps([0, 1])] * 3:
        other.add_batch(batch)
    with torch.device("meta"):
        batch, info = other.get_batch(4, 2)
        assert batch["reward"].device.type == info.positions.device.type == "meta"
        assert info.importance_weights.device.type == info.discounted_return.device.type == "meta"
        data, info = other.gather_all(convert_to_default_device=False)
        assert data["reward"].device.type == info.positions.device.type == "cpu"
        assert other.gather_all()[0]["reward"].device.type == "meta"
        assert other.get_field("reward", [0], [1]).device.type == "meta"
        assert other.total_size.device.type == other.initial_priority.device.type == "meta"
    assert other.get_batch(1, 2)[0]["reward"].device.type == "cpu"


def test_buffers_can_be_created_with_another_default_device(torch):
    alf = alf_buffers.alf
    spec = alf_buffers.data_spec()
    with torch.device("meta"):
        buffer = alf.ReplayBuffer(spec, 2, 4, **OPTIONS)
        data_buffer, tree = alf.DataBuffer(alf.TensorSpec(()), 4), alf.SumSegmentTree(4)
    assert use(buffer)["position"].tolist() == [3, 3]
    data_buffer.add_batch(torch.ones(1))
    tree[ints([1])] = torch.ones(1)
    assert (data_buffer.get_all().tolist(), tree.summary().tolist()) == ([1.0], 1.0)


def test_the_index_stays_on_the_host(torch):
    buffer = replay_buffer(2, 4, **OPTIONS)
    buffer.to(torch.float64)
    assert buffer.state_dict()["reward"].dtype == torch.float64
    assert buffer.state_dict()["_returns.values"].dtype == torch.float32
    module = torch.nn.Sequential(buffer).to("meta")
    assert module[0].state_dict()["reward"].device.type == "meta"
    assert buffer.device == "meta"
    index = ("_current_size", "_current_pos", "_priorities.values", "_episodes.bounds", "_returns.values")
    assert {buffer.state_dict()[key].device.type for key in index} == {"cpu"}


def test_a_tree_moves():
    tree = alf_buffers.alf.SumSegmentTree(4)
    assert tree.to("meta").values.device.type == "meta"
    assert alf_buffers.alf.MaxSegmentTree(4, device="meta").summary().device.type == "meta"


@pytest.mark.parametrize("arguments", ["cpu", "cuda"])
def test_steps_on_a_gpu(torch, cuda, arguments):
    torch.manual_seed(0)
    expected = use(replay_buffer(2, 4, **OPTIONS))
    torch.manual_seed(0)
    results = use(replay_buffer(2, 4, device="cuda", **OPTIONS), None if arguments == "cpu" else cuda)
    assert {name: value.tolist() for name, value in results.items()} == {
        name: value.tolist() for name, value in expected.items()
    }
    assert {value.device.type for value in results.values()} == {"cpu"}
    buffer = fill(replay_buffer(2, 4, device="cuda"), 4, 4)
    assert buffer.state_dict()["reward"].device == cuda
    data, _ = buffer.gather_all(convert_to_default_device=False)
    assert data["reward"].device == cuda
    with torch.device("cuda"):
        assert {value.device for value in use(replay_buffer(2, 4, device="cuda", **OPTIONS)).values()} == {cuda}


def test_a_buffer_moves_to_a_gpu(cuda):
    buffer = fill(replay_buffer(2, 4, **OPTIONS), 4, 4).to(cuda)
    assert buffer.state_dict()["reward"].device == cuda
    fill(buffer, 2, 2)
    assert x_of(buffer.gather_all()[0]) == [[2, 3, 0, 1], [102, 103, 100, 101]]


@pytest.mark.parametrize("kind", ["SumSegmentTree", "MinSegmentTree", "MaxSegmentTree"])
def test_trees_on_a_gpu(torch, cuda, kind):
    tree, on_host = (getattr(alf_buffers.alf, kind)(5, device=device) for device in ("cuda", "cpu"))
    for each in (tree, on_host):
        each[ints([0, 4, 2, 4])] = torch.tensor([3.0, 9.0, 2.0, 1.0])
    assert tree.summary().device == tree.values.device == tree[ints([0])].device == cuda
    assert tree.values.tolist() == on_host.values.tolist()
    if kind == "SumSegmentTree":
        thresholds = torch.tensor([0.0, 3.0, 5.5, 6.0], device=cuda)
        assert tree.find_sum_bound(thresholds).tolist() == [0, 2, 4, 4]
        assert tree.find_sum_bound(thresholds).device == cuda
