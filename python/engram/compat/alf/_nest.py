"""Nests of specs and of tensors."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import optree
import torch

from engram._checks import has_mask, is_masked, short_repr
from engram.errors import InvalidArgumentError
from engram.nests import Nest

__all__ = ["DataSpec"]


class DataSpec:
    """The leaves of a nest of specs: dicts, lists, tuples and namedtuples of objects that have `shape` and `dtype`.

    `names` are the paths of the leaves, their parts separated by `.`; `""` if the nest is a single spec.
    """

    def __init__(self, nest: Nest) -> None:
        accessors, specs, self._structure = optree.tree_flatten_with_accessor(nest)
        self.names = [".".join(_part(entry) for entry in accessor) for accessor in accessors]
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[torch.dtype] = []
        for name, spec in zip(self.names, specs, strict=True):
            shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
            dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
            if shape is None or not isinstance(dtype, torch.dtype):
                raise InvalidArgumentError(
                    f"{_leaf('data_spec', name)} must have a `shape` and a `dtype` of PyTorch, as a TensorSpec has; "
                    f"got {short_repr(spec)}"
                )
            self.shapes.append(tuple(shape))
            self.dtypes.append(dtype)
        if len({*self.names}) < len(self.names):
            raise InvalidArgumentError(f"the paths of `data_spec` must be different; got {self.names}")
        self._indices: Any = optree.tree_unflatten(self._structure, range(len(specs)))

    def leaves(self, batch: Nest, size: int | None = None) -> list[torch.Tensor]:
        """Returns the leaves `[size, ...]` of a batch, with their own dtypes and devices, without gradients.

        A leaf whose size along an axis of a step is 1 is repeated along it.
        """
        try:
            given: list[Any] = self._structure.flatten_up_to(batch)
        except ValueError:
            expected, got = (_describe(each) for each in (self._structure, optree.tree_structure(batch)))
            text = f"`batch` must have the structure of `data_spec`, {expected}; got {got}"
            raise InvalidArgumentError(text) from None
        leaves = []
        for name, value, shape, dtype in zip(self.names, given, self.shapes, self.dtypes, strict=True):
            leaf = value.detach() if isinstance(value, torch.Tensor) else _tensor(_leaf("batch", name), value)
            sizes = zip(leaf.shape[1:], shape, strict=False)
            if leaf.dim() != 1 + len(shape) or any(got not in {1, wanted} for got, wanted in sizes):
                expected = ", ".join(["batch size", *map(str, shape)])
                note = ", where sizes after the first may be 1" if shape else ""
                text = f"{_leaf('batch', name)} must have shape [{expected}]{note}; got {[*leaf.shape]}"
                raise InvalidArgumentError(text)
            size = len(leaf) if size is None else size
            if len(leaf) != size:
                raise AssertionError(f"{_leaf('batch', name)} must have {size} steps; got {len(leaf)}")
            _check_dtype(_leaf("batch", name), leaf, dtype)
            leaves.append(leaf.expand(-1, *shape))
        return leaves

    def field(self, path: str) -> Nest:
        """Returns the indices of the leaves at a path: an integer, or a nest of integers.

        A part of the path may be the name of a property, such as `step_type` of ALF's `Experience`.
        """
        nest = self._find(path)
        if nest is None:
            raise InvalidArgumentError(f"`field_name`: unknown path {path!r}; known paths: {', '.join(self.names)}")
        return nest

    def number(self, path: str) -> int | None:
        """Returns the index of the leaf at a path; None if there is none that has one number per step."""
        index = self._find(path)
        return index if isinstance(index, int) and self.shapes[index] == () else None

    def _find(self, path: str) -> Nest:
        nest = self._indices
        for part in path.split(".") if path else []:
            nest = _child(nest, part)
        return nest

    def nest(self, leaves: Iterable[torch.Tensor]) -> Nest:
        """Returns a nest with these leaves."""
        return optree.tree_unflatten(self._structure, leaves)


def _part(entry: Any) -> str:  # noqa: ANN401, optree's
    return str(getattr(entry, "field", entry.entry))


def _describe(structure: optree.PyTreeSpec) -> str:
    return str(structure).removeprefix("PyTreeSpec(").removesuffix(")")


def _child(nest: Nest, part: str) -> Nest:
    """A child of a nest of integers; None if there is none."""
    if isinstance(nest, dict):
        children = {str(key): child for key, child in nest.items()}
    elif hasattr(nest, "_fields"):
        child: Any = getattr(nest, part, None)  # not only a field: also what a property returns
        is_nest = not part.startswith("_") and all(type(leaf) is int for leaf in optree.tree_leaves(child))
        return child if is_nest else None
    elif isinstance(nest, list | tuple):
        children = {str(index): child for index, child in enumerate(nest)}
    else:
        children = {}
    return children.get(part)


def _leaf(what: str, name: str) -> str:
    return f"`{name}` of `{what}`" if name else f"`{what}`"


def _tensor(what: str, value: object) -> torch.Tensor:
    """Returns a copy of what NumPy converts to an array."""
    if has_mask(value) or is_masked(array := np.asanyarray(value)):
        raise InvalidArgumentError(
            f"{what} must not be a masked array, because its masked elements would be stored as if they were valid; "
            "pass `array.filled(value)`"
        )
    return torch.from_numpy(np.array(array))


def _check_dtype(what: str, leaf: torch.Tensor, dtype: torch.dtype) -> None:
    """Checks that a dtype can represent values: casting is of the same kind, and integers are in range."""
    if leaf.dtype == dtype:
        return
    if not torch.can_cast(leaf.dtype, dtype):
        raise InvalidArgumentError(f"{what} must be convertible to {dtype}; got {leaf.dtype}")
    if torch.bool in {dtype, leaf.dtype}:
        return
    if dtype.is_floating_point or dtype.is_complex:
        stored = leaf.to(dtype) if dtype.is_complex else leaf.to(dtype).double()
        lost = leaf[leaf.isfinite() & ~stored.isfinite()]
        if len(lost):
            largest = f"{torch.finfo(dtype).max:.8g}"
            text = f"{what} has {lost[0].item()}, which {dtype} cannot hold; its largest value is {largest}"
            raise InvalidArgumentError(text)
        return
    limits, values = torch.iinfo(dtype), leaf.cpu().numpy()  # PyTorch lacks `min` for some dtypes
    if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise InvalidArgumentError(
            f"{what} must be from {limits.min} to {limits.max}, the limits of {dtype}; got values from "
            f"{values.min()} to {values.max()}"
        )
