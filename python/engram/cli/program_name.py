"""The name of this program for commands that it prints, so that users can copy and run them."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def program_name() -> str:
    """Returns `engram` if the shell finds this program by that name, otherwise the path with which it was started."""
    path = Path(sys.argv[0])
    if path.name != "engram":  # started from Python
        return "engram"
    command = shutil.which("engram")
    if command is not None and Path(command).absolute() == path.absolute():
        return "engram"
    return shlex.quote(sys.argv[0])
