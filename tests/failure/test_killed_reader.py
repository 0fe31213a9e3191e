"""Exactly the items that a killed reader did not receive are returned to the table."""

import signal
import subprocess
import sys

import pytest
from support import fill, wait_until

from engram import Server, Table

ITEMS, SIZE, PREFETCH, VICTIM_READS = 6_000, 10, 4, 20

READER = """
import sys, time
import engram
address, size, prefetch, reads = sys.argv[1], *map(int, sys.argv[2:])
dataset = engram.Dataset(engram.Client(address), "q", size, prefetch=prefetch, timeout=1.5)
print("ready", flush=True)
sys.stdin.readline()
for number, batch in enumerate(dataset, start=1):
    print(*batch.data["x"].tolist(), flush=True)
    time.sleep(0.005 if number != reads else 1_000)
"""


@pytest.fixture
def reader():
    """Starts readers, `reader(server, reads)`, and kills them at the end of the test."""
    started = []

    def start(server, reads):
        arguments = [server.address, str(SIZE), str(PREFETCH), str(reads)]
        process = subprocess.Popen(
            [sys.executable, "-c", READER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def start_reading(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def batch(line):
    return [int(key) for key in line.split()]


def remaining_batches(process):
    """Returns the batches of a reader until it times out."""
    batches = [batch(line) for line in process.stdout]
    assert process.wait(timeout=60) == 0
    return batches


def test_one_of_three_prefetching_readers_is_killed(reader):
    with Server([Table.queue("q", max_size=ITEMS)]) as server:
        fill(server.store, "q", range(ITEMS))
        victim, *others = [reader(server, VICTIM_READS), reader(server, 0), reader(server, 0)]
        start_reading(victim)
        victim_batches = [batch(victim.stdout.readline()) for _ in range(VICTIM_READS)]
        # All batches that it received are acknowledged; the prefetched ones are leased.
        wait_until(lambda: server.store.info()["q"].size == ITEMS - VICTIM_READS * SIZE)
        wait_until(lambda: server.store.info()["q"].leased_out == PREFETCH * SIZE)
        for process in others:
            start_reading(process)
        first = [batch(process.stdout.readline()) for process in others]
        victim.send_signal(signal.SIGKILL)
        assert victim.stdout.read() == ""
        survivors = [
            [first_batch, *remaining_batches(process)] for first_batch, process in zip(first, others, strict=True)
        ]
        assert (server.store.info()["q"].size, server.store.info()["q"].leased_out) == (0, 0)

    # Every item is read once.
    read_keys = [key for batches in (victim_batches, *survivors) for each in batches for key in each]
    assert sorted(read_keys) == list(range(ITEMS))
    # The items that it had leased were read by the others before items that were never sampled.
    returned = sorted(key for batches in survivors for key in returned_to(batches))
    assert len(returned) == PREFETCH * SIZE


def returned_to(batches):
    """Returns a reader's items that were returned to the table before: one sorted run among its other, sorted items."""
    assert all(keys == sorted(keys) for keys in batches)
    jumps = [index for index in range(1, len(batches)) if batches[index][0] < batches[index - 1][0]]
    if not jumps:
        return []
    (index,) = jumps
    before, after = batches[:index], batches[index:]
    assert before == sorted(before)
    assert after == sorted(after)
    return [key for keys in after if keys[0] < before[-1][0] for key in keys]
