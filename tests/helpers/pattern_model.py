"""`PatternSet`, a naive model of the items that the engine creates for configs, and `stack_column` for its columns."""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from engram.compat.reverb import _nest


class PickedColumn(NamedTuple):
    """A column of an item: values of a leaf, oldest first; a single one without a time axis if `squeeze` is True."""

    squeeze: bool
    values: list[Any]


class PatternItem(NamedTuple):
    """An item to create, with the index of its config."""

    config_index: int
    columns: list[PickedColumn]


class PatternSet:
    """Applies configs to a stream of steps. Each config creates at most one item per step.

    Every append, partial or not, and every end of an episode returns the items to create, in the order of the configs.
    """

    def __init__(self, configs):
        self._columns = [[leaf_and_window(node) for node in config.flat] for config in configs]
        self._conditions = [list(config.conditions) for config in configs]
        self._last_applied = [0] * len(configs)  # `_num_steps` when each config last created an item
        self._needed_steps = [max(-node.window()[0] for node in config.flat) for config in configs]
        self._max_length = max(self._needed_steps)
        conditions = [condition for config in configs for condition in config.conditions]
        compared = {each.flat_source_index for each in conditions if each.WhichOneof("left") == "flat_source_index"}
        leaves = compared | {leaf for columns in self._columns for leaf, _, _ in columns}
        self._buffers = {leaf: deque(maxlen=self._max_length) for leaf in leaves}
        # The values of the newest step that conditions compare, by leaf; None if a leaf has no integer value.
        self._compared_values = dict.fromkeys(compared)
        self._num_steps = 0  # of all episodes, including a partial one
        self._step_index = -1  # of the newest step in its episode
        self._buffer_length = 0
        self._step_is_open = False

    def append(self, values, *, partial=False):
        """Adds a step, or with `partial` a part of one: one value per leaf; None if the leaf has no value."""
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
                    self._compared_values[leaf] = integer_or_none(values[leaf])
        self._step_is_open = partial
        return self._items_to_create(end=False)

    def end_episode(self, *, clear=True):
        """Ends the episode. With `clear`, items of the next episode cannot include steps of this one."""
        items = self._items_to_create(end=True) if self._step_index >= 0 else []
        self._step_is_open = False
        self._step_index = -1
        if clear:
            self._buffer_length = 0
            for buffer in self._buffers.values():
                buffer.clear()
        return items

    def _items_to_create(self, *, end):
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

    def _pick(self, leaf, window, squeeze):
        return PickedColumn(squeeze, [self._buffers[leaf][index] for index in window])

    def _is_true(self, condition, config_index, end):
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


def leaf_and_window(node):
    """The leaf of a column, the buffer indices of its steps (-1: the newest), and whether it is squeezed."""
    start, stop, step, squeeze = node.window()
    return node.flat_source_index, range(start, stop, step), squeeze


def integer_or_none(value):
    """The value as an integer for conditions; None if it is not a single integer or bool."""
    array = np.asarray(value)
    return int(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "biu" else None


def stack_column(column):
    """A column as an array: its values stacked, or the single value of a squeezed column."""
    values = [_nest.as_array(value) for value in column.values]
    return values[0] if column.squeeze else np.stack(values)
