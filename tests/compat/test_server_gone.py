"""Writers at process exit while their server is killed, and in the second test started again."""

import re
import subprocess
import sys
from contextlib import ExitStack

import pytest

from engram.compat import reverb
from engram.compat.reverb import _sending

SERVER = """
import sys
from engram.compat import reverb
input()  # waits after the imports
port, size = map(int, sys.argv[1:])
server = reverb.Server([reverb.Table.queue("queue", size)], port or None, host="localhost")
print(server.port, flush=True)
input()
"""

PROGRAM = """
import sys, warnings
from engram.compat import reverb
from engram.compat.reverb import _sending, structured_writer as sw
warnings.filterwarnings("ignore", category=ResourceWarning)
_sending.RECONNECT_TIMEOUT, _sending.FIRST_PROBE_DELAY = map(float, sys.argv[2:])
client = reverb.Client("localhost:" + sys.argv[1])
client.insert([-1], {"queue": 1.0})  # fills the queue
structured = client.structured_writer([sw.create_config([sw.create_reference_step([0])[0][-1]], "queue")])
legacy = client.writer(1, chunk_length=1)
for value in range(3):
    structured.append([value])
    legacy.append([value])
    legacy.create_item("queue", 1, 1.0)
print("written", flush=True)
input()
"""


class Process:
    """A process with line-based input and output."""

    def __init__(self, code, *arguments):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def proceed(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read_line(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.strip()

    def wait_for_exit(self):
        """Waits for the process, which must exit well before the writers' timeout of a minute; returns stderr."""
        _, errors = self.process.communicate("\n", timeout=45)
        assert self.process.returncode == 0, errors
        return errors

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start():
    with ExitStack() as stack:

        def start_process(code, *arguments):
            process = Process(code, *arguments)
            stack.callback(process.kill)
            return process

        yield start_process


@pytest.fixture
def write(start):
    """Returns a function that starts a server, and a program whose writers wait for its table.

    It returns their processes, and the port of the server.
    """

    def write(reconnect_timeout, first_probe_delay):
        server = start(SERVER, 0, 1)
        server.proceed()
        port = server.read_line()
        program = start(PROGRAM, port, reconnect_timeout, first_probe_delay)
        assert program.read_line() == "written"
        return server, port, program

    return write


def test_a_program_ends_if_its_server_is_gone(write):
    assert (_sending.RECONNECT_TIMEOUT, _sending.FIRST_PROBE_DELAY) == (5, 0.5)  # seconds
    server, port, program = write(reconnect_timeout=0.3, first_probe_delay=0.1)
    server.kill()
    warnings = re.findall(r"UserWarning: (.*)", program.wait_for_exit())
    text = f"was closed before 3 items reached their table `queue`: the server at localhost:{port} cannot be reached"
    assert sorted(warnings) == [f"a StructuredWriter {text}", f"a Writer {text}"]


def test_a_restarted_server_receives_the_items(write, start):
    server, port, program = write(_sending.RECONNECT_TIMEOUT, _sending.FIRST_PROBE_DELAY)
    another = start(SERVER, port, 100)
    server.kill()
    program.proceed()
    another.proceed()
    another.read_line()
    assert program.wait_for_exit() == ""
    assert reverb.Client(f"localhost:{port}").server_info()["queue"].current_size == 6
