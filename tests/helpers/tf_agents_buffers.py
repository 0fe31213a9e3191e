"""A naive model of TF-Agents' uniform replay buffer, and items for its tests."""

import numpy as np


class BufferModel:
    """What a `TFUniformReplayBuffer` should contain."""

    def __init__(self, batch_size, max_length):
        self.batch_size = batch_size
        self.max_length = max_length
        self.items = []  # numbers of the items since the last `clear`; see `batch`
        self.next_number = 0  # of the next item

    def clear(self):
        self.items = []

    @property
    def frames(self):
        """Ids of the items in the buffer."""
        return range(max(0, len(self.items) - self.max_length), len(self.items))

    def starts(self, num_steps):
        """Ids that sequences can begin with."""
        return range(self.frames.start, max(self.frames.start, self.frames.stop - num_steps + 1))

    def value(self, segment, frame):
        """What `batch` stored there as column `b`."""
        return value(segment, self.items[frame])

    def sequences(self, sample_batch_size, num_steps, *, shift=None, drop_remainder=False):
        """The elements of a deterministic pass: for each, its segments and its frames."""
        group = sample_batch_size or 1
        length = num_steps or 1
        shift = (shift or length) if num_steps else 1
        elements = []
        for first in range(0, self.batch_size, group):
            segments = range(first, min(first + group, self.batch_size))
            if drop_remainder and len(segments) < group:
                continue
            for start in range(self.frames.start, self.frames.stop, shift):
                frames = range(start, min(start + length, self.frames.stop))
                if len(frames) == length or not (drop_remainder or sample_batch_size):
                    elements.append((segments, frames))
        return elements


def value(segment, number):
    return 1000 * segment + number


def data_spec(tf):
    return {"a": tf.TensorSpec([2], tf.float32, "a"), "b": (tf.TensorSpec([], tf.int64, "b"), ())}


def batch(batch_size, number):
    """Items of all segments, as arrays. Their values are computed from the number and the segment."""
    values = np.array([value(segment, number) for segment in range(batch_size)], np.int64)
    return {"a": np.stack([values, -values], 1).astype(np.float32), "b": (values, ())}


def fill(buffer, model, count):
    """Adds items with numbers that no other item had."""
    for _ in range(count):
        buffer.add_batch(batch(model.batch_size, model.next_number))
        model.items.append(model.next_number)
        model.next_number += 1


def values(data):
    """Column `b` of data, after checking that column `a` belongs to it."""
    column = np.asarray(data["b"][0])
    assert (data["b"][1], column.dtype, np.asarray(data["a"]).dtype) == ((), np.int64, np.float32)
    np.testing.assert_array_equal(np.asarray(data["a"]), np.stack([column, -column], -1).astype(np.float32))
    return column
