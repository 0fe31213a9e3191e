"""Ape-X on Ray solves CartPole, also if a shard is killed meanwhile."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command):
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)


@pytest.mark.parametrize("seed", range(int(os.environ.get("ENGRAM_RAY_SEEDS") or 1)))
def test_the_example_solves_cartpole_although_a_shard_is_killed(seed):
    ended = run("examples/apex_dqn_ray.py", "--seed", str(seed), "--kill-after", "15")
    print(ended.stdout)  # noqa: T201
    assert "killed shard 0 (id 1) at " in ended.stdout
    result = re.search(r"\nsolved in (\d+) s: .* longest wait ([\d.]+) s", ended.stdout)
    assert result is not None


def test_the_demo_trains_on_ray():
    ended = run("-m", "engram.cli", "demo", "--ray", "--max-steps", "1500", "--json")
    (result,) = json.loads(ended.stdout)
    assert (result["seed"], result["solved"]) == (0, False)
    assert result["steps"] >= 1500
    assert "seed 0: not solved in" in ended.stderr
