"""Fixtures that run the real dm-reverb in a separate environment, which `make test-interop` creates."""

import base64
import functools
import os
import pickle
import queue
import subprocess
import threading
from pathlib import Path

import pytest
from helpers.reverb_configs import config_text
from helpers.reverb_tables import TABLES, create_table, note
from helpers.serve_command import serving

import engram
from engram.compat import reverb
from engram.compat.reverb import _table_note

HERE = Path(__file__).parent


def start(python, program):
    """Starts a program with pipes to its standard input and output."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    return subprocess.Popen(
        [python, HERE / program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.fixture(scope="session")
def python():
    """The Python interpreter of the environment with dm-reverb."""
    interpreter = os.environ.get("REVERB_PYTHON")
    if not interpreter:
        pytest.skip("REVERB_PYTHON must be the path of a Python interpreter with dm-reverb; run make test-interop")
    return interpreter


class ProgramRunner:
    """Runs programs that use dm-reverb's client in a separate process."""

    def __init__(self, python) -> None:
        self._python = python
        self._process = None

    def _start(self):
        self._process = start(self._python, "program_runner.py")
        self._responses = queue.Queue()
        threading.Thread(target=self._read, args=(self._process.stdout, self._responses), daemon=True).start()

    @staticmethod
    def _read(lines, responses):
        for line in lines:
            responses.put(line)
        responses.put("")

    def run(self, name, address, seconds=60.0):
        """Runs a program and returns its result."""
        self.start(name, address)
        return self.result(seconds)

    def start(self, name, address):
        """Starts a program without waiting for it."""
        self._name = name
        if self._process is None:
            self._start()
        self._process.stdin.write(f"{name} {address}\n")
        self._process.stdin.flush()

    def result(self, seconds=60.0):
        """Waits for the started program and returns its result."""
        try:
            response = self._responses.get(timeout=seconds)
        except queue.Empty:
            self.stop()
            pytest.fail(f"the program `{self._name}` did not finish within {seconds} s", pytrace=False)
        assert response, f"the process ended in the program `{self._name}`"
        ok, result = pickle.loads(base64.b64decode(response))  # noqa: S301, from our own process
        assert ok, result
        return result

    def stop(self):
        """Kills the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


@pytest.fixture(scope="session")
def programs(python):
    """The runner of programs. All tests share its process."""
    runner = ProgramRunner(python)
    yield runner
    runner.stop()


@pytest.fixture(scope="session")
def reverb_address(python):
    """The address of dm-reverb's server."""
    server = start(python, "reverb_server.py")
    port = server.stdout.readline()
    assert port, "dm-reverb's server did not start"
    yield f"localhost:{int(port)}"
    server.stdin.close()
    server.kill()
    server.wait()


def selector(name, *arguments):
    """Creates a selector by name."""
    return getattr(engram.selectors, name)(*arguments)


def table(description):
    """Creates the table of a description with Engram's own API, as `engram.compat.reverb` does internally."""
    kind, *arguments = description["limiter"]
    times = description["max_times_sampled"]
    return engram.Table(
        description["name"],
        sampler=selector(*description["sampler"]),
        remover=selector(*description["remover"]),
        max_size=description["max_size"],
        rate_limiter=getattr(engram.rate_limiters, kind)(*arguments),
        max_times_sampled=times if times > 0 else None,
        note=note(description),
    )


@pytest.fixture(scope="session")
def expected(programs, reverb_address):
    """A function that returns a program's result at dm-reverb's server. Each program runs once."""
    return functools.cache(lambda name: programs.run(name, reverb_address))


def compatible(description):
    """Creates the table of a description with `engram.compat.reverb`."""
    return create_table(reverb, description, _table_note.decode(note(description)).signature)


@pytest.fixture(scope="session", params=["engram", "compatible", "config"])
def engram_address(request, tmp_path_factory):
    """The address of a server of Engram: created by its own API, `engram.compat.reverb`, or Reverb's configuration."""
    if request.param == "config":
        file = tmp_path_factory.mktemp("config") / "server.textproto"
        file.write_text("".join(config_text(description) for description in TABLES))
        with serving("--reverb-config", file, "--path", tmp_path_factory.mktemp("store")) as address:
            yield address
        return
    if request.param == "engram":
        tables = [table(description) for description in TABLES]
        directory = tmp_path_factory.mktemp("store")
        with engram.Store.open(directory, tables) as store, engram.Server(store) as server:
            yield f"localhost:{server.port}"
        return
    server = reverb.Server([compatible(description) for description in TABLES], host="localhost")
    yield f"localhost:{server.port}"
    server.stop()
