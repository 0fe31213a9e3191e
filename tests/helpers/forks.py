"""The common first part of the programs that tests of forks run."""

import os

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

PROGRAM = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later: forking with threads
import numpy as np
import engram
from engram.errors import ForkedError

def expect_forked_error(text, call):
    try:
        call()
    except ForkedError as error:
        advice = "create a new one in the child"
        if text == "store":
            advice = (
                "only the process that created it can use it; to share its tables, serve them there with "
                "`engram.Server`, and use an `engram.Client` in the child"
            )
        assert str(error) == f"this {text} was created before the process forked; {advice}", error
    else:
        sys.exit(f"no ForkedError from the {text}")

def fork(work):
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    return child

def in_child(work):
    assert os.waitpid(fork(work), 0)[1] == 0
"""
