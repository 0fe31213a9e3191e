"""Converts the steps of writers to rows: each leaf becomes a column with a fixed dtype and shape."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _nest
from engram.compat.reverb._flatteners import Flatten, flattener
from engram.compat.reverb._nest import is_leaf
from engram.compat.reverb._signatures import shape_text
from engram.compat.reverb.tensor_spec import dtype_name
from engram.nests import Nest

__all__ = ["LONGEST_CHUNK", "Column", "NewTypes", "StepColumns", "checked", "chunk_length", "convert_in_place"]

LONGEST_CHUNK = 16
"""Maximum number of steps per chunk if no chunk length is configured."""

_CHUNK_BYTES = 16 << 10
"""Maximum size of such a chunk in bytes. A chunk of a single larger step is allowed."""

_TEXT_BYTES = 256
"""Assumed size of a text value in bytes."""

_MAX_PLANS = 8
"""Maximum number of step structures whose flatten plans are kept."""

_NO_DTYPE: np.dtype[Any] = np.dtype([("none", np.bool_)])
"""A dtype that equals no column's. None cannot be used: NumPy treats it as float64 in comparisons."""

_PYTHON_TYPES = {np.dtype(np.int64): int, np.dtype(np.float64): float, np.dtype(np.bool_): bool}

Check: TypeAlias = Callable[[Sequence[int], Sequence[Any]], None]
"""Raises an error if a step is invalid, given the column numbers and the values of the step."""


class Column:
    """A leaf of a writer's steps.

    Attributes:
        path: Path of the leaf in a step.
        label: Name of the column in error texts: by default its path, or 0 if each step is a single leaf.
        shape: Shape of the values.
        dtype: Dtype of the values; None before the first value.
        exact_dtype: The dtype of arrays that are stored without conversion.
        scalar_types: The classes of scalars that are stored without conversion.
    """

    __slots__ = ("dtype", "exact_dtype", "label", "path", "scalar_types", "shape")

    def __init__(self, path: tuple[Any, ...], label: str | None = None) -> None:
        self.path = path
        self.label = (str(path) if path else "0") if label is None else label
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] | None = None
        self.exact_dtype = _NO_DTYPE
        self.scalar_types: frozenset[type] = frozenset()

    def set_type(self, array: npt.NDArray[Any]) -> None:
        """Sets dtype and shape to those of the first value."""
        dtype = array.dtype
        self.dtype = dtype
        self.exact_dtype = _NO_DTYPE if dtype.hasobject else dtype
        self.reshape(array.shape)

    def clear_type(self) -> None:
        """Unsets the dtype, as before the first value."""
        self.dtype, self.exact_dtype, self.scalar_types = None, _NO_DTYPE, frozenset()

    def size(self) -> int:
        """Size of a value in bytes; 0 before the first value, an estimate for text."""
        if self.dtype is None:
            return 0
        return math.prod(self.shape) * (_TEXT_BYTES if self.dtype.hasobject else self.dtype.itemsize)

    def reshape(self, shape: tuple[int, ...]) -> None:
        """Changes the shape of the values."""
        self.shape = shape
        types: list[type] = []
        if not shape and self.dtype is not None:
            types = [bytes] if self.dtype == object else [self.dtype.type]
            types += [_PYTHON_TYPES[self.dtype]] if self.dtype in _PYTHON_TYPES else []
        self.scalar_types = frozenset(types)


NewTypes: TypeAlias = list[tuple[Column, npt.NDArray[Any]]]
"""Columns and values whose dtype and shape they get once the step is stored."""


class FlattenPlan:
    """How to flatten nests of one structure, and the number of each leaf among all columns."""

    __slots__ = ("columns", "flatten", "is_whole_row", "numbers")

    def __init__(self, flatten: Flatten, numbers: Sequence[int], columns: Sequence[Column]) -> None:
        self.flatten = flatten
        self.numbers = numbers
        self.columns = [columns[number] for number in numbers]
        self.is_whole_row = list(numbers) == list(range(len(columns)))
        """True if the leaves are all columns, in order."""


class StepColumns:
    """The columns of a writer's steps. Later steps may add columns.

    Attributes:
        columns: The columns in the order in which they first occurred.
        structure: The merged structure of all steps so far, with column numbers as leaves; None before the first step.
    """

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.structure: Any = None
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._plans: list[FlattenPlan] = []

    def number(self, path: tuple[Any, ...]) -> int | None:
        """Returns the number of the column at a path; None if there is no column."""
        return self._numbers.get(path)

    def to_row(self, data: Nest, check: Check | None = None) -> tuple[Sequence[Any], bool]:
        """Converts a step to a row, with one value or None per column.

        Also returns True if all columns have a value. False means that some may have none. New leaves become columns,
        unless `check` raises an error. An error changes nothing.
        """
        leaves: list[Any] = []
        for index, plan in enumerate(self._plans):
            if plan.flatten(data, leaves):
                if index:
                    self._plans.insert(0, self._plans.pop(index))
                all_present = convert_in_place(leaves, plan.columns)
                if all_present is None:
                    break
                if check is not None:
                    check(plan.numbers, leaves)
                return (leaves, all_present) if plan.is_whole_row else (self._row(plan.numbers, leaves), False)
            leaves.clear()
        return self._add_structure(data, check)

    def _row(self, numbers: Sequence[int], values: Sequence[Any]) -> list[Any]:
        row = [None] * len(self.columns)
        for number, value in zip(numbers, values, strict=True):
            row[number] = value
        return row

    def _add_structure(self, data: Nest, check: Check | None) -> tuple[Sequence[Any], bool]:
        """Converts a step that has a new structure or the first value of a column."""
        new_columns: dict[tuple[Any, ...], Column] = {}
        numbers, values = [], []
        has_missing_nest = False
        for path, value in _nest.flatten_with_path(data):
            number = self._numbers.get(path)
            if number is None:
                if value is None and self._is_nest(path):
                    has_missing_nest = True  # no value for any leaf of that nest
                    continue
                number = len(self.columns) + len(new_columns)
                new_columns[path] = Column(path)
            column = new_columns.get(path) or self.columns[number]
            numbers.append(number)
            values.append(None if value is None else checked(_nest.as_array(value), column))
        structure = self._with_numbers(data, new_columns)
        if self.structure is not None:
            structure = _merged(self.structure, structure, ()) if new_columns else self.structure
        if check is not None:
            check(numbers, values)
        # The code below raises no error.
        self._add(new_columns)
        self.structure = structure
        for number, array in zip(numbers, values, strict=True):
            if array is not None and self.columns[number].dtype is None:
                self.columns[number].set_type(array)
        if not has_missing_nest:
            plan = FlattenPlan(flattener(data), numbers, self.columns)
            self._plans = [plan, *self._plans[: _MAX_PLANS - 1]]
        return self._row(numbers, values), False

    def _add(self, new_columns: Mapping[tuple[Any, ...], Column]) -> None:
        for path, column in new_columns.items():
            self._numbers[path] = len(self.columns)
            self.columns.append(column)
            self._plans.clear()  # `is_whole_row` is outdated

    def _is_nest(self, path: tuple[Any, ...]) -> bool:
        """True if earlier steps have a nest at the path."""
        return any(column_path[: len(path)] == path for column_path in self._numbers)

    def _with_numbers(self, data: Nest, new_columns: Mapping[tuple[Any, ...], Column]) -> Nest:
        """Replaces the leaves of a nest by their column numbers, or by None if a leaf is not a column."""
        numbers = {**self._numbers, **{path: len(self.columns) + index for index, path in enumerate(new_columns)}}
        return _nest.unflatten_as(data, [numbers.get(path) for path, _ in _nest.flatten_with_path(data)])


def chunk_length(columns: Sequence[Column], kept: int) -> int:
    """Returns the default number of steps per chunk.

    It is at most `kept`, the number of steps that the writer keeps for items, as items wait until their chunk is full.
    """
    size = sum(column.size() for column in columns)
    return max(1, min(kept, LONGEST_CHUNK, _CHUNK_BYTES // max(1, size)))


def convert_in_place(leaves: list[Any], columns: Sequence[Column], reshaped: NewTypes | None = None) -> bool | None:
    """Converts the leaves of a step in place. Returns True if no leaf is None, otherwise False.

    Returns None if a leaf is a nest or the first value of its column. With `reshaped`, see `checked`.
    """
    all_present = True
    for index, (value, column) in enumerate(zip(leaves, columns, strict=True)):
        kind = type(value)
        if kind is np.ndarray:
            if value.dtype == column.exact_dtype and value.shape == column.shape:
                continue
        elif kind in column.scalar_types:
            continue
        elif value is None:
            all_present = False
            continue
        if column.dtype is None or not is_leaf(value):
            return None
        leaves[index] = checked(_nest.as_array(value), column, reshaped)
    return all_present


def checked(array: npt.NDArray[Any], column: Column, reshaped: NewTypes | None = None) -> npt.NDArray[Any]:
    """Returns the array after checking that it has the column's dtype and shape, if the column has a value.

    With `reshaped`, any shape is allowed: adds column and array to it if the shape differs, or the column has no value.
    """
    if column.dtype is not None and array.dtype != column.dtype:
        raise ValueError(
            f"Tensor of wrong dtype provided for column {column.label}. Got {dtype_name(array.dtype)} but expected "
            f"{dtype_name(column.dtype)}."
        )
    if reshaped is not None and (column.dtype is None or array.shape != column.shape):
        reshaped.append((column, array))
    elif column.dtype is not None and array.shape != column.shape:
        raise ValueError(
            f"Tensor of incompatible shape provided for column {column.label}. Got {shape_text(array.shape)} which is "
            f"incompatible with {shape_text(column.shape)}."
        )
    return array


def _merged(old: Nest, new: Nest, path: tuple[Any, ...]) -> Nest:
    """Returns a nest with the leaves of both nests, at a path of the step, and the containers of `old`."""
    if new is None:
        return old
    if is_leaf(old) and is_leaf(new):
        return old
    if type(old) is type(new) and not isinstance(old, Mapping) and not _is_list_or_tuple(old):
        fields = zip(_nest.children(old) or (), _nest.children(new) or (), strict=True)
        return _nest.with_children(old, [_merged(before, now, (*path, name)) for (name, before), (_, now) in fields])
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        both = {key: _merged(old[key], new[key], (*path, key)) for key in old if key in new}
        return _nest.with_items(old, {**old, **new, **both})
    if _is_list_or_tuple(old) and _is_list_or_tuple(new):
        merged = [_merged(*pair, (*path, index)) for index, pair in enumerate(zip(old, new, strict=False))]
        return type(old)([*merged, *max(old, new, key=len)[len(merged) :]])
    where = f"at {path}" if path else "at the top level"
    raise ValueError(
        f"a step has a {_kind(new)} {where}, but earlier steps have a {_kind(old)}; steps may add leaves, but must "
        "not change containers"
    )


def _is_list_or_tuple(value: object) -> bool:
    return isinstance(value, list | tuple) and not _nest.is_namedtuple(value)


def _kind(value: object) -> str:
    return "leaf" if is_leaf(value) else type(value).__name__
