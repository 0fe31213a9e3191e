"""A table, or batches of a replay buffer, as PyTorch tensors."""

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import optree

from engram import Nest, _engram
from engram._extras import importing_extra
from engram.buffers import BufferBatch, ReplayBuffer
from engram.data.buffer_batches import sampled_batches
from engram.data.column_block import Array, ColumnConverter
from engram.data.elements import Element, Info, Options, Ragged
from engram.data.table_reader import TableReader
from engram.errors import InvalidArgumentError, SignatureError
from engram.store import Store
from engram.table_store import TableStore

with importing_extra("torch", "engram.data.torch"):
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
    from torch.utils.data._utils.collate import collate, default_collate_fn_map

    from engram._torch_tensors import as_tensor, usable_device

__all__ = ["batches", "dataset", "identity_collate"]


def dataset(
    store: TableStore, table: str, *, device: torch.device | str | int | None = None, **options: Unpack[Options]
) -> "IterableDataset[Element]":
    """Returns a dataset of a table's items or steps as PyTorch tensors.

        for element in dataset(store, "replay", batch_size=256, device="cpu"):
            learn(element.data)

    It works with a `torch.utils.data.DataLoader`: give the loader `batch_size=None`, as the dataset makes the batches,
    and `collate_fn=identity_collate`, as PyTorch's default turns tuples into lists. Each worker reads for itself, over
    its own connection, so `store` must be a `Client`; a `Store` cannot leave its process. Workers run ahead of the loop
    by up to `num_workers * prefetch_factor` elements, which count as consumed. The loader's `in_order` sets the order
    of elements from different workers.

    Args:
        store: The `engram.Store` or `engram.Client` that has the table.
        table: The table's name.
        device: Device for `data` and `mask`, for example `"cuda:0"`. Copies to a GPU go through pinned memory and are
            asynchronous. Default: None, no copy. With DataLoader workers leave it out: they are other processes; the
            loader's `pin_memory=True` pins what they send.
        **options: Options of `engram.data.Options`. With DataLoader workers, `max_batches` is their total.

    Returns:
        An iterable dataset of `Element`s with leaves `[B, T, ...]`. Columns of different lengths are nested tensors
        (layout `torch.jagged`); columns of one batch with the same lengths share their offsets, so that they can be
        added. Text and `info` stay NumPy arrays, text as `Ragged` if lengths differ. Steps and single items are views
        of the block that they were read in.

    Raises:
        InvalidArgumentError: An argument has a type or value that is not allowed, or PyTorch cannot use the device; on
            iteration: in a worker process, `store` is a `Store` or `device` is not the CPU, or the DataLoader has a
            `batch_size` although the dataset yields batches.
        TypeError: An option is unknown.
        SignatureError: On iteration: see `engram.data.numpy.dataset`; or a DataLoader with a `batch_size` received
            items that differ in length.
        UnknownTableError, UnsatisfiableError, ClosedError, UnavailableError, DeadlineExceededError: See
            `engram.data.numpy.dataset`.
    """
    return _Dataset(TableReader.of(store, table, options), usable_device(device))


def batches(
    buffer: ReplayBuffer,
    batch_size: int,
    *,
    device: torch.device | str | int | None = None,
    prefetch: int = 2,
    replacement: bool = True,
) -> Generator[BufferBatch]:
    """Yields batches of a replay buffer, as PyTorch tensors on a device, without end.

    A thread samples batches and starts their copies to the device while the loop computes:

        for batch in batches(buffer, 256, device="cuda:0"):
            td_errors = learn(batch.data, batch.importance_weights(0.4))
            buffer.update_priorities(batch.info.key, td_errors)

    A batch is drawn up to `prefetch` batches before the loop receives it: it does not have the newest steps and
    priorities, and which ones it has depends on the timing of the threads. With `prefetch=0`, batches are drawn in the
    loop, and a seeded program can be repeated.

    Args:
        buffer: An `engram.buffers.ReplayBuffer`; steps can be added meanwhile.
        batch_size: Number of items per batch, `B`.
        device: Device for `data`, for example `"cuda:0"`. Copies to a GPU go through pinned memory and are
            asynchronous. Default: None, no copy.
        prefetch: Maximum number of batches that are drawn in advance, 0 or more. Default: 2.
        replacement: As for `ReplayBuffer.sample`. Default: True.

    Yields:
        Batches, as `BufferBatch`. `info` and importance weights are NumPy arrays.

    Raises:
        InvalidArgumentError: An argument has a type or value that is not allowed,
            or PyTorch cannot use the device.
        UnsatisfiableError, OutOfMemoryError, ClosedError: On iteration: see `ReplayBuffer.sample`.
    """
    leaf = partial(_leaf, device=usable_device(device))
    return sampled_batches(
        buffer, batch_size, lambda data: optree.tree_map(leaf, data), prefetch=prefetch, replacement=replacement
    )


def identity_collate(element: Element) -> Element:
    """Returns the element unchanged: the `collate_fn` for a DataLoader with `batch_size=None`.

        elements = dataset(client, "replay", batch_size=256)
        for element in DataLoader(elements, batch_size=None, collate_fn=identity_collate):
            learn(element.data)

    Args:
        element: An element of the dataset.

    Returns:
        The same element.
    """
    return element


class _Dataset(IterableDataset[Element]):
    def __init__(self, reader: TableReader, device: torch.device | None) -> None:
        self._reader = reader
        self._device = device

    def __iter__(self) -> Generator[Element]:
        reader = self._reader
        worker = get_worker_info()
        if worker is not None:
            if isinstance(reader.store, Store):
                raise InvalidArgumentError(
                    f"`store` is an engram.Store, which the {worker.num_workers} worker processes of a DataLoader "
                    "cannot use; give an engram.Client, or `num_workers=0` to the DataLoader"
                )
            if self._device is not None and self._device.type != "cpu":
                raise InvalidArgumentError(
                    f"`device` is {self._device}, which the worker processes of a DataLoader cannot share; leave it "
                    "out, give `pin_memory=True` to the DataLoader, and copy its elements to the device in the loop"
                )
            if reader.max_batches is not None:
                share, rest = divmod(reader.max_batches, worker.num_workers)
                share += worker.id < rest
                if share == 0:
                    return
                reader = replace(reader, max_batches=share)
        yield from reader.elements(_converter(self._device))


def _converter(device: torch.device | None) -> ColumnConverter:
    def convert(columns: list[Array], splits: list[Array | None]) -> list[Any]:
        offsets = _Offsets(device)
        return [
            _leaf(column, device) if split is None else _ragged(column, split, offsets)
            for column, split in zip(columns, splits, strict=True)
        ]

    return convert


def _leaf(array: Array | torch.Tensor, device: torch.device | None) -> Nest:
    """Returns the array as a tensor, copied to `device` unless that is None; text stays an array."""
    if isinstance(array, torch.Tensor):  # of a replay buffer whose steps are on a device
        return array if device is None else array.to(device, non_blocking=True)
    if array.dtype == object:
        return array
    return as_tensor(array, device)


def _ragged(column: Array, split: Array, offsets: "_Offsets") -> Any:  # noqa: ANN401, a nested tensor or text
    if column.dtype == object:
        return Ragged(column, split)
    return torch.nested.nested_tensor_from_jagged(_leaf(column, offsets.device), offsets.of(split))


class _Offsets:
    """The offset tensors of an element, one for all equal row splits: PyTorch compares lengths by tensor identity."""

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self._tensors: list[tuple[Array, Any]] = []

    def of(self, split: Array) -> Nest:
        for cached_split, tensor in self._tensors:
            if np.array_equal(cached_split, split):
                return tensor
        self._tensors.append((split, _leaf(split, self.device)))
        return self._tensors[-1][1]


def _differ_in_length(items: list[Element]) -> bool:
    """True if a column's first axis differs in size among the items."""
    columns = zip(*(_engram.flatten(item.data)[0] for item in items), strict=False)
    return any(len({tuple(leaf.shape[:1]) for leaf in leaves}) > 1 for leaves in columns)


def _collate(elements: list[Element], *, collate_fn_map: Any = None) -> Element:  # noqa: ANN401, PyTorch's
    """Makes a batch of elements, for a DataLoader that has a `batch_size`."""
    first = elements[0]
    if np.ndim(first.info.key) > 0:
        raise InvalidArgumentError(
            f"a DataLoader with `batch_size={len(elements)}` would make batches of the dataset's batches; give "
            "`batch_size=None` to the DataLoader"
        )
    info = Info(*(np.stack(arrays) for arrays in zip(*(element.info for element in elements), strict=True)))
    try:
        return Element(info, collate([element.data for element in elements], collate_fn_map=collate_fn_map))
    except RuntimeError as error:
        if not _differ_in_length(elements):
            raise
        raise SignatureError(
            "a DataLoader cannot make a batch of items that differ in length; give `batch_size` and `pad` to the "
            "dataset, and `batch_size=None` to the DataLoader"
        ) from error


default_collate_fn_map[Element] = _collate
