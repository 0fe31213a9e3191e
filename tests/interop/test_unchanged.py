"""The same program, the same client: what it sees of Engram's server is what it sees of dm-reverb's."""

import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.interop

NAMES = re.findall(r"@program\ndef (\w+)", (Path(__file__).parent / "both.py").read_text())


def same(ours, theirs, where=""):
    """Checks that two nests are the same, types and all."""
    if isinstance(theirs, (list, tuple)):
        assert (type(ours), len(ours)) == (type(theirs), len(theirs)), (where, ours, theirs)
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            same(one, other, f"{where}[{at}]")
    elif isinstance(theirs, dict):
        assert sorted(ours) == sorted(theirs), where
        for key, other in theirs.items():
            same(ours[key], other, f"{where}[{key!r}]")
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
        np.testing.assert_array_equal(ours, theirs, err_msg=where)
    else:
        assert (type(ours), ours) == (type(theirs), theirs), where


@pytest.mark.parametrize("name", NAMES)
def test_a_program_sees_the_same(name, programs, ours, expected):
    same(programs.run(name, ours), expected(name))
