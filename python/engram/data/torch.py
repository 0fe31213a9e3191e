"""A table as PyTorch tensors."""

from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from engram.data.elements import Element, Options, Ragged, Reading, converted
from engram.errors import InvalidArgumentError
from engram.store import AnyStore, Store

__all__ = ["dataset"]

# NumPy has these from `ml_dtypes`, and PyTorch takes their bits only.
_BITS = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
}


def dataset(
    store: AnyStore, table: str, *, device: torch.device | str | None = None, **options: Unpack[Options]
) -> "IterableDataset[Element]":
    """A table's items or steps, as tensors.

        for element in dataset(store, "replay", batch_size=256, device="cuda"):
            learn(element.data)

    It may be given to a `torch.utils.data.DataLoader` with `batch_size=None`. Of several workers each is a reader of
    its own, and opens a `Client`'s connection of its own; a `Store` stays in its process.

    Args:
        store: Where the table is.
        table: Its name.
        device: Where to put `data` and `mask`; to a GPU, through pinned memory and without waiting for the copy. None:
            they stay in the memory that they were read into.
        **options: See `Options`. `max_batches` is of all workers of a `DataLoader` together.

    Returns:
        An iterable dataset of `Element`s. Columns of different lengths become nested tensors (`torch.jagged`), text
        stays NumPy's, and `info` too.

    Raises:
        InvalidArgumentError: An option is not what `Options` says; on iteration: a `Store` in a worker's process.
    """
    return _Dataset(Reading(store, table, **options), None if device is None else torch.device(device))


class _Dataset(IterableDataset[Element]):
    def __init__(self, reading: Reading, device: torch.device | None) -> None:
        self._reading = reading
        self._device = device

    def __iter__(self) -> Iterator[Element]:
        reading = self._reading
        worker = get_worker_info()
        if worker is not None:
            if isinstance(reading.store, Store):
                raise InvalidArgumentError(
                    f"a DataLoader with {worker.num_workers} workers reads in processes of its own, and a Store does "
                    "not leave its own; give an engram.Client, or `num_workers=0`"
                )
            if reading.max_batches is not None:
                share, more = divmod(reading.max_batches, worker.num_workers)
                share += worker.id < more
                if share == 0:
                    return
                reading = reading.limited(share)
        for element in reading:
            yield converted(element, self._tensor, info=False)

    def _tensor(self, found: Any) -> Any:  # noqa: ANN401, an array or a `Ragged`
        if isinstance(found, Ragged):
            values, splits = self._tensor(found.values), self._tensor(found.row_splits)
            return torch.nested.nested_tensor_from_jagged(values, splits)
        array = np.asarray(found)
        if array.dtype == object:
            return array
        bits = _BITS.get(array.dtype.name)
        tensor = torch.from_numpy(array if bits is None else array.view(bits[0]))
        if bits is not None:
            tensor = tensor.view(bits[1])
        if self._device is None:
            return tensor
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)
