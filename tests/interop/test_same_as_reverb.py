"""Programs that use dm-reverb's client observe the same at Engram's server and at dm-reverb's."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.serve_command import serving

pytestmark = pytest.mark.interop

# Names of the programs. Importing them would need dm-reverb.
NAMES = re.findall(r"@program\ndef (\w+)", (Path(__file__).parent / "shared_programs.py").read_text())


def assert_equal(actual, expected, where=""):
    """Checks that two nests are equal, including types."""
    if isinstance(expected, (list, tuple)):
        assert (type(actual), len(actual)) == (type(expected), len(expected)), (where, actual, expected)
        for index, pair in enumerate(zip(actual, expected, strict=True)):
            assert_equal(*pair, f"{where}[{index}]")
    elif isinstance(expected, dict):
        assert sorted(actual) == sorted(expected), where
        for key, value in expected.items():
            assert_equal(actual[key], value, f"{where}[{key!r}]")
    elif isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), where
        np.testing.assert_array_equal(actual, expected, err_msg=where)
    else:
        assert (type(actual), actual) == (type(expected), expected), where


@pytest.mark.parametrize("name", NAMES)
def test_program_observes_the_same_at_both_servers(name, programs, engram_address, expected):
    assert_equal(programs.run(name, engram_address), expected(name))


TABLES_FILE = """
[steps]
sampler = "Fifo"
reverb_signature = { action = ["int32[]", "bool[2]"], observation = "float32[3]" }

[sequences]
sampler = "Fifo"
reverb_signature = { action = ["int32[?]"], observation = "float32[?,3]" }

[timeout]
like = "queue"
max_size = 1000
reverb_signature = { action = ["int32[?]"], observation = "float32[?,3]" }
"""


@pytest.mark.parametrize("name", ["timestep_dataset", "trajectory_dataset", "dataset_timeout"])
def test_datasets_observe_the_same_with_a_tables_file(name, programs, expected, tmp_path):
    file = tmp_path / "tables.toml"
    file.write_text(TABLES_FILE)
    with serving("--tables", file) as address:
        assert_equal(programs.run(name, address), expected(name))
