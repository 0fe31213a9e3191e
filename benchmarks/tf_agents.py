"""Workloads of TF-Agents' uniform replay buffer: Engram's and its own, with the same TensorFlow.

Sequences have two items.
"""

from collections.abc import Iterator

from benchmarks.workloads import Contender, Workload, ratio

# Jobs, with their units, and how many times faster than TF-Agents each should be.
JOBS = {
    "add": ("items/s", 5.0),
    "add_in_graph": ("items/s", 1.0),
    "get_next": ("sequences/s", 5.0),
    "dataset": ("sequences/s", 1.0),
}


def workloads() -> Iterator[Workload]:
    """Each job with small steps and Atari steps of one environment."""
    for step, suffix, items in (("small", "", 10_000), ("atari", "_atari", 1_000)):
        for job, (unit, times) in JOBS.items():
            yield Workload(
                f"tf_agents_{job}{suffix}",
                job=job,
                unit=unit,
                step=step,
                items=items,
                quick_items=500,
                more={"envs": 1, "batch": 64 if step == "small" else 32},
                contenders=(
                    Contender("tf_agents", "Engram, `compat.tf_agents`", "engram"),
                    Contender("tf_agents", "TF-Agents", "tf_agents", target=ratio(times)),
                ),
            )


WORKLOADS: tuple[Workload, ...] = tuple(workloads())
