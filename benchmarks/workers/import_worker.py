"""The time of an import: median of ten imports, each in a fresh interpreter, with the files in the page cache."""

import statistics
import subprocess
import sys
import time

from benchmarks.workers import common
from benchmarks.workers.common import Task


def wall_ms(statement: str) -> float:
    """Wall time in milliseconds of an interpreter that only runs `statement`, from its start to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return (time.perf_counter() - start) * 1e3


def measure(task: Task) -> float:
    """Milliseconds of an interpreter that runs `import numpy` or `import engram`, or their difference."""
    statements = ["import numpy", "import engram"]
    for statement in statements:
        wall_ms(statement)
    runs = [[wall_ms(statement) for statement in statements] for _ in range(10)]
    numpy, engram = (statistics.median(column) for column in zip(*runs, strict=True))
    figures: dict[str, float] = {"numpy": numpy, "engram": engram, "difference": engram - numpy}
    return figures[task.variant]


if __name__ == "__main__":
    common.run_task(["numpy"], {"import": measure})
