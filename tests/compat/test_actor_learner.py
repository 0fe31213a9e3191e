"""The actor-learner example for `engram.compat.reverb`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "reverb_actor_learner.py"


@pytest.mark.frameworks
def test_the_example_learns_to_go_right():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    counts, values = done.stdout.splitlines()
    assert values == "from left to right: > > > > > > >"
    inserts, samples = map(int, re.fullmatch(r"(\d+) transitions, (\d+) samples of them", counts).groups())
    assert samples >= 400 * 32
    # The rate limiter's bounds are 0 and 1024. The learner returns up to 64 prefetched items that it did not use,
    # which no longer count as sampled.
    assert 0 <= 8 * inserts - samples <= 1024 + 64
