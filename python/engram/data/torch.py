"""A table as PyTorch tensors."""

from collections.abc import Generator
from typing import Any, Unpack

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from engram.data.column_block import Array, Convert
from engram.data.elements import Element, Info, Options, Ragged
from engram.data.table_reader import TableReader
from engram.errors import InvalidArgumentError, SignatureError
from engram.store import Store, TableStore

__all__ = ["dataset", "identity_collate"]

# NumPy has these from `ml_dtypes`, and PyTorch takes their bits only.
_BITS = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
}


def dataset(
    store: TableStore, table: str, *, device: torch.device | str | int | None = None, **options: Unpack[Options]
) -> "IterableDataset[Element]":
    """A table's items or steps, as tensors.

        for element in dataset(store, "replay", batch_size=256, device="cpu"):
            learn(element.data)

    It may be given to a `torch.utils.data.DataLoader` with `batch_size=None`, as batches are made here, and
    `collate_fn=identity_collate`, as PyTorch's own turns tuples into lists. Of several workers each is a reader of its own, and
    opens a `Client`'s connection of its own; a `Store` stays in its process. A DataLoader's workers run ahead of the
    loop, `num_workers * prefetch_factor` elements, which count as used. Which worker's elements come when is settled
    by `in_order`.

    Args:
        store: Where the table is: an `engram.Store` or `engram.Client`.
        table: Its name.
        device: Where to put `data` and `mask`, such as `"cuda:0"`; to a GPU, through pinned memory and without waiting
            for the copy. None: they stay in the memory that they were read into. With workers leave it out: they are
            other processes; `pin_memory=True` of the DataLoader pins what they send.
        **options: Each of `engram.data.Options`. `max_batches` is of all workers of a `DataLoader` together.

    Returns:
        An iterable dataset of `Element`s, whose leaves are tensors `[B, T, ...]`. Columns of different lengths become
        nested tensors (`torch.jagged`), those of the same lengths of one batch with the same offsets, so that they may
        be added; text stays NumPy's (`Ragged` where lengths differ), and so does `info`. Steps and single items are
        views of the block that they were read in.

    Raises:
        InvalidArgumentError: An option is not what `Options` says, or PyTorch cannot use the device; on iteration: a
            `Store`, or a GPU, in a worker's process, or a DataLoader would make batches of batches.
        TypeError: There is no such option.
        SignatureError: On iteration: as of `engram.data.numpy.dataset`; or a DataLoader with a `batch_size` of its own
            gets items that differ in length.
        UnknownTableError, UnsatisfiableError, ClosedError, UnavailableError: As of `engram.data.numpy.dataset`.
    """
    return _Dataset(TableReader.of(store, table, options), _usable(device))


def identity_collate(element: Element) -> Element:
    """A `collate_fn` for a DataLoader with `batch_size=None`: leaves elements as the dataset yields them.

        for element in DataLoader(dataset(client, "replay", batch_size=256), batch_size=None, collate_fn=identity_collate):
            learn(element.data)

    Args:
        element: What the dataset yields.

    Returns:
        The same.
    """
    return element


class _Dataset(IterableDataset[Element]):
    def __init__(self, reading: TableReader, device: torch.device | None) -> None:
        self._reading = reading
        self._device = device

    def __iter__(self) -> Generator[Element]:
        reading = self._reading
        worker = get_worker_info()
        if worker is not None:
            if isinstance(reading.store, Store):
                raise InvalidArgumentError(
                    f"a DataLoader with {worker.num_workers} workers reads in processes of its own, and a Store does "
                    "not leave its own; give an engram.Client, or `num_workers=0`"
                )
            if self._device is not None and self._device.type != "cpu":
                raise InvalidArgumentError(
                    f"`device` is {self._device}, which a DataLoader's workers cannot share; leave it out, and move "
                    "what the DataLoader yields, with its `pin_memory=True`"
                )
            if reading.max_batches is not None:
                share, more = divmod(reading.max_batches, worker.num_workers)
                share += worker.id < more
                if share == 0:
                    return
                reading = reading.limited(share)
        yield from reading.elements(_converter(self._device))


def _usable(device: torch.device | str | int | None) -> torch.device | None:
    if device is None:
        return None
    try:
        # Found out here, not when batches are under way.
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidArgumentError(
            f"`device` must be one that PyTorch can use here; got {device!r}: {reason}"
        ) from None


def _converter(device: torch.device | None) -> Convert:
    def convert(columns: list[Array], splits: list[Array | None]) -> list[Any]:
        offsets = _Offsets(device)
        return [
            _leaf(column, device) if split is None else _ragged(column, split, offsets)
            for column, split in zip(columns, splits, strict=True)
        ]

    return convert


def _leaf(array: Array, device: torch.device | None) -> Any:  # noqa: ANN401, a tensor or text
    if array.dtype == object:
        return array
    bits = _BITS.get(array.dtype.name)
    tensor = torch.from_numpy(array if bits is None else array.view(bits[0]))
    if bits is not None:
        tensor = tensor.view(bits[1])
    if device is None:
        return tensor
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _ragged(column: Array, split: Array, offsets: "_Offsets") -> Any:  # noqa: ANN401, a nested tensor or text
    if column.dtype == object:
        return Ragged(column, split)
    return torch.nested.nested_tensor_from_jagged(_leaf(column, offsets.device), offsets.of(split))


class _Offsets:
    """One tensor for all equal row splits of an element: PyTorch takes others for other lengths."""

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self._known: list[tuple[Array, Any]] = []

    def of(self, split: Array) -> Any:  # noqa: ANN401, a tensor
        for known, tensor in self._known:
            if np.array_equal(known, split):
                return tensor
        self._known.append((split, _leaf(split, self.device)))
        return self._known[-1][1]


def _collate(elements: list[Element], *, collate_fn_map: Any = None) -> Element:  # noqa: ANN401, PyTorch's
    """What a DataLoader with a `batch_size` of its own does to elements."""
    first = elements[0]
    if np.ndim(first.info.key) > 0:
        raise InvalidArgumentError(
            f"a DataLoader with `batch_size={len(elements)}` would make batches of batches; give it `batch_size=None`"
        )
    info = Info(*(np.stack(arrays) for arrays in zip(*(element.info for element in elements), strict=True)))
    try:
        return Element(info, collate([element.data for element in elements], collate_fn_map=collate_fn_map))
    except RuntimeError as error:
        raise SignatureError(
            "a DataLoader cannot make a batch of items that differ in length; give `batch_size` and `pad` to the "
            "dataset, and `batch_size=None` to the DataLoader"
        ) from error


default_collate_fn_map[Element] = _collate
