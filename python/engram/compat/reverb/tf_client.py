"""The client with TensorFlow operations: eager, and in a `tf.function`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _table_note
from engram.compat.reverb._block_reader import BlockReader, FetchOptions
from engram.compat.reverb._elements import check_signature, timesteps
from engram.compat.reverb._lazy_tensorflow import Tensor, import_tensorflow
from engram.compat.reverb._tf_errors import call_from_tensorflow
from engram.compat.reverb.client import Client
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.data.column_block import ColumnBlock
from engram.nests import Nest

__all__ = ["TFClient"]


class TFClient:
    """Inserts and samples tensors at one server, and raises TensorFlow's errors.

        client = reverb.TFClient("localhost:8000")
        sample = client.sample("replay", data_dtypes=[tf.float32])
        client.update_priorities("replay", keys=[sample.info.key], priorities=[0.5])

    In a `tf.function`, calls run in the process that traced the function. If the server is unreachable, calls wait up
    to an hour for it. Errors have the type of `tf.errors` for their gRPC code; in a graph, TensorFlow raises a
    `tf.errors.UnknownError` instead, unless the type is `InvalidArgumentError`, `NotFoundError` or `InternalError`.
    """

    def __init__(self, server_address: str, shared_name: str | None = None, name: str = "reverb") -> None:
        """Creates a client. It connects on first use.

        Args:
            server_address: `host:port` of the server.
            shared_name: Ignored: clients share nothing.
            name: Prefix of the names of this client's operations. Default: `"reverb"`.

        Raises:
            TypeError: The address is not text.
            ValueError: The address is not `host:port`.
            ImportError: TensorFlow is not installed.
        """
        import_tensorflow("reverb.TFClient")
        self._client = Client(server_address)
        self._name = name
        self._shared_name = shared_name

    @property
    def server_address(self) -> str:
        """The address that was passed to the constructor."""
        return self._client.server_address

    def __repr__(self) -> str:
        return f"TFClient, server_address={self.server_address}"

    def sample(self, table: str, data_dtypes: Nest, name: str | None = None) -> ReplaySample:
        """Samples one item, waiting as long as the rate limiter requires, and returns its first step.

        Args:
            table: Name of the table, text or a string scalar.
            data_dtypes: A nest of `tf.DType`, one per column.
            name: Name of the operation. Default: the client's name and `_sample`.

        Returns:
            A `ReplaySample`: scalar info fields, see `SampleInfo`, and a nest of tensors `[...]`, whose shapes are
            unknown in a `tf.function`.

        Raises:
            TypeError: `table` is not text, or a leaf of `data_dtypes` is not a dtype.
            tf.errors.InvalidArgumentError: The item has another number of columns than `data_dtypes`, its columns
                differ in length, or the first step does not fit the table's signature.
            tf.errors.InternalError: The item has other dtypes than `data_dtypes`.
            tf.errors.NotFoundError: The table does not exist.
        """
        tf = import_tensorflow("reverb.TFClient")
        dtypes = [tf.as_dtype(dtype) for dtype in tf.nest.flatten(data_dtypes)]
        specs = [TensorSpec(None, dtype) for dtype in dtypes]
        with tf.name_scope(name or f"{self._name}_sample"):
            tensors = call_from_tensorflow(
                lambda table_name: self._first_step(np.asarray(table_name).item().decode(), specs),
                [tf.convert_to_tensor(table, tf.string)],
                [*SampleInfo.tf_dtypes(), *dtypes],
            )
        fields = len(SampleInfo._fields)
        for field in tensors[:fields]:
            field.set_shape([])
        return ReplaySample(SampleInfo(*tensors[:fields]), tf.nest.pack_sequence_as(data_dtypes, tensors[fields:]))

    def _first_step(self, table: str, specs: Sequence[TensorSpec]) -> list[npt.NDArray[Any]]:
        store = self._client._store  # noqa: SLF001, same package
        info = store.info().get(table)
        signature = None if info is None else _table_note.decode(info.note).signature

        def convert(block: ColumnBlock) -> list[npt.NDArray[Any]]:
            first_values = [tensor.values[0] for tensor in timesteps(table, specs, block)]
            if signature is not None:
                step = map(np.asarray, first_values[len(SampleInfo._fields) :])
                check_signature(table, [TensorSpec(leaf.shape, leaf.dtype) for leaf in step], signature)
            return first_values

        blocks = BlockReader(store, table, FetchOptions(max_in_flight=1, max_items=1), convert).blocks()
        return next(block for block in blocks if block is not None)

    def insert(self, data: Sequence[Any], tables: Tensor, priorities: Tensor, name: str | None = None) -> Tensor | None:
        """Inserts one step as an item into each table, and waits until the tables have it.

        Args:
            data: The columns of the step: tensors `[...]`, or values that convert to tensors, of any dtype. At least
                one.
            tables: A string tensor `[N]` of table names. A table named twice receives two items.
            priorities: A float64 tensor `[N]`: the item's priority in each table.
            name: Name of the operation. Default: the client's name and `_insert`.

        Returns:
            The operation if called in a graph, otherwise None.

        Raises:
            ValueError: `tables` or `priorities` is not a tensor, or has another dtype or shape; or a column of `data`
                cannot be converted to a tensor.
            tf.errors.InvalidArgumentError: `data` is empty, a table does not exist, the step does not fit its
                signature, or a priority is NaN, or it is negative or infinite and the table's selector is prioritized.
                No item is inserted; only if a table is named twice, some may be.
        """
        tf = import_tensorflow("reverb.TFClient")
        for argument, tensor, dtype, dtype_text in (
            ("tables", tables, tf.string, "string"),
            ("priorities", priorities, tf.float64, "float64"),
        ):
            if not tf.is_tensor(tensor) or tensor.dtype != dtype or tensor.shape.rank != 1:
                raise ValueError(f"{argument} must be a {dtype_text} tensor of rank 1; got {_tensor_text(tensor)}")
        if not tables.shape.is_compatible_with(priorities.shape):
            raise ValueError(
                f"priorities and tables must have the same shape; got {priorities.shape} and {tables.shape}"
            )
        columns = [tf.convert_to_tensor(column) for column in data]
        with tf.name_scope(name or f"{self._name}_insert"):
            return _operation(call_from_tensorflow(self._insert, [tables, priorities, *columns], [tf.int64]))

    def _insert(self, tables: Nest, priorities: Nest, *columns: Nest) -> list[Any]:
        if len(tables) != len(priorities):
            raise ValueError(
                f"priorities and tables must have the same length; got {len(priorities)} and {len(tables)}"
            )
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
        for round_priorities in rounds:  # a single round unless a table is named twice
            self._client.insert(list(columns), round_priorities)
        return [np.int64(len(names))]

    def update_priorities(self, table: str, keys: Tensor, priorities: Tensor, name: str | None = None) -> Tensor | None:
        """Updates the priorities of items. Keys that are not in the table are ignored.

        Args:
            table: Name of the table, text or a string scalar.
            keys: A uint64 tensor `[N]`, or a value that converts to one: values of `SampleInfo.key`.
            priorities: A float64 tensor `[N]`, or a value that converts to one.
            name: Name of the operation. Default: the client's name and `_update_priorities`.

        Returns:
            The operation if called in a graph, otherwise None.

        Raises:
            TypeError: `table` is not text, or the keys or priorities cannot be converted.
            ValueError: The keys or priorities are tensors of another dtype.
            tf.errors.InvalidArgumentError: The keys or priorities are not of rank 1 or differ in length, or a priority
                is NaN, or it is negative or infinite and the table's selector is prioritized. Nothing is changed.
            tf.errors.NotFoundError: The table does not exist.
        """
        tf = import_tensorflow("reverb.TFClient")
        inputs = [
            tf.convert_to_tensor(table, tf.string),
            tf.convert_to_tensor(keys, tf.uint64),
            tf.convert_to_tensor(priorities, tf.float64),
        ]
        with tf.name_scope(name or f"{self._name}_update_priorities"):
            return _operation(call_from_tensorflow(self._update, inputs, [tf.int64]))

    def _update(self, table: Nest, keys: Nest, priorities: Nest) -> list[Any]:
        keys, priorities = np.asarray(keys), np.asarray(priorities)
        if keys.ndim != 1 or priorities.ndim != 1:
            raise ValueError("Tensors `keys` and `priorities` must be of rank 1.")
        if keys.shape != priorities.shape:
            raise ValueError(
                f"Tensors `keys` and `priorities` do not match in shape ([{len(keys)}] vs. [{len(priorities)}])"
            )
        table_name = np.asarray(table).item().decode()
        return [np.int64(self._client._store.update_priorities(table_name, keys, priorities))]  # noqa: SLF001, same package


def _operation(tensors: list[Any]) -> Tensor | None:
    tf = import_tensorflow("reverb.TFClient")
    return None if tf.executing_eagerly() else tf.group(*tensors)


def _tensor_text(value: Any) -> str:  # noqa: ANN401, anything
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{getattr(value.dtype, 'name', value.dtype)} of shape {tuple(value.shape)}"
    return repr(value)
