"""The importable names and modules, and what an import loads."""

import importlib

import pytest
from helpers.support import raises, run_python

from engram.compat import reverb

TOP_LEVEL_NAMES = {
    "Client",
    "DeadlineExceededError",
    "ReplaySample",
    "ReverbError",
    "SampleInfo",
    "Server",
    "Table",
    "TrajectoryColumn",
    "TrajectoryWriter",
    "Writer",
    "checkpointers",
    "errors",
    "item_selectors",
    "rate_limiters",
    "replay_sample",
    "reverb_types",
    "selectors",
    "structured",
}
MODULES = {
    "client": ["Client", "Writer"],
    "errors": ["DeadlineExceededError", "ReverbError"],
    "item_selectors": ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Uniform"],
    "platform.checkpointers_lib": ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer"],
    "platform.default.checkpointers": ["DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"],
    "rate_limiters": ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"],
    "replay_sample": ["ReplaySample", "SampleInfo"],
    "reverb_types": ["Fifo", "Heap", "Lifo", "Prioritized", "SelectorType", "SpecNest", "TableInfo", "Uniform"],
    "server": ["Server", "Table", "TableExtensionBase"],
    "structured_writer": ["Condition", "Config", "StructuredWriter", "create_config", "td_error"],
    "trajectory_writer": ["TrajectoryColumn", "TrajectoryWriter"],
    "writer": ["Writer"],
}
LAZY_MODULES = {
    "pattern_dataset": ["PatternDataset", "pattern_dataset_with_info"],
    "replay_dataset": ["ReplayDataset"],
    "tf_client": ["TFClient"],
    "timestep_dataset": ["TimestepDataset"],
    "trajectory_dataset": ["TrajectoryDataset"],
}


@pytest.mark.parametrize("name", sorted(TOP_LEVEL_NAMES))
def test_top_level_names_exist(name):
    assert hasattr(reverb, name)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_modules_have_their_names(module):
    loaded = importlib.import_module(f"engram.compat.reverb.{module}")
    for name in MODULES[module]:
        assert hasattr(loaded, name), name


@pytest.mark.frameworks
@pytest.mark.parametrize("module", sorted(LAZY_MODULES))
def test_lazily_imported_modules_have_their_names(module):
    loaded = importlib.import_module(f"engram.compat.reverb.{module}")
    for name in LAZY_MODULES[module]:
        assert hasattr(loaded, name), name
        if name in reverb.__all__:
            assert getattr(reverb, name) is getattr(loaded, name)
    assert getattr(reverb, module) is loaded


def test_aliases_are_the_same_objects():
    assert reverb.selectors is reverb.item_selectors
    assert reverb.checkpointers is importlib.import_module("engram.compat.reverb.platform.default.checkpointers")
    assert reverb.reverb_types.Heap is reverb.selectors.HeapSelector
    assert isinstance(reverb.selectors.MinHeap(), reverb.reverb_types.SelectorType)
    assert reverb.structured is importlib.import_module("engram.compat.reverb.structured_writer")
    assert issubclass(reverb.DeadlineExceededError, reverb.ReverbError)
    assert set(reverb.__all__) <= set(dir(reverb))


def test_absent_names_raise_attribute_errors():
    with raises(AttributeError, "module 'engram.compat.reverb' has no attribute 'nonsense'"):
        reverb.nonsense  # noqa: B018, the access is the point
    with raises(AttributeError, "module 'engram.compat.reverb.client' has no attribute 'nonsense'"):
        reverb.client.nonsense  # noqa: B018, the access is the point


@pytest.mark.parametrize("module", ["pybind", "cc", "cc.schema_pb2"])
def test_absent_modules_cannot_be_imported(module):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"engram.compat.reverb.{module}")
    assert not hasattr(reverb.reverb_types.TableInfo, "from_serialized_proto")


def test_no_framework_is_imported():
    code = """
import sys
import engram.compat.reverb as reverb
server = reverb.Server([reverb.Table.queue("q", 1)], host="localhost")
client = reverb.Client(f"localhost:{server.port}")
client.insert({"x": 1.0}, {"q": 1.0})
client.server_info()
next(client.sample("q"))
print(sorted({"tensorflow", "torch", "jax", "tree", "google.protobuf"} & set(sys.modules)))
"""
    assert run_python(code) == "[]\n"
