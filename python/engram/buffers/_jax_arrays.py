"""Columns of a replay buffer as JAX arrays on a device."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from engram.buffers._device_buffer import Column, Output
from engram.errors import InvalidArgumentError, OutOfMemoryError

__all__ = ["JaxDeviceArrays"]

_MAX_CELLS = 2**31
"""Maximum number of cells of an array: their numbers are int32 on the device."""


class JaxDeviceArrays:
    """An array on a device for each of some columns; see `DeviceArrays`.

    Args:
        device: A `jax.Device`. None: JAX's default device.
    """

    pads_blocks = True  # each size is compiled

    def __init__(self, device: jax.Device | None) -> None:
        if device is None:
            device = next(iter(jax.numpy.zeros(()).devices()))
        if not isinstance(device, jax.Device):
            raise InvalidArgumentError(
                f"`device` must be a jax.Device, for example jax.devices()[0]; got {device!r} ({type(device).__name__})"
            )
        self._device = device
        self._arrays: list[Any] = []

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """False for 64-bit values without `jax_enable_x64`."""
        return jax.dtypes.canonicalize_dtype(dtype) == dtype

    def allocate(self, columns: Sequence[Column], num_cells: int) -> None:
        """Creates the arrays."""
        if num_cells > _MAX_CELLS:
            raise InvalidArgumentError(
                f"`capacity` must be below {_MAX_CELLS:,} with storage=JaxArrays(...); got {num_cells - 1:,}"
            )
        try:
            for dtype, shape in columns:
                self._arrays.append(jax.numpy.zeros((num_cells, *shape), dtype, device=self._device))
            for array in self._arrays:
                array.block_until_ready()
        except RuntimeError as error:
            self.free()
            raise OutOfMemoryError(
                f"the replay buffer: JAX cannot reserve the memory on {self._device}: {str(error).splitlines()[0]}"
            ) from None

    def write(self, numbers: npt.NDArray[np.int64], cells: Sequence[npt.NDArray[Any]]) -> None:
        """Writes cells."""
        self._arrays = _written(self._arrays, numbers.astype(np.int32), list(cells))

    def gather(self, numbers: Sequence[npt.NDArray[np.int64]], outputs: tuple[Output, ...]) -> list[Any]:
        """Returns new arrays with cells."""
        gathered: list[Any] = _gathered(self._arrays, [each.astype(np.int32) for each in numbers], outputs)
        return gathered

    def put(self, arrays: Sequence[npt.NDArray[Any]]) -> list[Any]:
        """Copies arrays of the host to the device, except those that would be cut."""
        placed: list[Any] = list(arrays)
        held = [number for number, array in enumerate(arrays) if self.holds(array.dtype)]
        for number, array in zip(held, _copier(self._device)([arrays[each] for each in held]), strict=True):
            placed[number] = array
        return placed

    def read(self, index: int, begin: int, size: int) -> npt.NDArray[Any]:
        """Returns cells of an array on the host."""
        return np.asarray(_slice(self._arrays[index], begin, size))

    def free(self) -> None:
        """Drops all arrays."""
        self._arrays = []


@cache
def _copier(device: jax.Device) -> Callable[[list[Any]], list[Any]]:
    """Returns a function that copies arrays to a device; a compiled one takes a seventh of the time of `device_put`."""
    copy: Callable[[list[Any]], list[Any]] = jax.jit(
        lambda arrays: arrays, out_shardings=jax.sharding.SingleDeviceSharding(device)
    )
    return copy


@partial(jax.jit, donate_argnums=0)
def _written(arrays: list[jax.Array], numbers: jax.Array, cells: list[jax.Array]) -> list[jax.Array]:
    """Returns the arrays with cells, in the same memory."""
    pairs = zip(arrays, cells, strict=True)
    return [array.at[numbers].set(new, mode="promise_in_bounds") for array, new in pairs]


@partial(jax.jit, static_argnums=2)
def _gathered(arrays: list[jax.Array], numbers: list[Any], outputs: tuple[Output, ...]) -> list[Any]:
    """Returns the columns of a batch."""

    def cells(array: int, index: jax.Array) -> jax.Array:
        return arrays[array].at[index].get(mode="promise_in_bounds")

    def column(output: Output) -> jax.Array:
        index = numbers[output.numbers]
        if output.earlier is None:
            return cells(output.array, index)
        frames = [cells(output.earlier, index[..., :-1]), cells(output.array, index[..., -1:])]
        return jax.numpy.concatenate(frames, axis=index.ndim - 1)

    return [column(output) for output in outputs]


@partial(jax.jit, static_argnums=2)
def _slice(array: jax.Array, begin: int, size: int) -> jax.Array:
    """Returns consecutive cells."""
    return jax.lax.dynamic_slice_in_dim(array, begin, size)
