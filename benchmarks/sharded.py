"""CPU time and rate of samples and inserts over several servers, compared with one server that has all items.

    python -m benchmarks.sharded --shards 1 8 64
    python -m benchmarks.sharded --shards 1 8 64 --work insert
    python -m benchmarks.sharded --shards 1 2 4 8 --batch 32 256 1024

All servers run in processes of their own on this machine. For each number of shards, prints how many batches
`client.sample` returns per second (or how many items a writer inserts, or what connected servers cost without any
call), its ratio to the first number of shards, and the CPU time of client and servers. The numbers of shards take
turns; each result is that of the best turn. docs/scaling.md derives a model from these figures.
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
from benchmarks import build

ITEMS = {"small": 65_536, "frames": 16_384}  # of all shards together
WARM_UP_CALLS = 50
INSERTS_PER_FLUSH = 1000

SERVE = """
import sys
import engram
table = engram.Table("t", sampler=engram.selectors.Prioritized(0.6), max_size=int(sys.argv[2]))
server = engram.Server([table], shard_id=int(sys.argv[1]))
print(server.address, flush=True)
sys.stdin.read()
"""


def steps(item: str, count: int) -> dict[str, np.ndarray]:
    """Steps: small transitions of 44 bytes, or Atari frames of 84 x 84 x 4 bytes that do not compress."""
    rng = np.random.default_rng(0)
    shape, dtype = ((4,), np.float32) if item == "small" else ((84, 84, 4), np.uint8)

    def observations() -> np.ndarray:
        if dtype is np.uint8:
            return rng.integers(0, 256, (count, *shape), dtype)
        return rng.random((count, *shape), dtype)

    columns = {"obs": observations(), "action": np.zeros(count, np.int32), "reward": np.zeros(count, np.float32)}
    return columns | ({"next_obs": observations()} if item == "small" else {})


class Shards:
    """Servers in other processes, whose tables are full, and a client of them."""

    def __init__(self, number: int, item: str) -> None:
        """Starts the servers."""
        self.number, self.item = number, item
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", SERVE, str(shard_id), str(ITEMS[item] // number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for shard_id in range(1, number + 1)
        ]
        addresses = [process.stdout.readline().strip() for process in self._processes if process.stdout is not None]
        for address in addresses:
            with engram.Client(address) as client:
                count = ITEMS[item] // number
                for first in range(0, count, 4096):
                    some = steps(item, min(4096, count - first))
                    client.insert_batch("t", some, np.linspace(0.1, 1.1, len(some["reward"])))
        self.client = engram.Client(addresses[0]) if number == 1 else engram.ShardedClient(addresses, seed=1)
        for _ in range(WARM_UP_CALLS):
            self.client.sample("t", 256)

    def sample(self, batch: int, seconds: float) -> int:
        """Samples batches; returns the number of items."""
        items, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            items += len(self.client.sample("t", batch))
        return items

    def insert(self, _: int, seconds: float) -> int:
        """Inserts an item per step; returns their number."""
        columns, items, began = steps(self.item, 256), 0, time.perf_counter()
        rows = [{name: column[row] for name, column in columns.items()} for row in range(256)]
        pattern = engram.Pattern("t", num_steps=1)
        with self.client.pattern_writer([pattern]) as writer:
            while time.perf_counter() - began < seconds:
                for number in range(INSERTS_PER_FLUSH):
                    writer.append(rows[number % 256])
                items += INSERTS_PER_FLUSH
                writer.flush()
        return items

    def update(self, batch: int, seconds: float) -> int:
        """Samples batches and updates their priorities; returns the number of items."""
        items, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            sampled = self.client.sample("t", batch)
            self.client.update_priorities("t", sampled.info.key, sampled.info.priority)
            items += len(sampled)
        return items

    @staticmethod
    def idle(_: int, seconds: float) -> int:
        """Makes no call."""
        time.sleep(seconds)
        return int(1e6 * seconds)  # so that the CPU time per item is that per second

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

    items_per_s: float
    client_us: float  # CPU time per item
    server_us: float


def measure(shards: Shards, work: str, batch: int, seconds: float) -> Turn:
    """Works for some seconds."""
    began = time.perf_counter()
    client_began, servers_began = time.process_time(), shards.server_seconds()
    items = getattr(shards, work)(batch, seconds)
    per_item = 1e6 / items
    return Turn(
        items / (time.perf_counter() - began),
        (time.process_time() - client_began) * per_item,
        (shards.server_seconds() - servers_began) * per_item,
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--work", choices=["sample", "insert", "update", "idle"], default="sample")
    parser.add_argument("--item", choices=[*ITEMS], default="small")
    parser.add_argument("--batch", type=int, nargs="+", default=[256], help="items per sample")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a turn")
    arguments = parser.parse_args()
    build.require_release()
    all_shards = [Shards(number, arguments.item) for number in arguments.shards]
    cases = [(batch, shards) for batch in arguments.batch for shards in all_shards]
    turns = [
        [measure(shards, arguments.work, batch, arguments.seconds) for batch, shards in cases]
        for _ in range(arguments.turns)
    ]
    best = [max(each, key=lambda turn: turn.items_per_s) for each in zip(*turns, strict=True)]
    print(f"{arguments.work}, {arguments.item} items, best of {arguments.turns} turns")
    unit = "us/s" if arguments.work == "idle" else "us/item"
    print(f"batch  shards    items/s  ratio  CPU {unit}: client  servers   both")
    for number, ((batch, shards), turn) in enumerate(zip(cases, best, strict=True)):
        first = best[number - number % len(all_shards)]
        print(
            f"{batch:5}  {shards.number:6}  {turn.items_per_s:9.0f}  {turn.items_per_s / first.items_per_s:5.2f}  "
            f"{turn.client_us:19.2f}  {turn.server_us:7.2f}  {turn.client_us + turn.server_us:5.2f}"
        )
    for shards in all_shards:
        shards.close()


if __name__ == "__main__":
    main()
