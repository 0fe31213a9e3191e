"""Storage of a replay buffer in Engram's ring."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from engram import _engram
from engram.buffers.items import CompiledSampler, Steps
from engram.compat.tf_agents.replay_buffers._columns import Columns, without_axes
from engram.compat.tf_agents.replay_buffers._deterministic_pass import DeterministicPass, Part
from engram.compat.tf_agents.replay_buffers._empty import why_empty
from engram.compat.tf_agents.replay_buffers._python_calls import Tensor, call_method, invalid_argument
from engram.compat.tf_agents.replay_buffers._ring_checkpoint import RingContent, row_ids, stored_steps, track_ring
from engram.compat.tf_agents.replay_buffers._tracked import Tracked
from engram.nests import Nest
from engram.specs import ArraySpec

__all__ = ["RingStorage"]

Array = npt.NDArray[Any]


class RingStorage:
    """Stores items in a ring.

    The ring numbers the steps of a segment without end, but ids begin again after `clear`: a frame is in the ring at
    the position `first position + id`.
    """

    def __init__(self, columns: Columns, max_length: int) -> None:
        self._columns = columns
        self._max_length = max_length
        signature = tuple(ArraySpec(shape, dtype) for dtype, shape in columns.layout)
        items = Steps()._compile(_engram.flatten(signature)[2])  # noqa: SLF001, of this package
        size = (columns.batch_size, max_length)
        self._ring = _engram.ReplayBuffer(signature, items, size, CompiledSampler(), 0)
        # Position of the item with id 0. It is negative after a restore if that item had been overwritten.
        self._first_position = 0
        self._lock = threading.Lock()  # held by calls that must agree on `_first_position` and the ring's steps

    @property
    def _num_added(self) -> int:
        """Items per segment that were added since ids began, which is the next id."""
        return self._ring.next_position(0) - self._first_position

    def _check_not_empty(self, length: int) -> int:
        """Returns the number of items that were added."""
        added = self._num_added
        if length > min(added, self._max_length):
            raise invalid_argument(why_empty(min(added, self._max_length), length, self._max_length))
        return added

    def variables(self) -> list[Any]:
        """Variables: none."""
        return []

    def add(self, leaves: Sequence[Any]) -> Tensor | None:
        """Adds one item to each segment; returns the operation if called in a graph."""
        if tf.executing_eagerly():
            self._add(*self._columns.arrays(leaves))
            return None
        return call_method(self._add, (), self._columns.tensors(leaves), [])

    def _add(self, *arrays: Array) -> list[Array]:
        with self._lock:
            self._ring.add_batch(arrays)
        return []

    def sample(self, seeds: Tensor, batch_size: int | None, num_steps: int | None) -> tuple[list[Any], Any, Any]:
        """Draws sequences: the columns, and the ids and probabilities."""
        batch = [] if batch_size is None else [batch_size]
        leading = batch if num_steps is None else [*batch, num_steps]
        specs = [
            *self._columns.with_axes(leading),
            tf.TensorSpec(leading, tf.int64),
            tf.TensorSpec(batch, tf.float32),
        ]
        *leaves, ids, probabilities = call_method(self._sample, (batch_size, num_steps), [seeds], specs)
        return leaves, ids, probabilities

    def _sample(self, batch_size: int | None, num_steps: int | None, seeds: Array) -> list[Any]:
        n = 1 if batch_size is None else batch_size
        length = 1 if num_steps is None else num_steps
        high, low = seeds.tolist()  # 32 bits each
        with self._lock:
            self._check_not_empty(length)
            drawn = self._ring.sample_sequences(n, length, high << 32 | low)
            first = self._first_position
        starts = drawn.position().astype(np.int64) - first
        ids = starts[:, np.newaxis] + np.arange(length)
        probabilities = drawn.probability().astype(np.float32)
        arrays = [without_axes(array, batch_size, num_steps) for array in (*drawn.data, ids)]
        return [*arrays, probabilities[0] if batch_size is None else probabilities]

    def frames(self) -> Tensor:
        """Number of items added to each segment, and the position of the first: int64 `[2]`. There must be an item."""
        [frames] = call_method(self._frames, (), [], [tf.TensorSpec([2], tf.int64)])
        return frames

    def _frames(self) -> list[Array]:
        with self._lock:
            return [np.array([self._check_not_empty(1), self._first_position])]

    def read(self, frames: Tensor, part: Part, plan: DeterministicPass) -> tuple[list[Any], Any]:
        """Reads a part of a deterministic pass: the columns, and the ids.

        `frames` is the result of `frames` when the pass began. A frame that was overwritten since then has newer
        content.
        """
        specs = [*self._columns.with_axes(plan.axes), tf.TensorSpec(plan.axes, tf.int64)]
        numbers = tf.stack([frames[1], *part])
        *leaves, ids = call_method(self._read, (plan.sample_batch_size, plan.num_steps), [numbers], specs)
        return leaves, ids

    def _read(self, batch_size: int | None, num_steps: int | None, numbers: Array) -> list[Any]:
        first_position, first_segment, num_segments, first_frame, num_frames = numbers.tolist()
        segments = np.arange(first_segment, first_segment + num_segments)
        data = self._read_ring(segments, first_position + first_frame, num_frames)
        ids = segments[:, np.newaxis] * self._max_length + np.arange(first_frame, first_frame + num_frames)
        return [without_axes(array, batch_size, num_steps) for array in (*data, ids)]

    def gather_all(self) -> list[Any]:
        """Returns all items `[batch_size, T, ...]`."""
        specs = self._columns.with_axes([self._columns.batch_size, None])
        return list(call_method(self._read_all, (), [], specs))

    def _read_all(self) -> list[Array]:
        with self._lock:
            return self._stored_items(self._num_added)

    def _stored_items(self, num_added: int) -> list[Array]:
        segments, stored = np.arange(self._columns.batch_size), min(num_added, self._max_length)
        if stored == 0:
            return [array[:, :0] for array in self._read_ring(segments, 0, 1)]
        return self._read_ring(segments, self._first_position + num_added - stored, stored)

    def _read_ring(self, segments: Array, position: int, length: int) -> list[Array]:
        positions = np.full(len(segments), position % self._max_length, np.uint64)  # the same slots
        return list(self._ring.read_sequences(segments, positions, length))

    def newest_id(self) -> Tensor:
        """The id of the newest items, an int64 tensor `[]`; -1 if there are none."""
        [number] = call_method(self._newest_id, (), [], [tf.TensorSpec([], tf.int64)])
        return number

    def _newest_id(self) -> list[Any]:
        with self._lock:
            return [np.int64(self._num_added - 1)]

    def num_frames(self) -> Tensor:
        """Number of items stored, an int64 tensor `[]`."""
        [number] = call_method(self._num_frames, (), [], [tf.TensorSpec([], tf.int64)])
        return number

    def _num_frames(self) -> list[Any]:
        with self._lock:
            return [np.int64(min(self._num_added, self._max_length) * self._columns.batch_size)]

    def clear(self, *, with_variables: bool) -> Tensor | None:
        """Removes all items; returns the operation if called in a graph. There are no variables to clear."""
        del with_variables
        operation = call_method(self._clear, (), [], [])
        return None if tf.executing_eagerly() else operation

    def _clear(self) -> list[Array]:
        with self._lock:
            self._ring.clear()
            self._first_position = self._ring.next_position(0)
        return []

    def tracked(self, data_spec: Nest) -> Tracked:
        """Returns what a checkpoint has of this storage."""
        capacity = self._columns.batch_size * self._max_length
        ids = [tf.TensorSpec([capacity], tf.int64), tf.TensorSpec([], tf.int64)]
        specs = [*self._columns.with_axes([capacity]), *ids]

        def read() -> Sequence[Tensor]:
            return call_method(self._values, (), [], specs)  # type: ignore[no-any-return]  # TensorFlow has no types

        def replace(values: Sequence[Tensor]) -> Tensor | None:
            operation = call_method(self._replace, (), values, [])
            return None if tf.executing_eagerly() else operation

        return track_ring(data_spec, self._columns, RingContent(specs, read, replace))

    def _values(self) -> list[Any]:
        """Returns the values of the variables that a checkpoint contains."""
        segments = np.arange(self._columns.batch_size)
        with self._lock:
            # From the slot of id 0: the slot of an id is then its row.
            rows = self._read_ring(segments, self._first_position, self._max_length)
            added = self._num_added
        columns = [array.reshape(-1, *array.shape[2:]) for array in rows]
        return [*columns, row_ids(added, len(segments), self._max_length), np.int64(added - 1)]

    def _replace(self, *values: Array) -> list[Array]:
        """Replaces the items and their numbering by the values of the variables that a checkpoint contains."""
        added, arrays = stored_steps(values, self._columns.batch_size, self._columns.layout)
        with self._lock:
            self._ring.clear()
            self._ring.add_steps(tuple(arrays))
            self._first_position = self._ring.next_position(0) - added
        return []
