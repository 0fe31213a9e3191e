"""`python -m benchmarks.mapped_buffer`: how the time of sampling grows with the number of steps in a mapped file.

Each `ReplayBuffer` is in a file of small steps, all of them in memory (warm). In each round, all of them are sampled
one after the other, with `out=`, in turns with `numpy.take` of random rows of the same file, which are chosen before
the clock starts. Figures are medians over the rounds of the processor time per item, which depends less on what else
the machine does. Growth is relative to the fewest steps: the median over the rounds of the growth within a round.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks import build, peers, report
from engram import ArraySpec
from engram.buffers import MappedFile, ReplayBuffer
from engram.selectors import Prioritized, Uniform

STEP_BYTES = 32
PART_ALIGNMENT = 65_536
"""Alignment of the parts of the file in bytes; the only column is the last part (docs/format.md)."""
TARGET = 1.5
"""Maximum growth of sampling, as a multiple of that of `numpy.take`."""


def fill(buffer: ReplayBuffer, steps: int) -> None:
    """Adds steps of random bytes."""
    rng = np.random.default_rng(0)
    part = 1_000_000
    for first in range(0, steps, part):
        data = rng.integers(0, 2**64, (1, min(part, steps - first), STEP_BYTES // 8), np.uint64)
        buffer.add_steps(data.view(np.uint8))


def column_of(path: Path, steps: int) -> np.ndarray:
    """Maps the column of a file."""
    column_bytes = -(-steps * STEP_BYTES // PART_ALIGNMENT) * PART_ALIGNMENT
    offset = path.stat().st_size - column_bytes
    return np.asarray(np.memmap(path, np.uint8, "r", offset, (steps, STEP_BYTES)))


@contextmanager
def opened(path: Path, steps: int, sampler: Uniform | Prioritized) -> Iterator[tuple[ReplayBuffer, np.ndarray]]:
    """Creates a buffer of this many steps; yields it and its column, both with all their pages in memory."""
    signature = ArraySpec((STEP_BYTES,), np.uint8)
    with ReplayBuffer(steps, signature=signature, sampler=sampler, seed=0, storage=MappedFile(path)) as buffer:
        fill(buffer, steps)
        buffer.flush()  # so that the system writes nothing while the clock runs
        column = column_of(path, steps)
        for batch in buffer.scan(65_536):
            np.testing.assert_array_equal(batch.data, column[int(batch.info.position[0]) :][: len(batch)])
        yield buffer, column


def measure(buffer: ReplayBuffer, column: np.ndarray, batch_size: int, rows: np.ndarray) -> tuple[float, float]:
    """Returns the nanoseconds of processor time per item of `sample`, and of `numpy.take` of these rows."""
    out = np.zeros((batch_size, STEP_BYTES), np.uint8)
    begin = time.process_time()
    for _ in rows:
        buffer.sample(batch_size, out=out)
    middle = time.process_time()
    for chosen in rows:
        np.take(column, chosen, axis=0, out=out, mode="clip")
    end = time.process_time()
    return 1e9 * (middle - begin) / rows.size, 1e9 * (end - middle) / rows.size


def main() -> None:
    """Prints a table of nanoseconds per item and of growth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mapped_buffer", description=__doc__)
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[10**6, 10**7, 10**8], help="numbers of steps (default: 10^6 to 10^8)"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 4096], help="(default: 256 and 4,096)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each (default: 9)")
    parser.add_argument("--items", type=int, default=1_000_000, help="items per round (default: 1,000,000)")
    parser.add_argument("--prioritized", action="store_true", help="sample by priorities, which are all equal")
    parser.add_argument("--write", action="store_true", help="also write the table to benchmarks/results")
    parser.add_argument("--directory", help="where to create the files (default: that of temporary files)")
    arguments = parser.parse_args()
    build.require_release()
    sampler = Prioritized(0.6) if arguments.prioritized else Uniform()
    kind = type(sampler).__name__
    name, title = f"mapped_buffer_{kind.lower()}", f"Replay buffers in mapped files, {kind}: time per item"
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory, ExitStack() as stack:
        buffers = []
        for steps in arguments.steps:
            peers.log(f"creating the file of {steps:,} steps")
            buffers.append(stack.enter_context(opened(Path(directory, f"{steps}"), steps, sampler)))
        stack.enter_context(report.printed(name, title, "benchmarks.mapped_buffer", to_file=arguments.write))
        print(f"{sampler}, {STEP_BYTES} bytes per step, {os.cpu_count()} processors")
        print(
            "| batch | steps | `sample` | `numpy.take` | growth | growth of `numpy.take` | ratio of growths | target |"
        )
        print("|---:|---:|---:|---:|---:|---:|---:|---:|")
        rng = np.random.default_rng(1)
        for batch_size in arguments.batch_sizes:
            rounds = []
            for _ in range(arguments.rounds):
                shape = (arguments.items // batch_size, batch_size)
                rounds.append([measure(*each, batch_size, rng.integers(0, len(each[1]), shape)) for each in buffers])
            times = np.array(rounds)  # [rounds, buffers, 2]
            growth = times / times[:, :1]
            ratios = growth[..., 0] / growth[..., 1]
            for number, steps in enumerate(arguments.steps):
                sample, take = np.median(times[:, number], 0)
                of_sample, of_take, ratio = *np.median(growth[:, number], 0), np.median(ratios[:, number])
                print(f"| {batch_size:,} | {steps:,} | {sample:.1f} ns | {take:.1f} ns | {of_sample:.2f} ", end="")
                print(f"| {of_take:.2f} | {ratio:.2f} | {TARGET:g} |")


if __name__ == "__main__":
    main()
