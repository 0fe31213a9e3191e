"""Creates a notebook from each example that is divided into cells.

    python scripts/make_notebooks.py

`# %%` begins a cell of code, `# %% [markdown]` a cell of prose. A test checks that the notebooks are up to date.
"""

import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROGRAMS = ("reverb_tutorial",)


def notebook(source: str) -> str:
    """Returns the notebook of a program's source, from its first `# %%` on."""
    cells = [_cell(index, text) for index, text in enumerate(source.split("# %%")[1:])]
    content = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cell(index: int, text: str) -> dict[str, Any]:
    head, _, body = text.partition("\n")
    lines = body.strip("\n").split("\n")
    shared: dict[str, Any] = {"id": f"cell-{index}", "metadata": {}}
    if head.strip() == "[markdown]":
        return {"cell_type": "markdown", **shared, "source": _source([line[2:] for line in lines])}
    return {"cell_type": "code", **shared, "execution_count": None, "outputs": [], "source": _source(lines)}


def _source(lines: list[str]) -> list[str]:
    return [f"{line}\n" for line in lines[:-1]] + lines[-1:]


def main() -> None:
    """Writes all notebooks."""
    for name in PROGRAMS:
        source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        (EXAMPLES / f"{name}.ipynb").write_text(notebook(source), encoding="utf-8")


if __name__ == "__main__":
    main()
