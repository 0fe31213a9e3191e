"""Specs of tensors, for programs that do not have ALF's."""

from collections.abc import Iterable
from dataclasses import dataclass

from engram._extras import importing_extra

with importing_extra("torch", "engram.compat.alf"):
    import torch

__all__ = ["TensorSpec"]


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor: one leaf of a buffer's `data_spec`.

    Buffers accept any object that has these two attributes, such as ALF's `TensorSpec` or a tensor.

    Attributes:
        shape: Size of each axis.
        dtype: PyTorch's dtype, or its name, such as `"float32"`.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __init__(self, shape: Iterable[int], dtype: "torch.dtype | str" = torch.float32) -> None:
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", getattr(torch, dtype) if isinstance(dtype, str) else dtype)
