"""The client of several servers that have the same tables."""

from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, cast

from engram import _checks, _engram
from engram._process_end import finalize
from engram.client import Client
from engram.errors import InvalidArgumentError
from engram.peek import MAX_BINS, Histogram, HistogramOf, Peek, PeekOrder, checked_peek, histogram, peek
from engram.server import MAX_SHARD_ID
from engram.sharded.looking import merge_histograms, merge_peeks
from engram.sharded.tables import ShardedNative
from engram.table_store import TableStore

__all__ = ["ShardedClient"]


class ShardedClient(TableStore):
    """The tables of several servers, its *shards*, as if they were those of one.

        client = engram.ShardedClient(["10.0.0.1:7077", "10.0.0.2:7077"])
        with client.writer() as writer: ...

    It has the methods of `TableStore`; datasets read from it like from a `Client`. All servers have the same tables,
    each with a part of the items.

    * A writer sends its items to one shard, the least loaded one when it was created. `insert` and `insert_batch` of a
      client do the same. If this shard cannot be reached for `reconnect_timeout`, they go on with another one: items
      that were not acknowledged are sent to it, and the first shard deletes them before this client uses it again.
    * `sample` draws from the shards in proportion to the weights of their items: `probability` and importance weights
      are those of one table with all items. The weights that it knows are at most 0.1 s old. Items of a shard follow
      each other in a batch. From a table with another sampler than Uniform or Prioritized, such as a queue, each shard
      returns the same number of items if it has them; the order holds within a shard.
    * Updates and deletions go to the shard whose id is in the key. Keys with the id of no shard go to all.
    * Rate limiters, `max_size` and other limits apply to each shard by itself: see `engram.sharded.divide`.

    If a shard cannot be reached, calls go on with the others, after waiting for it for `reconnect_timeout`.

    Like a `Client`, it can be used in a forked child process, and pickled.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        token: str | None = None,
        ca: str | PathLike[str] | None = None,
        certificate: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
        server_name: str | None = None,
        reconnect_timeout: float = 5.0,
        seed: int | None = None,
        items_per_request: int = 256,
    ) -> None:
        """Creates a client; it connects on first use.

        Args:
            addresses: `host:port` of each server.
            token: As in `Client`, for all servers.
            ca: As in `Client`.
            certificate: As in `Client`.
            key: As in `Client`.
            server_name: As in `Client`.
            reconnect_timeout: Seconds to wait for an unreachable server before it is left out.
            seed: Seed of the choice of shards. Default: random.
            items_per_request: A sample of `n` items from a Uniform or Prioritized table draws from at most
                `n / items_per_request` shards, or from one. With a lower number, a batch has items of more shards, and
                costs more: a request takes as much CPU time as some hundreds of small items.

        Raises:
            InvalidArgumentError: `addresses` is empty, has more than 1,023 or contains one twice, or another argument
                is invalid.
        """
        checked = _checked_addresses(addresses)
        self._seed = None if seed is None else _checks.integer("`seed`", seed, low=0, high=_checks.MAX_U64)
        self._items_per_request = _checks.integer("`items_per_request`", items_per_request, high=_checks.MAX_I32)
        self._options: dict[str, Any] = {
            "token": token,
            "ca": ca,
            "certificate": certificate,
            "key": key,
            "server_name": server_name,
            "reconnect_timeout": reconnect_timeout,
        }
        self._clients = [Client(address, **self._options) for address in checked]
        # Clients of shards that do not exist any more, for the writers that use them; each with its shard's index.
        self._retired: list[tuple[int, Client]] = []
        self._when_closed: Callable[[], object] | None = None
        self._connect()

    def _connect(self) -> None:
        stores = [client._native for client in self._clients]  # noqa: SLF001, same package
        self._sharded = ShardedNative(stores, self.addresses, self._seed, self._items_per_request)
        self._native = cast("_engram.Store", self._sharded)  # has the methods that a `TableStore` calls
        finalize(self, self._sharded.wait_for_pending_replies)

    @property
    def addresses(self) -> list[str]:
        """Address of each shard."""
        return [client.address for client in self._clients]

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Sets the addresses of shards that have moved, or of another number of shards after resharding.

        Writers and calls continue as after `Client.set_address`. Writers to a shard that does not exist any more
        continue with shard `i % N`, where `i` is the index of the old one and `N` the new number. Create new
        datasets and scans after resharding: a dataset that exists already keeps its number of connections, the `i`-th
        of them to shard `i % N`, and a scan ends with an error when its server ends.

        Args:
            addresses: `host:port` of each server. Shard `i` is at `addresses[i]`.

        Raises:
            InvalidArgumentError: As in the constructor.
        """
        checked = _checked_addresses(addresses)
        count, old_count = len(checked), len(self._clients)
        # Before calls that wait reach the new servers.
        successor = self._sharded.begin_replacing() if count != old_count else None
        for client, address in zip(self._clients, checked, strict=False):
            client.set_address(address)
        self._retired += list(enumerate(self._clients))[count:]
        for shard, client in self._retired:
            client.set_address(checked[shard % count])
        if successor is None:
            self._sharded.set_addresses(checked)
            return
        self._clients = self._clients[:count] + [Client(address, **self._options) for address in checked[old_count:]]
        self._connect()
        successor.set_result(self._sharded)

    def peek(
        self,
        table: str,
        n: int | None = None,
        *,
        order: PeekOrder = "newest",
        keys: Iterable[int] | None = None,
        max_bytes: int | None = None,
    ) -> Peek:
        """As in `TableStore`. The age of an item is that in its shard."""
        n, wanted, max_bytes = checked_peek(table, n, order, keys, max_bytes)
        peeks = self._sharded.each(lambda store: peek(store, table, n, order, wanted, max_bytes))
        return merge_peeks(list(peeks.values()), n, order)

    def histogram(self, table: str, of: HistogramOf = "priority", *, bins: int = 32) -> Histogram:
        """As in `TableStore`. If several shards have items, bins need not be whole numbers; counts are approximate."""
        exact = self._sharded.each(lambda store: histogram(store, table, of, bins))
        filled = [shard for shard, part in exact.items() if part.table_size]
        if len(filled) <= 1:
            return exact[filled[0]] if filled else next(iter(exact.values()))
        finest = self._sharded.each(lambda store: histogram(store, table, of, MAX_BINS))
        return merge_histograms(list(finest.values()), bins)

    def close(self) -> None:
        """As in `Client`, for all shards."""
        if self._when_closed is not None:
            self._when_closed()
        super().close()
        for _, client in self._retired:
            client.close()

    def call_when_closed(self, function: Callable[[], object]) -> None:
        """Internal: sets what `close` calls first."""
        self._when_closed = function

    def _native_for_writer(self) -> _engram.Store:
        return self._sharded.store_for_writer()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_native", "_sharded", "_when_closed")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._when_closed = None
        self._connect()

    def __repr__(self) -> str:
        return f"ShardedClient([{', '.join(self.addresses)}])"


def _checked_addresses(addresses: Iterable[str]) -> list[str]:
    checked = _checks.elements("`addresses`", addresses, "a sequence of `host:port`")
    if not 1 <= len(checked) <= MAX_SHARD_ID:
        raise InvalidArgumentError(
            f"`addresses` must have from 1 to {MAX_SHARD_ID} addresses, one for each shard; got {len(checked)}"
        )
    for shard, address in enumerate(checked):
        first = checked.index(address)
        if first != shard:
            raise InvalidArgumentError(
                f"`addresses` must differ; shards {first} and {shard} are both {_checks.short_repr(address)}: "
                "remove one of them"
            )
    return checked
