"""A server at its limit of open files waits until it can accept connections again."""

import os
import resource
import socket
import time
from pathlib import Path

import numpy as np
from helpers.faults import ServerProcess
from helpers.support import wait_until

from engram import Client


def cpu_seconds(pid):
    """Returns the CPU seconds of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_server_at_its_limit_of_open_files_uses_no_cpu_and_recovers():
    with ServerProcess("[engram.Table('t')]") as server:
        files = Path(f"/proc/{server.pid}/fd")
        limit = 5 + max(int(file.name) for file in files.iterdir())
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, hard))
        peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(limit + 10)]
        wait_until(lambda: len(list(files.iterdir())) == limit)
        before = cpu_seconds(server.pid)
        time.sleep(2)
        assert cpu_seconds(server.pid) - before < 0.3
        for peer in peers:
            peer.close()
        client = Client(server.address)
        client.insert({"x": np.float32(1)}, {"t": 1.0}, timeout=10)
        assert client.sample("t", 1, timeout=10).data["x"].tolist() == [1]
