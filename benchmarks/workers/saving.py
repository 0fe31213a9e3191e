"""Saving and restoring a table, compared with the disk and the memory, which are measured right before and after.

This module runs inside each peer's own virtual environment, so it must not import Engram.
"""

import time
from collections.abc import Callable
from statistics import mean

from benchmarks.workers import common, disk, processes
from benchmarks.workers.common import Result, Task

Action = Callable[[], object]


def seconds_of(action: Action) -> float:
    """Duration of `action`."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def content_bytes(task: Task) -> int:
    """Bytes of the table's steps, not compressed."""
    return task.items * task.every * common.step_bytes(task.step)


def save(task: Task, checkpoint: Action) -> Result:
    """MB of content per second of a checkpoint; the reference is the disk's speed right before and after."""
    size = content_bytes(task)
    # Not counted: a first write makes the system provide memory for the page cache, so that all later writes have equal
    # conditions.
    disk.write(task.directory, size=size)
    direct = disk.write(task.directory, size=size, direct=True)
    before = disk.write(task.directory, size=size)
    sizes = disk.sizes(task.directory)
    seconds = seconds_of(checkpoint)
    written = disk.growth(sizes, disk.sizes(task.directory))
    after = disk.write(task.directory, size=size)
    return Result(
        size / disk.MB / seconds,
        {
            "{} s": seconds,
            "{} MB written": written,
            "disk {} MB/s before": before,
            "{} MB/s after": after,
            "{} MB/s with `O_DIRECT`": direct,
        },
        reference=mean([before, after]),
    )


def save_again(task: Task, checkpoint: Action, change: Action) -> Result:
    """MB that a second checkpoint, and the changes before it, write; the reference is the size after the first one."""
    checkpoint()
    first = disk.sizes(task.directory)
    change()
    seconds = seconds_of(checkpoint)
    written = disk.growth(first, disk.sizes(task.directory))
    return Result(written, {"{} s": seconds, "first {} MB": disk.total(first)}, reference=disk.total(first))


def restore(task: Task, restore_items: Callable[[], int]) -> Result:
    """MB of content per second of restoring what another process has saved.

    The reference is the slower of reading the files (from the page cache, if the task is not `cold`) and copying memory
    to fresh pages: restored items also need memory that the process has not used before.

    `restore_items` opens the directory and returns the number of restored items.
    """
    child = processes.Child(task, job="prepare")
    child.receive()
    child.join()

    def memory() -> tuple[float, float]:
        """MB per second of copying in a fresh process: to fresh pages, and to the same pages again."""
        child = processes.Child(task, "benchmarks.workers.disk_worker", job="copy")
        result = child.receive()
        child.join()
        return result["value"], result["extra"]["again"]

    def prepare_cache() -> None:
        """Puts the files into the page cache, or removes them from it, as the task requires."""
        (disk.drop_cached if task.cold else disk.read)(task.directory)

    prepare_cache()
    # Not counted: the host of a virtual machine may cache the files. After this read it caches them for every engine.
    disk.read(task.directory)
    prepare_cache()
    before = disk.read(task.directory)
    # Not counted: makes the host of a virtual machine provide this much memory, for every engine.
    memory()
    fresh_before, again = memory()
    prepare_cache()
    start = time.perf_counter()
    restored = restore_items()
    seconds = time.perf_counter() - start
    if restored != task.items:
        msg = f"{restored} of {task.items} items were restored"
        raise RuntimeError(msg)
    fresh_after, _ = memory()
    prepare_cache()
    after = disk.read(task.directory)
    return Result(
        content_bytes(task) / disk.MB / seconds,
        {
            "{} s": seconds,
            "files read at {} MB/s before": before,
            "{} MB/s after": after,
            "memory copied to fresh pages at {} MB/s before": fresh_before,
            "at {} MB/s after": fresh_after,
            "{} MB/s to the same pages again": again,
        },
        reference=min(mean([before, after]), mean([fresh_before, fresh_after])),
    )
