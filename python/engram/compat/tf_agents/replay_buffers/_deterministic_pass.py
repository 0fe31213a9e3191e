"""The parts of a buffer that a single deterministic pass visits, in order."""

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from engram.data._tf_types import Tensor

__all__ = ["DeterministicPass", "Part"]


class Part(NamedTuple):
    """Consecutive frames (`first_frame` is an id) of consecutive segments; int64 tensors `[]`."""

    first_segment: Tensor
    num_segments: Tensor
    first_frame: Tensor
    num_frames: Tensor


@dataclass(frozen=True)
class DeterministicPass:
    """Divides the segments into groups, and the frames of each group into windows; each window is a part.

    Attributes:
        batch_size: Number of segments.
        max_length: Maximum number of frames of a segment.
        sample_batch_size: Number of segments in a group. None: one, and elements have no batch axis.
        num_steps: Number of frames in a window. None: one, and elements have no time axis.
        window_shift: Number of frames from one window to the next, if `num_steps` is given. None: `num_steps`.
        drop_remainder: If True, smaller groups and windows at the end are left out.
    """

    batch_size: int
    max_length: int
    sample_batch_size: int | None
    num_steps: int | None
    window_shift: int | None
    drop_remainder: bool

    @property
    def axes(self) -> list[int | None]:
        """Sizes of the batch and time axes that an element has; None for a size that varies."""
        axes: list[int | None] = []
        if self.sample_batch_size is not None:
            equal = self.drop_remainder or self.batch_size % self.sample_batch_size == 0
            axes.append(self.sample_batch_size if equal else None)
        if self.num_steps is not None:
            axes.append(self.num_steps if self._has_full_windows else None)
        return axes

    @property
    def _has_full_windows(self) -> bool:
        # In batches, TF-Agents has always left out the shorter windows.
        return self.drop_remainder or self.sample_batch_size is not None

    @property
    def _shift(self) -> int:
        return 1 if self.num_steps is None else self.window_shift or self.num_steps

    def num_parts(self, num_added: Tensor) -> Tensor:
        """Number of parts, given the number of items that were added to each segment."""
        group = self.sample_batch_size or 1
        groups = self.batch_size // group if self.drop_remainder else -(-self.batch_size // group)
        return groups * self._windows(num_added)

    def _windows(self, num_added: Tensor) -> Tensor:
        """Number of windows of a group."""
        stored = tf.minimum(num_added, self.max_length)
        if self._has_full_windows:
            return tf.maximum(stored - (self.num_steps or 1) + self._shift, 0) // self._shift
        return (stored + self._shift - 1) // self._shift

    def part(self, number: Tensor, num_added: Tensor) -> Part:
        """The part with this number, from 0."""
        windows = self._windows(num_added)
        first_segment = number // windows * (self.sample_batch_size or 1)
        offset = number % windows * self._shift
        return Part(
            first_segment,
            tf.minimum(self.batch_size - first_segment, self.sample_batch_size or 1),
            tf.maximum(num_added - self.max_length, 0) + offset,
            tf.minimum(tf.minimum(num_added, self.max_length) - offset, self.num_steps or 1),
        )
