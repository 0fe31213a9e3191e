"""Datasets and other classes that need TensorFlow: without it installed, and before it is imported."""

import pytest
from helpers.support import run_python

WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None  # as if it were not installed
import engram.compat.reverb as reverb
"""


@pytest.mark.parametrize("name", ["TimestepDataset", "TrajectoryDataset", "ReplayDataset"])
def test_dataset_classes_exist_but_instances_need_tensorflow(name):
    code = f"""{WITHOUT_TENSORFLOW}
assert isinstance(reverb.{name}, type)
assert not isinstance(3, reverb.{name})
assert not issubclass(int, reverb.{name})
try:
    reverb.{name}("localhost:1", "t", (), (), 1)
except ImportError as error:
    print(error)
"""
    text = "needs TensorFlow, which is not installed; install it with `pip install 'engram-replay[tensorflow]'`"
    assert run_python(code) == f"reverb.{name} {text}\n"


@pytest.mark.parametrize("what", ["TFClient('localhost:1')", "PatternDataset(None, [], True, bool)"])
def test_instances_of_other_classes_need_tensorflow(what):
    code = f"""{WITHOUT_TENSORFLOW}
try:
    reverb.{what}
except ImportError as error:
    print(error)
"""
    text = "needs TensorFlow, which is not installed; install it with `pip install 'engram-replay[tensorflow]'`"
    assert run_python(code) == f"reverb.{what.partition('(')[0]} {text}\n"


def test_accessing_the_classes_does_not_import_tensorflow():
    code = """
import sys
import engram.compat.reverb as reverb
for name in ("TimestepDataset", "TrajectoryDataset", "ReplayDataset", "PatternDataset", "TFClient"):
    getattr(reverb, name)
import engram.compat.ftw.datasets.reverb
print("tensorflow" in sys.modules)
"""
    assert run_python(code) == "False\n"
