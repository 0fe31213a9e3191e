"""The recipes of docs/recipes.md run, and reach the mean return that they state."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments):
    """What an example prints."""
    return subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, text=True, timeout=850, cwd=EXAMPLES
    ).stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command",
    [
        *(
            "dqn.py",
            "dqn.py --n-step 3 --prioritized",
            "dqn.py --n-step 3 --prioritized --buffer",
            "her.py",
            "sac.py",
            "sac.py --buffer",
            "ppo.py",
            "r2d2.py",
            "r2d2.py --buffer",
            "impala.py",
        ),
        *("offline.py", "offline.py --format parquet", "offline.py --buffer"),
    ],
)
def test_a_recipe_reaches_its_return(command):
    name, *options = command.split()
    target = float(re.search(r"^TARGET_RETURN = (.*)$", (EXAMPLES / name).read_text(), re.MULTILINE)[1])
    means = []
    # Not every seed reaches it, and which do differs between processors, which round differently.
    for seed in range(3):
        output = run(name, *options, "--seed", str(seed))
        means.append(float(re.search(r"^mean return: (.*)\n\Z", output, re.MULTILINE)[1]))
        if means[-1] >= target:
            return
    pytest.fail(f"no seed reached a mean return of {target}: {means}")


# Runs all examples in one process, because most import JAX.
HELP_OF_ALL = """
import contextlib, io, runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        runpy.run_path(name, run_name="__main__")
    print(output.getvalue().splitlines()[0])
"""


def test_each_example_explains_its_options():
    names = sorted(path.name for path in EXAMPLES.glob("*.py") if "import argparse" in path.read_text())
    lines = run("-c", HELP_OF_ALL, *names).splitlines()
    assert len(names) > 5
    assert [line.partition(" [-h]")[0] for line in lines] == [f"usage: {name}" for name in names]


def test_scans_evaluate_without_consuming():
    assert run("evaluation.py") == "1528 transitions; mean reward 1.00; sampled 0 times; 1528 left\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("core", ["dnc", "rpth", "rpth_dnc"])
def test_repeat_copy_is_learned(core):
    output = run("ftw_repeat_copy.py", "--core", core)
    share = float(re.search(r"^share of the first cost: (.*)\n\Z", output, re.MULTILINE)[1])
    target = float(re.search(r"^TARGET_COST = (.*)$", (EXAMPLES / "ftw_repeat_copy.py").read_text(), re.MULTILINE)[1])
    assert share <= target
