"""The content of a ring as bytes, for `tf.train.Checkpoint`: a JSON header, a line break, and the arrays."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["decode", "encode"]

Array = npt.NDArray[Any]

_FORMAT = "engram.compat.tf_agents 1"


def encode(num_added: int, arrays: Sequence[Array]) -> bytes:
    """Encodes the content of a ring: items added per segment, and columns of the stored ones `[batch_size, T, ...]`."""
    batch_size, num_stored = arrays[0].shape[:2]
    header = {
        "format": _FORMAT,
        "batch_size": batch_size,
        "num_added": num_added,
        "num_stored": num_stored,
        "columns": [_column(array.dtype, array.shape[2:]) for array in arrays],
    }
    return b"".join([json.dumps(header).encode(), b"\n", *(array.reshape(-1).view(np.uint8).data for array in arrays)])


def decode(
    data: bytes, batch_size: int, columns: Sequence[tuple[np.dtype[Any], Sequence[int]]]
) -> tuple[int, list[Array]]:
    """Decodes what `encode` returned, if it has this batch size and these columns: dtype and shape of an item."""
    line, _, rest = data.partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError("the checkpoint does not have the content of an Engram replay buffer")
    expected = {"batch_size": batch_size, "columns": [_column(*column) for column in columns]}
    for name, value in expected.items():
        if header[name] != value:
            raise ValueError(f"the checkpoint is of a replay buffer with {name} {header[name]}; expected {value}")
    arrays, offset = [], 0
    for dtype, shape in columns:
        full_shape = [batch_size, header["num_stored"], *shape]
        size = math.prod(full_shape)
        arrays.append(np.frombuffer(rest, dtype, size, offset).reshape(full_shape))
        offset += size * dtype.itemsize
    return header["num_added"], arrays


def _column(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    return f"{dtype.name}{list(shape)}"
