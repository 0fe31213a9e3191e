"""`import engram` loads NumPy, optree, what these two load, and the standard library, and nothing else."""

import sys

import pytest
from helpers.support import raises, run_python

import engram

HEAVY = {"gymnasium", "jax", "matplotlib", "minari", "optax", "pyarrow", "ray", "rich", "tensorflow", "torch", "typer"}
HEAVY |= {"equinox"}


def test_import_loads_nothing_else():
    code = """
import sys
import numpy, optree
before = set(sys.modules)
import engram
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    loaded = set(run_python(code).split())
    assert loaded - set(sys.stdlib_module_names) <= {"engram", "numpy", "optree"}


def test_import_alone_loads_no_framework_agent_or_command():
    loaded = set(run_python("import engram, sys; print(*sys.modules)").split())
    assert "engram" in loaded
    assert not loaded & HEAVY
    unused = (
        "engram.adders.",
        "engram.agents.",
        "engram.buffers.",
        "engram.cli.",
        "engram.compat.",
        "engram.data.",
        "engram.envs.",
        "engram.gymnasium.",
        "engram.minari.",
        "engram.parquet.",
        "html.",
    )
    assert not {name for name in loaded if f"{name}.".startswith(unused)}


def test_adders_and_datasets_are_imported_on_first_use():
    code = """
import sys, engram
print({"adders", "buffers", "data"} <= set(dir(engram)), "engram.data" in sys.modules)
print(engram.data.Element.__module__, "engram.adders" in sys.modules, "engram.data.numpy" in sys.modules)
print(engram.data.numpy.dataset.__module__, engram.adders.EpisodeAdder.__module__)
print(engram.buffers.ReplayBuffer.__module__)
print(engram.data is sys.modules["engram.data"], dir(engram) == sorted(set(dir(engram))))
"""
    assert run_python(code).splitlines() == [
        "True False",
        "engram.data.elements False False",
        "engram.data.numpy engram.adders.episode",
        "engram.buffers.replay_buffer",
        "True True",
    ]


def test_files_are_imported_on_first_use_and_only_by_name():
    """The modules for files, `engram.minari` and `engram.parquet`; `from engram import *` does not import them."""
    code = """
import sys, engram
sys.modules["pyarrow"] = sys.modules["h5py"] = None
from engram import *
print({"minari", "parquet"} <= set(dir(engram)), {"engram.minari", "engram.parquet"} & set(sys.modules))
for name in ("minari", "parquet"):
    try:
        getattr(engram, name)
    except ModuleNotFoundError as error:
        print(error)
"""
    assert run_python(code).splitlines() == [
        "True set()",
        "engram.minari needs h5py, which is not installed; install it with `pip install 'engram-replay[minari]'`",
        "engram.parquet needs PyArrow, which is not installed; install it with `pip install 'engram-replay[parquet]'`",
    ]


def test_a_dataset_without_its_framework_names_the_extra():
    code = """
import sys, engram
sys.modules["torch"] = None
try:
    engram.data.torch
except ModuleNotFoundError as error:
    print(error)
"""
    expected = "engram.data.torch needs PyTorch, which is not installed; install it with "
    assert run_python(code) == f"{expected}`pip install 'engram-replay[torch]'`\n"


@pytest.mark.parametrize("module", [engram, engram.data])
def test_an_unknown_name_of_a_module_is_an_attribute_error(module):
    with raises(AttributeError, f"module '{module.__name__}' has no attribute 'unknown'"):
        _ = module.unknown
    assert not hasattr(module, "__unknown__")


def test_numpy_datasets_load_no_other_framework():
    frameworks = {"jax", "tensorflow", "torch"}
    code = "import sys, engram.data, engram.data.numpy; print(*sys.modules)"
    assert not set(run_python(code).split()) & frameworks


def test_exported_names_exist_and_errors_have_docstrings():
    for name in engram.__all__:
        assert getattr(engram, name) is not None
    for name in engram.errors.__all__:
        error = getattr(engram.errors, name)
        assert issubclass(error, engram.EngramError)
        assert error.__doc__
