"""Concurrent dm-reverb clients, one of which is killed, together with Engram's client.

With `ENGRAM_SOAK=20` in the environment, the clients run for 20 seconds instead of one.
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
from helpers.support import BackgroundCall, wait_until

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


class SoakServer:
    """A server in a separate process."""

    def __init__(self, folder):
        file = folder / "tables.toml"
        file.write_text(TABLES)
        command = [sys.executable, "-m", "engram.cli", "serve", "--tables", file, "--port", "0", "--metrics-port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = re.search(r" at (\S+);", self.process.stdout.readline())[1]
        self._metrics = re.search(r"metrics at (\S+)", self.process.stdout.readline())[1]

    def open_calls(self):
        """Number of open calls of dm-reverb clients."""
        with urllib.request.urlopen(self._metrics, timeout=30) as response:
            text = response.read().decode()
        counts = re.findall(r'^engram_server_open_calls\{protocol="reverb",call="\w+"\} (\d+)$', text, re.MULTILINE)
        assert len(counts) == 7
        return sum(map(int, counts))

    def memory(self):
        """Resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


@pytest.fixture
def served(tmp_path):
    """A server with a queue, whose items are sampled once, and a table `log` that keeps its items."""
    server = SoakServer(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()
    server.process.stdout.close()


@pytest.fixture
def clients(python, served, tmp_path):
    """The program that starts dm-reverb's clients. All its processes are killed after the test."""
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
    """Checks a batch of items and returns their numbers."""
    numbers, rest = batch.data
    np.testing.assert_array_equal(rest, np.broadcast_to(numbers[..., None] % 1000, rest.shape))
    return numbers[:, 0].tolist()


class Reader:
    """Samples with Engram's client until `stop` is set; from the queue, at most half of the items inserted."""

    def __init__(self, address):
        self._client = engram.Client(address)
        self.sampled = []
        self.stop = False

    def work(self):
        """Reads both tables."""
        while not self.stop:
            if not (info := self._client.info())["log"].size:
                continue
            if number_of_items := min(info["queue"].inserts // 2 - len(self.sampled), info["queue"].size, 500):
                self.sampled += checked(self._client.sample("queue", number_of_items, timeout=30))
            checked(self._client.sample("log", 64, timeout=30))


def test_no_item_is_lost_or_duplicated_when_a_client_is_killed(clients, served, tmp_path):
    before = served.memory()
    reader = Reader(served.address)
    reading = BackgroundCall(reader.work)
    children = json.loads(clients.stdout.readline())
    logs = [tmp_path / f"{kind}.json" for kind in range(PROCESSES)]
    wait_until(lambda: all(log.exists() and log.read_text() for log in logs), 60)
    time.sleep(SECONDS / 2)
    os.kill(children[0], signal.SIGKILL)
    assert json.loads(clients.stdout.readline()) == [signal.SIGKILL, *[0] * (PROCESSES - 1)]
    reader.stop = True
    reading.result(60)
    wait_until(lambda: served.open_calls() == 0)

    written, sampled = [], reader.sampled
    for log in logs:
        *entries, incomplete = log.read_text().split("\n")
        # Only the killed process may have left an incomplete entry.
        assert not incomplete or log is logs[0]
        for entry in map(json.loads, entries):
            written += range(*entry["written"])
            sampled += entry.get("sampled", [])
    client = engram.Client(served.address)
    info = client.info()
    table_bytes = info["log"].bytes + info["queue"].bytes
    while left := client.info()["queue"].size:
        sampled += checked(client.sample("queue", min(left, 1000), timeout=30))
    counts = collections.Counter(sampled)
    assert [number for number, number_of_items in counts.items() if number_of_items > 1] == []
    assert set(written) - set(sampled) == set()
    # The killed process may have sent items that it did not log. Their numbers follow those of its logged items; all of
    # its numbers are from 10**9 to 2 * 10**9.
    unlogged = sorted(set(sampled) - set(written))
    last = max((number for number in written if number < 2 * 10**9), default=10**9 - 1)
    assert unlogged == list(range(last + 1, last + 1 + len(unlogged)))
    assert info["queue"].inserts == len(sampled)
    assert len(written) <= info["log"].size == info["log"].inserts <= len(written) + len(unlogged) + 1
    # The allocator keeps freed memory, which is at most what the tables had.
    assert served.memory() < before + table_bytes + (64 << 20)
    for table in ("queue", "log"):
        client.reset(table)
    assert [table.bytes for table in client.info().values()] == [0, 0]
