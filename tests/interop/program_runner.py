"""Runs programs that use dm-reverb's client. Started by conftest.py with the interpreter that has dm-reverb."""

import base64
import contextlib
import os
import pickle
import sys
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import engram_programs
import reverb_programs
import shared_programs


def find(name):
    """Returns a program by name."""
    modules = (shared_programs, engram_programs, reverb_programs)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def main():
    """Reads lines `NAME ADDRESS` from standard input, runs each program, and writes its result as a line."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, address = line.split()
        try:
            result = (True, find(name)(address))
        except BaseException:  # noqa: BLE001, reported to conftest.py
            result = (False, traceback.format_exc())
        results.write(base64.b64encode(pickle.dumps(result)).decode() + "\n")
        results.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
