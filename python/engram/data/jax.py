"""A table as JAX arrays."""

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import jax

from engram import _checks
from engram.data import column_block
from engram.data.column_block import Array
from engram.data.elements import Element, Options
from engram.data.prefetch_thread import POLL_INTERVAL, prefetch_in_thread
from engram.data.table_reader import TableReader
from engram.errors import InvalidArgumentError, SignatureError
from engram.store import TableStore

__all__ = ["dataset"]

Placement = Any
"""A `jax.Device` or a `jax.sharding.Sharding`; mypy need not know JAX."""


def dataset(
    store: TableStore,
    table: str,
    *,
    device: Placement = None,
    device_prefetch: int = 0,
    **options: Unpack[Options],
) -> "Elements":
    """A table's items or steps, as JAX arrays.

        device = jax.devices()[0]
        for element in dataset(store, "replay", batch_size=256, device=device):
            learn(element.data)

    Args:
        store: Where the table is: an `engram.Store` or `engram.Client`.
        table: Its name.
        device: A `jax.Device`, or a `jax.sharding.Sharding` of arrays whose first axis is the batch; where that spans
            several processes, each reads its own part. None: JAX's default device.
        device_prefetch: Elements that a thread puts there before they are asked for, 0 (the default) or more. They
            count as used then: a loop that is left early has used up to so many more. JAX copies while it computes with
            0, too, as long as the loop does not wait for results.
        **options: Each of `engram.data.Options`.

    Returns:
        An iterable of `Element`s, whose leaves are arrays `[B, T, ...]`; it may be iterated any number of times. `info`
        stays NumPy's, and so does text. JAX cuts `data` of 64 bits to 32, unless `jax_enable_x64` is set.

    Raises:
        InvalidArgumentError: An option is not what `Options` says, `device_prefetch` is below 0, `device` is neither,
            or a sharding over several devices has no `batch_size`, or `steps` without `drop_remainder`, which may not
            come out even.
        TypeError: There is no such option.
        SignatureError: On iteration: items of a batch differ in length, and `pad` was not asked for; or as of
            `engram.data.numpy.dataset`.
        UnknownTableError, UnsatisfiableError, ClosedError, UnavailableError: As of `engram.data.numpy.dataset`.
    """
    reading = TableReader.of(store, table, options)
    _check(device, reading)
    return Elements(reading, device, _checks.integer("`device_prefetch`", device_prefetch, low=0))


def _check(device: Placement, reading: TableReader) -> None:
    if device is not None and not isinstance(device, jax.Device | jax.sharding.Sharding):
        raise InvalidArgumentError(
            f"`device` must be a jax.Device, such as jax.devices()[0], or a jax.sharding.Sharding; got {device!r} "
            f"({type(device).__name__})"
        )
    if not isinstance(device, jax.sharding.Sharding) or device.is_fully_replicated:
        return
    if reading.batch_size is None:
        raise InvalidArgumentError(f"a sharding over {len(device.device_set)} devices needs a `batch_size`")
    if reading.steps and not reading.drop_remainder:
        raise InvalidArgumentError(
            "the last batch of steps may be smaller, which a sharding over "
            f"{len(device.device_set)} devices does not allow; give `drop_remainder=True`"
        )


@dataclass(frozen=True, slots=True)
class Elements:
    """What `dataset` returns; may be iterated any number of times."""

    reading: TableReader
    device: Placement
    device_prefetch: int

    def __iter__(self) -> Generator[Element]:
        if self.device_prefetch == 0:
            return self.reading.elements(self._convert)
        return prefetch_in_thread(
            self.reading.read(partial(column_block.element, self._convert), POLL_INTERVAL), self.device_prefetch
        )

    def _convert(self, columns: list[Array], splits: list[Array | None]) -> list[Any]:
        if any(split is not None for split in splits):
            raise SignatureError(
                "items of a batch differ in length, and JAX has no arrays for that; `pad=True` fills them up"
            )
        leaves: list[Any] = list(columns)
        numbers = [i for i, column in enumerate(columns) if column.dtype != object]
        # One call of `device_put` for all: most of what it costs is the call.
        for i, array in zip(numbers, self._put([columns[i] for i in numbers]), strict=True):
            leaves[i] = array
        return leaves

    def _put(self, columns: list[Array]) -> list[Any]:
        sharding = self.device
        if sharding is None:
            return [jax.numpy.asarray(column) for column in columns]  # a quarter faster than `device_put`
        if isinstance(sharding, jax.sharding.Sharding) and not sharding.is_fully_addressable:
            share: Any = jax.make_array_from_process_local_data  # untyped
            return [share(sharding, column) for column in columns]
        return list(jax.device_put(columns, sharding))
