"""The client: how code that learns, acts or looks reaches a server's tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import engram
from engram.compat.reverb import _interim, _nest, _note
from engram.compat.reverb._described import described
from engram.compat.reverb._errors import translated
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.reverb_types import TableInfo

__all__ = ["Client"]

_RECONNECT_SECONDS = 3_600.0


class Client:
    """Reaches the tables of one server."""

    def __init__(self, server_address: str) -> None:
        """Makes a client; it connects when it is first used."""
        self._server_address = server_address
        self._store = engram.Client(server_address, reconnect_timeout=_RECONNECT_SECONDS)
        self._signatures: dict[str, Any] | None = None

    def __reduce__(self) -> Any:
        return (Client, (self._server_address,))

    def __repr__(self) -> str:
        return f"Client, server_address={self._server_address}"

    @property
    def server_address(self) -> str:
        """`host:port` of the server."""
        return self._server_address

    def _infos(self) -> dict[str, Any]:
        port = int(self._server_address.rpartition(":")[2])
        with translated():
            found = self._store.info()
        return {name: _interim.complete(port, info) for name, info in found.items()}

    def _signature(self, table: str, timeout: float | None = None) -> Any:
        """The table's signature, a nest of this package's `TensorSpec` or None; KeyError for an unknown table."""
        if self._signatures is None:
            self._signatures = {name: _note.decode(info.note).signature for name, info in self._infos().items()}
        return self._signatures[table]

    def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """What the server's tables are and hold now."""
        return {name: described(info) for name, info in self._infos().items()}

    def insert(self, data: Any, priorities: Mapping[str, float]) -> None:
        """Inserts one step."""
        columns = tuple(_nest.as_array(leaf)[None] for leaf in _nest.flatten(data))
        with translated():
            self._store.insert(columns, priorities, time_axis=True)

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        validation_timeout_ms: int | None = None,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> Iterator[Any]:
        """Yields samples."""
        with translated():
            for _ in range(num_samples):
                batch = self._store.sample(table, 1)
                info = SampleInfo(
                    batch.info.key.item(),
                    batch.info.probability.item(),
                    batch.info.table_size.item(),
                    batch.info.priority.item(),
                    batch.info.times_sampled.item(),
                )
                columns = [column[0] for column in batch.data]
                if emit_timesteps:
                    yield [ReplaySample(info, list(step)) for step in zip(*columns, strict=True)]
                else:
                    yield ReplaySample(info, columns)

    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None = None, deletes: list[int] | None = None
    ) -> None:
        """Changes priorities and deletes items."""
        with translated():
            if deletes:
                self._store.delete(table, deletes)
            if updates:
                self._store.update_priorities(table, list(updates), list(updates.values()))

    def reset(self, table: str) -> None:
        """Empties a table."""
        with translated():
            self._store.reset(table)

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> Any:
        from engram.compat.reverb.writer import Writer

        if chunk_length is None:
            chunk_length = min(10, max_sequence_length)
        if max_in_flight_items is None:
            max_in_flight_items = 1_000_000
        return Writer(self, max_sequence_length, delta_encoded, chunk_length, max_in_flight_items)

    def trajectory_writer(self, num_keep_alive_refs: int, *, validate_items: bool = True) -> Any:
        from engram.compat.reverb.trajectory_writer import TrajectoryWriter

        return TrajectoryWriter(self, num_keep_alive_refs, validate_items)

    def structured_writer(self, configs: Any) -> Any:
        from engram.compat.reverb.structured_writer import StructuredWriter

        return StructuredWriter(self, configs)
