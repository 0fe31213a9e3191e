"""Creates a notebook from each example that is divided into cells.

    python scripts/make_notebooks.py

`# %%` begins a cell of code, `# %% [markdown]` a cell of prose. The notebooks of `EXECUTED` are run, so that they
contain what their cells printed. Tests check that the notebooks are up to date.
"""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROGRAMS = ("quickstart", "reverb_tutorial")
EXECUTED = ("quickstart",)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TIMEOUT = 120
"""Seconds that a cell may run."""


def notebook(source: str, *, executed: bool = False) -> str:
    """Returns the notebook of a program's source, from its first `# %%` on, with outputs if it is `executed`."""
    content = new_notebook(
        cells=[_cell(f"cell-{index}", text) for index, text in enumerate(source.split("# %%")[1:])], metadata=METADATA
    )
    if executed:
        with tempfile.TemporaryDirectory() as directory:
            resources = {"metadata": {"path": directory}}  # where the cells run
            NotebookClient(
                content, timeout=TIMEOUT, resources=resources, record_timing=False, coalesce_streams=True
            ).execute()
        content.metadata = nbformat.from_dict(METADATA)  # without the version of Python that ran it
    return nbformat.writes(content) + "\n"


def _cell(name: str, text: str) -> nbformat.NotebookNode:
    head, _, body = text.partition("\n")
    body = body.strip("\n")
    if head.strip() == "[markdown]":
        return new_markdown_cell("\n".join(line[2:] for line in body.split("\n")), id=name)
    return new_code_cell(body, id=name)


def main() -> None:
    """Writes all notebooks."""
    for name in PROGRAMS:
        source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        text = notebook(source, executed=name in EXECUTED)
        (EXAMPLES / f"{name}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
