"""Calls to the tables of all shards: the counterpart of the native `Store` of a client."""

import logging
import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from engram import _engram
from engram.errors import DeadlineExceededError, EngramError, InvalidArgumentError, UnavailableError, UnknownTableError
from engram.sharded.merging import merge_infos
from engram.sharded.scan import ChainedScan

__all__ = ["ShardedNative"]

SHARD_KEY_BITS = 53
"""Number of random bits of a key; its shard id is above them."""

REPLY_GRACE = 0.75
"""Seconds that replies may take in addition to a timeout, as in native calls."""

_log = logging.getLogger("engram")

T = TypeVar("T")


class ShardedNative:
    """Has the methods of a native `Store` that a `TableStore` calls."""

    def __init__(
        self, stores: list[_engram.Store], addresses: list[str], seed: int | None, items_per_request: int
    ) -> None:
        self._stores = stores
        self._addresses = addresses
        self._seed = seed
        self._tables = _engram.ShardedTables(stores, seed, items_per_request)
        self._lock = threading.Lock()
        self._unchecked = set(range(len(stores)))
        self._configs: dict[int, dict[str, dict[str, Any]]] = {}
        self._ids: dict[int, int] = {}
        self._writers = [0] * len(stores)
        self._insert_shard: int | None = None
        self._random = random.Random(seed)  # noqa: S311, no secret
        self._logged = [True] * len(stores)
        self._successor: Future[ShardedNative] | None = None

    def begin_replacing(self) -> "Future[ShardedNative]":
        """Returns a future that must get the tables of other shards, to which the items of these were moved.

        An update or deletion that waits meanwhile waits for the future too, and is then repeated there.
        """
        self._successor = Future()
        return self._successor

    def set_addresses(self, addresses: list[str]) -> None:
        """Sets the addresses in error texts."""
        self._addresses = addresses

    # ---- Shards

    def _name(self, shard: int) -> str:
        return f"shard {shard} (at {self._addresses[shard]})"

    def _check(self, timeout: float | None = None) -> None:
        """Checks that the shards that were not checked yet match the others; later ones that cannot be reached now.

        `timeout` limits the wait for their replies, in seconds; they have `REPLY_GRACE` in addition.
        """
        if not self._unchecked:
            return
        self._tables.connect()
        reachable = self._tables.reachable()
        asked = [shard for shard in sorted(self._unchecked) if reachable[shard]]
        replies = self._request_infos(asked, None if timeout is None else timeout + REPLY_GRACE)
        error = None
        with self._lock:
            for shard, reply in replies.items():
                if isinstance(reply, EngramError):
                    error = reply
                elif shard in self._unchecked:
                    self._check_shard(shard, {info["name"]: info for info in reply})
                    self._unchecked.discard(shard)
            if len(self._unchecked) < len(self._stores):
                return
        if isinstance(error, DeadlineExceededError):
            names = ", ".join(self._name(shard) for shard in asked)
            raise DeadlineExceededError(f"no reply of {names} in {timeout:g} s (`timeout`)") from error
        names = ", ".join(self._name(shard) for shard in range(len(self._stores)))
        raise UnavailableError(f"no shard can be reached: {names}") from error

    def _request_infos(
        self, shards: list[int], timeout: float | None
    ) -> dict[int, list[dict[str, Any]] | DeadlineExceededError | UnavailableError]:
        """Requests the infos of shards at the same time; returns them, or why there are none."""
        futures = {shard: _call_in_thread(partial(self._stores[shard].info, timeout)) for shard in shards}
        replies: dict[int, list[dict[str, Any]] | DeadlineExceededError | UnavailableError] = {}
        for shard, future in futures.items():
            try:
                replies[shard] = future.result()
            except (DeadlineExceededError, UnavailableError) as error:
                replies[shard] = error
        return replies

    def _check_shard(self, shard: int, tables: dict[str, dict[str, Any]]) -> None:
        number = self._tables.shard_ids()[shard]
        if number and self._ids.get(number, shard) != shard:
            raise InvalidArgumentError(
                f"{self._name(self._ids[number])} and {self._name(shard)} both have the shard id {number}: start "
                "one of them with another `shard_id`"
            )
        for first, other in self._configs.items():
            _check_same_tables(self._name(first), other, self._name(shard), tables)
            break
        if number:
            self._ids[number] = shard
        self._configs[shard] = tables

    def _check_all_tables(self) -> None:
        """Checks that all shards have the same tables."""
        (first, tables), *rest = self.each(lambda store: {info["name"]: info for info in store.info()}).items()
        for shard, others in rest:
            _check_same_tables(self._name(first), tables, self._name(shard), others)

    def _name_lacking_shard(self, table: str, error: UnknownTableError) -> None:
        """Raises an error that names the shard without the table, if another one has it."""
        replies = self._request_infos(self._reachable(), REPLY_GRACE)
        has, lacks = None, None
        for shard, reply in replies.items():
            if isinstance(reply, EngramError):
                continue
            if any(info["name"] == table for info in reply):
                has = self._name(shard)
            else:
                lacks = self._name(shard)
        if has is not None and lacks is not None:
            raise _missing_table(table, has, lacks) from error

    def _log_changes(self) -> None:
        """Logs which shards cannot be reached any more, and which can again."""
        reachable = self._tables.reachable()
        before, self._logged = self._logged, reachable
        if before == reachable:
            return
        for shard, (was_up, is_up) in enumerate(zip(before, reachable, strict=True)):
            if was_up and not is_up and any(reachable):
                _log.warning("%s cannot be reached; calls go on with the others until it can", self._name(shard))
            elif was_up and not is_up:
                _log.warning("%s cannot be reached, nor can any other; calls fail until one can", self._name(shard))
            elif is_up and not was_up:
                _log.warning("%s can be reached again", self._name(shard))

    def _reachable(self) -> list[int]:
        """The shards that were reached when they were last tried; all if there are none."""
        self._check()
        self._log_changes()
        reachable = [shard for shard, is_up in enumerate(self._tables.reachable()) if is_up]
        return reachable or list(range(len(self._stores)))

    def each(self, call: Callable[[_engram.Store], T]) -> dict[int, T]:
        """Calls all shards that can be reached; returns the results by shard."""
        results: dict[int, T] = {}
        error: UnavailableError | None = None
        for shard in self._reachable():
            try:
                results[shard] = call(self._stores[shard])
            except UnavailableError as unreachable:
                error = unreachable
        if error is not None and not results:
            raise error
        return results

    def _all(self, call: Callable[[_engram.Store], T], *, done: type[EngramError] | None = None) -> list[T]:
        """Calls all shards, also those after one that cannot be reached; then raises the first error.

        `done` is the error of a shard where an earlier call has succeeded: no error if the call succeeds on another.
        """
        if done is None:
            self._check()
        else:  # tables may differ
            self._tables.connect()
        results = []
        errors: list[EngramError] = []
        for shard, store in enumerate(self._stores):
            try:
                results.append(call(store))
            except UnavailableError as error:
                others = len(self._stores) - 1
                error.add_note(
                    f"This is the error of {self._name(shard)}; the call was also sent to the other shards ({others}), "
                    "and may have succeeded there."
                )
                errors.append(error)
            except EngramError as error:
                # Without `done`, it is the same on each shard: an invalid argument, for example.
                if done is None and not results and not errors:
                    raise
                errors.append(error)
        if done is not None:
            errors = [error for error in errors if not isinstance(error, done)] or ([] if results else errors)
        if errors:
            raise errors[0]
        return results

    def _least_loaded(self) -> int:
        """The shard that a new writer uses, or the inserts of this client.

        The reachable shard with fewest writers of this client; among these, the one to which others write least, to
        within 1,000 items per second; among these, preferably the one that this client inserts into.
        """
        rates = self.each(lambda store: sum(info["inserts_per_s"] for info in store.info()))
        with self._lock:
            return min(
                rates,
                key=lambda shard: (
                    self._writers[shard],
                    round(rates[shard], -3),
                    shard != self._insert_shard,
                    self._random.random(),
                ),
            )

    def store_for_writer(self) -> _engram.Store:
        """Returns the native store of the shard that a new writer uses."""
        shard = self._least_loaded()
        with self._lock:
            self._writers[shard] += 1
            if self._insert_shard is None:
                self._insert_shard = shard
        return self._stores[shard]

    def _insert(self, call: Callable[[_engram.Store], T]) -> T:
        """Calls the shard that this client inserts into: another one if it cannot be reached."""
        self._check()
        reachable = self._tables.reachable()
        if self._insert_shard is None or not reachable[self._insert_shard]:
            self._insert_shard = self._least_loaded()
        try:
            result = call(self._stores[self._insert_shard])
        except UnavailableError:
            # It was not known that the shard is gone, and nothing was sent: the native call moves sent items by itself.
            others = [shard for shard, is_up in enumerate(self._tables.reachable()) if is_up]
            if not others:
                raise
            self._insert_shard = self._least_loaded()
            result = call(self._stores[self._insert_shard])
        self._tables.forget_totals()
        return result

    # ---- Items

    def insert(self, data: object, priorities: list[tuple[str, float]], timeout: float | None, time_axis: bool) -> int:  # noqa: FBT001
        """Inserts an item into one shard."""
        return self._insert(lambda store: store.insert(data, priorities, timeout, time_axis))

    def insert_batch(
        self,
        table: str,
        items: object,
        priorities: npt.NDArray[np.float64],
        timeout: float | None,
        time_axis: bool,  # noqa: FBT001
    ) -> npt.NDArray[np.uint64]:
        """Inserts items into one shard."""
        return self._insert(lambda store: store.insert_batch(table, items, priorities, timeout, time_axis))

    def sample(self, table: str, n: int, at_least: int | None, timeout: float | None, pad: bool) -> _engram.Batch:  # noqa: FBT001
        """Samples all shards."""
        if self._unchecked:
            # The native call checks what is not a number of seconds.
            self._check(float(timeout) if isinstance(timeout, Real) and 0 <= timeout < math.inf else None)
        try:
            return self._tables.sample(table, n, at_least, timeout, pad)
        except UnknownTableError as error:
            self._name_lacking_shard(table, error)
            raise
        finally:
            self._log_changes()

    def stream(self, table: str, *args: Any) -> _engram.Stream:  # noqa: ANN401, as in the native class
        """Opens a stream of all shards."""
        return self._tables.stream(self._reachable()[0], table, *args)

    def scan(self, *args: Any) -> ChainedScan:  # noqa: ANN401, as in the native class
        """Begins a scan of all shards."""
        return ChainedScan(list(self.each(lambda store: store.scan(*args)).values()))

    def update_priorities(
        self,
        table: str,
        keys: npt.NDArray[np.uint64],
        priorities: npt.NDArray[np.float64],
        wait: bool,  # noqa: FBT001
    ) -> int | None:
        """Sets priorities on the shards of the keys."""
        if keys.shape != priorities.shape:  # the error is the same on each shard
            return self._stores[self._reachable()[0]].update_priorities(table, keys, priorities, wait)
        parts = self._by_shard(keys)
        # Before any shard changes priorities. Their tables have the same selectors.
        for shard, _ in parts:
            with suppress(UnavailableError):
                self._stores[shard].check_priorities(table, priorities)
                break

        def update(store: _engram.Store, chosen: npt.NDArray[np.bool_]) -> int | None:
            return store.update_priorities(table, keys[chosen], priorities[chosen], wait)

        matched = self._change(parts, update)
        if self._successor is not None and wait:
            return self._successor.result().update_priorities(table, keys, priorities, wait)
        return matched

    def delete(self, table: str, keys: npt.NDArray[np.uint64], wait: bool) -> int | None:  # noqa: FBT001
        """Deletes items on the shards of their keys."""
        matched = self._change(self._by_shard(keys), lambda store, chosen: store.delete(table, keys[chosen], wait))
        self._tables.forget_totals()
        if self._successor is not None and matched is not None:
            return matched + (self._successor.result().delete(table, keys, wait) or 0)
        return matched

    def _by_shard(self, keys: npt.NDArray[np.uint64]) -> list[tuple[int, npt.NDArray[np.bool_]]]:
        """For each shard, which keys its call has: those with its id, and those with the id of no shard."""
        shards = self._reachable()
        ids = self._tables.shard_ids()
        numbers = keys >> np.uint64(SHARD_KEY_BITS)
        unknown = ~np.isin(numbers, [number for number in ids if number])
        parts = [(shard, unknown | (numbers == ids[shard]) if ids[shard] else unknown) for shard in shards]
        # An empty call, too, raises an error for an unknown table.
        return [part for part in parts if part[1].any()] or parts[:1]

    def _change(
        self,
        parts: list[tuple[int, npt.NDArray[np.bool_]]],
        call: Callable[[_engram.Store, npt.NDArray[np.bool_]], int | None],
    ) -> int | None:
        counts: list[int | None] = []
        error: UnavailableError | None = None
        for shard, chosen in parts:
            try:
                counts.append(call(self._stores[shard], chosen))
            except UnavailableError as unreachable:
                error = unreachable
        if error is not None:
            raise error
        return None if None in counts else sum(count or 0 for count in counts)

    # ---- Tables

    def reset(self, table: str) -> None:
        """Resets the table on all shards."""
        self._all(lambda store: store.reset(table))
        self._tables.forget_totals()

    def connect_failure(self) -> str | None:
        """Why the first shard cannot be reached, while calls are still connecting to all of them; otherwise None."""
        failures = [store.connect_failure() for store in self._stores]
        return failures[0] if all(failures) else None

    def info(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Merges the infos of the shards that can be reached."""
        return merge_infos(self.each(lambda store: store.info(timeout)), self._name)

    def tables(self) -> list[str]:
        """Names of the tables."""
        return next(iter(self.each(lambda store: store.tables()).values()))

    def create_table(self, config: object) -> None:
        """Creates a table on all shards: if an earlier call could not reach some, on these."""
        created = self._all(lambda store: store.create_table(config), done=InvalidArgumentError)
        self._tables.forget_totals()
        if len(created) < len(self._stores):
            self._check_all_tables()

    def drop_table(self, name: str) -> None:
        """Drops a table on all shards: if an earlier call could not reach some, on these."""
        self._all(lambda store: store.drop_table(name), done=UnknownTableError)
        self._tables.forget_totals()

    def set_rate_limiter(self, table: str, limiter: object) -> None:
        """Replaces the rate limiter on all shards."""
        self._all(lambda store: store.set_rate_limiter(table, limiter))

    def can_sample(self, table: str, n: int) -> bool:
        """True if a shard allows these samples."""
        return any(self.each(lambda store: store.can_sample(table, n)).values())

    def can_insert(self, table: str, n: int) -> bool:
        """True if the shard that this client inserts into allows these inserts."""
        return self._insert(lambda store: store.can_insert(table, n))

    def checkpoint(self) -> tuple[int, int, int]:
        """Writes a checkpoint on all shards; returns the highest number, and sums of bytes and items."""
        numbers, sizes, items = zip(*self._all(lambda store: store.checkpoint()), strict=True)
        return max(numbers), sum(sizes), sum(items)

    def wait_for_pending_replies(self) -> None:
        """As in the native class."""
        for store in self._stores:
            store.wait_for_pending_replies()

    def close(self) -> None:
        """Closes the clients of all shards; then raises the first error."""
        error: EngramError | None = None
        for store in self._stores:
            try:
                store.close()
            except EngramError as failed:
                error = error or failed
        if error is not None:
            raise error


_COMPARED = ("sampler", "remover", "max_times_sampled", "signature")
"""The options that a table must have in common on all shards. Its limits may differ."""


def _check_same_tables(
    first: str, tables: dict[str, dict[str, Any]], second: str, others: dict[str, dict[str, Any]]
) -> None:
    for name, has, lacks in [(name, first, second) for name in tables.keys() - others.keys()] + [
        (name, second, first) for name in others.keys() - tables.keys()
    ]:
        raise _missing_table(name, has, lacks)
    for name, info in tables.items():
        for option in _COMPARED:
            if info[option] != others[name][option]:
                raise InvalidArgumentError(
                    f"table `{name}`: `{option}` differs: {info[option]!r} on {first}, {others[name][option]!r} on "
                    f"{second}; all shards must have the same tables"
                )


def _call_in_thread(call: Callable[[], T]) -> Future[T]:
    """Calls in a thread that does not keep the process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001, raised by `result`
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="engram-shard").start()
    return future


def _missing_table(table: str, has: str, lacks: str) -> UnknownTableError:
    return UnknownTableError(
        f"{has} has a table `{table}`, {lacks} has not; all shards must have the same tables: create it there"
    )
