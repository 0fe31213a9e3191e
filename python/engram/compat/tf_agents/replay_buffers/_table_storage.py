"""Storage of a replay buffer in tables that the caller creates."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from engram.compat.tf_agents.replay_buffers._columns import Columns, without_axes
from engram.compat.tf_agents.replay_buffers._deterministic_pass import DeterministicPass, Part
from engram.compat.tf_agents.replay_buffers._empty import EMPTY, why_empty
from engram.compat.tf_agents.replay_buffers._python_calls import Tensor, invalid_argument
from engram.compat.tf_agents.replay_buffers._tracked import Tracked
from engram.nests import Nest

__all__ = ["TableStorage"]


class TableStorage:
    """Stores items in a table, and the id of each row in another one.

    Item `id` of a segment is in the row `segment * max_length + id % max_length`.
    """

    def __init__(self, columns: Columns, data_spec: Nest, max_length: int, table_fn: Callable[..., Any]) -> None:
        self._columns = columns
        self._max_length = max_length
        capacity = columns.batch_size * max_length
        self._table = table_fn(data_spec, capacity)
        self._id_table = table_fn(tf.TensorSpec([], tf.int64, "id"), capacity)
        self._last_id = tf.Variable(-1, trainable=False, dtype=tf.int64, name="last_id")
        self._adding = tf.CriticalSection(name="adding")  # one call adds at a time

    def tracked(self, data_spec: Nest) -> Tracked:
        """Returns what a checkpoint has of this storage."""
        del data_spec
        return Tracked(self._table, self._id_table, self._last_id)

    def variables(self) -> list[Any]:
        """Variables of the tables of data and ids, and the last id."""
        return [*self._table.variables(), *self._id_table.variables(), self._last_id]

    def add(self, leaves: Sequence[Any]) -> Tensor | None:
        """Adds one item to each segment; returns the operation if called in a graph."""
        items = self._columns.pack(self._columns.tensors(leaves))

        def add() -> Tensor:
            new_id = self._last_id + 1
            rows = self._rows(tf.range(self._columns.batch_size, dtype=tf.int64), new_id)
            ids = tf.fill([self._columns.batch_size], new_id)
            written = [self._id_table.write(rows, ids), self._table.write(rows, items)]
            # Last, so that an item whose data cannot be written does not exist.
            with tf.control_dependencies([each for each in tf.nest.flatten(written) if each is not None]):
                return tf.identity(self._last_id.assign(new_id))

        added = self._adding.execute(add)
        return None if tf.executing_eagerly() else tf.group(added)

    def sample(self, seeds: Tensor, batch_size: int | None, num_steps: int | None) -> tuple[list[Any], Any, Any]:
        """Draws sequences: the columns, and the ids and probabilities."""
        n = 1 if batch_size is None else batch_size
        length = 1 if num_steps is None else num_steps
        added = self._last_id + 1
        with tf.control_dependencies(self._check_not_empty(added, length)):
            starts = tf.minimum(added, self._max_length) - (length - 1)  # per segment
        num_starts = starts * self._columns.batch_size
        draws = tf.random.stateless_uniform([n], seeds, minval=0, maxval=num_starts, dtype=tf.int64)
        first = tf.maximum(added - self._max_length, 0) + draws % starts
        frames = first[:, tf.newaxis] + tf.range(length, dtype=tf.int64)
        rows = without_axes(self._rows((draws // starts)[:, tf.newaxis], frames), batch_size, num_steps)
        batch = [] if batch_size is None else [batch_size]
        probabilities = tf.fill(batch, 1 / tf.cast(num_starts, tf.float32))
        leading = batch if num_steps is None else [*batch, num_steps]
        return self._read_rows(rows, leading), tf.ensure_shape(self._id_table.read(rows), leading), probabilities

    def frames(self) -> Tensor:
        """Number of items added to each segment: int64 `[1]`. There must be an item."""
        added = self._last_id + 1
        with tf.control_dependencies(self._check_not_empty(added, 1)):
            return tf.reshape(added, [1])

    def read(self, frames: Tensor, part: Part, plan: DeterministicPass) -> tuple[list[Any], Any]:
        """Reads a part of a deterministic pass: the columns, and the numbers of the rows.

        `frames`, the result of `frames` when the pass began, is not used: the row of a frame never changes.
        """
        del frames
        segments = part.first_segment + tf.range(part.num_segments)[:, tf.newaxis]
        ids = part.first_frame + tf.range(part.num_frames)
        rows, ids = (
            without_axes(each, plan.sample_batch_size, plan.num_steps)
            for each in (self._rows(segments, ids), segments * self._max_length + ids)
        )
        return self._read_rows(rows, plan.axes), tf.ensure_shape(ids, plan.axes)

    def gather_all(self) -> list[Any]:
        """Returns all items `[batch_size, T, ...]`."""
        added = self._last_id + 1
        segments = tf.range(self._columns.batch_size, dtype=tf.int64)[:, tf.newaxis]
        rows = self._rows(segments, tf.range(tf.maximum(added - self._max_length, 0), added))
        return self._read_rows(rows, [self._columns.batch_size, None])

    def newest_id(self) -> Tensor:
        """The id of the newest items, an int64 tensor `[]`; -1 if there are none."""
        return tf.identity(self._last_id)

    def num_frames(self) -> Tensor:
        """Number of items stored, an int64 tensor `[]`."""
        return tf.minimum(self._last_id + 1, self._max_length) * self._columns.batch_size

    def clear(self, *, with_variables: bool) -> Tensor | None:
        """Removes all items, and sets the tables' variables to zeros or not; in a graph, returns the operation."""
        cleared = [self._last_id.assign(-1, read_value=False)]
        if with_variables:
            cleared += [each.assign(tf.zeros_like(each), read_value=False) for each in self.variables()[:-1]]
        return None if tf.executing_eagerly() else tf.group(*cleared)

    def _rows(self, segments: Tensor, ids: Tensor) -> Tensor:
        return segments * self._max_length + ids % self._max_length

    def _read_rows(self, rows: Tensor, axes: Sequence[int | None]) -> list[Any]:
        leaves = tf.nest.flatten(self._table.read(rows))
        for leaf, spec in zip(leaves, self._columns.specs, strict=True):
            leaf.set_shape([*axes, *spec.shape])
        return leaves  # type: ignore[no-any-return]  # TensorFlow has no types

    def _check_not_empty(self, added: Tensor, length: int) -> list[Any]:
        """Raises an error if segments have fewer than `length` items; in a graph, returns operations that do so."""
        stored = tf.minimum(added, self._max_length)
        if not tf.executing_eagerly():
            text = f"{EMPTY} `max_length` is {self._max_length}, `num_steps` is {length}, and it has consecutive items:"
            return [tf.debugging.Assert(stored >= length, [text, stored])]
        if stored < length:
            raise invalid_argument(why_empty(int(stored), length, self._max_length))
        return []
