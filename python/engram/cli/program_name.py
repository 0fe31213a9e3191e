"""The name of this program for commands that it prints, so that users can copy and run them."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def program_name() -> str:
    """Returns the path with which this program was started, or `engram` if the shell finds this program by that name.

    Also returns `engram` if the program was started under another name, as by `python -m engram.cli`.
    """
    path = Path(sys.argv[0])
    if path.name != "engram":
        return "engram"
    command = shutil.which("engram")
    if command is not None and Path(command).absolute() == path.absolute():
        return "engram"
    return shlex.quote(sys.argv[0])
