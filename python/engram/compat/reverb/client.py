"""The client: access to the tables of a server."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

import engram
from engram.compat.reverb import _arguments, _nest, _signatures, _table_note
from engram.compat.reverb._errors import is_stopping, text_without_arguments, translated
from engram.compat.reverb._sending import MAX_IN_FLIGHT_ITEMS, ServerProbe
from engram.compat.reverb._table_info import signature_of, to_reverb_info
from engram.compat.reverb.errors import DeadlineExceededError
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.reverb_types import TableInfo
from engram.compat.reverb.structured_writer import Config, StructuredWriter
from engram.compat.reverb.trajectory_writer import TrajectoryWriter
from engram.compat.reverb.writer import Writer

__all__ = ["Client", "Writer"]

_RECONNECT_TIMEOUT = 3_600.0
"""Seconds that calls wait for an unreachable server."""

_PROBE_TIMEOUT = 1.0
"""Seconds that `checkpoint` waits for an unreachable server."""

_PREFETCHED_SAMPLES = 2
"""Number of samples to fetch ahead. Unused ones are returned to the table."""

_RESTART_PAUSE = 0.05
"""Seconds to wait after a server has reported that it is stopping."""

_MAX_KEY = 2**64 - 1


class Client:
    """Inserts into, samples from and changes the tables of one server.

        client = reverb.Client("localhost:8000")
        client.insert({"observation": np.zeros(4, np.float32)}, priorities={"replay": 1.0})
        for steps in client.sample("replay", num_samples=2):
            learn(steps[0].data, steps[0].info.priority)

    The client connects on first use. It can be pickled, shared by threads and used in forked processes. If the server
    is unreachable, calls wait up to an hour for it; Ctrl-C ends the wait.
    """

    def __init__(self, server_address: str) -> None:
        """Creates a client.

        Args:
            server_address: `host:port` of the server. gRPC forms, for example `dns:///host:port`, are accepted.

        Raises:
            TypeError: The address is not text.
            ValueError: The address is not `host:port` with a port up to 65535.
        """
        self._server_address = _arguments.text("server_address", server_address)
        self._store = engram.Client(_arguments.host_and_port(server_address), reconnect_timeout=_RECONNECT_TIMEOUT)
        self._signatures: dict[str, Any] | None = None
        self._server_probe = ServerProbe(self._store.address)

    @property
    def server_address(self) -> str:
        """The address that was passed to the constructor."""
        return self._server_address

    def __reduce__(self) -> tuple[type["Client"], tuple[str]]:
        return type(self), (self._server_address,)

    def __repr__(self) -> str:
        return f"Client, server_address={self._server_address}"

    def insert(self, data: engram.Nest, priorities: Mapping[str, float]) -> None:
        """Inserts one step as an item into each table. Returns once all tables have it, however long they block.

        Args:
            data: A nest of arrays, numbers and text. Mappings, tuples and lists are nests, not arrays. A leaf `[...]`
                becomes a column `[1, ...]`. A Python int becomes int64, a float float64. The tables share the data.
            priorities: The item's priority, stored as float64, for each table to insert into.

        Raises:
            TypeError: A leaf is not an array, number or text; the keys of a mapping cannot be sorted; `priorities` is
                not a mapping, a table name is not text, or a priority is not a number.
            ValueError: There are no priorities or no leaves; a table is unknown; a priority is NaN, or negative or
                infinite for a table with a prioritized selector; or the data does not fit a table's signature, which
                may describe a step `[...]` or an item `[1, ...]`. No item is inserted into any table.
            RuntimeError: The server could not be reached for an hour.
        """
        if priorities is None or (isinstance(priorities, Mapping | list | tuple) and not priorities):
            raise ValueError("priorities must contain at least one item")
        if not isinstance(priorities, Mapping):
            raise TypeError(f"`priorities` must map tables to priorities; got {_arguments.describe(priorities)}")
        columns = [_nest.as_array(leaf) for leaf in _nest.flatten(data)]
        checked = {}
        for table, priority in priorities.items():
            checked[table] = _arguments.number(f"priorities[{table!r}]", priority)
            _signatures.check_step(
                table, self._signature_for_insert(_arguments.text("each key of `priorities`", table)), columns
            )
        with translated():
            self._store.insert(tuple(column[None] for column in columns), checked, time_axis=True)

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,  # noqa: FBT001, FBT002, as in Reverb
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> Writer:
        """Creates a writer whose items consist of the last few steps. The writer connects on first use.

        Args:
            max_sequence_length: Maximum number of steps of an item, at least 1.
            delta_encoded: If True, integers are compressed as differences from step to step. Default: False.
            chunk_length: Number of steps per chunk, from 1 to `max_sequence_length`. Default: the smaller of 10 and
                `max_sequence_length`.
            max_in_flight_items: Number of sent items that may wait for their tables before the writer blocks, at least
                1. None means 1,000,000. Default: 25.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A number is below 1, or `chunk_length` is above `max_sequence_length`.
        """
        _arguments.boolean("delta_encoded", delta_encoded)
        length = _arguments.positive("max_sequence_length", max_sequence_length)
        chunk = min(10, length) if chunk_length is None else _arguments.integer("chunk_length", chunk_length)
        if not 1 <= chunk <= length:
            raise ValueError(
                f"chunk_length ({chunk_length}) must be a positive integer le to max_sequence_length ({length})"
            )
        if max_in_flight_items is None:
            in_flight = MAX_IN_FLIGHT_ITEMS
        else:
            in_flight = _arguments.positive("max_in_flight_items", max_in_flight_items)
        return Writer(self, length, delta_encoded, chunk, in_flight)

    def trajectory_writer(
        self, num_keep_alive_refs: int, *, validate_items: bool = True, get_signature_timeout_ms: int | None = None
    ) -> TrajectoryWriter:
        """Creates a writer whose items consist of any slices of its steps. The writer connects on first use.

        Args:
            num_keep_alive_refs: Number of newest steps that items may refer to, at least 1.
            validate_items: If True, items are checked against their tables' signatures on creation. Default: True.
            get_signature_timeout_ms: An argument of older Reverb releases. 0 milliseconds means `validate_items=False`;
                other values are ignored.

        Raises:
            TypeError: `num_keep_alive_refs` is not an integer.
            ValueError: `num_keep_alive_refs` is below 1.
        """
        refs = _arguments.positive("num_keep_alive_refs", num_keep_alive_refs)
        return TrajectoryWriter(self, refs, validate_items and get_signature_timeout_ms != 0)

    def structured_writer(self, configs: Sequence[Config]) -> StructuredWriter:
        """Creates a writer that creates items itself, as `configs` describe. The writer connects on first use.

        Items are not checked against their tables' signatures.

        Args:
            configs: At least one config of `structured.create_config`. The writer copies them.

        Raises:
            ValueError: There are no configs, or one is invalid. The message states its position, from 0, and why.
        """
        listed = list(configs)
        if not listed:
            raise ValueError("At least one config must be provided.")
        return StructuredWriter(self, listed)

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        validation_timeout_ms: int | None = None,  # noqa: ARG002, an argument of older Reverb releases
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> "Iterator[list[ReplaySample]] | Iterator[ReplaySample]":
        """Samples items with replacement, one at a time, waiting for each as long as the rate limiter requires.

        Nothing happens, and nothing is checked, before the first item is requested. Items that were fetched ahead when
        the iterator is closed are returned to the table and do not count as sampled.

        Args:
            table: Name of the table.
            num_samples: Number of items, at least 1; with -1, the iterator is empty. Default: 1.
            validation_timeout_ms: An argument of older Reverb releases, in milliseconds; ignored.
            emit_timesteps: If True, yield each item as a list of its steps; if False, as one sample of whole columns.
                Default: True.
            unpack_as_table_signature: If True, `data` has the structure of the table's signature, if it has one. If
                False, `data` is a flat list. Default: False.

        Yields:
            With `emit_timesteps`, a list of T `ReplaySample`, one per step, each with the item's info and with data
            `[...]`. Otherwise a `ReplaySample` with columns `[T, ...]`, or `[...]` if written without a time axis. Data
            are newly created NumPy arrays, scalars included, in the order of the flattened step; text is an object
            array of bytes. Info fields are Python numbers.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: `num_samples` is 0 or below -1; an item cannot be split into steps because its columns differ in
                length or one has no time axis; or, with `unpack_as_table_signature`, the table does not exist, or an
                item and the signature differ in their number of columns.
            RuntimeError: The table does not exist, or the server could not be reached for an hour.
            MemoryError: There is not enough memory for an item.
        """
        _arguments.text("table", table)
        count = _arguments.integer("num_samples", num_samples)
        if count < -1 or count == 0:
            raise ValueError(f"num_samples ({num_samples}) must be -1 or >= 1")
        signature = self._signature_for_nesting(table) if unpack_as_table_signature else None
        if count == -1:
            return
        with closing(self._batches(table, count)) as batches:
            for batch in batches:
                info = _sample_info(batch)
                columns = [_nest.text_as_bytes(column[0, ...]) for column in _nest.flatten(batch.data)]
                if signature is not None:
                    _check_num_columns(table, signature, columns)
                if emit_timesteps:
                    steps = _split(columns, _nest.flatten(batch.squeezed))
                    yield [ReplaySample(info, _nested(signature, step)) for step in steps]
                else:
                    yield ReplaySample(info, _nested(signature, columns))

    def _batches(self, table: str, count: int) -> Generator[engram.Batch]:
        """Yields `count` batches of one item each. If the server stops, continues with the server that replaces it."""
        while True:
            with closing(self._stream(table, count)) as batches:
                while True:
                    try:
                        with translated():
                            batch = next(batches, None)
                    except engram.errors.ClosedError as error:
                        if not is_stopping(error):
                            raise
                        break
                    if batch is None:
                        return
                    count -= 1
                    yield batch
            time.sleep(_RESTART_PAUSE)

    def _stream(self, table: str, count: int) -> Generator[engram.Batch]:
        """Does what `_batches` describes, but raises an error if the server stops."""
        if count == 1:
            yield self._store.sample(table, 1)
        else:
            yield from engram.Dataset(
                self._store, table, 1, prefetch=min(_PREFETCHED_SAMPLES, count), max_batches=count
            )

    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None = None, deletes: Iterable[int] | None = None
    ) -> None:
        """Updates priorities and deletes items. Keys that are not in the table are ignored.

        A key in both arguments is deleted.

        Args:
            table: Name of the table.
            updates: New priorities by key, for example `{sample.info.key: abs(td_error)}`. Default: none.
            deletes: Keys of items to delete. Default: none.

        Raises:
            TypeError: A key is not an integer from 0 to 2**64 - 1, a priority is not a number, or an argument has the
                wrong type.
            ValueError: A priority is NaN, or it is negative or infinite and the table's selector is prioritized.
                Nothing is changed.
            RuntimeError: The table does not exist, or the server could not be reached for an hour.
        """
        _arguments.text("table", table)
        if updates is not None and not isinstance(updates, Mapping):
            raise TypeError(f"`updates` must map keys to priorities; got {_arguments.describe(updates)}")
        if deletes is not None and (isinstance(deletes, str | bytes) or not isinstance(deletes, Iterable)):
            raise TypeError(f"`deletes` must be a list of keys; got {_arguments.describe(deletes)}")
        deleted = [_key("deletes", key) for key in ([] if deletes is None else deletes)]
        updated = {
            _key("updates", key): _arguments.number(f"updates[{key!r}]", priority)
            for key, priority in (updates or {}).items()
        }
        with translated():
            # Updates first: if the server rejects them, nothing must have been deleted. An update of no items checks
            # that the table exists.
            if updated or not deleted:
                keys = np.array(list(updated), np.uint64)
                self._store.update_priorities(table, keys, np.array(list(updated.values()), np.float64))
            if deleted:
                self._store.delete(table, np.array(deleted, np.uint64))

    def reset(self, table: str) -> None:
        """Removes all items of `table` and sets its counters to 0. Waiting calls continue to wait.

        Raises:
            TypeError: `table` is not text.
            RuntimeError: The table does not exist, or the server could not be reached for an hour.
        """
        with translated():
            self._store.reset(_arguments.text("table", table))

    def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """Returns options and current counts of all tables.

        Args:
            timeout: Whole seconds to wait for the server. None, 0 or less means up to an hour. Default: up to an hour.

        Returns:
            A `TableInfo` per table name.

        Raises:
            TypeError: `timeout` is not an integer.
            DeadlineExceededError: The server did not answer in time.
            RuntimeError: The server could not be reached for an hour.
        """
        seconds = 0 if timeout is None else _arguments.integer("timeout", timeout)
        return {name: to_reverb_info(info) for name, info in self._table_infos(seconds).items()}

    def checkpoint(self) -> str:
        """Makes the server write a checkpoint, and returns once a restarted server would load it.

        Returns:
            Path of the checkpoint on the server's disk; only its name if the server is not a server of this package.

        Raises:
            RuntimeError: The server cannot be reached within a second, or the checkpoint cannot be written.
            ValueError: The server is not a server of this package and has no directory.
        """
        with translated():
            with engram.Client(
                _arguments.host_and_port(self._server_address), reconnect_timeout=_PROBE_TIMEOUT
            ) as probe:
                info = probe.info()
            written = self._store.checkpoint()
        notes = (_table_note.decode(each.note) for each in info.values())
        directory = next((note.directory for note in notes if note.directory is not None), None)
        name = f"checkpoint-{written.number:010}"
        return name if directory is None else f"{directory}/{name}"

    def _table_infos(self, timeout: float = 0) -> dict[str, engram.TableInfo]:
        """Returns the engine's table infos, and caches the signatures if none are cached.

        Waits `timeout` seconds for the server; 0 or less means an hour.
        """
        with translated():
            if timeout > 0:
                self._probe(timeout)
            infos = self._store.info()
        if self._signatures is None:
            self._signatures = {name: signature_of(info) for name, info in infos.items()}
        return infos

    def _probe(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for the server's reply."""
        try:
            with engram.Client(_arguments.host_and_port(self._server_address), reconnect_timeout=timeout) as probe:
                probe.info()
        except engram.errors.UnavailableError as error:
            raise DeadlineExceededError(
                f"ServerInfo call did not complete within provided timeout of {timeout}s: "
                f"{text_without_arguments(error)}"
            ) from error

    def _signature(self, table: str) -> engram.Nest:
        """Returns a table's signature, a nest of this package's specs or None. Signatures are cached."""
        if self._signatures is None or table not in self._signatures:
            infos = self._table_infos()
            self._signatures = {name: signature_of(info) for name, info in infos.items()}
        return self._signatures[table]

    def _signature_for_insert(self, table: str) -> engram.Nest:
        """Returns the signature of a table to insert into. Raises a ValueError if the table does not exist."""
        try:
            return self._signature(table)
        except KeyError:
            raise ValueError(
                f"Unable to find signatures for table '{table}'. Available tables: {sorted(self._signatures or ())}."
            ) from None

    def _signature_for_nesting(self, table: str) -> engram.Nest:
        """Returns the signature that structures sampled data. Raises a ValueError if the table does not exist."""
        try:
            return self._signature(table)
        except KeyError:
            tables = ", ".join(sorted(self._signatures or ()))
            raise ValueError(f'Could not find table "{table}". The following tables exist: {tables}.') from None


def _sample_info(batch: engram.Batch) -> SampleInfo:
    info = batch.info
    fields = (info.key, info.probability, info.table_size, info.priority, info.times_sampled)
    return SampleInfo(*(field.item() for field in fields))


def _split(columns: list[Any], squeezed: Sequence[bool]) -> list[list[Any]]:
    """Splits an item into steps, each a list of arrays; scalars are arrays, too."""
    lengths = [None if is_squeezed else len(column) for column, is_squeezed in zip(columns, squeezed, strict=True)]
    if None in lengths or len(set(lengths)) > 1:
        listed = ", ".join("no time axis" if length is None else str(length) for length in lengths)
        raise ValueError(
            f"Can't split non timestep trajectory: its columns have these lengths: {listed}; use emit_timesteps=False"
        )
    return [[column[index, ...] for column in columns] for index in range(lengths[0] or 0)]


def _check_num_columns(table: str, signature: engram.Nest, columns: list[Any]) -> None:
    """Raises a ValueError if an item and the table's signature differ in their number of columns."""
    expected = len(_nest.flatten(signature))
    if len(columns) != expected:
        given = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
        raise ValueError(
            f"an item of table '{table}' has {given}, but the table's signature has {expected}; sample with "
            "unpack_as_table_signature=False, or write items that fit the signature"
        )


def _nested(signature: engram.Nest, columns: list[Any]) -> engram.Nest:
    return columns if signature is None else _nest.unflatten_as(signature, columns)


def _key(where: str, value: object) -> int:
    key = _arguments.integer(f"each key of `{where}`", value)
    if not 0 <= key <= _MAX_KEY:
        raise TypeError(f"each key of `{where}` must be from 0 to 2**64 - 1; got {value}")
    return key
