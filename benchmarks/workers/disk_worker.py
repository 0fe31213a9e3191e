"""The disk alone: as many bytes as steps have, in blocks of 1 MiB."""

from benchmarks.workers import common, disk
from benchmarks.workers.common import Answer, Task


def insert(task: Task) -> Answer:
    """Steps per second that would fit through, all synced."""
    rate = disk.write(task.directory, seconds=task.seconds, direct=task.variant == "direct")
    return Answer(rate * disk.MB / common.step_bytes(task.step), {"{} MB/s": rate})


if __name__ == "__main__":
    common.serve(["numpy"], {"insert": insert})
