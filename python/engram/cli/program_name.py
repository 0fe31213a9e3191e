"""What the user calls this program, so that a command that it prints can be run as printed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def program_name() -> str:
    """`engram` where the shell finds this very program by that name, else the path that it was called by."""
    called = Path(sys.argv[0])
    if called.name != "engram":  # called from Python
        return "engram"
    found = shutil.which("engram")
    if found is not None and Path(found).absolute() == called.absolute():
        return "engram"
    return shlex.quote(sys.argv[0])
