"""`import engram` loads NumPy, optree and the standard library, and nothing else."""

import sys

from support import run_python

import engram

HEAVY = {"gymnasium", "jax", "matplotlib", "optax", "ray", "rich", "tensorflow", "torch", "typer"}


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
    assert not {name for name in loaded if f"{name}.".startswith(("engram.agents.", "engram.cli."))}


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
