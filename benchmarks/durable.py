"""Workloads of durable stores: insert rates at each durability, saving, restoring.

Each run has a fresh directory on the disk of this checkout. A rate includes a final flush, so that every counted
step is acknowledged.
"""

from collections.abc import Iterator
from functools import partial

from benchmarks.workloads import Contender, Target, Workload, ratio

OnDisk = partial(Workload, on_disk=True)

TARGETS = {"process": ratio(0.7), "disk": ratio(0.5)}  # by durability: shares of the rate in memory
NOISE_ITEMS = 17_700  # Atari steps of noise: 500 MB


def store_contenders(variant: str, writer: str) -> tuple[Contender, ...]:
    """The same inserts in memory, and in a directory at each durability."""
    return (
        Contender("engram", f"{writer}, in memory", variant),
        *(
            Contender(
                "engram",
                f'{writer}, `durability="{durability}"`',
                variant,
                target=TARGETS.get(durability),
                more={"durability": durability},
            )
            for durability in ("none", "process", "disk")
        ),
    )


def inserts() -> Iterator[Workload]:
    """Two-step items, one per step, in this process and through a server."""
    writers = {
        "trajectory": ("num_steps", "trajectory writer"),
        "pattern": ("pattern", "pattern writer"),
        "batched": ("batched", "batched writer"),
    }
    disk = (
        Contender("disk", "disk only: blocks of 1 MiB, then `fdatasync`", "buffered"),
        Contender("disk", "disk only, `O_DIRECT`", "direct"),
    )
    for step, items in (("small", 100_000), ("pong", 10_000), ("atari", 10_000)):
        is_noise = step == "atari"
        for name, (variant, writer) in writers.items():
            for where, remote in (("", False), ("network_", True)):
                if remote and step != "small" and name != "pattern":
                    continue
                yield OnDisk(
                    f"durable_{where}insert_{name}_{'noise' if is_noise else step}",
                    job="insert",
                    unit="steps/s",
                    step=step,
                    items=items,
                    contenders=(*store_contenders(variant, writer), *(disk if is_noise else ())),
                    more={"remote": remote},
                )


def saves() -> Iterator[Workload]:
    """A table of 500 MB of noise: saved to an empty directory, saved again, and restored."""
    noise = partial(
        OnDisk,
        step="atari",
        items=NOISE_ITEMS,
        quick_items=1_000,
        prioritized=True,
    )

    def contenders(variant: str, engram: str, reverb: str, target: Target, *, at_process: str) -> tuple[Contender, ...]:
        """Engram without and with a log of all changes, and Reverb.

        `engram` and `reverb` are labels; `at_process` is the label of Engram with the log, `durability="process"`.
        """
        return (
            Contender("engram", engram, variant, target=target, more={"durability": "none"}),
            Contender("engram", at_process, "changes", more={"durability": "process"}),
            Contender("reverb", reverb, variant),
        )

    yield noise(
        "durable_save",
        job="save",
        unit="MB/s",
        reference_name="disk",
        contenders=contenders(
            "checkpoint",
            "Engram, nothing saved before",
            "Reverb, `client.checkpoint`",
            ratio(0.8),
            at_process='Engram, `durability="process"`, chunks already in the log',
        ),
    )
    yield noise(
        "durable_save_again",
        job="save_again",
        unit="MB",
        reference_name="first checkpoint",
        contenders=contenders(
            "checkpoint",
            "Engram, 1 % of the items replaced, 1 % of the priorities updated",
            "Reverb",
            ratio(0.05, at_most=True),
            at_process='Engram, `durability="process"`, including the log since',
        ),
    )
    for state in ("cold", "warm"):
        yield noise(
            f"durable_restore_{state}",
            job="restore",
            unit="MB/s",
            reference_name="the slower of disk and memory",
            more={"cold": state == "cold"},
            contenders=contenders(
                "checkpoint",
                "Engram, from a checkpoint",
                "Reverb, from a checkpoint",
                ratio(0.8),
                at_process="Engram, from the log only",
            ),
        )


RATES: tuple[Workload, ...] = tuple(inserts())
SAVES: tuple[Workload, ...] = tuple(saves())
