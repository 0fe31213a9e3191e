"""Patterns applied to steps as they come: which items there are to make. Knows of no writer and no server."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.compat.reverb._configs import Condition, Config

__all__ = [
    "PatternItem",
    "PatternSet",
    "PickedColumn",
    "already_set_text",
    "check_source_leaves",
    "history_length",
    "source_leaves",
    "stack_column",
]


class PickedColumn(NamedTuple):
    """A column of an item: cells of a leaf, oldest first.

    Attributes:
        squeeze: It is one cell, without a time axis.
        cells: What was appended.
    """

    squeeze: bool
    cells: list[Any]


class PatternItem(NamedTuple):
    """An item to be made.

    Attributes:
        config: Number of the config that makes it.
        columns: In the order of its pattern.
    """

    config: int
    columns: list[PickedColumn]


def history_length(configs: Sequence[Config]) -> int:
    """Steps that the patterns reach back."""
    reaches: list[int] = [-node.window()[0] for config in configs for node in config.flat]
    return max(reaches)


def source_leaves(configs: Sequence[Config]) -> list[int]:
    """The leaves that patterns or conditions read, in order."""
    read = {node.flat_source_index for config in configs for node in config.flat}
    return sorted(read | _watched(configs))


def _watched(configs: Sequence[Config]) -> set[int]:
    """The leaves that conditions look at."""
    conditions = [condition for config in configs for condition in config.conditions]
    return {each.flat_source_index for each in conditions if each.WhichOneof("left") == "flat_source_index"}


def check_source_leaves(configs: Sequence[Config], count: int) -> None:
    """Checks that steps of so many leaves have all that are read.

    Raises:
        ValueError: They have not.
    """
    last = source_leaves(configs)[-1]
    if last >= count:
        raise ValueError(f"a config reads leaf {last} of a step; steps have the leaves 0 to {count - 1}")


class PatternSet:
    """The configs of one stream of steps. Each makes at most one item per step.

    Every append, partial or not, and the end of an episode say which items are to be made, in the order of the configs.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        """Takes configs that are valid."""
        self._windows = [[_column(node) for node in config.flat] for config in configs]
        self._conditions = [list(config.conditions) for config in configs]
        self._applied = [0] * len(configs)
        self._reach = [history_length([config]) for config in configs]
        self._longest = max(self._reach)
        self._cells: dict[int, deque[Any]] = {leaf: deque(maxlen=self._longest) for leaf in source_leaves(configs)}
        self._numbers: dict[int, int | None] = dict.fromkeys(_watched(configs))
        self._position = 0  # steps ever, one in progress included
        self._index = -1  # of the newest step in its episode
        self._length = 0  # steps in the buffer
        self._open = False

    def append(self, values: Sequence[Any], *, partial: bool = False) -> list[PatternItem]:
        """Takes a step, or a part of one.

        Args:
            values: Of each leaf; None: it has no value.
            partial: The step goes on with the next append, which gives other leaves.
        """
        if not self._open:
            self._position += 1
            self._index += 1
            self._length = min(self._length + 1, self._longest)
            for buffer in self._cells.values():
                buffer.append(None)
            self._numbers = dict.fromkeys(self._numbers)
        for leaf, buffer in self._cells.items():
            if values[leaf] is not None:
                buffer[-1] = values[leaf]
                if leaf in self._numbers:
                    self._numbers[leaf] = _number(values[leaf])
        self._open = partial
        return self._due(end=False)

    def end_episode(self, *, clear: bool = True) -> list[PatternItem]:
        """Ends the episode; a step in progress ends as it is.

        Args:
            clear: Items of the next episode never reach back into this one.
        """
        made = self._due(end=True) if self._index >= 0 else []
        self._open = False
        self._index = -1
        if clear:
            self._length = 0
            for buffer in self._cells.values():
                buffer.clear()
        return made

    def _due(self, *, end: bool) -> list[PatternItem]:
        made = []
        for number, conditions in enumerate(self._conditions):
            if self._applied[number] == self._position or self._length < self._reach[number]:
                continue
            if not all(self._holds(condition, number, end) for condition in conditions):
                continue
            columns = [self._pick(*column) for column in self._windows[number]]
            if any(cell is None for column in columns for cell in column.cells):
                continue
            self._applied[number] = self._position
            made.append(PatternItem(number, columns))
        return made

    def _pick(self, leaf: int, window: range, squeeze: bool) -> PickedColumn:  # noqa: FBT001, of the window
        buffer = self._cells[leaf]
        return PickedColumn(squeeze, [buffer[at] for at in window])

    def _holds(self, condition: Condition, number: int, end: bool) -> bool:  # noqa: FBT001, this class's own
        found: int | None
        match condition.WhichOneof("left"):
            case "step_index":
                found = self._index
            case "steps_since_applied":
                found = self._position - self._applied[number]
            case "buffer_length":
                found = self._length
            case "is_end_episode":
                found = int(end)
            case _:
                found = self._numbers[condition.flat_source_index]
        if found is None:
            return False
        match condition.WhichOneof("cmp"):
            case "eq":
                holds = found == condition.eq
            case "ge":
                holds = found >= condition.ge
            case _:
                holds = found % condition.mod_eq.mod == condition.mod_eq.eq
        return bool(holds != condition.inverse)


def already_set_text(leaf: int) -> str:
    """What is said of a leaf that has a value already."""
    return f"A value for column {leaf} was provided by multiple append calls in the same step."


def _column(node: Any) -> tuple[int, range, bool]:  # noqa: ANN401, a node
    start, stop, step, squeeze = node.window()
    return node.flat_source_index, range(start, stop, step), squeeze


def _number(value: Any) -> int | None:  # noqa: ANN401, any leaf
    """The integer that a condition sees; None: it is none."""
    array = np.asarray(value)
    return int(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "biu" else None


def stack_column(column: PickedColumn) -> npt.NDArray[Any]:
    """A column as an array: its cells stack_column, or the one of a squeezed column."""
    return np.asarray(column.cells[0]) if column.squeeze else np.stack(column.cells)
