"""The benchmarks run, on small tables."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("workload", ["insert_pattern", "network_sample_uniform"])
def test_a_quick_run_of_engram_succeeds(workload: str) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--engine", "engram", "--runs", "1", workload]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, "FAILED" in run.stderr) == (0, False), run.stdout + run.stderr
    rows = [line for line in run.stdout.splitlines() if line.startswith(f"| `{workload}`")]
    assert rows, run.stdout
