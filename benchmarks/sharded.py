"""Samples of tables that are sharded over several servers, compared with one server that has all items.

    python -m benchmarks.sharded --shards 1 8 64

All servers run in processes of their own on this machine. For each number of shards, prints how many batches
`client.sample` returns per second, its ratio to the first number of shards, and the CPU time of client and servers per
item. The numbers of shards take turns; each result is that of the best turn.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import engram

ITEMS = 65_536  # of all shards together
BATCH = 256
WARM_UP_CALLS = 50

SERVE = """
import sys
import engram
table = engram.Table("t", sampler=engram.selectors.Prioritized(0.6))
server = engram.Server([table], shard_id=int(sys.argv[1]))
print(server.address, flush=True)
sys.stdin.read()
"""


class Shards:
    """Servers in other processes, filled with items, and a client of them."""

    def __init__(self, number: int) -> None:
        """Starts the servers."""
        self.number = number
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", SERVE, str(shard_id)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for shard_id in range(1, number + 1)
        ]
        addresses = [process.stdout.readline().strip() for process in self._processes if process.stdout is not None]
        for address in addresses:
            with engram.Client(address) as client:
                self._fill(client, ITEMS // number)
        self.client = engram.Client(addresses[0]) if number == 1 else engram.ShardedClient(addresses, seed=1)
        for _ in range(WARM_UP_CALLS):
            self.client.sample("t", BATCH)

    @staticmethod
    def _fill(client: engram.Client, items: int) -> None:
        rng = np.random.default_rng(0)
        step = {
            "obs": rng.random((items, 4), np.float32),
            "action": np.zeros(items, np.int32),
            "reward": np.zeros(items, np.float32),
            "next_obs": rng.random((items, 4), np.float32),
        }
        client.insert_batch("t", step, rng.random(items) + 0.1)

    def server_seconds(self) -> float:
        """CPU time of all servers."""
        return sum(_cpu_seconds(process.pid) for process in self._processes)

    def close(self) -> None:
        """Ends the servers."""
        self.client.close()
        for process in self._processes:
            process.communicate()


@dataclass(frozen=True)
class Turn:
    """What was measured in one turn."""

    batches_per_s: float
    client_us: float  # CPU time per item
    server_us: float


def measure(shards: Shards, seconds: float) -> Turn:
    """Samples for some seconds."""
    calls, began = 0, time.perf_counter()
    client_began, servers_began = time.process_time(), shards.server_seconds()
    while time.perf_counter() - began < seconds:
        shards.client.sample("t", BATCH)
        calls += 1
    per_item = 1e6 / calls / BATCH
    return Turn(
        calls / (time.perf_counter() - began),
        (time.process_time() - client_began) * per_item,
        (shards.server_seconds() - servers_began) * per_item,
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a turn")
    arguments = parser.parse_args()
    all_shards = [Shards(number) for number in arguments.shards]
    turns = [[measure(shards, arguments.seconds) for shards in all_shards] for _ in range(arguments.turns)]
    best = [max(each, key=lambda turn: turn.batches_per_s) for each in zip(*turns, strict=True)]
    print(f"{BATCH} items per batch, best of {arguments.turns} turns")
    print("shards  batches/s  ratio  CPU us/item: client  servers  both")
    for shards, turn in zip(all_shards, best, strict=True):
        both = turn.client_us + turn.server_us
        ratio = turn.batches_per_s / best[0].batches_per_s
        print(
            f"{shards.number:6}  {turn.batches_per_s:9.0f}  {ratio:5.2f}  {turn.client_us:19.2f}  "
            f"{turn.server_us:7.2f}  {both:4.2f}"
        )
        shards.close()


if __name__ == "__main__":
    main()
