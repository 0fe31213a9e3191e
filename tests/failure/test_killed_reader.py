"""A reader that is killed gives back what it did not acknowledge, and nothing else."""

import signal
import subprocess
import sys
import time

from support import fill

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


def reader(server, reads):
    arguments = [server.address, str(SIZE), str(PREFETCH), str(reads)]
    process = subprocess.Popen(
        [sys.executable, "-c", READER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def batch(line):
    return [int(key) for key in line.split()]


def rest(process):
    """The batches of a reader that ends by itself, as there are no more."""
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return [batch(line) for line in out.splitlines()]


def test_one_of_three_prefetching_readers_is_killed():
    with Server([Table.queue("q", max_size=ITEMS)]) as server:
        fill(server.store, "q", range(ITEMS))
        victim, *others = [reader(server, VICTIM_READS), reader(server, 0), reader(server, 0)]
        for process in (victim, *others):
            go(process)
        seen = [batch(victim.stdout.readline()) for _ in range(VICTIM_READS)]
        time.sleep(0.3)  # what it has acknowledged arrives
        victim.send_signal(signal.SIGKILL)
        assert victim.communicate()[0] == ""
        survivors = [rest(process) for process in others]
        assert (server.store.info()["q"].size, server.store.info()["q"].leased_out) == (0, 0)

    # Every key arrives, once; the victim's last batch, which it has not acknowledged, twice.
    arrived = [key for batches in (seen, *survivors) for each in batches for key in each]
    assert sorted(arrived) == sorted([*range(ITEMS), *seen[-1]])
    # What it had on lease, at hand and prefetched, went to the others before what nobody had had yet.
    returned = sorted(key for batches in survivors for key in returned_to(batches))
    assert len(returned) == (1 + PREFETCH) * SIZE
    assert set(seen[-1]) <= set(returned)


def returned_to(batches):
    """The keys that came back to a reader. All others come in their order, and so do they, in one run."""
    assert all(keys == sorted(keys) for keys in batches)
    back = [at for at in range(1, len(batches)) if batches[at][0] < batches[at - 1][0]]
    if not back:
        return []
    (at,) = back
    before, after = batches[:at], batches[at:]
    assert before == sorted(before)
    assert after == sorted(after)
    return [key for keys in after if keys[0] < before[-1][0] for key in keys]
