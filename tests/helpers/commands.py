"""Commands of the program `engram` in other processes."""

import os
import subprocess
import sys
from contextlib import contextmanager

from helpers.python_process import PIPE, PythonProcess

# Children of background jobs start with SIGINT ignored, so Python's handler is installed first.
MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from engram.cli import main; main()"


class RunningCommand:
    """A command of the program `engram` that runs in another process."""

    def __init__(self, *args, before="", **options):
        """Starts the command, after the program `before`; the options are those of `PythonProcess`."""
        self.process = PythonProcess(before + MAIN, *args, **{"stdout": PIPE, "stderr": PIPE, **options})

    def line(self):
        """Returns the next line of stdout."""
        return self.process.stdout.readline()

    def end(self, signal_number=None):
        """Sends the signal, if any, and waits for the exit; returns exit status, the rest of stdout, and stderr."""
        if signal_number is not None:
            self.process.send_signal(signal_number)
        stdout, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stdout, stderr


@contextmanager
def running_dashboard(*arguments, token=""):
    """Runs `engram dashboard`; yields its address."""
    command = [sys.executable, "-m", "engram.cli", "dashboard", *arguments, "--port", "0"]
    environment = {**os.environ, "ENGRAM_DASHBOARD_TOKEN": token} if token else dict(os.environ)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(30)
