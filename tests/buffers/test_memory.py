"""Memory that cannot be allocated raises an error and does not end the process."""

import sys

import pytest
from helpers.support import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the memory use of a process, as Linux reports it"
)

PROGRAM = """
import resource
from pathlib import Path

import numpy as np

from engram import ArraySpec, selectors
from engram.buffers import ReplayBuffer
from engram.errors import OutOfMemoryError

NOTHING = ArraySpec((0,), "int8")
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 10**9, resource.getrlimit(resource.RLIMIT_AS)[1]))

def error_of(call):
    try:
        call()
    except OutOfMemoryError as error:
        return str(error)
    return "no error"
"""

CASES = {
    "priorities": (
        "ReplayBuffer(4 * 10**8, signature=NOTHING, sampler=selectors.Prioritized())",
        f"the sampler of the replay buffer needs {32 * 10**8} bytes, more than can be allocated",
    ),
    "environments": (
        "ReplayBuffer(10**8, 10**8, signature=NOTHING)",
        f"the replay buffer needs {32 * 10**8} bytes, more than can be allocated",
    ),
    "epoch": (
        "buffer.epoch(10)",
        f"an epoch of 400000000 items needs {32 * 10**8} bytes, more than can be allocated",
    ),
}


@pytest.mark.parametrize(
    "case", ["priorities", *(pytest.param(case, marks=pytest.mark.slow) for case in ("environments", "epoch"))]
)
def test_memory_that_cannot_be_allocated_raises(case):
    call, text = CASES[case]
    code = f"""
buffer = ReplayBuffer(4 * 10**8, signature=NOTHING)
buffer.add_steps(np.zeros((1, 4 * 10**8, 0), np.int8))
print(error_of(lambda: {call}))
print(len(buffer.sample(3)))
"""
    assert run_python(PROGRAM + code) == f"{text}\n3\n"
