"""Saving and restoring a table, held against what the disk and the memory do in the same process and minute.

This module runs inside each peer's own virtual environment, so it imports NumPy and nothing of ours.
"""

import time
from collections.abc import Callable
from statistics import mean

from benchmarks.workers import common, disk, processes
from benchmarks.workers.common import Answer, Task

Action = Callable[[], object]


def seconds_of(action: Action) -> float:
    """How long it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def content(task: Task) -> int:
    """Bytes of the table's steps."""
    return task.items * task.every * common.step_bytes(task.step)


def save(task: Task, checkpoint: Action) -> Answer:
    """MB of content per second of a checkpoint, against the disk right before and after."""
    size = content(task)
    disk.write(task.directory, size=size)  # the system's cache has had the memory since: as much for all
    direct = disk.write(task.directory, size=size, direct=True)
    before = disk.write(task.directory, size=size)
    held = disk.sizes(task.directory)
    seconds = seconds_of(checkpoint)
    written = disk.growth(held, disk.sizes(task.directory))
    after = disk.write(task.directory, size=size)
    return Answer(
        size / disk.MB / seconds,
        {
            "{} s": seconds,
            "{} MB written": written,
            "disk {} MB/s before": before,
            "{} MB/s after": after,
            "{} MB/s with `O_DIRECT`": direct,
        },
        against=mean([before, after]),
    )


def save_again(task: Task, checkpoint: Action, change: Action) -> Answer:
    """MB that a second checkpoint and the changes before it write, against all there was after the first."""
    checkpoint()
    first = disk.sizes(task.directory)
    change()
    seconds = seconds_of(checkpoint)
    written = disk.growth(first, disk.sizes(task.directory))
    return Answer(written, {"{} s": seconds, "first {} MB": disk.total(first)}, against=disk.total(first))


def restore(task: Task, items: Callable[[], int]) -> Answer:
    """MB of content per second until what another process has saved is back, against the slower of disk and memory.

    What comes back goes to memory that the process has not had before, so that is what copying is measured with.

    `items` opens what is there and says how many items came back.
    """
    child = processes.Child(task, job="prepare")
    child.hear()
    child.join()

    def memory() -> tuple[float, float]:
        """MB per second of copying to fresh pages in a fresh process, and again."""
        child = processes.Child(task, "benchmarks.workers.disk_worker", job="copy")
        answer = child.hear()
        child.join()
        return answer["value"], answer["besides"]["again"]

    def ready() -> None:
        """Leave the files in the cache or out of it, as the task wants them."""
        (disk.forget if task.cold else disk.read)(task.directory)

    ready()
    disk.read(task.directory)  # a virtual machine's host may cache, too: as much for all
    ready()
    before = disk.read(task.directory)
    memory()  # the system has had the memory since: as much for all
    fresh_before, copied = memory()
    ready()
    start = time.perf_counter()
    found = items()
    seconds = time.perf_counter() - start
    if found != task.items:
        msg = f"{found} of {task.items} items came back"
        raise RuntimeError(msg)
    fresh_after, _ = memory()
    ready()
    after = disk.read(task.directory)
    return Answer(
        content(task) / disk.MB / seconds,
        {
            "{} s": seconds,
            "files read at {} MB/s before": before,
            "{} MB/s after": after,
            "memory copied to fresh pages at {} MB/s before": fresh_before,
            "at {} MB/s after": fresh_after,
            "{} MB/s to used ones": copied,
        },
        against=min(mean([before, after]), mean([fresh_before, fresh_after])),
    )
