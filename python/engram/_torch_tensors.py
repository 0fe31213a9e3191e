"""NumPy arrays as PyTorch tensors. Modules that need PyTorch import this one, after PyTorch itself."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engram.errors import InvalidArgumentError

__all__ = ["BITS", "as_tensor", "on_device", "usable_device"]

# NumPy has these dtypes from `ml_dtypes`; PyTorch accepts only their bits, as integers.
BITS = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
}


def usable_device(device: torch.device | str | int | None) -> torch.device | None:
    """Returns the device after checking that PyTorch can use it; None stays None."""
    if device is None:
        return None
    try:
        # An unusable device fails here, not during the first batch.
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidArgumentError(
            f"`device` must be a device that PyTorch can use here; got {device!r}: {reason}"
        ) from None


def as_tensor(array: npt.NDArray[Any], device: torch.device | None) -> torch.Tensor:
    """Returns an array of numbers as a tensor, copied to `device` unless that is None."""
    as_bits = BITS.get(array.dtype.name)
    if as_bits is None:
        return on_device(torch.from_numpy(array), device)
    bits, dtype = as_bits
    return on_device(torch.from_numpy(array.view(bits)).view(dtype), device)


def on_device(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Returns a tensor in the host's memory, copied to `device` unless that is None; to a GPU without waiting."""
    if device is None:
        return tensor
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
