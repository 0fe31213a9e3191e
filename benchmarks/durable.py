"""What it costs to outlive the process: rates at each durability, saving, restoring.

A store's directory is a fresh one on the disk of this checkout. Every rate ends with a flush: all that counts is
acknowledged.
"""

from collections.abc import Iterator
from functools import partial

from benchmarks.workloads import Contender, Target, Workload, ratio

OnDisk = partial(Workload, on_disk=True)

AT_LEAST = {"process": ratio(0.7), "disk": ratio(0.5)}
NOISE_ITEMS = 17_700  # Atari steps of noise: 500 MB


def stores(variant: str, what: str) -> tuple[Contender, ...]:
    """The same work in memory, and in a directory at each durability."""
    return (
        Contender("engram", f"{what}, in memory", variant),
        *(
            Contender(
                "engram",
                f'{what}, `durability="{durability}"`',
                variant,
                target=AT_LEAST.get(durability),
                more={"durability": durability},
            )
            for durability in ("none", "process", "disk")
        ),
    )


def inserts() -> Iterator[Workload]:
    """Two-step items, one per step, in this process and over a server."""
    writers = {
        "trajectory": ("num_steps", "trajectory writer"),
        "pattern": ("pattern", "pattern writer"),
        "batched": ("batched", "batched writer"),
    }
    disk = (
        Contender("disk", "the disk alone: blocks of 1 MiB, then `fdatasync`", "buffered"),
        Contender("disk", "the disk alone, `O_DIRECT`", "direct"),
    )
    for step, items in (("small", 100_000), ("pong", 10_000), ("atari", 10_000)):
        is_noise = step == "atari"
        for name, (variant, what) in writers.items():
            for where, remote in (("", False), ("network_", True)):
                if remote and step != "small" and name != "pattern":
                    continue
                yield OnDisk(
                    f"durable_{where}insert_{name}_{'noise' if is_noise else step}",
                    job="insert",
                    unit="steps/s",
                    step=step,
                    items=items,
                    contenders=(*stores(variant, what), *(disk if is_noise else ())),
                    more={"remote": remote},
                )


def saves() -> Iterator[Workload]:
    """A table of 500 MB that nothing compresses: written where nothing is on disk yet, and read back."""
    noise = partial(
        OnDisk,
        step="atari",
        items=NOISE_ITEMS,
        quick_items=1_000,
        prioritized=True,
    )

    def both(variant: str, ours: str, theirs: str, target: Target, *, at_process: str) -> tuple[Contender, ...]:
        return (
            Contender("engram", ours, variant, target=target, more={"durability": "none"}),
            Contender("engram", at_process, "changes", more={"durability": "process"}),
            Contender("reverb", theirs, variant),
        )

    yield noise(
        "durable_save",
        job="save",
        unit="MB/s",
        yardstick="disk",
        contenders=both(
            "checkpoint",
            "Engram, all to be written",
            "Reverb, `client.checkpoint`",
            ratio(0.8),
            at_process='Engram, `durability="process"`: the log has the chunks',
        ),
    )
    yield noise(
        "durable_save_again",
        job="save_again",
        unit="MB",
        yardstick="first",
        contenders=both(
            "checkpoint",
            "Engram, 1 % of the items new, 1 % of the priorities",
            "Reverb",
            ratio(0.05, at_most=True),
            at_process='Engram, `durability="process"`, with the log since',
        ),
    )
    for state in ("cold", "warm"):
        yield noise(
            f"durable_restore_{state}",
            job="restore",
            unit="MB/s",
            yardstick="the slower of disk and memory",
            more={"cold": state == "cold"},
            contenders=both(
                "checkpoint",
                "Engram, from a checkpoint",
                "Reverb, from a checkpoint",
                ratio(0.8),
                at_process="Engram, from the log alone",
            ),
        )


RATES: tuple[Workload, ...] = tuple(inserts())
SAVES: tuple[Workload, ...] = tuple(saves())
