"""Columns of a replay buffer as PyTorch tensors on a device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram import _torch_tensors
from engram.buffers._device_buffer import Column, Output
from engram.errors import OutOfMemoryError

__all__ = ["TorchArrays"]

_BITS = _torch_tensors.BITS | {
    # PyTorch has few functions for these.
    "uint16": (np.int16, torch.uint16),
    "uint32": (np.int32, torch.uint32),
    "uint64": (np.int64, torch.uint64),
}


class TorchArrays:
    """An array on a device for each of some columns; see `DeviceArrays`.

    Args:
        device: The device, as PyTorch accepts it. None: PyTorch's default device.
    """

    pads_blocks = False

    def __init__(self, device: torch.device | str | int | None) -> None:
        usable = _torch_tensors.usable_device(device)
        self._device = torch.empty(0).device if usable is None else usable
        self._arrays: list[torch.Tensor] = []
        self._dtypes: list[tuple[Any, torch.dtype] | None] = []  # of the bits in NumPy, and of a batch in PyTorch
        self._last_use: Any = None  # an event of a GPU

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """True for all dtypes."""
        del dtype
        return True

    def allocate(self, columns: Sequence[Column], num_cells: int) -> None:
        """Creates the arrays."""
        self._dtypes = [_BITS.get(dtype.name) for dtype, _ in columns]
        try:
            with torch.inference_mode(mode=False):  # otherwise they could only be changed in this mode
                for (dtype, shape), bits in zip(columns, self._dtypes, strict=True):
                    example = torch.from_numpy(np.empty(0, dtype if bits is None else bits[0]))
                    array = torch.zeros((num_cells, *shape), dtype=example.dtype, device=self._device)
                    self._arrays.append(array)
        except RuntimeError as error:
            self.free()
            raise OutOfMemoryError(
                f"the replay buffer: PyTorch cannot reserve the memory on {self._device}: {str(error).splitlines()[0]}"
            ) from None

    def write(self, numbers: npt.NDArray[np.int64], cells: Sequence[npt.NDArray[Any]]) -> None:
        """Writes cells."""
        with self._in_order(), torch.no_grad():
            index = self._put(numbers)
            for array, dtypes, new in zip(self._arrays, self._dtypes, cells, strict=True):
                array.index_copy_(0, index, self._put(new if dtypes is None else new.view(dtypes[0])))

    def gather(self, numbers: Sequence[npt.NDArray[np.int64]], outputs: tuple[Output, ...]) -> list[torch.Tensor]:
        """Returns new tensors with cells."""
        with self._in_order():
            indices = [self._put(each) for each in numbers]
            return [self._output(output, indices[output.numbers]) for output in outputs]

    def put(self, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
        """Copies arrays of the host to the device."""
        return [_torch_tensors.as_tensor(array, self._device) for array in arrays]

    def read(self, index: int, begin: int, size: int) -> npt.NDArray[Any]:
        """Returns cells of an array on the host, as bits."""
        with self._in_order():
            cells: npt.NDArray[Any] = self._arrays[index][begin : begin + size].cpu().numpy()
            return cells

    def free(self) -> None:
        """Drops all arrays."""
        if self._last_use is not None:
            self._last_use.synchronize()
        self._arrays = []

    def _output(self, output: Output, index: torch.Tensor) -> torch.Tensor:
        """Returns a column of a batch."""
        if output.earlier is None:
            column = self._cells(output.array, index)
        else:
            frames = [self._cells(output.earlier, index[..., :-1]), self._cells(output.array, index[..., -1:])]
            column = torch.cat(frames, dim=index.dim() - 1)
        dtypes = self._dtypes[output.array]
        return column if dtypes is None else column.view(dtypes[1])

    def _cells(self, array: int, index: torch.Tensor) -> torch.Tensor:
        cells = self._arrays[array].index_select(0, index.reshape(-1))
        return cells.view(*index.shape, *cells.shape[1:])

    def _put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return _torch_tensors.on_device(torch.from_numpy(array), self._device)

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """Uses the arrays after all earlier uses, also those by threads with another stream of the GPU."""
        if self._device.type != "cuda":
            yield
            return
        stream = torch.cuda.current_stream(self._device)
        if self._last_use is None:
            self._last_use = torch.cuda.Event()
        else:
            stream.wait_event(self._last_use)
        try:
            yield
        finally:
            self._last_use.record(stream)
