"""Memory of a server whose clients read nothing, or only announce long messages; other clients are served meanwhile."""

import re
import time
from pathlib import Path

import pytest
from helpers.http2 import SilentConnection, length_prefix
from helpers.python_process import PIPE, PythonProcess

import engram

INSERT = "/engram.v1.Engram/Insert"
SAMPLE = "/engram.v1.Engram/Sample"
INSERT_STREAM = "/deepmind.reverb.ReverbService/InsertStream"
SAMPLE_STREAM = "/deepmind.reverb.ReverbService/SampleStream"

MIB = 1 << 20

# Bytes that replies which are not read may reserve.
BUDGET = 1024 * MIB

ZEROS_BYTES = 100_000_000
"""Bytes of the item of the table `zeros`, which is stored compressed."""

SERVER = f"""
import os, resource, sys
import numpy as np
import engram

limit, cpus = map(int, sys.argv[1:])
if cpus:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
server = engram.Server([engram.Table(name) for name in ("small", "large", "zeros")])
pixels = np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint8)
server.store.insert({{"x": 1}}, {{"small": 1.0}})
server.store.insert({{"x": pixels}}, {{"large": 1.0}})
server.store.insert({{"x": np.zeros({ZEROS_BYTES}, np.uint8)}}, {{"zeros": 1.0}})
print(server.address, flush=True)
sys.stdin.read()
"""


class LimitedServer:
    """A server in its own process, whose address space and CPUs can be limited."""

    def __init__(self, *, max_address_space: int = 0, cpus: int = 0) -> None:
        """Starts the server; 0 means no limit of its address space, and all CPUs."""
        self.process = PythonProcess(SERVER, max_address_space, cpus, stdin=PIPE, stdout=PIPE)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.connections: list[SilentConnection] = []

    def memory(self, name: str) -> int:
        """Returns a figure of the process's status, such as `VmRSS`, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(rf"^{name}:\s*(\d+) kB$", status, re.MULTILINE)
        assert match is not None, "the server has ended"
        return int(match[1]) << 10

    def connect(self, **options) -> SilentConnection:
        """Open a connection that is closed at the end of the test."""
        self.connections.append(SilentConnection(self.address, **options))
        return self.connections[-1]

    def close(self) -> None:
        """End the process."""
        for connection in self.connections:
            connection.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_server():
    """Starts servers that are ended after the test."""
    servers = []

    def start(**options) -> LimitedServer:
        servers.append(LimitedServer(**options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def varint(number: int) -> bytes:
    encoded = b""
    while number >= 128:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    """Returns a field of a Protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(content: bytes) -> bytes:
    """Returns a gRPC message: its length, then its content."""
    return length_prefix(len(content)) + content


def batch_request(table: str, n: int) -> bytes:
    """Returns the gRPC message of a `SampleRequest`."""
    return message(field(1, field(1, 1) + field(2, table.encode()) + field(3, n)))


def reverb_request(table: str, n: int) -> bytes:
    """Returns the gRPC message of a `SampleStreamRequest`."""
    return message(field(1, table.encode()) + field(2, n))


def longest_sample(server: LimitedServer, seconds: float, table: str = "large") -> float:
    """Samples for some seconds on a connection of its own; returns the duration of the longest call in seconds."""
    longest = 0.0
    with engram.Client(server.address) as client:
        client.sample(table, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            started = time.monotonic()
            client.sample(table, 1, timeout=10.0)
            longest = max(longest, time.monotonic() - started)
    return longest


@pytest.mark.parametrize(("path", "announced"), [(INSERT_STREAM, 256 * MIB), (INSERT, 4 * MIB)])
def test_announced_lengths_of_messages_are_not_allocated(start_server, record_property, path, announced):
    server = start_server(max_address_space=8192 * MIB)
    memory_before = server.memory("VmSize")
    for _ in range(8):
        connection = server.connect()
        for _ in range(1_000):
            connection.open_stream(path, length_prefix(announced))
    assert all(connection.ping() for connection in server.connections)
    longest = longest_sample(server, 1.0)
    grown = server.memory("VmSize") - memory_before
    record_property("figures", (grown // MIB, server.memory("VmRSS") // MIB, longest))
    assert grown < 1024 * MIB
    assert longest < 5.0
    assert all(connection.is_open for connection in server.connections)


def hold_unread(server: LimitedServer, path: str, request: bytes, streams: int) -> None:
    """Opens `streams` streams on each of 8 connections, reads no replies, and waits until memory no longer grows."""
    for _ in range(8):
        connection = server.connect(window=1_000)
        for _ in range(streams):
            connection.open_stream(path, request)
    highest, quiet_rounds = 0, 0
    while quiet_rounds < 4:
        time.sleep(0.5)
        current = server.memory("VmRSS")
        quiet_rounds = 0 if current > highest + MIB else quiet_rounds + 1
        highest = max(highest, current)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "request_bytes"), [(SAMPLE, batch_request("large", 1)), (SAMPLE_STREAM, reverb_request("large", 3))]
)
def test_unread_replies_of_8000_streams_stay_within_the_budget(start_server, record_property, path, request_bytes):
    server = start_server()
    memory_before = server.memory("VmHWM")
    hold_unread(server, path, request_bytes, 1_000)
    longest = longest_sample(server, 5.0)
    grown = server.memory("VmHWM") - memory_before
    still_open = sum(connection.is_open for connection in server.connections)
    record_property("figures", (grown // MIB, longest, still_open))
    # Besides the budget, encoded parts of replies need half as much again, and streams and connections need some.
    assert BUDGET // 2 < grown < 2 * BUDGET
    assert longest < 5.0
    # The server closed only as many connections as it had to.
    assert still_open >= 3


@pytest.mark.slow
def test_of_large_batches_that_are_not_read_only_one_is_in_memory(start_server, record_property):
    # Each thread may unpack an item, and there are as many threads as CPUs.
    server = start_server(cpus=2)
    memory_before = server.memory("VmHWM")
    hold_unread(server, SAMPLE, batch_request("zeros", 3), 4)
    longest = longest_sample(server, 5.0)
    grown = server.memory("VmHWM") - memory_before
    record_property("figures", (grown // MIB, longest))
    # One batch and two unpacked items, but not two batches.
    batch = 3 * ZEROS_BYTES
    assert 0.7 * batch < grown < 2 * batch
    assert longest < 5.0
