"""Workloads of datasets for frameworks: `engram.data`, and Reverb's dataset API in both engines.

A server in another process on the same machine has items of two steps. They are read in batches of 256 items or steps,
or one by one.
"""

from collections.abc import Iterator

from benchmarks.workloads import Contender, Workload, ratio

IN_FLIGHT = (1, 10)  # items that a dataset of Reverb's API may have requested and not yet received
DEFAULT_PREFETCH = 2  # batches, of `engram.data`
# How many times faster than Reverb each framework's dataset should be.
TARGETS = {"numpy": 20, "torch": 20, "jax": 20, "tensorflow": 10}


def datasets() -> Iterator[Workload]:
    """Each framework's dataset compared with Reverb's TensorFlow dataset; one process reads."""
    for framework, times in TARGETS.items():
        engram = [Contender("frameworks", f"Engram, `engram.data.{framework}`", framework)]
        if framework == "tensorflow":
            # One call from TensorFlow into Python returns up to `prefetch` batches, so the speed depends on `prefetch`.
            # The contender without `more` prefetches `PREFETCH` batches, a constant of `workers.frameworks_worker`.
            more = {"prefetch": DEFAULT_PREFETCH}
            label = "Engram, `engram.data.tensorflow`, the default `prefetch=2`"
            engram.append(Contender("frameworks", label, framework, more=more))
        yield Workload(
            f"data_{framework}",
            job="sample",
            unit="items/s",
            quick_items=2_000,
            more={"remote": True},
            contenders=(*engram, Contender("reverb", "Reverb, `TrajectoryDataset`", "dataset", target=ratio(times))),
        )


def in_flight() -> Iterator[Workload]:
    """Reverb's dataset API in both engines, with few items in flight."""
    for step, items in (("small", 100_000), ("atari", 1_000)):
        for number in IN_FLIGHT:
            for variant, name in (("batches", ""), ("single", "_single")):
                suffix = "" if step == "small" else f"_{step}"
                yield Workload(
                    f"data_{number}_in_flight{name}{suffix}",
                    job="sample",
                    unit="items/s",
                    step=step,
                    items=items,
                    quick_items=1_000,
                    more={"remote": True, "in_flight": number},
                    contenders=(
                        Contender("frameworks", "Engram, `compat.reverb.TrajectoryDataset`", variant),
                        Contender("reverb", "Reverb, `TrajectoryDataset`", variant),
                    ),
                )


def small_elements() -> Iterator[Workload]:
    """Elements smaller than the blocks of items that datasets fetch."""
    for kind, label in (("steps", "steps in batches"), ("single", "items one by one")):
        yield Workload(
            f"data_{kind}",
            job="sample",
            unit="steps/s" if kind == "steps" else "items/s",
            quick_items=2_000,
            more={"remote": True},
            contenders=tuple(
                Contender("frameworks", f"Engram, `engram.data.{framework}`, {label}", f"{framework} {kind}")
                for framework in TARGETS
            ),
        )


WORKLOADS: tuple[Workload, ...] = (*datasets(), *small_elements(), *in_flight())
