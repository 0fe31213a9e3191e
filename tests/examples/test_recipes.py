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
        [sys.executable, *arguments], check=True, capture_output=True, text=True, timeout=280, cwd=EXAMPLES
    ).stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [
        *(
            "dqn.py",
            "dqn.py --n-step 3 --prioritized",
            "dqn.py --n-step 3 --prioritized --buffer",
            "sac.py",
            "ppo.py",
            "r2d2.py",
            "impala.py",
        ),
        *("offline.py", "offline.py --format parquet"),
    ],
)
def test_a_recipe_reaches_its_return(command):
    name, *options = command.split()
    target = float(re.search(r"^TARGET_RETURN = (.*)$", (EXAMPLES / name).read_text(), re.MULTILINE)[1])
    [mean] = re.search(r"^mean return: (.*)\n\Z", run(name, *options), re.MULTILINE).groups()
    assert float(mean) >= target


def test_scans_evaluate_without_consuming():
    assert run("evaluation.py") == "1528 transitions; mean reward 1.00; sampled 0 times; 1528 left\n"
