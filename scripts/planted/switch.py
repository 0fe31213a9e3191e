"""Switches of planted faults, copied into the package by `scripts/plant_faults.py`."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_active = int(os.environ.get("ENGRAM_FAULT", "0"))
_map: mmap.mmap | None = None
if _path := os.environ.get("ENGRAM_FAULT_MAP"):
    with Path(_path).open("r+b") as _file:
        _map = mmap.mmap(_file.fileno(), 0)


def on(number: int) -> bool:
    """Returns whether fault `number` is on. Records that it was reached."""
    if _map is not None:
        _map[number] = 1
    return _active == number


def pick(number: int, correct: Callable[[], Any], faulty: Callable[[], Any]) -> Any:  # noqa: ANN401, any expression
    """Returns the faulty value if fault `number` is on, otherwise the correct one. Records whether they differ."""
    if _active == number:
        return faulty()
    value = correct()
    if _map is not None and not _map[number]:
        try:
            _map[number] = bool(value != faulty())
        except Exception:  # noqa: BLE001, arrays have no single truth value, and a fault may raise
            _map[number] = 1
    return value
