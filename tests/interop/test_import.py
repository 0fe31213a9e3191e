"""Importing checkpoints that the real dm-reverb has just written."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.reverb_checkpoints import check, column
from helpers.support import runs_all_tests

import engram

pytestmark = pytest.mark.interop

RANDOM = range(200) if runs_all_tests() else range(16, 20)
"""Seeds of random checkpoints. With these few, dm-reverb saves chunks twice, and items that it cannot sample."""


def run(python, program, *arguments):
    """Runs a program with dm-reverb."""
    command = [python, Path(__file__).parent / program, *map(str, arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(command, check=True, env=environment, timeout=1000, capture_output=True)


@pytest.fixture(scope="module")
def written(python, tmp_path_factory):
    """A directory of checkpoints, and the expected content of the newest."""
    root = tmp_path_factory.mktemp("written")
    run(python, "write_checkpoint.py", root)
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


def test_random_checkpoints_are_served_as_dm_reverb_serves_them(python, tmp_path):
    run(python, "write_random_checkpoints.py", tmp_path, RANDOM.start, RANDOM.stop)
    for seed in RANDOM:
        expected = json.loads((tmp_path / str(seed) / "expected.json").read_text())
        with engram.Store([]) as store:
            notes = engram.import_reverb(tmp_path / str(seed) / "checkpoints", store).notes
            for name, table in expected.items():
                left_out = any(note.startswith(f"table `{name}`: without ") for note in notes)
                check_served(store, name, table, left_out=left_out)


def check_served(store, name, expected, *, left_out):
    """Compares the counts, priorities and samples of a table with those of dm-reverb.

    If items are `left_out`, dm-reverb cannot sample them: an error takes the place of the first of them.
    """
    info = store.info()[name]
    inserts, samples, deletes = expected["counts"]
    kept = {item.key: [item.priority, item.times_sampled] for item in store.peek(name, 1000).items}
    items = {int(key) & (2**63 - 1): item for key, item in expected["items"].items()}
    assert kept == {key: item for key, item in items.items() if key in kept or not left_out}
    inserts += len(items) == inserts - deletes + 1  # one item was being inserted
    assert [info.inserts, info.samples, info.deletes] == [inserts, samples, deletes + len(items) - len(kept)]
    assert (info.num_unique_samples, info.size) == (expected["unique"], len(kept))
    readable = [served for served in expected["served"] if not isinstance(served, str)]
    assert left_out or len(readable) == len(items)
    drawn = {}
    for _ in range(len(kept)):
        batch = store.sample(name, 1, timeout=10)
        [key] = batch.info.key.tolist()
        drawn[key] = [leaf[0] for leaf in batch.data]
        store.delete(name, [key])
    keys = [key & (2**63 - 1) for key, _ in readable]
    if expected["sampler"] not in {"Uniform", "Prioritized"} and not left_out:
        assert list(drawn) == keys
    for key, (_, columns) in zip(keys, readable, strict=True):
        for array, encoded in zip(drawn[key], columns, strict=True):
            assert (array.dtype, array.shape) == (np.dtype(encoded["dtype"]), tuple(encoded["shape"]))
            assert np.array_equal(array, column(encoded))
