"""A server that may open no more files waits until it may."""

import os
import resource
import socket
import time
from pathlib import Path

import numpy as np
from faults import ServerProcess
from support import wait_until

from engram import Client


def cpu_seconds(pid):
    """What a process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_it_neither_spins_nor_gives_up():
    with ServerProcess("[engram.Table('t')]") as server:
        files = Path(f"/proc/{server.pid}/fd")
        most = 5 + max(int(file.name) for file in files.iterdir())
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, hard))
        peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(most + 10)]
        wait_until(lambda: len(list(files.iterdir())) == most)
        before = cpu_seconds(server.pid)
        time.sleep(2)
        assert cpu_seconds(server.pid) - before < 0.3
        for peer in peers:
            peer.close()
        client = Client(server.address)
        client.insert({"x": np.float32(1)}, {"t": 1.0}, timeout=10)
        assert client.sample("t", 1, timeout=10).data["x"].tolist() == [1]
