"""Datasets and other classes that need TensorFlow: without it installed, and before it is imported."""

from helpers.support import run_python

WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None  # as if it were not installed
import engram.compat.reverb as reverb
"""


def test_dataset_classes_exist_but_instances_need_tensorflow():
    code = f"""{WITHOUT_TENSORFLOW}
for name in ("TimestepDataset", "TrajectoryDataset", "ReplayDataset"):
    dataset_class = getattr(reverb, name)
    assert isinstance(dataset_class, type), name
    assert not isinstance(3, dataset_class), name
    assert not issubclass(int, dataset_class), name
    try:
        dataset_class("localhost:1", "t", (), (), 1)
    except ImportError as error:
        print(error)
"""
    text = "needs TensorFlow, which is not installed; install it with `pip install 'engram-replay[tensorflow]'`"
    names = ("TimestepDataset", "TrajectoryDataset", "ReplayDataset")
    assert run_python(code).splitlines() == [f"reverb.{name} {text}" for name in names]


def test_instances_of_other_classes_need_tensorflow():
    code = f"""{WITHOUT_TENSORFLOW}
for create in (lambda: reverb.TFClient("localhost:1"), lambda: reverb.PatternDataset(None, [], True, bool)):
    try:
        create()
    except ImportError as error:
        print(error)
"""
    text = "needs TensorFlow, which is not installed; install it with `pip install 'engram-replay[tensorflow]'`"
    assert run_python(code).splitlines() == [f"reverb.{name} {text}" for name in ("TFClient", "PatternDataset")]


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
