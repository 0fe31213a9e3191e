"""The real dm-reverb, in an environment of its own: `make test-interop` makes it and says where it is."""

import base64
import functools
import os
import pickle
import queue
import subprocess
import threading
from pathlib import Path

import pytest
from reverb_tables import TABLES, made, note

import engram
from engram.compat import reverb
from engram.compat.reverb import _table_note

HERE = Path(__file__).parent


def start(python, program):
    """Starts a program that is spoken to over its standard input and output."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    return subprocess.Popen(
        [python, HERE / program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.fixture(scope="session")
def python():
    """The interpreter that has dm-reverb."""
    found = os.environ.get("REVERB_PYTHON")
    if not found:
        pytest.skip("REVERB_PYTHON does not name an interpreter with dm-reverb: make test-interop")
    return found


class Programs:
    """The process that runs programs for dm-reverb's client."""

    def __init__(self, python) -> None:
        self._python = python
        self._process = None

    def _start(self):
        self._process = start(self._python, "programs.py")
        self._answers = queue.Queue()
        threading.Thread(target=self._read, args=(self._process.stdout, self._answers), daemon=True).start()

    @staticmethod
    def _read(lines, answers):
        for line in lines:
            answers.put(line)
        answers.put("")

    def run(self, name, address, seconds=60.0):
        """What a program returns."""
        self.begin(name, address)
        return self.end(seconds)

    def begin(self, name, address):
        """Starts a program."""
        self._name = name
        if self._process is None:
            self._start()
        self._process.stdin.write(f"{name} {address}\n")
        self._process.stdin.flush()

    def end(self, seconds=60.0):
        """What the program that was started returns."""
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.stop()
            pytest.fail(f"the program `{self._name}` still runs after {seconds} s", pytrace=False)
        assert answer, f"the process ended in the program `{self._name}`"
        is_good, result = pickle.loads(base64.b64decode(answer))  # noqa: S301, of a process of ours
        assert is_good, result
        return result

    def stop(self):
        """Ends the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


@pytest.fixture(scope="session")
def programs(python):
    """Runs programs."""
    process = Programs(python)
    yield process
    process.stop()


@pytest.fixture(scope="session")
def theirs(python):
    """The address of dm-reverb's server."""
    server = start(python, "reference.py")
    port = server.stdout.readline()
    assert port, "dm-reverb's server did not start"
    yield f"localhost:{int(port)}"
    server.stdin.close()
    server.kill()
    server.wait()


def selector(name, *arguments):
    """A selector by its name."""
    return getattr(engram.selectors, name)(*arguments)


def table(description):
    """The table of a description, as Engram's compatible part makes it."""
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
def expected(programs, theirs):
    """What programs see of dm-reverb's server, each run once."""
    return functools.cache(lambda name: programs.run(name, theirs))


def compatible(description):
    """The same table, made as code for dm-reverb makes it."""
    return made(reverb, description, _table_note.decode(note(description)).signature)


@pytest.fixture(scope="session", params=["engram", "compatible"])
def ours(request, tmp_path_factory):
    """The address of a server of Engram's: started in its own words, or in dm-reverb's."""
    if request.param == "engram":
        tables = [table(description) for description in TABLES]
        with engram.Server(tables, path=tmp_path_factory.mktemp("store")) as server:
            yield f"localhost:{server.port}"
        return
    server = reverb.Server([compatible(description) for description in TABLES], host="localhost")
    yield f"localhost:{server.port}"
    server.stop()
