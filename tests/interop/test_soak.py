"""Many of dm-reverb's clients at once, one of which is killed, and Engram's own beside them.

`ENGRAM_SOAK=20 ... pytest -m interop tests/interop/test_soak.py` lets them work for so many seconds.
"""

import collections
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from support import BackgroundCall, wait_until

import engram

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
PROCESSES = 4
SECONDS = float(os.environ.get("ENGRAM_SOAK", "1"))

TABLES = """
[queue]
like = "queue"
max_size = 10_000_000

[log]
max_size = 10_000_000
"""


class Served:
    """A server in a process of its own."""

    def __init__(self, folder):
        file = folder / "tables.toml"
        file.write_text(TABLES)
        command = [sys.executable, "-m", "engram.cli", "serve", "--tables", file, "--port", "0", "--metrics-port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = re.search(r" at (\S+);", self.process.stdout.readline())[1]
        self._metrics = re.search(r"metrics at (\S+)", self.process.stdout.readline())[1]

    def open_calls(self):
        """Calls of dm-reverb's clients that are open."""
        with urllib.request.urlopen(self._metrics, timeout=30) as answer:
            text = answer.read().decode()
        counts = re.findall(r'^engram_server_open_calls\{protocol="reverb",call="\w+"\} (\d+)$', text, re.MULTILINE)
        assert len(counts) == 7
        return sum(map(int, counts))

    def memory(self):
        """Bytes that it has in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


@pytest.fixture
def served(tmp_path):
    """A server with a queue, whose items are given once, and a table that keeps them."""
    server = Served(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()
    server.process.stdout.close()


@pytest.fixture
def clients(python, served, tmp_path):
    """The program that starts dm-reverb's clients, and all that it started."""
    port = served.address.rpartition(":")[2]
    command = [python, HERE / "soak_client.py", f"localhost:{port}", tmp_path, str(PROCESSES), str(SECONDS)]
    with (
        (tmp_path / "stderr").open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True) as program,
    ):
        yield program
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)


def checked(batch):
    """The numbers of a batch's items, whose parts must belong together."""
    numbers, rest = batch.data
    np.testing.assert_array_equal(rest, np.broadcast_to(numbers[..., None] % 1000, rest.shape))
    return numbers[:, 0].tolist()


class Reader:
    """Engram's own client, that takes at most half of what is written until it is told to stop."""

    def __init__(self, address):
        self._client = engram.Client(address)
        self.given = []
        self.is_over = False

    def work(self):
        """Reads both tables."""
        while not self.is_over:
            if not (info := self._client.info())["log"].size:
                continue
            if wanted := min(info["queue"].inserts // 2 - len(self.given), info["queue"].size, 500):
                self.given += checked(self._client.sample("queue", wanted, timeout=30))
            checked(self._client.sample("log", 64, timeout=30))


def test_nothing_is_lost_or_doubled_and_the_killed_are_forgotten(clients, served, tmp_path):
    before = served.memory()
    reader = Reader(served.address)
    reading = BackgroundCall(reader.work)
    children = json.loads(clients.stdout.readline())
    diaries = [tmp_path / f"{kind}.json" for kind in range(PROCESSES)]
    wait_until(lambda: all(diary.exists() and diary.read_text() for diary in diaries), 60)
    time.sleep(SECONDS / 2)
    os.kill(children[0], signal.SIGKILL)
    assert json.loads(clients.stdout.readline()) == [signal.SIGKILL, *[0] * (PROCESSES - 1)]
    reader.is_over = True
    reading.result(60)
    wait_until(lambda: served.open_calls() == 0)

    written, given = [], reader.given
    for diary in diaries:
        *entries, rest = diary.read_text().split("\n")
        # The killed one may have been about to write.
        assert not rest or diary is diaries[0]
        for entry in map(json.loads, entries):
            written += range(*entry["wrote"])
            given += entry.get("given", [])
    client = engram.Client(served.address)
    info = client.info()
    most = info["log"].bytes + info["queue"].bytes
    while left := client.info()["queue"].size:
        given += checked(client.sample("queue", min(left, 1000), timeout=30))
    counts = collections.Counter(given)
    assert [number for number, count in counts.items() if count > 1] == []
    assert set(written) - set(given) == set()
    # What the killed one had on its way, in order.
    more = sorted(set(given) - set(written))
    last = max((number for number in written if number < 2 * 10**9), default=10**9 - 1)
    assert more == list(range(last + 1, last + 1 + len(more)))
    assert info["queue"].inserts == len(given)
    assert len(written) <= info["log"].size == info["log"].inserts <= len(written) + len(more) + 1
    # Freed memory stays with the process, for what comes next: it is no more than the tables had.
    assert served.memory() < before + most + (64 << 20)
    for table in ("queue", "log"):
        client.reset(table)
    assert [table.bytes for table in client.info().values()] == [0, 0]
