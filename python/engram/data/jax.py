"""A table as JAX arrays."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import jax
import numpy as np

from engram import _checks
from engram.data.elements import Element, Options, Ragged, Reading, converted
from engram.errors import SignatureError
from engram.store import AnyStore

__all__ = ["dataset"]

Placement = Any
"""A `jax.Device` or a `jax.sharding.Sharding`; mypy need not know JAX."""


def dataset(
    store: AnyStore,
    table: str,
    *,
    device: Placement = None,
    device_prefetch: int = 0,
    **options: Unpack[Options],
) -> "Elements":
    """A table's items or steps, as JAX arrays.

        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
        for element in dataset(store, "replay", batch_size=256, device=sharding):
            state = update(state, element.data)

    Args:
        store: Where the table is.
        table: Its name.
        device: A `jax.Device`, or a `jax.sharding.Sharding` of arrays whose first axis is the batch; where that spans
            several processes, each reads its own part. None: JAX's default device.
        device_prefetch: Elements put there before they are asked for. They count as used then: a loop that is left
            early has used so many more. JAX copies while it computes with 0, too, as long as the loop does not wait
            for results.
        **options: See `Options`.

    Returns:
        An iterable of `Element`s. `info` stays NumPy's: JAX would cut keys to 32 bits. So does text.

    Raises:
        InvalidArgumentError: An option is not what `Options` says.
        SignatureError: On iteration: items of a batch differ in length, and `pad` was not asked for.
    """
    ahead = _checks.integer("`device_prefetch`", device_prefetch, low=0)
    return Elements(Reading(store, table, **options), device, ahead)


@dataclass(frozen=True, slots=True)
class Elements:
    """What `dataset` returns; may be iterated any number of times."""

    reading: Reading
    device: Placement
    device_prefetch: int

    def __iter__(self) -> Iterator[Element]:
        ahead: deque[Element] = deque()
        for element in self.reading:
            ahead.append(converted(element, self._put, info=False))
            if len(ahead) > self.device_prefetch:
                yield ahead.popleft()
        yield from ahead

    def _put(self, found: Any) -> Any:  # noqa: ANN401, an array or a `Ragged`
        if isinstance(found, Ragged):
            raise SignatureError(
                "items of a batch differ in length, and JAX has no arrays for that; `pad=True` fills them up"
            )
        array = np.asarray(found)
        if array.dtype == object:
            return array
        sharding = self.device
        if isinstance(sharding, jax.sharding.Sharding) and not sharding.is_fully_addressable:
            return jax.make_array_from_process_local_data(sharding, array)  # type: ignore[no-untyped-call]
        return jax.device_put(array, sharding)
