"""The speed of the disk and of the memory by themselves, and the size of a directory.

This module runs inside each peer's own virtual environment, so it must not import Engram.
"""

import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

BLOCK = 1 << 20
MB = 1e6

Sizes = Mapping[Path, int]


def write(directory: str, *, size: float = np.inf, seconds: float = np.inf, direct: bool = False) -> float:
    """MB per second of writing noise to one file, block by block, up to `size` bytes or `seconds`, and of `fdatasync`.

    `direct` bypasses the page cache (`O_DIRECT`).
    """
    path = Path(directory) / "probe"
    with mmap.mmap(-1, BLOCK) as block:  # page-aligned, as `O_DIRECT` requires
        block.write(np.random.default_rng(0).bytes(BLOCK))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if direct else 0))
        try:
            written = 0
            start = time.perf_counter()
            while written < size and time.perf_counter() - start < seconds:
                written += os.write(file, block)
            os.fdatasync(file)
            return written / MB / (time.perf_counter() - start)
        finally:
            os.close(file)
            path.unlink()


def read(directory: str) -> float:
    """MB per second of reading all files of a directory, one after the other, into the same memory."""
    block = bytearray(BLOCK)
    done = 0
    start = time.perf_counter()
    for path in sizes(directory):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(block):
                done += count
    return done / MB / (time.perf_counter() - start)


def drop_cached(directory: str) -> None:
    """Removes the files of a directory from the page cache, so that the next read reads the disk."""
    for path in sizes(directory):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)  # only pages that are on disk leave the cache
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def copy(size: int) -> tuple[float, float]:
    """MB per second of copying memory: to pages that this process has never used, then to the same pages again."""
    source = np.ones(size, np.uint8)
    target = np.empty_like(source)
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        rates.append(size / MB / (time.perf_counter() - start))
    return rates[0], float(np.median(rates[1:]))


def sizes(directory: str) -> Sizes:
    """Size of every file of a directory, in bytes."""
    return {path: path.stat().st_size for path in sorted(Path(directory).rglob("*")) if path.is_file()}


def total(files: Sizes) -> float:
    """Size of all files, in MB."""
    return sum(files.values()) / MB


def growth(before: Sizes, now: Sizes) -> float:
    """Growth of the files in MB; removed files do not count."""
    return sum(max(size - before.get(path, 0), 0) for path, size in now.items()) / MB
