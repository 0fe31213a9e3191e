"""The framework examples of docs/data.md and of docstrings run."""

import gc
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

import engram

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
SECTION = re.compile(r"^## (PyTorch|JAX|TensorFlow)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
# Code blocks that `test_docs.py` does not run, as they need a framework.
BLOCK = re.compile(r"^```\{\.python\}\n(.*?)^```", re.MULTILINE | re.DOTALL)

MARKS = {
    "PyTorch": [pytest.mark.frameworks, pytest.mark.torch],
    "JAX": pytest.mark.jax,
    "TensorFlow": pytest.mark.frameworks,
}

BLOCKS = [
    pytest.param(block, marks=MARKS[name], id=f"{name}-{number}")
    for name, section in SECTION.findall(PAGE.read_text(encoding="utf-8"))
    for number, block in enumerate(BLOCK.findall(section))
]


class LearnedError(Exception):
    """`learn` was called."""


def run(code):
    """Runs an example up to its first call of `learn`, with a DataLoader's workers disabled.

    It runs in this process, as frameworks take long to import.
    """
    learned = []

    def learn(data):
        learned.append(tuple(data["x"].shape))
        raise LearnedError

    with engram.Server([engram.Table("replay")]) as server, engram.Client(server.address) as client:
        client.insert({"x": np.zeros(3)}, {"replay": 1.0}, time_axis=True)
        names = {"__name__": "__main__", "client": client, "store": client, "learn": learn}
        with pytest.raises(LearnedError):
            exec(code.replace("num_workers=2", "num_workers=0"), names)  # noqa: S102, this repository's own code
        names.clear()
        gc.collect()
    assert learned == [(256, 3)]


def test_all_code_blocks_are_found():
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block):
    run(block)


@pytest.mark.parametrize(
    "name",
    [
        "numpy",
        pytest.param("jax", marks=pytest.mark.jax),
        pytest.param("torch", marks=MARKS["PyTorch"]),
        pytest.param("tensorflow", marks=pytest.mark.frameworks),
    ],
)
def test_docstring_examples_run(name):
    doc = inspect.cleandoc(importlib.import_module(f"engram.data.{name}").dataset.__doc__)
    example = "\n".join(line for line in doc.split("Args:")[0].splitlines() if line.startswith("    "))
    imports = "import jax\n" if name == "jax" else ""
    run(f"{imports}from engram.data.{name} import dataset\n{textwrap.dedent(example)}")
