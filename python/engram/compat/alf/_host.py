"""Values on the host and on the default device, and modules whose tensors stay on the host."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "FixedBuffersModule",
    "HostModule",
    "Ints",
    "TensorLike",
    "float_dtype",
    "host_ints",
    "on_default_device",
    "random_units",
]

Ints = npt.NDArray[np.int64]

_FLOAT32_STEPS = 2**20
"""A random float32 from 0 to 1 has 2**24 values: among many more steps, some would never be chosen."""

TensorLike: TypeAlias = Any
"""Numbers: a tensor of any device, or what NumPy converts to an array."""


class FixedBuffersModule(torch.nn.Module):
    """A module that copies a state into the buffers that it has, even with `assign=True`.

    Other processes may refer to the buffers, and a property may have the name of a buffer. If `shared`, they are in
    memory that forked processes share.
    """

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        self._shared = shared

    def _add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        fill: float = 0,
        *,
        device: torch.device | str = "cpu",
        persistent: bool = True,
    ) -> None:
        """Registers a buffer."""
        tensor = torch.zeros(shape, dtype=dtype, device=device)  # the system provides the memory on use
        if fill != 0:
            tensor.fill_(fill)
        # Not `register_buffer`, which rejects the names of attributes, such as `device`.
        self._buffers[name] = tensor.share_memory_() if self._shared else tensor
        if not persistent:
            self._non_persistent_buffers_set.add(name)

    def _array(self, name: str) -> npt.NDArray[Any]:
        """The memory of a buffer on the host."""
        array: npt.NDArray[Any] = self._buffers[name].numpy()
        return array

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        *args: Any,  # noqa: ANN401, PyTorch's
    ) -> None:
        metadata = {**local_metadata, "assign_to_params_buffers": False}
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)


class HostModule(FixedBuffersModule):
    """A module whose buffers stay on the host, with their dtype, whatever `.to()` is called with."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "HostModule":  # noqa: FBT001, FBT002, PyTorch's signature
        del fn, recurse
        return self


def host_ints(what: str, values: TensorLike) -> Ints:
    """Returns integers, given as a tensor of any device or as what NumPy converts, as an int64 array."""
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers; got dtype {array.dtype}")
    return array.astype(np.int64)


def on_default_device(values: torch.Tensor | npt.NDArray[Any]) -> torch.Tensor:
    """Returns a tensor on the default device of PyTorch, which `alf.set_default_device` also sets."""
    tensor = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
    return tensor.to(torch.empty(0).device)


def float_dtype(steps: int) -> type[np.float32 | np.float64]:
    """The dtype of random choices among a number of steps: float32, as in ALF, if it has enough bits for them."""
    return np.float32 if steps <= _FLOAT32_STEPS else np.float64


def random_units(n: int, dtype: type[np.float32 | np.float64]) -> npt.NDArray[Any]:
    """Returns `n` random numbers from 0 to below 1, from PyTorch's generator of the host."""
    torch_dtype = torch.float32 if dtype is np.float32 else torch.float64
    units: npt.NDArray[Any] = torch.rand(n, dtype=torch_dtype, device="cpu").numpy()
    return units
