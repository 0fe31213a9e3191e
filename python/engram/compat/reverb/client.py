"""The client: how code that learns, acts or looks reaches a server's tables."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

import engram
from engram.compat.reverb import _arguments, _nest, _signatures, _table_note
from engram.compat.reverb._errors import is_stopping, translated
from engram.compat.reverb._sending import ServerProbe
from engram.compat.reverb._table_info import signature_of, to_reverb_info
from engram.compat.reverb.errors import DeadlineExceededError
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.reverb_types import TableInfo

if TYPE_CHECKING:
    from engram.compat.reverb.structured_writer import Config, StructuredWriter
    from engram.compat.reverb.trajectory_writer import TrajectoryWriter
    from engram.compat.reverb.writer import Writer

__all__ = ["Client", "Writer"]

_RECONNECT_TIMEOUT = 3_600.0
"""Seconds that calls wait for a server that is gone or not there yet."""

_PROBE_TIMEOUT = 1.0
"""Seconds that `checkpoint` waits for one."""

_AHEAD = 2
"""Samples fetched ahead; those that nobody takes go back."""

_RESTART_PAUSE = 0.05
"""Seconds until a server that is stopping is gone."""

_IN_FLIGHT = 1_000_000
"""Items that may wait for their tables where no bound is given."""

_MAX_KEY = 2**64 - 1


def __getattr__(name: str) -> Any:  # noqa: ANN401, a class
    if name == "Writer":
        from engram.compat.reverb.writer import Writer  # noqa: PLC0415, it needs this module

        return Writer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Client:
    """Reaches the tables of one server.

        client = reverb.Client("localhost:8000")
        client.insert({"observation": np.zeros(4, np.float32)}, priorities={"replay": 1.0})
        for steps in client.sample("replay", num_samples=2):
            learn(steps[0].data, steps[0].info.priority)

    It connects when it is first used, and may be pickled, used by threads and in forked children. Where there is no
    server, calls wait up to an hour for one; Ctrl-C ends them.
    """

    def __init__(self, server_address: str) -> None:
        """Makes a client.

        Args:
            server_address: `host:port` of the server; also gRPC's names of one, such as `dns:///host:port`.

        Raises:
            TypeError: The address is no text.
            ValueError: It is not `host:port`, with a port up to 65535.
        """
        self._server_address = _arguments.text("server_address", server_address)
        self._store = engram.Client(_arguments.host_and_port(server_address), reconnect_timeout=_RECONNECT_TIMEOUT)
        self._cache: dict[str, Any] | None = None
        self._server_probe = ServerProbe(self._store.address)

    @property
    def server_address(self) -> str:
        """The address as it was given, text."""
        return self._server_address

    def __reduce__(self) -> tuple[type["Client"], tuple[str]]:
        return type(self), (self._server_address,)

    def __repr__(self) -> str:
        return f"Client, server_address={self._server_address}"

    def insert(self, data: Any, priorities: Mapping[str, float]) -> None:  # noqa: ANN401, a nest
        """Inserts one step as an item into each table, and waits until all have it, for ever if a rate limiter says so.

        Args:
            data: A nest of arrays, numbers and text: mappings, tuples and lists are nests, not arrays. A leaf `[...]`
                becomes a column `[1, ...]`. Python's int is int64, float is float64. All tables share it.
            priorities: For each table to insert into, the item's priority there, which is kept as a float64.

        Raises:
            TypeError: A leaf is no array, number or text, keys of a mapping cannot be sorted, a name of a table is no
                text, or a priority no number.
            ValueError: There are no priorities or no leaves, a table is unknown, a priority is NaN, or negative or
                infinite where it is a weight, or the data does not fit a table's signature, which may be that of a step
                `[...]` or of an item `[1, ...]`. No table has the item then.
            RuntimeError: There has been no server for an hour.
        """
        if not priorities:
            raise ValueError("priorities must contain at least one item")
        if not isinstance(priorities, Mapping):
            raise TypeError(f"`priorities` must map tables to priorities; got {_arguments.describe(priorities)}")
        columns = [_nest.as_array(leaf) for leaf in _nest.flatten(data)]
        checked = {}
        for table, priority in priorities.items():
            checked[table] = _arguments.number(f"priorities[{table!r}]", priority)
            _signatures.check_step(
                table, self._signature_for_insert(_arguments.text("each key of priorities", table)), columns
            )
        with translated():
            self._store.insert(tuple(column[None] for column in columns), checked, time_axis=True)

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,  # noqa: FBT001, FBT002, as Reverb has it
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> "Writer":
        """A writer of steps whose items are their last few; it does not connect yet.

        Args:
            max_sequence_length: Most steps of an item, at least 1.
            delta_encoded: Compress integers as differences from step to step.
            chunk_length: Steps that are sent together, up to `max_sequence_length`; None: 10 or that, whichever is
                less.
            max_in_flight_items: Items that may wait for their tables before the writer waits too, at least 1; None:
                1,000,000.

        Raises:
            TypeError: An argument has another type.
            ValueError: A number is below 1, or `chunk_length` above `max_sequence_length`.
        """
        length = _positive("max_sequence_length", max_sequence_length)
        chunk = min(10, length) if chunk_length is None else _arguments.integer("chunk_length", chunk_length)
        if not 1 <= chunk <= length:
            raise ValueError(
                f"chunk_length ({chunk_length}) must be a positive integer le to max_sequence_length ({length})"
            )
        in_flight = _IN_FLIGHT if max_in_flight_items is None else _positive("max_in_flight_items", max_in_flight_items)
        from engram.compat.reverb.writer import Writer  # noqa: PLC0415, it needs this module

        return Writer(self, length, bool(delta_encoded), chunk, in_flight)

    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        get_signature_timeout_ms: int | None = None,
    ) -> "TrajectoryWriter":
        """A writer whose items are made of any slices of its steps; it does not connect yet.

        Args:
            num_keep_alive_refs: Newest steps that items may refer to, at least 1.
            validate_items: Check items against their tables' signatures when they are made.
            get_signature_timeout_ms: Milliseconds, as older releases of Reverb had it. 0 is a `validate_items` of
                False; nothing comes of another.

        Raises:
            TypeError: `num_keep_alive_refs` is no integer.
            ValueError: It is below 1.
        """
        refs = _positive("num_keep_alive_refs", num_keep_alive_refs)
        from engram.compat.reverb.trajectory_writer import TrajectoryWriter  # noqa: PLC0415, it needs this module

        return TrajectoryWriter(self, refs, validate_items and get_signature_timeout_ms != 0)

    def structured_writer(self, configs: "Sequence[Config]") -> "StructuredWriter":
        """A writer that only takes steps: `configs` make the items. It does not connect yet.

        Args:
            configs: Made by `structured.create_config`; the writer copies them. Items are not checked against their
                tables' signatures.

        Raises:
            ValueError: There are no configs, or one is not valid: the text says which, and why.
        """
        found = list(configs)
        if not found:
            raise ValueError("At least one config must be provided.")
        from engram.compat.reverb.structured_writer import StructuredWriter  # noqa: PLC0415, it needs this module

        return StructuredWriter(self, found)

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        validation_timeout_ms: int | None = None,  # noqa: ARG002, older code gives one
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> "Iterator[list[ReplaySample]] | Iterator[ReplaySample]":
        """Samples items with replacement, one at a time, waiting for each as long as the rate limiter asks.

        Nothing happens before the first is asked for, no error either. What was fetched ahead when the iterator is left
        goes back: it was not sampled.

        Args:
            table: Name of the table.
            num_samples: How many; -1: none.
            validation_timeout_ms: Milliseconds, of which nothing comes; older releases of Reverb had them.
            emit_timesteps: Yield an item as a list of its steps; False: as one sample of whole columns.
            unpack_as_table_signature: Nest `data` as the table's signature, if it has one; False: a flat list.

        Yields:
            With `emit_timesteps`, lists of T `ReplaySample`, one per step, all with the item's info and with data
            `[...]`; otherwise a `ReplaySample` with columns `[T, ...]`, and `[...]` those that were written without a
            time axis. Data are NumPy arrays of their own, scalars too, in the order in which the step was flattened;
            text is an object array of bytes. The info is Python's numbers.

        Raises:
            TypeError: An argument has another type.
            ValueError: `num_samples` is 0 or below -1; the columns of an item to be split differ in length, or one has
                no time axis; with `unpack_as_table_signature`, there is no such table, or an item has another number of
                columns than its signature.
            RuntimeError: There is no such table, or there has been no server for an hour.
            MemoryError: An item needs more memory than there is.
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
                info = _info(batch)
                columns = [column[0, ...] for column in _nest.flatten(batch.data)]
                if emit_timesteps:
                    steps = _split(columns, _nest.flatten(batch.squeezed))
                    yield [ReplaySample(info, _nested(signature, step)) for step in steps]
                else:
                    yield ReplaySample(info, _nested(signature, columns))

    def _batches(self, table: str, count: int) -> Generator[engram.Batch]:
        """So many items, each a batch; from the next server at the address, should this one stop."""
        while True:
            with closing(self._stream(table, count)) as batches:
                while True:
                    try:
                        with translated():
                            found = next(batches, None)
                    except engram.errors.ClosedError as error:
                        if not is_stopping(error):
                            raise
                        break
                    if found is None:
                        return
                    count -= 1
                    yield found
            time.sleep(_RESTART_PAUSE)

    def _stream(self, table: str, count: int) -> Generator[engram.Batch]:
        if count == 1:
            yield self._store.sample(table, 1)
        else:
            yield from engram.Dataset(self._store, table, 1, prefetch=min(_AHEAD, count), max_batches=count)

    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None = None, deletes: Iterable[int] | None = None
    ) -> None:
        """Sets priorities and deletes items; keys that the table does not have are passed over.

        A key in both is deleted.

        Args:
            table: Name of the table.
            updates: New priorities by key, such as `{sample.info.key: abs(td_error)}`; None: none.
            deletes: Keys; None: none.

        Raises:
            TypeError: A key is no integer from 0 to 2**64 - 1, a priority no number, or an argument of another type.
            ValueError: A priority is NaN, or negative or infinite where it is a weight. Nothing is changed then.
            RuntimeError: There is no such table, or there has been no server for an hour.
        """
        _arguments.text("table", table)
        if not isinstance(updates or {}, Mapping):
            raise TypeError(f"`updates` must map keys to priorities; got {_arguments.describe(updates)}")
        if deletes is not None and (isinstance(deletes, str | bytes) or not isinstance(deletes, Iterable)):
            raise TypeError(f"`deletes` must be a list of keys; got {_arguments.describe(deletes)}")
        gone = [_key("deletes", key) for key in ([] if deletes is None else deletes)]
        kept = {
            _key("updates", key): _arguments.number(f"updates[{key!r}]", priority)
            for key, priority in (updates or {}).items()
        }
        with translated():
            # First what may be refused, so that a refusal leaves all as it was.
            if kept or not gone:
                keys = np.array(list(kept), np.uint64)
                self._store.update_priorities(table, keys, np.array(list(kept.values()), np.float64))
            if gone:
                self._store.delete(table, np.array(gone, np.uint64))

    def reset(self, table: str) -> None:
        """Empties a table and zeroes its counters. Calls that wait go on waiting.

        Args:
            table: Name of the table.

        Raises:
            TypeError: It is no text.
            RuntimeError: There is no such table, or there has been no server for an hour.
        """
        with translated():
            self._store.reset(_arguments.text("table", table))

    def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """What the server's tables are and hold now, by their names.

        Args:
            timeout: Whole seconds to wait for the server; None, 0 or less: as long as any call.

        Returns:
            A `TableInfo` for each name.

        Raises:
            TypeError: `timeout` is no integer.
            DeadlineExceededError: The server did not answer in time.
            RuntimeError: There has been no server for an hour.
        """
        seconds = 0 if timeout is None else _arguments.integer("timeout", timeout)
        return {name: to_reverb_info(info) for name, info in self._infos(seconds).items()}

    def checkpoint(self) -> str:
        """Has the server write a checkpoint; returns once the next server at its directory would begin with it.

        Returns:
            Its path on the server's disk: its name alone, where the server is none of this package's.

        Raises:
            RuntimeError: The server cannot be reached within a second, or the checkpoint not be written.
            ValueError: The server is none of this package's, and has no directory.
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

    def _infos(self, timeout: float = 0) -> dict[str, engram.TableInfo]:
        """What the engine says of the tables; fills the cache of signatures, if it is empty."""
        if timeout > 0:
            try:
                with engram.Client(_arguments.host_and_port(self._server_address), reconnect_timeout=timeout) as probe:
                    probe.info()
            except engram.errors.UnavailableError as error:
                raise DeadlineExceededError(
                    f"ServerInfo call did not complete within provided timeout of {timeout}s: {error}"
                ) from error
        with translated():
            found = self._store.info()
        if self._cache is None:
            self._cache = {name: signature_of(info) for name, info in found.items()}
        return found

    def _signature(self, table: str, timeout: float | None = None) -> Any:  # noqa: ANN401, a nest
        """A table's signature: a nest of this package's specs, or None; as it was when the client first asked.

        Raises:
            KeyError: There is no such table.
            DeadlineExceededError: The server did not answer in time.
        """
        if self._cache is None or table not in self._cache:
            found = self._infos(timeout or 0)
            self._cache = {name: signature_of(info) for name, info in found.items()}
        return self._cache[table]

    def _signature_for_insert(self, table: str) -> Any:  # noqa: ANN401, a nest
        """The signature of a table to insert into."""
        try:
            return self._signature(table)
        except KeyError:
            raise ValueError(
                f"Unable to find signatures for table '{table}'. Available tables: {sorted(self._cache or ())}."
            ) from None

    def _signature_for_nesting(self, table: str) -> Any:  # noqa: ANN401, a nest
        """The signature to nest data as."""
        try:
            return self._signature(table)
        except KeyError:
            tables = ", ".join(sorted(self._cache or ()))
            raise ValueError(f'Could not find table "{table}". The following tables exist: {tables}.') from None


def _info(batch: engram.Batch) -> SampleInfo:
    info = batch.info
    fields = (info.key, info.probability, info.table_size, info.priority, info.times_sampled)
    return SampleInfo(*(field.item() for field in fields))


def _split(columns: list[Any], squeezed: Sequence[bool]) -> list[list[Any]]:
    """The steps of an item, each a list of arrays, scalars too."""
    lengths = [None if flat else len(column) for column, flat in zip(columns, squeezed, strict=True)]
    if None in lengths or len(set(lengths)) > 1:
        told = ", ".join("no time axis" if length is None else str(length) for length in lengths)
        raise ValueError(
            f"Can't split non timestep trajectory: its columns have these lengths: {told}; use emit_timesteps=False"
        )
    return [[column[at, ...] for column in columns] for at in range(lengths[0] or 0)]


def _nested(signature: Any, columns: list[Any]) -> Any:  # noqa: ANN401, nests
    return columns if signature is None else _nest.unflatten_as(signature, columns)


def _positive(name: str, value: object) -> int:
    number = _arguments.integer(name, value)
    if number < 1:
        raise ValueError(f"{name} ({value}) must be a positive integer")
    return number


def _key(where: str, value: object) -> int:
    key = _arguments.integer(f"each key of {where}", value)
    if not 0 <= key <= _MAX_KEY:
        raise TypeError(f"`each key of {where}` must be from 0 to 2**64 - 1; got {value}")
    return key
