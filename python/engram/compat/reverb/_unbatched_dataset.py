"""A dataset of single elements, read in blocks: one Python call per block, or per element if they differ in shape."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.compat.reverb._elements import Elements, split_elements
from engram.data._tf_types import TfDataset

if TYPE_CHECKING:
    from engram.data._tf_generator import OpenReads

__all__ = ["unbatched_dataset"]

_MAX_SMALL_BYTES = 256
"""Maximum size of a tensor's value that is packed. Packing copies values; copying larger ones takes too long."""


def unbatched_dataset(
    open_blocks: "OpenReads[Elements]",
    args: Sequence[Any],
    specs: Sequence[Any],
    names: Sequence[str],
    *,
    num_packed: int = 0,
    counted: bool = False,
) -> TfDataset:
    """Creates a dataset of single elements. `open_blocks(*args)` opens a reader, which yields blocks of elements.

    `args` are tensors, passed as arrays. `specs` and `names` (for error texts) are those of the tensors of an element.
    The first `num_packed` tensors are packed into one array, see `ArrayPacker`, even if they are large. `counted` is
    True if the reader has a `ConsumptionTracker`, which then must count elements.
    """
    from engram.data._tf_function_dataset import ArrayPacker  # noqa: PLC0415, imports TensorFlow
    from engram.data._tf_generator import generator_dataset  # noqa: PLC0415, imports TensorFlow

    def pack(elements: Elements) -> Iterator[list[Any]]:
        if all(tensor.splits is None for tensor in elements):
            return iter((packer.pack([tensor.values for tensor in elements]),))
        return (packer.pack([array[None] for array in arrays]) for arrays in split_elements(elements))

    is_packed = [i < num_packed or _is_small(spec) for i, spec in enumerate(specs)]
    packer = ArrayPacker(
        specs,
        names,
        is_packed,
        has_empty_rows=any(spec.shape.rank and 0 in spec.shape for spec in specs),
        spec_source="the shapes given to the dataset, or in the table's signature",
    )
    return generator_dataset(open_blocks, pack, packer, args=args, counted=counted)


def _is_small(spec: Any) -> bool:  # noqa: ANN401, TensorFlow's
    """True if all values of a tensor have the same small size, and a dtype that `ArrayPacker` can pack."""
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if dtype.isbuiltin != 1 or dtype.kind == "O" or not spec.shape.is_fully_defined():
        return False
    return bool(0 < spec.shape.num_elements() * dtype.itemsize <= _MAX_SMALL_BYTES)
