"""Batches of a replay buffer that are sampled and copied to a device before they are requested."""

from collections.abc import Callable, Generator
from typing import Any

from engram import _checks
from engram.buffers import BufferBatch, ReplayBuffer
from engram.data.prefetch_thread import prefetch_in_thread

__all__ = ["sampled_batches"]


def sampled_batches(
    buffer: ReplayBuffer, batch_size: int, convert: Callable[[Any], Any], *, prefetch: int, replacement: bool
) -> Generator[BufferBatch]:
    """Yields batches of `buffer.sample` without end, with `convert(batch.data)` as their data.

    Raises:
        InvalidArgumentError: An argument is invalid.
    """
    _checks.instance_of("`buffer`", buffer, ReplayBuffer, "an engram.buffers.ReplayBuffer(...)")
    size = _checks.integer("`batch_size`", batch_size, high=_checks.MAX_BATCH)
    max_ahead = _checks.integer("`prefetch`", prefetch, low=0, high=_checks.MAX_I32)
    _checks.boolean("`replacement`", replacement)

    def batches() -> Generator[BufferBatch]:
        while True:
            batch = buffer.sample(size, replacement=replacement)
            batch.data = convert(batch.data)
            yield batch

    return prefetch_in_thread(batches(), max_ahead) if max_ahead else batches()
