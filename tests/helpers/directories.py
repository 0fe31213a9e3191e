"""Helpers for tests of stores' directories."""

import numpy as np

from engram import Store

# Names of files in a store's directory.
FIRST, SECOND = "checkpoint-0000000001", "checkpoint-0000000002"
LOG_1, LOG_2, LOG_4 = (f"log-{number:010}" for number in (1, 2, 4))


def fill(store, table, count):
    """Inserts `count` items of 1,000 incompressible bytes."""
    noise = np.random.default_rng(0)
    for _ in range(count):
        store.insert({"x": noise.integers(256, size=1_000, dtype=np.uint8)}, {table: 1.0})


def contents(path):
    """Returns the modification time (ns) and the content (None if not a file) of everything in a directory, by name."""
    return {
        each.name: (each.lstat().st_mtime_ns, each.read_bytes() if each.is_file() else None) for each in path.iterdir()
    }


def file_report(report, name):
    """Returns the entry of a file in a report of `inspect_directory`."""
    return next(each for each in report["files"] if each["name"] == name)


def sizes(report):
    """Returns the number of items that each table would have after opening, from a report of `inspect_directory`."""
    return {table["name"]: table["items"] for table in report["opening"]["tables"]}


def sizes_after_opening(path, **options):
    """Opens the directory; returns the number of items of each table."""
    with Store.open(path, **options) as store:
        return {name: info.size for name, info in store.info().items()}
