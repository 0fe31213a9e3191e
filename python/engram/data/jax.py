"""A table, or batches of a replay buffer, as JAX arrays."""

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from engram import _checks
from engram._extras import importing_extra
from engram.buffers import BufferBatch, ReplayBuffer
from engram.data import column_block
from engram.data.buffer_batches import sampled_batches
from engram.data.column_block import Array
from engram.data.elements import Element, Options
from engram.data.prefetch_thread import POLL_INTERVAL, prefetch_in_thread
from engram.data.table_reader import TableReader
from engram.errors import InvalidArgumentError, SignatureError
from engram.table_store import TableStore

with importing_extra("jax", "engram.data.jax"):
    import jax

__all__ = ["batches", "dataset"]

Placement = Any
"""A `jax.Device` or `jax.sharding.Sharding`; `Any`, so that type checks do not require JAX."""


def dataset(
    store: TableStore, table: str, *, device: Placement = None, device_prefetch: int = 0, **options: Unpack[Options]
) -> "Elements":
    """Returns a dataset of a table's items or steps as JAX arrays.

        device = jax.devices()[0]
        for element in dataset(store, "replay", batch_size=256, device=device):
            learn(element.data)

    Args:
        store: The `engram.Store` or `engram.Client` that has the table.
        table: The table's name.
        device: A `jax.Device`, or a `jax.sharding.Sharding` whose first axis is the batch. If a sharding spans several
            processes, each of them reads `batch_size` items; an element's `data` joins those of all processes, and its
            `info` is that of the process's own. Default: None, JAX's default device.
        device_prefetch: Number of elements that a thread copies to the device in advance, 0 or more. These count as
            consumed: a loop that stops early has consumed up to this many elements more than it used. Default: 0; JAX
            still copies while it computes, unless the loop waits for results.
        **options: Options of `engram.data.Options`.

    Returns:
        An iterable of `Element`s with leaves `[B, T, ...]`; it can be iterated any number of times. `info` and text
        stay NumPy arrays. JAX truncates 64-bit `data` to 32 bits unless `jax_enable_x64` is set.

    Raises:
        InvalidArgumentError: An argument has a type or value that is not allowed; or `device` is a sharding that
            splits arrays over several devices without `batch_size`, or with `steps` but without `drop_remainder`, as
            its last batch might be smaller.
        TypeError: An option is unknown.
        SignatureError: On iteration: items of a batch differ in length and `pad` is not set; or see
            `engram.data.numpy.dataset`.
        UnknownTableError, UnsatisfiableError, ClosedError, UnavailableError, DeadlineExceededError: See
            `engram.data.numpy.dataset`.
    """
    reader = TableReader.of(store, table, options)
    _check_device(device, reader)
    return Elements(reader, device, _checks.integer("`device_prefetch`", device_prefetch, low=0))


def batches(
    buffer: ReplayBuffer, batch_size: int, *, device: Placement = None, prefetch: int = 2, replacement: bool = True
) -> Generator[BufferBatch]:
    """Yields batches of a replay buffer, as JAX arrays on a device, without end.

    A thread samples batches and starts their copies to the device while the loop computes:

        for batch in batches(buffer, 256, device=jax.devices()[0]):
            td_errors = learn(batch.data, batch.importance_weights(0.4))
            buffer.update_priorities(batch.info.key, td_errors)

    A batch is drawn up to `prefetch` batches before the loop receives it: it does not have the newest steps and
    priorities, and which ones it has depends on the timing of the threads. With `prefetch=0`, batches are drawn in the
    loop, and a seeded program can be repeated.

    Args:
        buffer: An `engram.buffers.ReplayBuffer`; steps can be added meanwhile.
        batch_size: Number of items per batch, `B`.
        device: A `jax.Device`, or a `jax.sharding.Sharding` whose first axis is the batch. Default: None, JAX's default
            device.
        prefetch: Maximum number of batches that are drawn in advance, 0 or more. Default: 2.
        replacement: As for `ReplayBuffer.sample`. Default: True.

    Yields:
        Batches, as `BufferBatch`. `info` and importance weights are NumPy arrays. JAX truncates 64-bit `data`
        to 32 bits unless `jax_enable_x64` is set.

    Raises:
        InvalidArgumentError: An argument has a type or value that is not allowed.
        UnsatisfiableError, OutOfMemoryError, ClosedError: On iteration: see `ReplayBuffer.sample`.
    """
    _check_placement(device)
    return sampled_batches(
        buffer, batch_size, partial(jax.device_put, device=device), prefetch=prefetch, replacement=replacement
    )


def _check_placement(device: Placement) -> None:
    if device is not None and not isinstance(device, jax.Device | jax.sharding.Sharding):
        raise InvalidArgumentError(
            f"`device` must be a jax.Device, for example jax.devices()[0], or a jax.sharding.Sharding; got {device!r} "
            f"({type(device).__name__})"
        )


def _check_device(device: Placement, reader: TableReader) -> None:
    _check_placement(device)
    if not isinstance(device, jax.sharding.Sharding) or device.is_fully_replicated:
        return
    if reader.batch_size is None:
        raise InvalidArgumentError(
            f"`device` is a sharding over {len(device.device_set)} devices, which needs batches; give a `batch_size`"
        )
    if reader.steps and not reader.drop_remainder:
        raise InvalidArgumentError(
            f"`device` is a sharding over {len(device.device_set)} devices, which needs batches of one size, and the "
            "last batch of steps may be smaller; give `drop_remainder=True`"
        )


@dataclass(frozen=True, slots=True)
class Elements:
    """The dataset that `dataset` returns; it can be iterated any number of times."""

    reader: TableReader
    device: Placement
    device_prefetch: int

    def __iter__(self) -> Generator[Element]:
        if self.device_prefetch == 0:
            return self.reader.elements(self._convert)
        elements = self.reader.read(partial(column_block.to_element, self._convert), POLL_INTERVAL)
        return prefetch_in_thread(elements, self.device_prefetch)

    def _convert(self, columns: list[Array], splits: list[Array | None]) -> list[Any]:
        if any(split is not None for split in splits):
            raise SignatureError(
                "items of a batch differ in length, and JAX has no ragged arrays; give `pad=True` to pad them"
            )
        leaves: list[Any] = list(columns)
        numeric = [i for i, column in enumerate(columns) if column.dtype != object]
        # One call of `device_put` for all columns: most of its cost is per call.
        for i, array in zip(numeric, self._put([columns[i] for i in numeric]), strict=True):
            leaves[i] = array
        return leaves

    def _put(self, columns: list[Array]) -> list[Any]:
        device = self.device
        if device is None:
            return [jax.numpy.asarray(column) for column in columns]  # a quarter faster than `device_put`
        if isinstance(device, jax.sharding.Sharding) and not device.is_fully_addressable:
            put: Any = jax.make_array_from_process_local_data  # untyped
            return [put(device, column) for column in columns]
        return list(jax.device_put(columns, device))
