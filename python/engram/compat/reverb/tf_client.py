"""The client whose calls are TensorFlow's: eager, and in a `tf.function`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _table_note
from engram.compat.reverb._block_reader import FetchOptions, read_blocks
from engram.compat.reverb._elements import check_signature, timesteps
from engram.compat.reverb._lazy_tensorflow import import_tensorflow
from engram.compat.reverb._tf_errors import call_from_tensorflow
from engram.compat.reverb.client import Client
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.data.column_block import ColumnBlock

__all__ = ["TFClient"]


class TFClient:
    """Reaches the tables of one server with tensors; what goes wrong there is an error of TensorFlow's.

        client = reverb.TFClient("localhost:8000")
        sample = client.sample("replay", data_dtypes=[tf.float32])
        client.update_priorities("replay", keys=[sample.info.key], priorities=[0.5])

    In a `tf.function`, its calls are made in the process that traced it. Where there is no server, calls wait up to an
    hour for one.
    """

    def __init__(self, server_address: str, shared_name: str | None = None, name: str = "reverb") -> None:
        """Makes a client; it connects when it is first used.

        Args:
            server_address: `host:port` of the server.
            shared_name: Is not used: every client is its own.
            name: Begins the names of its operations.

        Raises:
            TypeError: The address is no text.
            ValueError: It is not `host:port`.
            ImportError: TensorFlow is not installed.
        """
        import_tensorflow("reverb.TFClient")
        self._client = Client(server_address)
        self._name = name
        self._shared_name = shared_name

    @property
    def server_address(self) -> str:
        """The address as it was given, text."""
        return self._client.server_address

    def __repr__(self) -> str:
        return f"TFClient, server_address={self.server_address}"

    def sample(self, table: str, data_dtypes: Any, name: str | None = None) -> ReplaySample:  # noqa: ANN401, a nest
        """Draws one item, waiting for it as long as the rate limiter asks; returns its first step.

        Args:
            table: Name of the table, text or a string scalar.
            data_dtypes: A nest of `tf.DType`, one for each column.
            name: Of the operation; None: `sample`, after the client's name.

        Returns:
            A `ReplaySample`: info of scalars, see `SampleInfo`, and the nest with tensors `[...]`. In a `tf.function`
            their shapes are not known.

        Raises:
            TypeError: The table is no text, or a dtype none.
            tf.errors.InvalidArgumentError: The item has other columns, they differ in length, or its first step does
                not fit the table's signature.
            tf.errors.NotFoundError: There is no such table.
        """
        tf = import_tensorflow("reverb.TFClient")
        dtypes = [tf.as_dtype(dtype) for dtype in tf.nest.flatten(data_dtypes)]
        wanted = [TensorSpec(None, dtype) for dtype in dtypes]
        with tf.name_scope(name or f"{self._name}_sample"):
            tensors = call_from_tensorflow(
                lambda named: self._first_step(np.asarray(named).item().decode(), wanted),
                [tf.convert_to_tensor(table, tf.string)],
                [*SampleInfo.tf_dtypes(), *dtypes],
            )
        fields = len(SampleInfo._fields)
        for field in tensors[:fields]:
            field.set_shape([])
        return ReplaySample(SampleInfo(*tensors[:fields]), tf.nest.pack_sequence_as(data_dtypes, tensors[fields:]))

    def _first_step(self, table: str, wanted: Sequence[TensorSpec]) -> list[npt.NDArray[Any]]:
        store = self._client._store  # noqa: SLF001, the client's other half
        info = store.info().get(table)
        signature = None if info is None else _table_note.decode(info.note).signature

        def made(block: ColumnBlock) -> list[npt.NDArray[Any]]:
            rows = [row.values[0] for row in timesteps(table, wanted, block)]
            if signature is not None:
                step = map(np.asarray, rows[len(SampleInfo._fields) :])
                check_signature(table, [TensorSpec(leaf.shape, leaf.dtype) for leaf in step], signature)
            return rows

        found = read_blocks(store, table, FetchOptions(max_in_flight=1, max_items=1), made)
        return next(each for each in found if each is not None)

    def insert(self, data: Sequence[Any], tables: Any, priorities: Any, name: str | None = None) -> Any:  # noqa: ANN401
        """Inserts one step, one item per table; waits until the tables have it.

        Args:
            data: Tensors, or what becomes one, of any dtype, `[...]`: the columns of the step. At least one.
            tables: A string tensor `[N]`, the tables' names. One that is there twice gets two items.
            priorities: A float64 tensor `[N]`, the item's priority in each.
            name: Of the operation; None: `insert`, after the client's name.

        Returns:
            The operation in a graph; else None.

        Raises:
            ValueError: `tables` or `priorities` is no tensor, or has another dtype or shape; or a column of `data`
                cannot become a tensor.
            tf.errors.InvalidArgumentError: `data` is empty, there is no such table, the step does not fit its
                signature, or a priority is NaN, or negative or infinite where it is a weight. No table has the item
                then, unless one is named twice.
        """
        tf = import_tensorflow("reverb.TFClient")
        for what, tensor, dtype, words in (
            ("tables", tables, tf.string, "string"),
            ("priorities", priorities, tf.float64, "float64"),
        ):
            if not tf.is_tensor(tensor) or tensor.dtype != dtype or tensor.shape.rank != 1:
                raise ValueError(f"{what} must be a {words} tensor of rank 1; got {_spec_text(tensor)}")
        if not tables.shape.is_compatible_with(priorities.shape):
            raise ValueError(
                f"priorities and tables must have the same shape; got {priorities.shape} and {tables.shape}"
            )
        columns = [tf.convert_to_tensor(column) for column in data]
        with tf.name_scope(name or f"{self._name}_insert"):
            return _operation(call_from_tensorflow(self._insert, [tables, priorities, *columns], [tf.int64]))

    def _insert(self, tables: Any, priorities: Any, *columns: Any) -> list[Any]:  # noqa: ANN401, arrays
        if len(tables) != len(priorities):
            raise ValueError(f"there are {len(tables)} tables and {len(priorities)} priorities")
        names = [table.decode() for table in tables]
        if not columns:
            raise ValueError("data must have at least one tensor")
        counts = Counter[str]()
        rounds: list[dict[str, float]] = []
        for table, priority in zip(names, priorities, strict=True):
            if counts[table] == len(rounds):
                rounds.append({})
            rounds[counts[table]][table] = float(priority)
            counts[table] += 1
        for each in rounds:  # one, unless a table is named twice
            self._client.insert(list(columns), each)
        return [np.int64(len(names))]

    def update_priorities(self, table: str, keys: Any, priorities: Any, name: str | None = None) -> Any:  # noqa: ANN401
        """Sets the priorities of items; keys that have left the table are passed over.

        Args:
            table: Name of the table, text or a string scalar.
            keys: A uint64 tensor `[N]`, or what becomes one, as of `SampleInfo.key`.
            priorities: A float64 tensor `[N]`, or what becomes one.
            name: Of the operation; None: `update_priorities`, after the client's name.

        Returns:
            The operation in a graph; else None.

        Raises:
            TypeError: The table is no text, or the keys or priorities are no such numbers.
            ValueError: The keys or priorities are tensors of another dtype.
            tf.errors.InvalidArgumentError: Ranks or lengths are others, or a priority is NaN, or negative or infinite
                where it is a weight; none is applied.
            tf.errors.NotFoundError: There is no such table.
        """
        tf = import_tensorflow("reverb.TFClient")
        inputs = [
            tf.convert_to_tensor(table, tf.string),
            tf.convert_to_tensor(keys, tf.uint64),
            tf.convert_to_tensor(priorities, tf.float64),
        ]
        with tf.name_scope(name or f"{self._name}_update_priorities"):
            return _operation(call_from_tensorflow(self._update, inputs, [tf.int64]))

    def _update(self, table: Any, keys: Any, priorities: Any) -> list[Any]:  # noqa: ANN401, arrays
        keys, priorities = np.asarray(keys), np.asarray(priorities)
        if keys.ndim != 1 or priorities.ndim != 1:
            raise ValueError("Tensors `keys` and `priorities` must be of rank 1.")
        if keys.shape != priorities.shape:
            raise ValueError(
                f"Tensors `keys` and `priorities` do not match in shape ([{len(keys)}] vs. [{len(priorities)}])"
            )
        named = np.asarray(table).item().decode()
        return [np.int64(self._client._store.update_priorities(named, keys, priorities))]  # noqa: SLF001, its other half


def _operation(tensors: list[Any]) -> Any:  # noqa: ANN401, TensorFlow's
    tf = import_tensorflow("reverb.TFClient")
    return None if tf.executing_eagerly() else tf.group(*tensors)


def _spec_text(value: Any) -> str:  # noqa: ANN401, anything
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{getattr(value.dtype, 'name', value.dtype)} of shape {tuple(value.shape)}"
    return repr(value)
