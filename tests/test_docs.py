"""Examples in the documentation run, and print the documented output."""

import inspect
import json
import re
import textwrap
from itertools import zip_longest
from pathlib import Path

import pytest
from helpers.support import run_python

import engram
from engram import adders
from engram.data import numpy as data

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text):
    """Python blocks of a page, each with its expected output: the text block directly after it, if any."""
    blocks = list(BLOCK.finditer(text))
    for block, after in zip_longest(blocks, blocks[1:]):
        if block[1] in {"python", "py", "pycon"}:
            assert block[1] == "python", "write ```python, so that the block is run"
            adjacent = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            yield block[2], after[2] if adjacent else None


PAGES_WITH_CODE = [page for page in PAGES if list(blocks(page.read_text(encoding="utf-8")))]
PAGES_WITH_TORCH = {"coming-from-alf.md", "coming-from-torchrl.md"}
PAGES_WITH_AGENTS = {"coming-from-ftw.md", "ftw.md"}

# A page can need PyTorch or Ray, or compile agents. It runs in a process of its own.
MARKS = {
    **{name: [pytest.mark.frameworks, pytest.mark.torch] for name in PAGES_WITH_TORCH},
    **{name: [pytest.mark.slow] for name in PAGES_WITH_AGENTS},
    "distributed.md": [pytest.mark.ray, pytest.mark.timeout(300)],
}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def program_of(page):
    """The code of a page, and its output: for each block the line before its output, and the output or None."""
    code, expected = [], []
    for number, (block, output) in enumerate(blocks(page.read_text(encoding="utf-8"))):
        mark = f"--- block {number}"
        code.append(f"print({mark!r})\n{block}")
        expected.append((mark, output))
    return "\n".join(code), expected


def assert_output(printed, expected):
    """Checks that each block has printed its output."""
    for mark, output in expected:
        assert mark in printed
        if output is not None:
            assert f"{mark}\n{output}" in printed


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=MARKS[page.name], id=name_of(page)) for page in PAGES_WITH_CODE if page.name in MARKS],
)
def test_a_page_runs_from_top_to_bottom(page):
    code, expected = program_of(page)
    # Ray logs to stderr, and starts slowly.
    printed = run_python(code, **({"seconds": 240, "logs": True} if page.name == "distributed.md" else {}))
    assert_output(printed, expected)


# Runs programs one after another, each in a forked process, which does not import again what is imported here.
RUN_FORKED = """
import json, os, signal, sys, tempfile, warnings
import numpy
import engram, engram.adders, engram.buffers, engram.data.numpy

def run(name, code):
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: NumPy's
            child = os.fork()
        if not child:
            signal.alarm(20)  # ends a page that hangs
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            exec(compile(code, name, "exec"), {"__name__": "__main__"})
            sys.exit()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        errors.seek(0)
        return status, output.read().decode(), errors.read().decode()

with open(PATH) as file:
    programs = json.load(file)
print(json.dumps({name: run(name, code) for name, code in programs.items()}))
"""


def test_pages_run_from_top_to_bottom(tmp_path):
    pages = {name_of(page): program_of(page) for page in PAGES_WITH_CODE if page.name not in MARKS}
    assert len(pages) > 10
    path = tmp_path / "programs.json"
    path.write_text(json.dumps({name: code for name, (code, _) in pages.items()}))
    results = json.loads(run_python(f"PATH = {str(path)!r}\n{RUN_FORKED}", seconds=100))
    failures = {}
    for name, (_, expected) in pages.items():
        status, printed, errors = results[name]
        try:
            assert (status, errors) == (0, "")
            assert_output(printed, expected)
        except AssertionError as error:
            failures[name] = str(error)
    assert not failures, "\n\n".join(f"{name}: {text}" for name, text in failures.items())


def test_the_readme_opens_with_a_program():
    [(first, output), *_] = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(first.splitlines()) <= 9
    assert output, "the output follows the program"


def test_the_tables_of_the_readme_and_of_the_page_about_performance_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import summary  # noqa: PLC0415, not in the path of the tests

    for table in summary.TABLES:
        begin, end = summary.marks(table.name)
        rendered = summary.render(table)
        without_source = sum(source is None for _, *sources in table.rows for source in sources)
        assert rendered.count("not measured") == without_source, "all other figures are in the results"
        assert f"{begin}{rendered}{end}" in table.page.read_text(encoding="utf-8")


# --- docstrings ----------------------------------------------------------------------------------

# Defines the names that the examples use.
PRELUDE = """
import numpy as np
import engram
from engram import Dataset, Pattern, Table, patterns, rate_limiters, selectors
from engram.patterns import column, end_of_episode, step_index, steps_since_applied
import dm_env
from engram.adders import *
timestep, agent = dm_env.restart(0.0), len
action, next_timestep, state = 0, dm_env.termination(1.0, 0.0), np.zeros(3)
class environment:
    step = staticmethod(lambda action: dm_env.termination(1.0, 0.0))
from engram.data.numpy import dataset
store = engram.Store([engram.Table("replay")], seed=0)
episode = [{"obs": np.zeros(4, np.float32), "action": n} for n in range(9)]
learn = print
"""

EXAMPLES = {
    "engram.selectors": engram.selectors.__doc__,
    "engram.patterns": engram.patterns.__doc__,
    "TrajectoryWriter": engram.TrajectoryWriter.__doc__,
    "PatternWriter": engram.PatternWriter.__doc__,
    "Dataset": engram.Dataset.__doc__,
    "Server": engram.Server.__doc__,
    "engram.data.numpy.dataset": data.dataset.__doc__,
    "Adder": adders.Adder.__doc__,
    "EpisodeAdder": adders.EpisodeAdder.__doc__,
    "MultiSequenceAdder": adders.MultiSequenceAdder.__doc__,
    "NonOverlappingRNNSequenceAdder": adders.NonOverlappingRNNSequenceAdder.__doc__,
    "SequenceAdder": adders.SequenceAdder.__doc__,
    "StructuredAdder": adders.StructuredAdder.__doc__,
}


def example(doc):
    """Indented block of a docstring, before its sections."""
    text = inspect.cleandoc(doc).partition("\nArgs:")[0]
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    assert lines, "the docstring has no example"
    return textwrap.dedent("\n".join(lines))


def test_docstring_examples_run():
    """All in one process, each with names of its own."""
    programs = {}
    for name, doc in EXAMPLES.items():
        code = example(doc)
        if name.lower().endswith("dataset"):
            code = f"store.insert(episode[0], {{'replay': 1.0}})\n{code}\n    break"
        programs[name] = f"{PRELUDE}\n{code}"
    run_python(f"for name, code in {programs!r}.items():\n    exec(compile(code, name, 'exec'), {{}})")


# --- deliberate differences ----------------------------------------------------------------------

PAGES_OF_DIFFERENCES = [ROOT / "docs" / name for name in ("differences.md", "reverb-wire.md")]
TABLE = re.compile(r"^\|.*\|\n\|[ |:-]+\|\n(?:\|.*\|\n)+", re.MULTILINE)
PYTHON_TEST = re.compile(r"^ *(?:def (test_\w+)|(?:class )?(Test\w+)(?: = |[:(]))", re.MULTILINE)
RUST_TEST = re.compile(r"#\[(?:tokio::)?test\b[^\n]*\]\n(?: *(?:#\[[^\n]*|//[^\n]*)\n)* *(?:async )?fn (\w+)")


def known_tests():
    """Names of the files that contain each test, by test name."""
    files_by_test = {}
    for files, pattern in (
        ((ROOT / "tests").rglob("*.py"), PYTHON_TEST),
        ((ROOT / "crates").rglob("*.rs"), RUST_TEST),
    ):
        for file in files:
            for match in pattern.finditer(file.read_text(encoding="utf-8")):
                files_by_test.setdefault(next(filter(None, match.groups())), []).append(file.name)
    return files_by_test


def untested_rows(text, tests):
    """Problems of a page's tables, in which the last cell of each row must name the tests for it."""
    problems = []
    for table in TABLE.findall(f"{text}\n"):
        header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for row in rows:
            names = re.findall(r"`([^`]+)`", row[-1]) if header[-1] == "test" and len(row) == len(header) else []
            if not names:
                problems.append(f"no test: {row}")
            for name in names:
                file, _, test = name.rpartition("::")
                files = [each for each in tests.get(test, []) if each == (file or each)]
                if len(files) != 1:
                    problems.append(f"{name}: it is in {files or 'no file'}")
    return problems


@pytest.mark.parametrize("page", PAGES_OF_DIFFERENCES, ids=lambda page: page.name)
def test_each_difference_names_its_test(page):
    text = page.read_text(encoding="utf-8")
    assert TABLE.search(text)
    assert untested_rows(text, known_tests()) == []


@pytest.mark.parametrize(
    ("rows", "num_problems"),
    [
        ("| a | b | test |\n| --- | --- | --- |\n| 1 | 2 | `test_one`, `b.rs::two` |", 0),
        ("| a | test |\n| --- | --- |\n| 1 | |\n| 2 | test_one |", 2),
        ("| a | b |\n| --- | --- |\n| 1 | `test_one` |", 1),
        ("| a | test |\n| --- | --- |\n| 1 | `test_one`, `test_gone` |", 1),
        ("| a | test |\n| --- | --- |\n| 1 | `two` |", 1),
        ("| a | test |\n| --- | --- |\n| 1 | `c.rs::two` |", 1),
        ("| a | b | test |\n| --- | --- | --- |\n| 1 | `test_one` |", 1),
    ],
)
def test_rows_without_a_test_are_reported(rows, num_problems):
    """Also rows whose test does not exist, or exists twice."""
    assert len(untested_rows(rows, {"test_one": ["a.py"], "two": ["a.rs", "b.rs"]})) == num_problems
