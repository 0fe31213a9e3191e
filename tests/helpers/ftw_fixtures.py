"""The fixtures of FTW: inputs and expected outputs in float64, as JSON files.

`ENGRAM_FTW_FIXTURES` selects another folder of files with the same names and keys, for example with other sizes.
"""

import json
import os
from pathlib import Path

import numpy as np

FOLDER = Path(os.environ.get("ENGRAM_FTW_FIXTURES", Path(__file__).parents[1] / "agents" / "ftw" / "fixtures"))

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}
"""The files have 12 significant digits."""


def load(name):
    """Returns the content of a file, with lists as they are in JSON."""
    return json.loads((FOLDER / f"ftw_{name}.json").read_text())


def arrays(mapping):
    """Returns a mapping with its lists as arrays."""
    return {key: np.array(value) if isinstance(value, list) else value for key, value in mapping.items()}


GARBAGE = {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf, "huge": 1e30}
"""What padding may contain."""


def padding(valid, kind):
    """Returns a function that writes garbage to the rows of arrays `[T, B, ...]` that are not valid."""
    invalid = ~np.asarray(valid, bool)

    def spoil(array):
        array = np.array(array)
        array[invalid] = GARBAGE[kind] if array.dtype.kind == "f" else -(10**6)
        return array

    return spoil


def ending(num_transitions, num_valid, *, terminated):
    """Returns `valid` and the discounts, `[T, 1]`, of an item whose episode ends after `num_valid` transitions."""
    valid = (np.arange(num_transitions) < num_valid).astype(np.float64)[:, None]
    discounts = valid.copy()
    if terminated:
        discounts[num_valid - 1] = 0.0
    return valid, discounts
