"""The example of vector environments learns."""

from pathlib import Path

from helpers.support import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "gymnasium_q_learning.py"


def test_the_greedy_policy_reaches_the_goal():
    assert "return of the greedy policy: 1.0" in run_python(EXAMPLE.read_text(encoding="utf-8"))
