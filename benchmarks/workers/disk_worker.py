"""The speed of the disk and of the memory without an engine: writes blocks of 1 MiB, or copies arrays."""

from benchmarks.workers import common, disk
from benchmarks.workers.common import Result, Task


def insert(task: Task) -> Result:
    """Speed of the disk with a final sync, as the number of steps per second that have as many bytes."""
    rate = disk.write(task.directory, seconds=task.seconds, direct=task.variant == "direct")
    return Result(rate * disk.MB / common.step_bytes(task.step), {"{} MB/s": rate})


def copy(task: Task) -> Result:
    """MB per second of copying as many bytes as the table has, to fresh pages; in `extra`, to the same pages again."""
    fresh, again = disk.copy(task.items * common.step_bytes(task.step))
    return Result(fresh, {"again": again})


if __name__ == "__main__":
    common.run_task(["numpy"], {"insert": insert, "copy": copy})
