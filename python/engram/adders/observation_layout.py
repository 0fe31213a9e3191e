"""What observations look like: those of an adder look alike."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.adders.step import copy_leaf, flatten, is_text

__all__ = ["ObservationLayout", "copy_with_layout"]


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """Nesting, dtypes (None: no value) and shapes."""

    structure: Any
    dtypes: list[Any]
    shapes: list[tuple[int, ...]]

    def is_of(self, array: np.ndarray[Any, Any]) -> bool:
        """It is of this array, and nothing else."""
        return self.dtypes == [array.dtype] and self.shapes == [array.shape] and self.structure.is_leaf()

    def has_all(self) -> bool:
        """Every leaf has a value."""
        return all(dtype is not None for dtype in self.dtypes)  # to NumPy, None is float64

    def fits(self, asked: "ObservationLayout", *, shapes: bool) -> bool:
        """ObservationLayout like `asked` where both have a value; in its shapes, too, if `shapes`."""
        if self.structure != asked.structure:
            return False
        both = zip(self.dtypes, asked.dtypes, self.shapes, asked.shapes, strict=True)
        return all(
            found is None or dtype is None or (found == dtype and (shape == before or not shapes))
            for found, dtype, shape, before in both
        )

    def completed(self, asked: "ObservationLayout") -> "ObservationLayout":
        """The same, with what `asked` has a value for and this has none."""
        if self.has_all():
            return self
        both = list(zip(self.dtypes, asked.dtypes, self.shapes, asked.shapes, strict=True))
        dtypes = [dtype if found is None else found for found, dtype, _, _ in both]
        shapes = [before if found is None else shape for found, _, shape, before in both]
        return ObservationLayout(self.structure, dtypes, shapes)

    def __str__(self) -> str:
        columns = [
            f"{dtype}{list(shape)}" if shape else f"{dtype}"
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        ]
        return f"{self.structure.unflatten(columns)}".replace("'", "")


def copy_with_layout(observation: Any) -> tuple[Any, ObservationLayout]:  # noqa: ANN401, nests
    """A copy, as environments may write into what they gave, and what it looks like."""
    leaves, structure = flatten(observation)
    copies = [copy_leaf(leaf) for leaf in leaves]
    dtypes = [None if copy is None else _kind(copy) for copy in copies]
    return structure.unflatten(copies), ObservationLayout(structure, dtypes, [np.shape(copy) for copy in copies])


def _kind(leaf: Any) -> Any:  # noqa: ANN401, a dtype or a word
    array = np.asarray(leaf)
    if is_text(array):
        return "text"
    return array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
