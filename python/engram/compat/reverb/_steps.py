"""StepColumns as writers take them: leaves become columns, each of one dtype and one shape."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _nest
from engram.compat.reverb._flatteners import Flatten, flattener, is_leaf
from engram.compat.reverb._signatures import shape_text
from engram.compat.reverb.tensor_spec import dtype_name

__all__ = ["LONGEST_CHUNK", "Column", "FlattenPlan", "StepColumns", "checked", "checked_dtype", "chunk_length"]

LONGEST_CHUNK = 16
_CHUNK_BYTES = 16 << 10
_TEXT_BYTES = 256
_MAX_PLANS = 8

_NO_DTYPE: np.dtype[Any] = np.dtype([("none", np.bool_)])
"""Equal to no column's; None will not do: NumPy takes that for float64."""

_PYTHON_TYPES = {np.dtype(np.int64): int, np.dtype(np.float64): float, np.dtype(np.bool_): bool}


Check: TypeAlias = Callable[[Sequence[int], Sequence[Any]], None]


class Column:
    """A leaf of a writer's steps.

    Attributes:
        path: Where it is in a step.
        label: What messages call it.
        shape: Of its values.
        dtype: Of its values; None until the first.
        exact: The dtype whose arrays need no change to be stored.
        scalars: Classes of scalars that need none.
    """

    __slots__ = ("dtype", "exact_dtype", "label", "path", "scalar_types", "shape")

    def __init__(self, path: tuple[Any, ...], label: str | None = None) -> None:
        self.path = path
        self.label = str(path) if label is None else label
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] | None = None
        self.exact_dtype = _NO_DTYPE
        self.scalar_types: frozenset[type] = frozenset()

    def set_type(self, array: npt.NDArray[Any]) -> None:
        """Takes dtype and shape of its first value."""
        dtype = array.dtype
        self.dtype = dtype
        self.exact_dtype = _NO_DTYPE if dtype.hasobject else dtype
        self.reshape(array.shape)

    def clear_type(self) -> None:
        """Waits for a first value again."""
        self.dtype, self.exact_dtype, self.scalar_types = None, _NO_DTYPE, frozenset()

    def size(self) -> int:
        """Bytes of a value, as far as is known."""
        if self.dtype is None:
            return 0
        return math.prod(self.shape) * (_TEXT_BYTES if self.dtype.hasobject else self.dtype.itemsize)

    def reshape(self, shape: tuple[int, ...]) -> None:
        """Takes another shape."""
        self.shape = shape
        kinds: list[type] = []
        if not shape and self.dtype is not None:
            kinds = [str, bytes] if self.dtype == object else [self.dtype.type]
            kinds += [_PYTHON_TYPES[self.dtype]] if self.dtype in _PYTHON_TYPES else []
        self.scalar_types = frozenset(kinds)


class FlattenPlan:
    """Nests of one look: how to flatten them, and the column of each leaf by its number."""

    __slots__ = ("flatten", "numbers", "whole")

    def __init__(self, flatten: Flatten, numbers: Sequence[int], count: int) -> None:
        self.flatten = flatten
        self.numbers = numbers
        self.whole = list(numbers) == list(range(count))
        """The leaves are all columns, in their order."""


class StepColumns:
    """The columns of a writer's steps, which may become more.

    Attributes:
        columns: In the order in which they were first seen.
        structure: The nest of all steps so far, its leaves the columns' numbers; None before the first.
    """

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.structure: Any = None
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._plans: list[FlattenPlan] = []

    def number(self, path: tuple[Any, ...]) -> int | None:
        """The number of the column at a path."""
        return self._numbers.get(path)

    def to_row(self, data: Any, check: Check | None = None) -> tuple[Sequence[Any], bool]:  # noqa: ANN401, a nest
        """A step, ready to be stored: a value per column, None where it has none; and whether all have one.

        New leaves become columns, unless `check` raises: it gets numbers of columns, and their values.

        Raises:
            ValueError: A value has another dtype or shape than its column, or a leaf stands where others had a nest.
                Nothing changes then.
            TypeError: A value is nothing that a column can hold. Nothing changes then.
        """
        leaves: list[Any] = []
        for at, plan in enumerate(self._plans):
            if plan.flatten(data, leaves):
                if at:
                    self._plans.insert(0, self._plans.pop(at))
                ready = self._converted(plan.numbers, leaves)
                if ready is None:
                    break
                if check is not None:
                    check(plan.numbers, leaves)
                return (leaves, ready) if plan.whole else (self._row(plan.numbers, leaves), False)
            leaves.clear()
        return self._add_layout(data, check)

    def _converted(self, numbers: Sequence[int], leaves: list[Any]) -> bool | None:
        """Makes the leaves such as are stored; says whether all have a value, or None where one is a nest."""
        columns, dense = self.columns, True
        for at, (value, number) in enumerate(zip(leaves, numbers, strict=True)):
            column = columns[number]
            kind = type(value)
            if kind is np.ndarray:
                if value.dtype == column.exact_dtype and value.shape == column.shape:
                    continue
            elif kind in column.scalar_types:
                continue
            elif value is None:
                dense = False
                continue
            if column.dtype is None or not is_leaf(value):
                return None
            leaves[at] = checked(_nest.as_array(value), column)
        return dense

    def _row(self, numbers: Sequence[int], values: Sequence[Any]) -> list[Any]:
        row = [None] * len(self.columns)
        for number, value in zip(numbers, values, strict=True):
            row[number] = value
        return row

    def _add_layout(self, data: Any, check: Check | None) -> tuple[Sequence[Any], bool]:  # noqa: ANN401, a nest
        """Takes a step of a look that is new, or with first values."""
        fresh: dict[tuple[Any, ...], Column] = {}
        numbers, values = [], []
        dropped = False
        for path, value in _nest.flatten_with_path(data):
            number = self._numbers.get(path)
            if number is None:
                if value is None and self._is_inside(path):
                    dropped = True  # no value for any leaf of that nest
                    continue
                number = len(self.columns) + len(fresh)
                fresh[path] = Column(path)
            column = fresh.get(path) or self.columns[number]
            numbers.append(number)
            values.append(None if value is None else checked(_nest.as_array(value), column))
        structure = self._with_numbers(data, fresh)
        if self.structure is not None:
            structure = _union(self.structure, structure, ()) if fresh else self.structure
        if check is not None:
            check(numbers, values)
        # Nothing is refused from here on.
        self._add(fresh)
        self.structure = structure
        for number, array in zip(numbers, values, strict=True):
            if array is not None and self.columns[number].dtype is None:
                self.columns[number].set_type(array)
        if not dropped:
            plan = FlattenPlan(flattener(data), numbers, len(self.columns))
            self._plans = [plan, *self._plans[: _MAX_PLANS - 1]]
        return self._row(numbers, values), False

    def _add(self, fresh: Mapping[tuple[Any, ...], Column]) -> None:
        for path, column in fresh.items():
            self._numbers[path] = len(self.columns)
            self.columns.append(column)
            self._plans.clear()  # they are whole no more

    def _is_inside(self, path: tuple[Any, ...]) -> bool:
        return any(known[: len(path)] == path for known in self._numbers)

    def _with_numbers(self, data: Any, fresh: Mapping[tuple[Any, ...], Column]) -> Any:  # noqa: ANN401, nests
        """The nest with the numbers of columns as its leaves; None where the leaf is no column."""
        numbers = {**self._numbers, **{path: len(self.columns) + at for at, path in enumerate(fresh)}}
        return _nest.unflatten_as(data, [numbers.get(path) for path, _ in _nest.flatten_with_path(data)])


def chunk_length(columns: Sequence[Column], kept: int) -> int:
    """Steps of a chunk whose length nobody gave: no more than are kept, for items wait until their chunk is full."""
    size = sum(column.size() for column in columns)
    return max(1, min(kept, LONGEST_CHUNK, _CHUNK_BYTES // max(1, size)))


def checked_dtype(array: npt.NDArray[Any], column: Column) -> npt.NDArray[Any]:
    """The array, if it has the column's dtype, or the column none.

    Raises:
        ValueError: It has another.
    """
    if column.dtype is not None and array.dtype != column.dtype:
        raise ValueError(
            f"Tensor of wrong dtype provided for column {column.label}. Got {dtype_name(array.dtype)} but expected "
            f"{dtype_name(column.dtype)}."
        )
    return array


def checked(array: npt.NDArray[Any], column: Column) -> npt.NDArray[Any]:
    """The array, if it is a value of that column, or its first.

    Raises:
        ValueError: It has another dtype or shape.
    """
    checked_dtype(array, column)
    if column.dtype is not None and array.shape != column.shape:
        raise ValueError(
            f"Tensor of incompatible shape provided for column {column.label}. Got {shape_text(array.shape)} which is "
            f"incompatible with {shape_text(column.shape)}."
        )
    return array


def _union(known: Any, found: Any, path: tuple[Any, ...]) -> Any:  # noqa: ANN401, nests
    """A nest with the leaves of both; of the same containers as `known`."""
    if found is None:
        return known
    if is_leaf(known) and is_leaf(found):
        return known
    if _nest.is_namedtuple(known) and type(known) is type(found):
        fields = zip(known._fields, known, found, strict=True)
        return type(known)(*[_union(ours, theirs, (*path, name)) for name, ours, theirs in fields])
    if hasattr(type(known), "__attrs_attrs__") and type(known) is type(found):
        names = [field.name for field in type(known).__attrs_attrs__]
        return type(known)(*[_union(getattr(known, name), getattr(found, name), (*path, name)) for name in names])
    if isinstance(known, Mapping) and isinstance(found, Mapping):
        merged = {
            key: _union(known[key], found[key], (*path, key)) if key in found else known[key] for key in known
        } | {key: found[key] for key in found if key not in known}
        return _same_mapping(known, merged)
    if _is_plain(known) and _is_plain(found):
        longer = max(known, found, key=len)
        merged_list = [
            _union(known[at], found[at], (*path, at)) if at < min(len(known), len(found)) else longer[at]
            for at in range(len(longer))
        ]
        return type(known)(merged_list)
    raise ValueError(
        f"a step has a {_kind(found)} at {path}, where those before have a {_kind(known)}; steps may gain leaves, and "
        "keep the containers that they have"
    )


def _is_plain(value: object) -> bool:
    return isinstance(value, list | tuple) and not _nest.is_namedtuple(value)


def _same_mapping(known: Mapping[Any, Any], merged: dict[Any, Any]) -> Mapping[Any, Any]:
    """A mapping of the same class."""
    if not isinstance(known, dict):
        return type(known)(merged)  # type: ignore[call-arg]  # as every mapping that is made of pairs
    made = copy.copy(known)
    made.update(merged)
    return made


def _kind(value: object) -> str:
    return "leaf" if is_leaf(value) else type(value).__name__
