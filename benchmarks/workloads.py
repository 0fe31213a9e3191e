"""Workloads in one process, and a scan from a server: the contenders of each, and the targets that they should meet."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial


@dataclass(frozen=True)
class Target:
    """A bound that a figure should meet."""

    limit: float  # in the unit of the figure, or a ratio
    kind: str  # "value" (bounds this row's figure) or "ratio" (bounds the ratio that the table shows for this row)
    at_most: bool = False  # an upper bound; otherwise a lower one

    def met(self, value: float, ratio: float | None) -> bool | None:
        """True if the bound is met; `None` if the ratio is unknown."""
        figure = ratio if self.kind == "ratio" else value
        if figure is None:
            return None
        return figure <= self.limit if self.at_most else figure >= self.limit

    def __str__(self) -> str:
        """The bound as the table shows it."""
        sign = "<=" if self.at_most else ">="
        return f"{sign} {self.limit:,}{'x' if self.kind == 'ratio' else ''}"


@dataclass(frozen=True)
class Contender:
    """One engine's way of doing the work."""

    engine: str  # name of the worker module and of the environment
    label: str
    variant: str = ""  # way of doing the work, one of those that the worker knows
    items: int | None = None  # replaces the workload's `items`, unless None
    target: Target | None = None
    more: Mapping[str, object] = field(default_factory=dict)  # further fields of the worker's task


@dataclass(frozen=True)
class Workload:
    """One measured task; its first contender is the baseline of the ratios."""

    name: str
    job: str  # name of the work, such as "insert"; each worker lists its jobs at the end of its module
    unit: str
    contenders: tuple[Contender, ...]
    step: str = "small"
    prioritized: bool = False
    items: int = 100_000  # maximum size of the table, and its size before sampling
    quick_items: int = 10_000  # maximum of `items` in a quick run
    lower_is_better: bool = False
    more: Mapping[str, object] = field(default_factory=dict)  # further fields of the worker's task
    on_disk: bool = False  # every run gets a fresh directory
    reference_name: str = "first row"  # name of the reference, for tables that show a share of it

    def task(self, contender: Contender, *, quick: bool) -> dict[str, object]:
        """Fields of the task that the worker of `contender` receives (`workers.common.Task`)."""
        items = contender.items or self.items
        return {
            "job": self.job,
            "variant": contender.variant,
            "step": self.step,
            "prioritized": self.prioritized,
            "seconds": 0.5 if quick else 3.0,
            "items": min(items, self.quick_items) if quick else items,
            **self.more,
            **contender.more,
        }


def ratio(limit: float, *, at_most: bool = False) -> Target:
    """A bound on the ratio that the table shows: `measure.ratio` in `report.table`, else `shares.share`."""
    return Target(limit, "ratio", at_most)


def value(limit: float, *, at_most: bool = False) -> Target:
    """A bound on the figure itself."""
    return Target(limit, "value", at_most)


def inserts(step: str, suffix: str, items: int, *, remote: bool = False) -> Iterator[Workload]:
    """Two-step items, one per step; the table fills up and then evicts."""
    has_target = step == "small"
    prefix = "network_" if remote else ""
    more = {"remote": True} if remote else {}
    workload = partial(Workload, job="insert", unit="steps/s", step=step, items=items, more=more)
    yield workload(
        f"{prefix}insert_trajectory{suffix}",
        contenders=(
            Contender("engram", "Engram, trajectory writer, column slices", "trajectory"),
            Contender("engram", "Engram, trajectory writer, `num_steps=2`", "num_steps"),
            Contender("reverb", "Reverb, trajectory writer", "trajectory", target=ratio(5) if has_target else None),
        ),
    )
    yield workload(
        f"{prefix}insert_pattern{suffix}",
        contenders=(
            Contender("engram", "Engram, pattern writer", "pattern"),
            Contender("reverb", "Reverb, trajectory writer", "trajectory", target=ratio(20) if has_target else None),
            Contender("reverb", "Reverb, structured writer", "structured"),
        ),
    )
    if not remote:
        yield workload(
            f"insert_td_errors{suffix}",
            contenders=(
                Contender("engram", "Engram, pattern writer, priorities computed from the items", "td_errors"),
                Contender("reverb", "Reverb, structured writer, priorities computed from the items", "td_errors"),
            ),
        )
    cpprb = (
        Contender("cpprb", "cpprb, `add` of 64 transitions", "batched"),
        Contender("cpprb", "cpprb, `add` of one transition", "single"),
    )
    yield workload(
        f"{prefix}insert_batched{suffix}",
        contenders=(
            Contender(
                "engram",
                "Engram, batched writer, 64 environments",
                "batched",
                target=value(1_000_000) if has_target else None,
            ),
            *(() if remote else cpprb),
        ),
    )


def samples(step: str, suffix: str, items: int) -> Iterator[Workload]:
    """Batches of 256 two-step items."""
    for kind in ("uniform", "prioritized"):
        yield Workload(
            f"sample_{kind}{suffix}",
            job="sample",
            unit="items/s",
            step=step,
            items=items,
            quick_items=2_000,
            prioritized=kind == "prioritized",
            contenders=(
                Contender("engram", "Engram, `store.sample`", "store"),
                Contender("engram", "Engram, `Dataset`", "dataset"),
                Contender(
                    "reverb",
                    "Reverb, in-process dataset",
                    "dataset",
                    target=ratio(50) if step == "small" else None,
                ),
                Contender("reverb", "Reverb, `client.sample`, unstacked", "client"),
                Contender("cpprb", "cpprb, `sample`", "buffer"),
            ),
        )


def draws() -> Iterator[Workload]:
    """The cost of sampling one item, by table size."""
    for kind in ("uniform", "prioritized"):
        sizes = [Contender("engram", f"Engram, 10^{power} items", "store", items=10**power) for power in (4, 5, 6)]
        yield Workload(
            f"draw_cost_{kind}",
            job="draw",
            unit="ns/item",
            prioritized=kind == "prioritized",
            lower_is_better=True,
            quick_items=100_000,
            contenders=(
                *sizes,
                Contender(
                    "engram",
                    "Engram, 10^7 items",
                    "store",
                    items=10**7,
                    target=ratio(4, at_most=True),
                ),
            ),
        )


def scans() -> Iterator[Workload]:
    """Reading all items of a big table once."""
    yield Workload(
        "scan",
        job="scan",
        unit="items/s",
        items=5_000_000,
        quick_items=100_000,
        more={"batch": 1_000},
        contenders=(
            Contender("engram", "Engram, `store.scan`, batches of 1,000", "store", target=value(2_000_000)),
            Contender("engram", "Engram, `client.scan`, from a server", "client", more={"remote": True}),
        ),
    )


def others() -> Iterator[Workload]:
    """Updates of priorities, memory per item, import time."""
    yield Workload(
        "update_priorities",
        job="update",
        unit="calls/s",
        prioritized=True,
        quick_items=2_000,
        contenders=(
            Contender("engram", "Engram, `update_priorities`", "store"),
            Contender("reverb", "Reverb, `client.mutate_priorities`", "client", target=ratio(10)),
            Contender("cpprb", "cpprb, `update_priorities`", "buffer"),
        ),
    )
    bound = value(300, at_most=True)
    yield Workload(
        "bytes_per_item",
        job="memory",
        unit="bytes/item",
        items=1_000_000,
        quick_items=20_000,
        lower_is_better=True,
        contenders=(
            Contender("engram", "Engram, trajectory writer", "trajectory", target=bound),
            Contender("engram", "Engram, pattern writer", "pattern", target=bound),
            Contender("engram", "Engram, batched writer", "batched", target=bound),
            Contender("reverb", "Reverb, trajectory writer", "trajectory", items=300_000),
        ),
    )
    yield Workload(
        "import_time",
        job="import",
        unit="ms",
        lower_is_better=True,
        contenders=(
            Contender("import", "`import numpy`", "numpy"),
            Contender("import", "`import engram`", "engram"),
            Contender("import", "`import engram` minus `import numpy`", "difference", target=value(100, at_most=True)),
        ),
    )


WORKLOADS: tuple[Workload, ...] = (
    *inserts("small", "", 100_000),
    *samples("small", "", 100_000),
    *scans(),
    *others(),
    *draws(),
    *inserts("atari", "_atari", 10_000),
    *samples("atari", "_atari", 10_000),
)
