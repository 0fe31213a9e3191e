"""Workloads over the network: the server in one process, writers and readers in others, on one machine.

Engram's client connects through the server's Unix socket, as it does by default; Reverb supports TCP only.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks import workloads
from benchmarks.workloads import Contender, Workload, ratio

Remote = partial(Workload, more={"remote": True})

SEQUENCE_LENGTH = 20  # steps per Atari item; items do not overlap
# Fields of the task of workers that write and sample these items.
SEQUENCE_TASK = {"remote": True, "length": SEQUENCE_LENGTH, "every": SEQUENCE_LENGTH, "batch": 32}


def inserts() -> Iterator[Workload]:
    """Two-step items, one per step, of one writer or several; the table fills up and then evicts."""
    yield from workloads.inserts("small", "", 100_000, remote=True)
    for writers in (2, 8):
        yield Workload(
            f"network_insert_{writers}_writers",
            job="insert",
            unit="steps/s",
            more={"remote": True, "writers": writers},
            contenders=(
                Contender("engram", "Engram, pattern writers", "pattern"),
                Contender("engram", "Engram, trajectory writers, column slices", "trajectory"),
                Contender("reverb", "Reverb, trajectory writers", "trajectory"),
                Contender("reverb", "Reverb, structured writers", "structured"),
            ),
        )


def samples() -> Iterator[Workload]:
    """Batches of 256 two-step items."""
    for kind, times in (("uniform", 30), ("prioritized", 15)):
        yield Remote(
            f"network_sample_{kind}",
            job="sample",
            unit="items/s",
            quick_items=2_000,
            prioritized=kind == "prioritized",
            contenders=(
                Contender("engram", "Engram, `Dataset`", "dataset"),
                Contender("engram", "Engram, `client.sample`", "client"),
                Contender("reverb", "Reverb, dataset", "dataset", target=ratio(times)),
                Contender("reverb", "Reverb, `client.sample`, unstacked", "client"),
            ),
        )


def changes() -> Iterator[Workload]:
    """Updates of priorities, of 256 keys per call."""
    yield Remote(
        "network_update_priorities",
        job="update",
        unit="calls/s",
        prioritized=True,
        quick_items=2_000,
        contenders=(
            Contender("engram", "Engram, `update_priorities`, `wait=False`", "unwaited"),
            Contender("engram", "Engram, `update_priorities` in 8 threads", "threads"),
            Contender("engram", "Engram, `update_priorities`", "client"),
            Contender("reverb", "Reverb, `client.mutate_priorities`", "client", target=ratio(3)),
            Contender("reverb", "Reverb, `client.mutate_priorities` in 8 threads", "threads"),
        ),
    )


def balances() -> Iterator[Workload]:
    """One process writes and one samples batches; the table keeps four samples per insert."""
    yield Workload(
        "network_balance",
        job="balance",
        unit="samples/s",
        more={"remote": True, "ratio": 4.0},
        contenders=(
            Contender("engram", "Engram, pattern writer and `Dataset`", "pattern"),
            Contender("reverb", "Reverb, trajectory writer and dataset", "trajectory", target=ratio(10)),
            Contender("reverb", "Reverb, structured writer and dataset", "structured", target=ratio(10)),
        ),
    )


def sequences() -> Iterator[Workload]:
    """Items of 20 Atari steps: of noise, which cannot be compressed, and of Pong."""
    for step, target in (("atari", ratio(1.5)), ("pong", None)):
        name = "noise" if step == "atari" else step
        workload = partial(Workload, step=step, items=500, quick_items=100, more=SEQUENCE_TASK)
        yield workload(
            f"network_insert_{name}",
            job="insert",
            unit="steps/s",
            contenders=(
                Contender("engram", "Engram, pattern writer", "sequences"),
                Contender("reverb", "Reverb, trajectory writer", "sequences", target=target),
            ),
        )
        yield workload(
            f"network_sample_{name}",
            job="sample",
            unit="items/s",
            contenders=(
                Contender("engram", "Engram, `Dataset`", "dataset"),
                Contender("engram", "Engram, `client.sample`", "client"),
                Contender("reverb", "Reverb, dataset", "dataset", target=target),
            ),
        )


def latencies() -> Iterator[Workload]:
    """Single calls, one after the other, on an idle server. Items have one step, as those of Reverb's `client.insert`.

    Targets compare equal calls. The other rows use an open writer, or streams that request items ahead of time.
    """
    calls = {
        "insert": (
            Contender("engram", "Engram, `client.insert`", "insert"),
            Contender("reverb", "Reverb, `client.insert`", "insert"),
            Contender("reverb", "Reverb, trajectory writer, flushed", "writer"),
        ),
        "sample": (
            Contender("engram", "Engram, `client.sample`", "sample"),
            Contender("engram", "Engram, `Dataset`, `prefetch=1`", "dataset"),
            Contender("reverb", "Reverb, `client.sample`", "sample"),
            Contender("reverb", "Reverb, `client.sample`, one call for all items", "generator"),
            Contender("reverb", "Reverb, dataset, one in flight", "dataset"),
        ),
        "update": (
            Contender("engram", "Engram, `update_priorities` of 256", "update"),
            Contender("reverb", "Reverb, `client.mutate_priorities` of 256", "update"),
        ),
    }
    for name, contenders in calls.items():
        for percentile in (50, 99):
            target = ratio(2) if percentile == 50 and name != "update" else None
            yield Workload(
                f"network_latency_{name}_p{percentile}",
                job="latency",
                unit="us",
                items=10_000,
                quick_items=1_000,
                prioritized=name == "update",
                lower_is_better=True,
                more={"remote": True, "length": 1, "percentile": percentile},
                contenders=tuple(
                    replace(contender, target=target)
                    if (contender.engine, contender.variant) == ("reverb", name)
                    else contender
                    for contender in contenders
                ),
            )


def memory() -> Iterator[Workload]:
    """Memory per item: how much the server's process grows."""
    yield Remote(
        "network_bytes_per_item",
        job="memory",
        unit="bytes/item",
        items=1_000_000,
        quick_items=20_000,
        lower_is_better=True,
        contenders=(
            Contender("engram", "Engram, trajectory writer", "trajectory"),
            Contender("engram", "Engram, pattern writer", "pattern"),
            Contender("engram", "Engram, batched writer", "batched"),
            Contender("reverb", "Reverb, trajectory writer", "trajectory", items=300_000),
        ),
    )


WORKLOADS: tuple[Workload, ...] = (
    *inserts(),
    *samples(),
    *changes(),
    *balances(),
    *sequences(),
    *latencies(),
    *memory(),
)
