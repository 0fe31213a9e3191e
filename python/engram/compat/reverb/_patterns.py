"""Applies the patterns of configs to a stream of steps and returns the items to create.

`PatternDataset` uses `PatternSet`. Structured writers let the engine apply the patterns (`_pattern_writer`), and use
only the functions about configs.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _nest
from engram.compat.reverb._configs import Condition, Config, PatternNode

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
    """A column of an item: values of a leaf, oldest first.

    Attributes:
        squeeze: True if the column is a single value without a time axis.
        values: The appended values.
    """

    squeeze: bool
    values: list[Any]


class PatternItem(NamedTuple):
    """An item to create.

    Attributes:
        config_index: Index of the config that creates it.
        columns: Columns in the order of the config's pattern.
    """

    config_index: int
    columns: list[PickedColumn]


def history_length(configs: Sequence[Config]) -> int:
    """Number of newest steps that the patterns need."""
    lengths: list[int] = [-node.window()[0] for config in configs for node in config.flat]
    return max(lengths)


def source_leaves(configs: Sequence[Config]) -> list[int]:
    """Sorted numbers of the leaves that patterns or conditions read."""
    read = {node.flat_source_index for config in configs for node in config.flat}
    return sorted(read | _condition_leaves(configs))


def _condition_leaves(configs: Sequence[Config]) -> set[int]:
    """The leaves that conditions read."""
    conditions = [condition for config in configs for condition in config.conditions]
    return {each.flat_source_index for each in conditions if each.WhichOneof("left") == "flat_source_index"}


def check_source_leaves(configs: Sequence[Config], count: int) -> None:
    """Checks that steps with `count` leaves have all leaves that configs read.

    Raises:
        ValueError: A leaf is missing.
    """
    last = source_leaves(configs)[-1]
    if last >= count:
        leaves = "1 leaf" if count == 1 else f"{count} leaves"
        raise ValueError(
            f"a config reads leaf {last} of a step (`flat_source_index`, from 0); steps have only {leaves}"
        )


class PatternSet:
    """Applies configs to a stream of steps. Each config creates at most one item per step.

    Every append, partial or not, and every end of an episode returns the items to create, in the order of the configs.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        """Creates a pattern set. The configs must be valid."""
        self._columns = [[_leaf_and_window(node) for node in config.flat] for config in configs]
        self._conditions = [list(config.conditions) for config in configs]
        self._last_applied = [0] * len(configs)  # `_num_steps` when each config last created an item
        self._needed_steps = [history_length([config]) for config in configs]
        self._max_length = max(self._needed_steps)
        self._buffers: dict[int, deque[Any]] = {leaf: deque(maxlen=self._max_length) for leaf in source_leaves(configs)}
        # The values of the newest step that conditions compare, by leaf; None if a leaf has no integer value.
        self._compared_values: dict[int, int | None] = dict.fromkeys(_condition_leaves(configs))
        self._num_steps = 0  # of all episodes, including a partial one
        self._step_index = -1  # of the newest step in its episode
        self._buffer_length = 0
        self._step_is_open = False

    def append(self, values: Sequence[Any], *, partial: bool = False) -> list[PatternItem]:
        """Adds a step, or a part of one, and returns the items to create.

        Args:
            values: One value per leaf; None if the leaf has no value.
            partial: If True, the next append continues this step with values of other leaves.
        """
        if not self._step_is_open:
            self._num_steps += 1
            self._step_index += 1
            self._buffer_length = min(self._buffer_length + 1, self._max_length)
            for buffer in self._buffers.values():
                buffer.append(None)
            self._compared_values = dict.fromkeys(self._compared_values)
        for leaf, buffer in self._buffers.items():
            if values[leaf] is not None:
                buffer[-1] = values[leaf]
                if leaf in self._compared_values:
                    self._compared_values[leaf] = _integer_or_none(values[leaf])
        self._step_is_open = partial
        return self._items_to_create(end=False)

    def end_episode(self, *, clear: bool = True) -> list[PatternItem]:
        """Ends the episode and returns the items to create. A partial step ends as it is.

        Args:
            clear: If True, items of the next episode cannot include steps of this one.
        """
        items = self._items_to_create(end=True) if self._step_index >= 0 else []
        self._step_is_open = False
        self._step_index = -1
        if clear:
            self._buffer_length = 0
            for buffer in self._buffers.values():
                buffer.clear()
        return items

    def _items_to_create(self, *, end: bool) -> list[PatternItem]:
        items = []
        for config_index, conditions in enumerate(self._conditions):
            if (
                self._last_applied[config_index] == self._num_steps
                or self._buffer_length < self._needed_steps[config_index]
            ):
                continue
            if not all(self._is_true(condition, config_index, end) for condition in conditions):
                continue
            columns = [self._pick(*column) for column in self._columns[config_index]]
            if any(value is None for column in columns for value in column.values):
                continue
            self._last_applied[config_index] = self._num_steps
            items.append(PatternItem(config_index, columns))
        return items

    def _pick(self, leaf: int, window: range, squeeze: bool) -> PickedColumn:  # noqa: FBT001, private
        buffer = self._buffers[leaf]
        return PickedColumn(squeeze, [buffer[index] for index in window])

    def _is_true(self, condition: Condition, config_index: int, end: bool) -> bool:  # noqa: FBT001, private
        """True if a condition of this config is fulfilled; `end` is True if the episode has ended."""
        left: int | None
        match condition.WhichOneof("left"):
            case "step_index":
                left = self._step_index
            case "steps_since_applied":
                left = self._num_steps - self._last_applied[config_index]
            case "buffer_length":
                left = self._buffer_length
            case "is_end_episode":
                left = int(end)
            case _:
                left = self._compared_values[condition.flat_source_index]
        if left is None:
            return False
        match condition.WhichOneof("cmp"):
            case "eq":
                result = left == condition.eq
            case "ge":
                result = left >= condition.ge
            case _:
                result = left % condition.mod_eq.mod == condition.mod_eq.eq
        return bool(result != condition.inverse)


def already_set_text(leaf: int) -> str:
    """The error text for a leaf that already has a value in the step."""
    return f"A value for column {leaf} was provided by multiple append calls in the same step."


def _leaf_and_window(node: PatternNode) -> tuple[int, range, bool]:
    """Returns the leaf of a column, the buffer indices of its steps (-1: the newest), and whether it is squeezed."""
    start, stop, step, squeeze = node.window()
    return node.flat_source_index, range(start, stop, step), squeeze


def _integer_or_none(value: Any) -> int | None:  # noqa: ANN401, any leaf
    """The value as an integer for conditions; None if it is not a single integer or bool."""
    array = np.asarray(value)
    return int(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "biu" else None


def stack_column(column: PickedColumn) -> npt.NDArray[Any]:
    """Returns a column as an array: its values stacked, or the single value of a squeezed column."""
    values = [_nest.as_array(value) for value in column.values]
    return values[0] if column.squeeze else np.stack(values)
