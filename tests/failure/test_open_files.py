"""Servers and clients at their limit of open files: errors name it, and nothing is taken for an empty table."""

import json
import os
import resource
import socket
import time
from pathlib import Path

import numpy as np
from helpers.faults import ServerProcess
from helpers.python_process import PIPE, PythonProcess
from helpers.support import wait_until

from engram import Client, Server, Table

REACH_LIMIT = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

def reach_limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    files = []
    try:
        while True:
            files.append(open("/dev/null"))
    except OSError:
        return files

"""

CLIENT = (
    REACH_LIMIT
    + """
import json, sys
import engram

client = engram.Client(sys.argv[1])
client.insert({"x": 1}, {"t": 1.0})
files = reach_limit()
errors = []
for call in (
    lambda: client.sample("t", 1, timeout=0.1),
    lambda: list(engram.Dataset(client, "t", 1, timeout=0.1)),
    lambda: list(engram.Dataset(client, "t", 1, timeout=0.6)),
    lambda: engram.Client(sys.argv[1], reconnect_timeout=0.1).info(),
):
    try:
        errors.append(repr(call()))
    except engram.EngramError as error:
        errors.append(f"{type(error).__name__}: {error}")
del files
errors.append(client.sample("t", 1, timeout=10).data["x"].tolist())
print(json.dumps(errors))
"""
)

SERVER = (
    REACH_LIMIT
    + """
import logging, sys
import engram

logging.basicConfig(stream=sys.stdout, format="%(message)s")
server = engram.Server([engram.Table("t")])
files = reach_limit()
print(server.address, flush=True)
sys.stdin.readline()
del files
sys.stdin.read()
server.close()
"""
)
ADVICE = "; close some files, or raise the limit of open files (`ulimit -n`)"
LIMIT, LIMIT_AND_CODE = f"Too many open files{ADVICE}", f"Too many open files (os error 24){ADVICE}"


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


def test_a_client_at_its_limit_of_open_files_names_it_and_no_dataset_ends():
    with Server([Table("t")]) as server:
        process = PythonProcess(CLIENT, server.address, stdout=PIPE)
        sampled, short, long, connected, last = json.loads(process.stdout.read())
        process.wait()
        process.stdout.close()
        at = f"the server at {server.address}"
    no_reply = f"DeadlineExceededError: {at} did not reply within 0.1 s to a request for 1 sample of table `t`"
    assert sampled == f"{no_reply}: it cannot be reached: {LIMIT}"
    for text, timeout in ((short, "0.1"), (long, "0.6")):
        no_batch = f"UnavailableError: table `t`: no batch within {timeout} s (`timeout`)"
        assert text == f"{no_batch}: {at} cannot be reached: {LIMIT_AND_CODE}"
    assert connected == f"UnavailableError: {at} cannot be reached: {LIMIT}; tried for 0.1 s (`reconnect_timeout`)"
    assert last == [1]


def test_a_server_at_its_limit_of_open_files_logs_it():
    process = PythonProcess(SERVER, stdin=PIPE, stdout=PIPE)
    address = process.stdout.readline().strip()
    host, port = address.split(":")
    with socket.create_connection((host, int(port))):
        text = process.stdout.readline().strip()
        assert text == f"the server at {address} cannot accept a connection, and tries again: {LIMIT_AND_CODE}"
    process.stdin.write("\n")
    process.stdin.flush()
    client = Client(address)
    client.insert({"x": np.float32(1)}, {"t": 1.0}, timeout=10)
    process.stdin.close()
    process.wait()
    process.stdout.close()
