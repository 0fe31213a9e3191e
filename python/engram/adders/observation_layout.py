"""Structure, dtypes and shapes of observations.

Adders reject structures and dtypes that differ from earlier steps, and shapes that differ within an episode.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.adders.step import check_not_masked, copy_leaf, flatten, is_plain, is_text
from engram.nests import Nest

__all__ = ["ObservationLayout", "copy_with_layout"]


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """Layout of an observation.

    Attributes:
        structure: The nest, as optree's PyTreeSpec.
        dtypes: The dtype of each leaf: a NumPy dtype, `"text"`, or None if the leaf is None.
        shapes: The shape of each leaf.
    """

    structure: Any
    dtypes: list[Any]
    shapes: list[tuple[int, ...]]

    def is_layout_of(self, array: np.ndarray[Any, Any]) -> bool:
        """True only if an observation that is this single array has the layout.

        False also for some arrays that have it, such as those of another byte order.
        """
        return self.dtypes == [array.dtype] and self.shapes == [array.shape] and self.structure.is_leaf()

    def has_all_values(self) -> bool:
        """True if no leaf is None."""
        return all(dtype is not None for dtype in self.dtypes)  # not `None in`: NumPy's float64 equals None

    def matches(self, expected: "ObservationLayout", *, shapes: bool) -> bool:
        """True if the structures are equal, and the dtypes and, with `shapes`, the shapes of the leaves.

        Leaves that are None in either layout are not compared.
        """
        if self.structure != expected.structure:
            return False
        leaves = zip(self.dtypes, expected.dtypes, self.shapes, expected.shapes, strict=True)
        return all(
            dtype is None or old_dtype is None or (dtype == old_dtype and (shape == old_shape or not shapes))
            for dtype, old_dtype, shape, old_shape in leaves
        )

    def completed_from(self, other: "ObservationLayout") -> "ObservationLayout":
        """Returns this layout, with leaves without a value taken from `other`."""
        if self.has_all_values():
            return self
        leaves = list(zip(self.dtypes, other.dtypes, self.shapes, other.shapes, strict=True))
        dtypes = [other_dtype if dtype is None else dtype for dtype, other_dtype, _, _ in leaves]
        shapes = [other_shape if dtype is None else shape for dtype, _, shape, other_shape in leaves]
        return ObservationLayout(self.structure, dtypes, shapes)

    def __str__(self) -> str:
        columns = [
            f"{dtype}{list(shape)}" if shape else f"{dtype}"
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        ]
        return f"{self.structure.unflatten(columns)}".replace("'", "")


def copy_with_layout(observation: Nest) -> tuple[Any, ObservationLayout]:
    """Returns a copy of an observation, as environments may reuse its arrays, and its layout.

    Raises:
        SignatureError: The observation has a masked array.
    """
    leaves, structure = flatten(observation)
    if not all(map(is_plain, leaves)):
        check_not_masked("observation", observation)
    copies = [copy_leaf(leaf) for leaf in leaves]
    dtypes = [None if copy is None else _dtype(copy) for copy in copies]
    return structure.unflatten(copies), ObservationLayout(structure, dtypes, [np.shape(copy) for copy in copies])


def _dtype(leaf: object) -> np.dtype[Any] | str:
    array = np.asarray(leaf)
    if is_text(array):
        return "text"
    return array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
