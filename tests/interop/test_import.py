"""Importing a checkpoint that the real dm-reverb has just written."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from helpers.reverb_checkpoints import check

import engram

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def written(python, tmp_path_factory):
    """A directory of checkpoints, and the expected content of the newest."""
    root = tmp_path_factory.mktemp("written")
    program = Path(__file__).parent / "write_checkpoint.py"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([python, program, root], check=True, env=environment, timeout=100, capture_output=True)
    return root / "checkpoints", json.loads((root / "expected.json").read_text())


def test_content_priorities_and_counts_are_imported(written):
    checkpoints, expected = written
    with engram.Store([]) as store:
        engram.import_reverb(checkpoints, store)
        check(store, expected)


def test_times_sampled_and_order_are_imported(written):
    checkpoints, expected = written
    with engram.Store([]) as store:
        engram.import_reverb(checkpoints, store)
        batch = store.sample("queue", len(expected["queue"]["items"]))
        # Engram's keys are below 2**63: the import clears the highest bit.
        assert batch.info.key.tolist() == [item["key"] & (2**63 - 1) for item in expected["queue"]["items"]]
        times_sampled = {item["key"] & (2**63 - 1): item["times_sampled"] for item in expected["few"]["items"]}
        batch = store.sample("few", 1)
        # The sample itself counts, too.
        assert batch.info.times_sampled[0] == times_sampled[int(batch.info.key[0])] + 1
