"""The names, arguments and defaults of ALF's documentation."""

import importlib
import inspect

import pytest
from helpers import alf_buffers
from helpers.alf_buffers import replay_buffer
from helpers.support import raises, run_python

pytestmark = [pytest.mark.frameworks, pytest.mark.torch]

MODULES = {
    "experience_replayers.replay_buffer": ["BatchInfo", "ReplayBuffer"],
    "experience_replayers.segment_tree": ["MaxSegmentTree", "MinSegmentTree", "SegmentTree", "SumSegmentTree"],
    "tensor_specs": ["TensorSpec"],
    "utils.data_buffer": ["DataBuffer", "RingBuffer"],
}

TREE = "(capacity, dtype=torch.float32, device='cpu', name='{}')"
SIGNATURES = {
    "ReplayBuffer": "(data_spec, num_environments, max_length=1024, num_earliest_frames_ignored=0, "
    "prioritized_sampling=False, initial_priority=1.0, recent_data_steps=1, recent_data_ratio=0.0, "
    "with_replacement=False, device='cpu', allow_multiprocess=False, keep_episodic_info=None, "
    "record_episodic_return=False, default_return=-1000.0, gamma=0.99, reward_clip=None, enable_checkpoint=False, "
    "name='ReplayBuffer')",
    "ReplayBuffer.add_batch": "(self, batch, env_ids=None, blocking=False)",
    "ReplayBuffer.dequeue": "(self, env_ids=None, n=1, blocking=False)",
    "ReplayBuffer.gather_all": "(self, ignore_earliest_frames=False, convert_to_default_device=True)",
    "ReplayBuffer.get_batch": "(self, batch_size, batch_length)",
    "ReplayBuffer.get_disc_0_begin_position": "(self, pos, env_ids)",
    "ReplayBuffer.get_episode_begin_position": "(self, pos, env_ids)",
    "ReplayBuffer.get_field": "(self, field_name, env_ids, positions)",
    "ReplayBuffer.steps_to_episode_end": "(self, pos, env_ids)",
    "ReplayBuffer.update_priority": "(self, env_ids, positions, priorities)",
    "RingBuffer": "(data_spec, num_environments, max_length=1024, device='cpu', allow_multiprocess=False, "
    "name='RingBuffer')",
    "DataBuffer": "(data_spec, capacity, device='cpu', name='DataBuffer')",
    "SegmentTree": "(capacity, op, dtype=torch.float32, device='cpu', name='SegmentTree')",
    "SumSegmentTree": TREE.format("SumSegmentTree"),
    "MinSegmentTree": TREE.format("MinSegmentTree"),
    "MaxSegmentTree": TREE.format("MaxSegmentTree"),
    "SumSegmentTree.find_sum_bound": "(self, thresholds)",
}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_modules_have_their_names(module):
    alf = alf_buffers.alf
    loaded = importlib.import_module(f"engram.compat.alf.{module}")
    for name in MODULES[module]:
        assert getattr(alf, name) is getattr(loaded, name)
        assert name in loaded.__all__
        assert name in dir(alf)
    package, _, rest = module.partition(".")
    assert not rest or getattr(getattr(alf, package), rest) is loaded


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_signatures_are_those_of_the_documentation(name):
    cls, _, method = name.partition(".")
    function = getattr(alf_buffers.alf, cls)
    function = getattr(function, method) if method else function
    signature = inspect.signature(function)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == SIGNATURES[name]


def test_batch_info():
    alf = alf_buffers.alf
    fields = ("env_ids", "positions", "importance_weights", "replay_buffer", "discounted_return")
    assert alf.BatchInfo._fields == fields
    assert alf.BatchInfo() == ((),) * 5


def test_classes():
    alf, torch = alf_buffers.alf, alf_buffers.torch
    assert issubclass(alf.ReplayBuffer, alf.RingBuffer)
    assert issubclass(alf.SumSegmentTree, alf.SegmentTree)
    assert alf.ReplayBuffer.ONE_MINUS == 0.9999999
    buffer = replay_buffer()
    assert isinstance(buffer, torch.nn.Module)
    assert buffer.training
    assert [*buffer.parameters()] == []


def test_specs():
    alf, torch = alf_buffers.alf, alf_buffers.torch
    assert alf.TensorSpec([2, 3], "uint8") == alf.TensorSpec((2, 3), torch.uint8)
    assert alf.TensorSpec(()).dtype == torch.float32


def test_unknown_names_raise_attribute_errors():
    with raises(AttributeError, "module 'engram.compat.alf' has no attribute 'nonsense'"):
        _ = alf_buffers.alf.nonsense


def test_pytorch_is_imported_on_first_use():
    code = """
import sys
from engram.compat import alf
print("torch" in sys.modules)
alf.TensorSpec
print("torch" in sys.modules)
"""
    assert run_python(code) == "False\nTrue\n"
