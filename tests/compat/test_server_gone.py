"""Reverb's writers that are dropped while their server is away: killed, and in the second test back again."""

import re
import subprocess
import sys
from contextlib import ExitStack

import pytest

from engram.compat import reverb

SERVER = """
import sys
from engram.compat import reverb
input()  # by now all is imported
port, size = map(int, sys.argv[1:])
server = reverb.Server([reverb.Table.queue("queue", size)], port or None, host="localhost")
print(server.port, flush=True)
input()
"""

PROGRAM = """
import sys, warnings
from engram.compat import reverb
from engram.compat.reverb import structured_writer as sw
warnings.filterwarnings("ignore", category=ResourceWarning)
client = reverb.Client("localhost:" + sys.argv[1])
client.insert([-1], {"queue": 1.0})
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
    """A program that is spoken to by lines."""

    def __init__(self, code, *arguments):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def said(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.strip()

    def ended(self):
        """What it said as it ended by itself, which is well before a minute's patience is over."""
        _, errors = self.process.communicate("\n", timeout=45)
        assert self.process.returncode == 0, errors
        return errors

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start():
    with ExitStack() as stack:

        def started(code, *arguments):
            process = Process(code, *arguments)
            stack.callback(process.kill)
            return process

        yield started


@pytest.fixture
def written(start):
    """A server, its port, and a program whose writers wait for its table."""
    server = start(SERVER, 0, 1)
    server.go_on()
    port = server.said()
    program = start(PROGRAM, port)
    assert program.said() == "written"
    return server, port, program


def test_a_program_whose_server_is_gone_ends(written):
    server, port, program = written
    server.kill()
    found = re.findall(r"UserWarning: (.*)", program.ended())
    text = f"was closed before 3 items reached their table: the server at localhost:{port} is gone"
    assert sorted(found) == [f"a StructuredWriter {text}", f"a Writer {text}"]


def test_a_server_that_comes_back_gets_the_items(written, start):
    server, port, program = written
    another = start(SERVER, port, 100)
    server.kill()
    program.go_on()
    another.go_on()
    another.said()
    assert program.ended() == ""
    assert reverb.Client(f"localhost:{port}").server_info()["queue"].current_size == 6
