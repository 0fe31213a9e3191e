"""Exactly the items that a killed reader did not receive are returned to the table."""

import signal

import pytest
from helpers.python_process import PIPE, PythonProcess
from helpers.support import fill, wait_until

from engram import Server, Table

ITEMS = 3_000
SIZE = 10  # items per batch
PREFETCH = 4  # batches
VICTIM_READS = 20  # batches that the killed reader has received

READER = """
import sys, time
import engram
address, size, prefetch, reads = sys.argv[1], *map(int, sys.argv[2:])
# The server keeps the leases of a broken connection for `reconnect_timeout`.
client = engram.Client(address, reconnect_timeout=0.5)
dataset = engram.Dataset(client, "q", size, prefetch=prefetch, timeout=2.0)
print("ready", flush=True)
sys.stdin.readline()
for number, batch in enumerate(dataset, start=1):
    print(*batch.data["x"].tolist(), flush=True)
    time.sleep(0.005 if number != reads else 1_000)
"""


@pytest.fixture
def reader():
    """Returns `reader(server, reads)`, which starts a reader that stops for long after `reads` batches; 0: never.

    The readers that are still running are killed at the end of the test.
    """
    started = []

    def start(server, reads):
        arguments = [server.address, str(SIZE), str(PREFETCH), str(reads)]
        process = PythonProcess(READER, *arguments, stdin=PIPE, stdout=PIPE)
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


def parse_batch(line):
    return [int(value) for value in line.split()]


def remaining_batches(process):
    """Returns the batches that a reader prints until it times out, because the queue is empty."""
    batches = [parse_batch(line) for line in process.stdout]
    assert process.wait(timeout=60) == 0
    return batches


def test_prefetched_items_of_a_killed_reader_are_read_once_by_others(reader):
    with Server([Table.queue("q", max_size=ITEMS)]) as server:
        fill(server.store, "q", range(ITEMS))
        victim, *others = [reader(server, VICTIM_READS), reader(server, 0), reader(server, 0)]
        start_reading(victim)
        victim_batches = [parse_batch(victim.stdout.readline()) for _ in range(VICTIM_READS)]
        # All batches that the victim received are acknowledged; those that it prefetched are leased.
        wait_until(lambda: server.store.info()["q"].size == ITEMS - VICTIM_READS * SIZE)
        wait_until(lambda: server.store.info()["q"].hidden_items == PREFETCH * SIZE)
        for process in others:
            start_reading(process)
        first = [parse_batch(process.stdout.readline()) for process in others]
        victim.send_signal(signal.SIGKILL)
        assert victim.stdout.read() == ""
        survivors = [
            [first_batch, *remaining_batches(process)] for first_batch, process in zip(first, others, strict=True)
        ]
        assert (server.store.info()["q"].size, server.store.info()["q"].hidden_items) == (0, 0)

    # Every item is read once.
    values = [value for batches in (victim_batches, *survivors) for batch in batches for value in batch]
    assert sorted(values) == list(range(ITEMS))
    # Before the remaining items, the survivors read those that the victim had leased.
    returned = [value for batches in survivors for value in formerly_leased(batches)]
    assert len(returned) == PREFETCH * SIZE


def formerly_leased(batches):
    """Returns the values in a reader's batches that the victim had leased and not received.

    The reader reads them one after the other; they are lower than the values that it read before. Apart from them, its
    batches are sorted.
    """
    assert all(values == sorted(values) for values in batches)
    jumps = [index for index in range(1, len(batches)) if batches[index][0] < batches[index - 1][0]]
    if not jumps:
        return []
    (index,) = jumps
    before, after = batches[:index], batches[index:]
    assert before == sorted(before)
    assert after == sorted(after)
    return [value for values in after if values[0] < before[-1][0] for value in values]
