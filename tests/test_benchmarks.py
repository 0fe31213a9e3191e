"""The benchmarks run, on small tables, and refuse to measure the build of make."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.support import raises

import engram

ROOT = Path(__file__).parent.parent
ADVICE = "benchmarks measure the release build: run make bench, or make release"
PROGRAMS = [
    "benchmarks",
    *(
        f"benchmarks.{name}"
        for name in ("buffers", "bulk_insert", "dashboard", "mapped_buffer", "sharded", "stall", "stall_checkpoint")
    ),
    "benchmarks.vector_writer",
    pytest.param("benchmarks.ftw", marks=[pytest.mark.jax, pytest.mark.slow]),
]


@pytest.mark.parametrize("workload", ["insert_pattern", pytest.param("network_sample_uniform", marks=pytest.mark.slow)])
def test_a_quick_run_of_engram_succeeds(workload: str) -> None:
    """With any build, whose profile it prints."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--engine", "engram", "--runs", "1", workload]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, "FAILED" in run.stderr) == (0, False), run.stdout + run.stderr
    rows = [line for line in run.stdout.splitlines() if line.startswith(f"| `{workload}`")]
    assert rows, run.stdout
    profile = getattr(engram._engram, "__profile__", None) or "unknown"
    assert f", profile `{profile}`\n" in run.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_work_build_is_refused(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setattr(engram._engram, "__profile__", "dev", raising=False)
    with raises(SystemExit, f"the engine is that of make (profile 'dev'); {ADVICE}"):
        runpy.run_module(program, run_name="__main__")


def test_an_engine_without_a_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delattr(engram._engram, "__profile__", raising=False)
    from benchmarks import build  # noqa: PLC0415, not in the path of the tests

    with raises(SystemExit, f"the engine does not name its build profile; {ADVICE}"):
        build.require_release()
    monkeypatch.setattr(engram._engram, "__profile__", "release", raising=False)
    build.require_release()
