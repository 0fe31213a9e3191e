"""The content of a ring in a `tf.train.Checkpoint`: the variables that TF-Agents' buffer has."""

import weakref
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.checkpoint import tensor_callable  # not public; TensorFlow's variables use it

from engram.compat.tf_agents.replay_buffers._columns import Columns, describe
from engram.compat.tf_agents.replay_buffers._python_calls import Tensor
from engram.compat.tf_agents.replay_buffers._tracked import Tracked, TrackedTable
from engram.nests import Nest

__all__ = ["RingContent", "row_ids", "stored_steps", "track_ring"]

Array = npt.NDArray[Any]

_VALUE = "VARIABLE_VALUE"
"""The name that checkpoints have for the value of a variable."""


class RingContent(NamedTuple):
    """The values of all variables: columns `[capacity, ...]`, the ids of their rows `[capacity]`, and the newest id."""

    specs: Sequence[Any]
    read: Callable[[], Sequence[Tensor]]
    replace: Callable[[Sequence[Tensor]], Tensor | None]  # returns the operation, in a graph


def track_ring(data_spec: Nest, columns: Columns, content: RingContent) -> Tracked:
    """Creates what a checkpoint has of a ring."""
    names = [*map(describe, columns.names), "the ids", "the last id"]
    transfer = _Transfer(content, names)
    variables = [_RingVariable(transfer, number, spec) for number, spec in enumerate(content.specs)]
    transfer.variables = [weakref.ref(each) for each in variables]
    data_table, id_table = TrackedTable(data_spec), TrackedTable(tf.TensorSpec([], tf.int64, "id"))
    data_table._track(variables[:-2])  # noqa: SLF001, of this package
    id_table._track(variables[-2:-1])  # noqa: SLF001, of this package
    return Tracked(data_table, id_table, variables[-1])


class _Transfer:
    """Reads all variables at the same moment, and replaces them together, while TensorFlow calls each."""

    def __init__(self, content: RingContent, names: Sequence[str]) -> None:
        self._content = content
        self._names = names
        self.variables: list[weakref.ref[_RingVariable]] = []  # weak: they refer to this object
        self._announced: set[int] = set()
        self._values: dict[int, Tensor] = {}  # that the call that saves has not taken
        self._restored: dict[int, Tensor] = {}  # in the restore with this number:
        self._restore = -1

    def announce(self, number: int) -> None:
        """Is called for each variable before the first of them is saved or restored."""
        self._values = {}
        self._announced.add(number)

    def take(self, number: int) -> Tensor:
        """Takes the value of a variable."""
        self._announced.clear()
        if number not in self._values:
            self._values = dict(enumerate(self._content.read()))
        return self._values.pop(number)

    def restore(self, number: int, value: Tensor) -> Tensor | None:
        """Replaces the content once it has the values of all variables; in a graph, returns the operation then."""
        # TensorFlow numbers its restores, and marks all variables that it found before it restores the first one.
        restore = self._mark(number)
        if restore != self._restore:
            self._check_complete(restore)
            self._restore, self._restored = restore, {}
        self._restored[number] = value
        if len(self._restored) < len(self._names):
            return None
        values, self._restored = [self._restored[each] for each in range(len(self._names))], {}
        return self._content.replace(values)

    def _mark(self, number: int) -> int:
        variable: Any = self.variables[number]()
        return int(variable._update_uid)  # noqa: SLF001, not public

    def _check_complete(self, restore: int) -> None:
        """Raises an error unless the checkpoint has all variables."""
        found = {number for number in range(len(self._names)) if self._mark(number) == restore}
        if tf.executing_eagerly():  # in a graph, TensorFlow announces only once
            found &= self._announced  # marked, but not announced: a container in the checkpoint
        self._announced.clear()
        missing = [name for number, name in enumerate(self._names) if number not in found]
        if missing:
            raise ValueError(
                f"the checkpoint is of a replay buffer with another `data_spec`: it lacks {', '.join(missing)}"
            )


class _RingVariable(tf.__internal__.tracking.Trackable):
    """A variable of TF-Agents' buffer, as a checkpoint sees it."""

    def __init__(self, transfer: _Transfer, number: int, spec: Any) -> None:  # noqa: ANN401, a tf.TensorSpec
        self._transfer = transfer
        self._number = number
        self._spec = spec
        with tf.device("cpu:0"):
            # As TensorFlow's variables spell it: it saves and restores those of a device together.
            self._device = tf.zeros([]).device

    def _take(self) -> Tensor:
        return self._transfer.take(self._number)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        self._transfer.announce(self._number)
        return {_VALUE: tensor_callable.Callable(self._take, self._spec.dtype, self._device)}

    def _restore_from_tensors(self, restored_tensors: dict[str, Tensor]) -> Tensor | None:
        return self._transfer.restore(self._number, restored_tensors[_VALUE])

    def _copy_trackable_to_cpu(self, object_map: MutableMapping[Any, Any]) -> None:
        """Copies the value to a variable, which an asynchronous checkpoint saves."""
        if self not in object_map:
            initial = tf.zeros(self._spec.shape, self._spec.dtype)
            object_map[self] = tf.Variable(initial, trainable=False, shape=self._spec.shape, dtype=self._spec.dtype)
        object_map[self].assign(self._take())


def row_ids(num_added: int, batch_size: int, max_length: int) -> Array:
    """Returns the id of each row, given the number of items per segment: `id % max_length` is its row in a segment.

    The id of a row that nothing was added to is -1: TF-Agents, which has 0 there, never reads it.
    """
    rows = np.arange(max_length)
    ids = num_added - 1 - (num_added - 1 - rows) % max_length
    return np.tile(np.where(ids >= 0, ids, -1), batch_size)


def stored_steps(
    values: Sequence[Array], batch_size: int, layout: Sequence[tuple[np.dtype[Any], Sequence[int]]]
) -> tuple[int, list[Array]]:
    """Returns the items in the values of all variables, which must be of a buffer with this batch size and layout.

    Returns:
        The number of items that were added to each segment, and the columns of those that are stored, oldest first:
        `[batch_size, T, ...]`.
    """
    *columns, ids, last_id = values
    found = [list(column.shape[1:]) for column in columns]
    expected = [list(shape) for _, shape in layout]
    if found != expected:
        raise ValueError(f"the checkpoint is of a replay buffer whose items have shapes {found}; expected {expected}")
    max_length, rest = divmod(len(ids), batch_size)
    if rest:
        raise ValueError(
            f"the checkpoint is of a replay buffer with room for {len(ids)} items; expected a multiple of "
            f"`batch_size`, {batch_size}"
        )
    num_added = int(last_id) + 1
    num_segments = np.count_nonzero(ids == last_id)  # each segment has the last id once
    has_unused_zeros = num_added == 1 and np.all(ids >= 0)  # in checkpoints of TF-Agents
    if num_added > 0 and not has_unused_zeros and num_segments != batch_size:
        raise ValueError(f"the checkpoint is of a replay buffer with batch_size {num_segments}; expected {batch_size}")
    rows = np.arange(max(0, num_added - max_length), num_added) % max_length
    return num_added, [column.reshape(batch_size, max_length, *column.shape[1:])[:, rows] for column in columns]
