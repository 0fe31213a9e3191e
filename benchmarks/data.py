"""What is measured of `engram.data`: batches of 256 two-step items, the server in another process, loopback between."""

from collections.abc import Iterator

from benchmarks.workloads import Contender, Workload, ratio

TARGETS = {"numpy": 20, "torch": 20, "jax": 20, "tensorflow": 10}


def datasets() -> Iterator[Workload]:
    """Each framework's dataset against Reverb's, which is TensorFlow's; one process reads."""
    for framework, times in TARGETS.items():
        yield Workload(
            f"data_{framework}",
            job="sample",
            unit="items/s",
            quick_items=2_000,
            more={"remote": True},
            contenders=(
                Contender("frameworks", f"Engram, `engram.data.{framework}`", framework),
                Contender("reverb", "Reverb, `TrajectoryDataset`", "dataset", target=ratio(times)),
            ),
        )


def parts() -> Iterator[Workload]:
    """What is cut from blocks of items."""
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


WORKLOADS: tuple[Workload, ...] = (*datasets(), *parts())
