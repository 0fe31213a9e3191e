"""`engram serve` in another process."""

import re
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def serving(*options):
    """Runs `engram serve` on a free port and yields its address."""
    command = [sys.executable, "-c", "from engram.cli import main; main()", "serve", "--port", "0"]
    with subprocess.Popen([*command, *map(str, options)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r" at (\S+);", process.stdout.readline())[1]
        finally:
            process.terminate()
