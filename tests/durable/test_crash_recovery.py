"""A store that is killed at any time opens with what it had acknowledged."""

import os
import secrets

import pytest
from helpers.crash_checker import CrashChecker

SEED = int(os.environ.get("KILL_SEED") or secrets.randbits(31))
ROUNDS = [pytest.param(5), pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_killed_store_opens_with_exactly_what_it_acknowledged(tmp_path, rounds):
    print(f"KILL_SEED={SEED}")  # noqa: T201, shown by pytest if the test fails
    checker = CrashChecker(tmp_path / "stores", SEED)
    for _ in range(rounds):
        checker.round()
    report = checker.report
    assert not report.faults, "\n".join(report.descriptions)
    # Few rounds end in the middle of a call: nearly all can be compared with the model.
    assert report.partial <= 2 + rounds / 10
    # How many calls a round makes depends on the machine; without any, the rounds would check nothing.
    assert report.calls > rounds
