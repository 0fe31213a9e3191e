"""The disk alone: as many bytes as steps have, in blocks of 1 MiB. And the memory alone."""

from benchmarks.workers import common, disk
from benchmarks.workers.common import Answer, Task


def insert(task: Task) -> Answer:
    """Steps per second that would fit through, all synced."""
    rate = disk.write(task.directory, seconds=task.seconds, direct=task.variant == "direct")
    return Answer(rate * disk.MB / common.step_bytes(task.step), {"{} MB/s": rate})


def copy(task: Task) -> Answer:
    """MB per second of copying as much as the table holds to pages that this process has never touched, and again."""
    fresh, again = disk.copy(task.items * common.step_bytes(task.step))
    return Answer(fresh, {"again": again})


if __name__ == "__main__":
    common.serve(["numpy"], {"insert": insert, "copy": copy})
