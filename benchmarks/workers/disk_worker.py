"""The disk and the memory without an engine: writes as many bytes as steps have in blocks of 1 MiB, or copies them."""

from benchmarks.workers import common, disk
from benchmarks.workers.common import Result, Task


def insert(task: Task) -> Result:
    """Steps per second whose bytes the disk can write and sync."""
    rate = disk.write(task.directory, seconds=task.seconds, direct=task.variant == "direct")
    return Result(rate * disk.MB / common.step_bytes(task.step), {"{} MB/s": rate})


def copy(task: Task) -> Result:
    """MB per second of copying as many bytes as the table has: to fresh pages, and to the same pages again."""
    fresh, again = disk.copy(task.items * common.step_bytes(task.step))
    return Result(fresh, {"again": again})


if __name__ == "__main__":
    common.serve(["numpy"], {"insert": insert, "copy": copy})
