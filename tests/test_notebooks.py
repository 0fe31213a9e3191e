"""The notebooks are generated from the examples. That of `quickstart` contains what its cells print."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def import_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "executed"), [pytest.param("quickstart", True, marks=pytest.mark.slow), ("reverb_tutorial", False)]
)
def test_a_notebook_is_generated_from_its_program(name, executed):
    program = ROOT / "examples" / f"{name}.py"
    notebook = import_script("make_notebooks").notebook(program.read_text(), executed=executed)
    assert program.with_suffix(".ipynb").read_text() == notebook, "run `python scripts/make_notebooks.py`"


@pytest.mark.parametrize("name", ["quickstart", "reverb_tutorial"])
def test_a_notebook_runs_the_code_of_its_program(name):
    program = (ROOT / "examples" / f"{name}.py").read_text()
    cells = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    prose = [cell for cell in cells if cell["cell_type"] == "markdown"]
    lines = [line for line in program[program.index("# %%") :].splitlines() if line and not line.startswith("#")]
    assert [line for line in code.splitlines() if line and not line.startswith("#")] == lines
    assert len(prose) == program.count("[markdown]")
    assert len(cells) == program.count("# %%")
