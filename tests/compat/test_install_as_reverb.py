"""`install_as_reverb`: code with `import reverb` imports `engram.compat.reverb`."""

import pytest
from helpers.support import run_python

LIBRARY = """
import importlib

import reverb
import reverb.platform.checkpointers_lib
import reverb.structured_writer as sw
from reverb import rate_limiters, selectors, structured
from reverb.platform.default.checkpointers import DefaultCheckpointer

trajectory_writer = importlib.import_module("reverb.trajectory_writer")


def program():
    table = reverb.Table("t", selectors.Fifo(), reverb.item_selectors.Fifo(), 10, rate_limiters.MinSize(1))
    server = reverb.Server([table], host="localhost")
    client = reverb.Client(f"localhost:{server.port}")
    client.insert([1.5], {"t": 1.0})
    data = next(client.sample("t"))[0].data
    server.stop()
    return [column.tolist() for column in data]
"""

# Files of another package named `reverb`.
ANOTHER = {"reverb/__init__.py": "name = 'another'", "reverb/rate_limiters.py": "", "reverb/only_there.py": ""}


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs a program. It can import `library`, and another package named `reverb`."""
    (tmp_path / "reverb").mkdir()
    for name, text in {**ANOTHER, "library.py": LIBRARY}.items():
        (tmp_path / name).write_text(text)

    def run(code):
        return run_python(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{code}").replace(str(tmp_path), ".")

    return run


def test_a_library_imports_engram_as_reverb(run):
    code = """
from engram.compat import reverb
reverb.install_as_reverb()
reverb.install_as_reverb()
import library
print(*library.program())
print(library.reverb is reverb)
print(library.sw is library.structured is reverb.structured_writer)
print(library.trajectory_writer is reverb.trajectory_writer)
print(library.DefaultCheckpointer is reverb.checkpointers.DefaultCheckpointer)
print(issubclass(library.DefaultCheckpointer, library.reverb.platform.checkpointers_lib.CheckpointerBase))
print({module.__spec__.name.startswith("engram.") for name, module in sys.modules.items() if "reverb" in name})
print(sum(type(finder).__module__.startswith("engram.") for finder in sys.meta_path))
"""
    assert run(code).splitlines() == ["1.5", "True", "True", "True", "True", "True", "{True}", "1"]


def test_an_installed_reverb_is_not_mixed_in(run):
    code = """
from engram.compat import reverb
reverb.install_as_reverb()
for statement in ("import reverb.only_there", "from reverb import name", "import reverb.pybind"):
    try:
        exec(statement)
    except ImportError as error:
        print(str(error).partition(" from ")[0])
"""
    assert run(code).splitlines() == [
        "No module named 'reverb.only_there'",
        "cannot import name 'name'",
        "No module named 'reverb.pybind'",
    ]


@pytest.mark.parametrize("name", ["reverb", "reverb.rate_limiters"])
def test_an_imported_reverb_is_not_replaced(run, name):
    code = f"""
import {name}
from engram.compat.reverb import install_as_reverb
if {name!r} != "reverb":
    del sys.modules["reverb"]  # so that only the submodule counts as imported
try:
    install_as_reverb()
except RuntimeError as error:
    print(error)
import reverb
print(reverb.name)
"""
    file = {"reverb": "__init__", "reverb.rate_limiters": "rate_limiters"}[name]
    text = f"`{name}` was imported before, from ./reverb/{file}.py; call `install_as_reverb` before anything imports it"
    assert run(code) == f"{text}\nanother\n"
