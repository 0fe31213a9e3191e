"""A replay buffer whose larger columns are in arrays on a device."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engram import Nest, _engram
from engram.buffers.items import CompiledItems, CompiledSampler, OutputColumn
from engram.errors import SignatureError

__all__ = ["DeviceArrays", "DeviceBatch", "DeviceBuffer", "DeviceReader", "Output"]

_BLOCK_BYTES = 2**24
"""Maximum size of the blocks in which cells are copied to and from the device, if a block has several steps."""

Column = tuple[np.dtype[Any], list[int]]
"""Dtype and shape of the cells of a column."""


class Output(NamedTuple):
    """How a column of a batch is read from arrays on a device."""

    array: int  # index of the array
    numbers: int  # index of the cell numbers among those of the batch
    earlier: int | None  # index of the array with all but the last of the stacked frames, if that is another one


class DeviceArrays(Protocol):
    """An array on a device for each of some columns. Cell 0 of an array is zero.

    Its methods are called by one thread at a time.
    """

    pads_blocks: bool
    """True if blocks should have few different sizes: zeros are written to cell 0 then."""

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """False if the device would cut values of this dtype."""

    def allocate(self, columns: Sequence[Column], num_cells: int) -> None:
        """Creates the arrays, `[num_cells, ...]`, with zeros."""

    def write(self, numbers: npt.NDArray[np.int64], cells: Sequence[npt.NDArray[Any]]) -> None:
        """Writes cells with these numbers to each array. Does not wait for the device."""

    def gather(self, numbers: Sequence[npt.NDArray[np.int64]], outputs: tuple[Output, ...]) -> list[Any]:
        """Returns new arrays with cells. Does not wait for the device."""

    def put(self, arrays: Sequence[npt.NDArray[Any]]) -> list[Any]:
        """Copies arrays of the host to the device. Arrays with a dtype that the device would cut stay as they are."""

    def read(self, index: int, begin: int, size: int) -> npt.NDArray[Any]:
        """Returns cells of an array on the host, maybe as their bits."""

    def free(self) -> None:
        """Drops all arrays."""


class _Plan(NamedTuple):
    """Where the columns of a batch are read."""

    structure: str
    outputs: tuple[Output, ...]
    on_device: list[int]  # columns of the batch, for each output
    with_numbers: list[int]  # columns of the native batch whose cell numbers are used
    on_host: list[int]  # columns of the batch

    @classmethod
    def of(cls, structure: str, columns: Sequence[OutputColumn], arrays: dict[int, int]) -> "_Plan":
        """Returns the plan for these columns; `arrays` has the index of the array of each column of a step."""
        plan = cls(structure, (), [], [], [])
        outputs: list[Output] = []
        numbers: dict[Any, int] = {}  # index among those of the batch
        for leaf, output in enumerate(columns):
            if output.source not in {"first", "last", "all"} or output.column not in arrays:
                plan.on_host.append(leaf)
                continue
            has_earlier = output.frames > 0 and output.earlier != output.column
            same_numbers = (output.source, output.frames, has_earlier)
            if same_numbers not in numbers:
                numbers[same_numbers] = len(numbers)
                plan.with_numbers.append(leaf)
            earlier = arrays[output.earlier] if has_earlier else None
            outputs.append(Output(arrays[output.column], numbers[same_numbers], earlier))
            plan.on_device.append(leaf)
        return plan._replace(outputs=tuple(outputs))


class _Cells:
    """The cells on a device, and the lock that orders their use.

    The native buffer has a reference to it, so it has none to that: the garbage collector does not find such cycles.
    """

    def __init__(self, arrays: DeviceArrays) -> None:
        self.arrays = arrays
        # Reentrant: a signal handler may use the buffer.
        self.lock = threading.RLock()

    def write_staged(self, native: _engram.ReplayBuffer, end: int | None = None) -> None:
        """Writes the first `end` cells that were staged, by default all."""
        with self.lock:
            while (block := native.staged(end, self.arrays.pads_blocks)) is not None:
                end_of_block, numbers, cells = block
                self.arrays.write(numbers, cells)
                native.mark_written(end_of_block)


class DeviceBatch:
    """A batch of the native engine, with the columns that were read on the device."""

    def __init__(self, native: _engram.BufferBatch, plan: _Plan, arrays: DeviceArrays, leaves: list[Any]) -> None:
        self._native, self._plan, self._arrays, self._leaves = native, plan, arrays, leaves

    def __len__(self) -> int:
        return len(self._native)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, of any kind
        return getattr(self._native, name)

    def complete(self, data: Nest) -> Nest:
        """Returns the data of the batch on the device, given the data of the native batch."""
        plan = self._plan
        leaves = _engram.flatten(data)[0]
        on_host = self._arrays.put([leaves[leaf] for leaf in plan.on_host])
        for number, array in zip(plan.on_host + plan.on_device, on_host + self._leaves, strict=True):
            leaves[number] = array
        return _engram.unflatten(plan.structure, leaves)


class DeviceReader:
    """Reads all items or all steps once."""

    def __init__(self, buffer: "DeviceBuffer", native: _engram.BufferReader, plan: _Plan) -> None:
        self._buffer, self._native, self._plan = buffer, native, plan

    def next(self, batch_size: int) -> DeviceBatch | None:
        """Returns the next batch; None after the end."""
        with self._buffer.locked():
            native = self._native.next(batch_size)
            return None if native is None else self._buffer.read(native, self._plan)


class DeviceBuffer:
    """A native replay buffer whose larger columns are on a device. Its methods are those of the native class.

    The ring of the native buffer has the number of a cell wherever it would have the cell: 0 in padding, otherwise one
    more than the row of the step. So the native engine composes items of numbers, and the cells are read in the arrays.
    Added cells are staged by the native buffer, and written to the arrays before items that were drawn later are read.

    Args:
        arrays: Arrays without memory.
        signature: Nest of `ArraySpec` that describes a step.
        items: What is sampled.
        size: Number of environments, and of steps of each.
        sampler: How items are chosen.
        seed: Seed of all random choices.

    Raises:
        SignatureError: The columns are not supported.
        OutOfMemoryError: The memory cannot be reserved.
    """

    def __init__(
        self,
        arrays: DeviceArrays,
        signature: Nest,
        items: CompiledItems,
        *,
        size: tuple[int, int],
        sampler: CompiledSampler,
        seed: int,
    ) -> None:
        on_host = [*(items.episode_columns or ())]
        on_host += [] if items.reward_column is None else [items.reward_column]
        for output in items.columns:
            on_host += [output.column, output.achieved] if output.source == "goal" else []
        self._cells = _Cells(arrays)
        device = (on_host, self._cells.write_staged, _BLOCK_BYTES)
        self._native = native = _engram.ReplayBuffer(signature, items, size, sampler, seed, None, device)
        structure = _engram.flatten(signature)[2]
        names, columns, numbers = _engram.names(structure), native.columns(), native.device_columns()
        outputs = items.columns[: len(_engram.names(items.structure))]
        for output in outputs:
            if output.source in {"first", "last", "all", "goal"}:
                _check_dtype(arrays, names[output.column], columns[output.column][0])
        self._columns = [columns[number] for number in numbers]
        self._num_cells = size[0] * size[1] + 1
        indices = {number: index for index, number in enumerate(numbers)}
        self._items = _Plan.of(items.structure, outputs, indices)
        steps = [OutputColumn("first", number) for number in range(len(columns))]
        self._steps = _Plan.of(structure, steps, indices)
        arrays.allocate(self._columns, self._num_cells)
        self.add, self.add_batch = native.add, native.add_batch
        self.add_steps, self.add_episode = native.add_steps, native.add_episode
        self.end_episodes, self.update_priorities = native.end_episodes, native.update_priorities
        self.clear, self.sizes, self.flush = native.clear, native.sizes, native.flush

    def sample(self, batch_size: int, replacement: bool, out: None) -> DeviceBatch:  # noqa: FBT001, as the native method
        """Draws items."""
        with self.locked():
            return self.read(self._native.sample(batch_size, replacement, out), self._items)

    def epoch(self) -> DeviceReader:
        """Reads all items once, in random order."""
        return DeviceReader(self, self._native.epoch(), self._items)

    def scan(self, of_steps: bool) -> DeviceReader:  # noqa: FBT001, as the native method
        """Reads all items or all steps once, in order."""
        return DeviceReader(self, self._native.scan(of_steps), self._steps if of_steps else self._items)

    def save(self, path: str) -> int:
        """Saves the buffer, with copies of the cells in memory; the native buffer adds those that are staged."""
        with self.locked():
            copies = self._zeros()
            for index, copy in enumerate(copies):
                for begin, size in _blocks(copy):
                    block = self._cells.arrays.read(index, begin, size)
                    if block.view(np.uint8).any():  # otherwise the system need not provide memory
                        copy[begin : begin + size] = block.view(copy.dtype)
            return self._native.save(path, [copy.reshape(-1).view(np.uint8) for copy in copies])

    def restore(self, saved: _engram.SavedBuffer) -> None:
        """Fills the buffer from a save."""
        with self.locked():
            copies = self._zeros()
            self._native.restore(saved, [copy.reshape(-1).view(np.uint8) for copy in copies])
            try:
                self._write_all(copies)
            except BaseException:
                self._native.clear()  # its steps would have zeros
                raise

    def close(self) -> None:
        """Releases all memory."""
        self._native.close()
        with self._cells.lock:
            self._cells.arrays.free()

    def discard(self) -> None:
        """Releases all memory of a buffer that was not used."""
        self.close()

    def read(self, native: _engram.BufferBatch, plan: _Plan) -> DeviceBatch:
        """Reads the cells of a batch on the device. The lock must be held since before the batch was drawn."""
        self._cells.write_staged(self._native, native.staged_end)
        leaves = _engram.flatten(native.data)[0]
        numbers = [leaves[leaf] for leaf in plan.with_numbers]
        arrays = self._cells.arrays
        return DeviceBatch(native, plan, arrays, arrays.gather(numbers, plan.outputs))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock: no other thread writes cells to the device."""
        self._native.sizes()  # an error in a forked child, which would wait forever for a thread of its parent
        with self._cells.lock:
            yield

    def _zeros(self) -> list[npt.NDArray[Any]]:
        """Returns an array of the host for each one on the device."""
        return [np.zeros((self._num_cells, *shape), dtype) for dtype, shape in self._columns]

    def _write_all(self, copies: list[npt.NDArray[Any]]) -> None:
        """Writes all cells."""
        for begin, size in _blocks(*copies):
            blocks = [copy[begin : begin + size] for copy in copies]
            if any(block.view(np.uint8).any() for block in blocks):
                self._cells.arrays.write(np.arange(begin, begin + size), blocks)


def _check_dtype(arrays: DeviceArrays, name: str, dtype: np.dtype[Any]) -> None:
    """Checks that a column is not cut on the device."""
    if not arrays.holds(dtype):
        cut = f"{dtype.name.removesuffix(str(8 * dtype.itemsize))}{4 * dtype.itemsize}"
        column = f"column `{name}`" if name else "the data"
        raise SignatureError(
            f"JaxArrays: {column} is {dtype}, which JAX would cut to {cut}; declare {cut} in `signature`, or set "
            "jax_enable_x64"
        )


def _blocks(*arrays: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yields the beginnings and sizes of blocks of cells. All have one size, so the last two may overlap."""
    num_cells = len(arrays[0]) if arrays else 0
    cell_bytes = sum(array[0].nbytes for array in arrays)
    size = min(num_cells, max(1, _BLOCK_BYTES // max(1, cell_bytes)))
    for begin in range(0, num_cells, max(1, size)):
        yield min(begin, num_cells - size), size
