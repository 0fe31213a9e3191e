"""The base of the datasets of a server's table, which differ only in their elements."""

from collections.abc import Callable, Sequence
from typing import Self

from engram.compat.reverb import _dataset_common
from engram.compat.reverb._elements import Elements
from engram.compat.reverb._lazy_tensorflow import DatasetMixin, Tensor, import_tensorflow, without_autograph
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.data.column_block import ColumnBlock
from engram.nests import Nest

__all__ = ["ServerDataset"]


class ServerDataset(DatasetMixin):
    """A dataset of one table of a server. Subclasses define `_convert`."""

    _convert: Callable[[str, Sequence[TensorSpec], ColumnBlock], Elements]
    """Converts items to elements, given the table's name and the specs of the data."""

    _info_shape: tuple[int | None, ...] = ()
    """Shape of each info field of an element, see `ElementSource`."""

    def __init__(  # noqa: PLR0917, as in Reverb
        self,
        server_address: str | Tensor,
        table: str | Tensor,
        dtypes: Nest,
        shapes: Nest,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        """Creates the dataset. Nothing is fetched before iteration begins.

        Args:
            server_address: `host:port`, text or a string tensor.
            table: Name of the table, text or a string tensor.
            dtypes: A nest of `tf.DType`: the dtypes in the table. Values are not converted.
            shapes: The same nest of `tf.TensorShape`, or None for any rank. Plain lists are nests, not shapes.
            max_in_flight_samples_per_worker: Maximum number of items per worker that are fetched and not used, at least
                1. Up to 8, all workers together, they are fetched at once, when those before are used.
            num_workers_per_iterator: Number of workers, at least 1. -1 means 1. Default: -1.
            max_samples_per_stream: Number of items after which a new stream to the server is opened, at least 1. -1
                means never. Default: -1.
            rate_limiter_timeout_ms: Milliseconds to wait for the rate limiter, at least 0; then iteration ends. -1
                means no limit. Default: -1.
            max_samples: Number of items after which iteration ends, at least 1. -1 means no limit. Default: -1.

        Raises:
            TypeError: A number is not an integer, the address or the table is not text, or a leaf of `dtypes` or
                `shapes` is not a dtype or a shape.
            ValueError: The nests differ, or a number is out of range. The message names the argument.
            ImportError: TensorFlow is not installed.
        """
        fetch_options = _dataset_common.make_fetch_options(
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )
        source = _dataset_common.ElementSource(
            fetch_options=fetch_options, convert=self._convert, info_shape=self._info_shape
        )
        tf = import_tensorflow(f"reverb.{type(self).__name__}")
        tf.nest.assert_same_structure(dtypes, shapes, False)  # noqa: FBT003, lists and tuples are alike
        spec = tf.nest.map_structure(lambda dtype, shape: tf.TensorSpec(shape, dtype), dtypes, shapes)
        args = [tf.convert_to_tensor(each, tf.string) for each in (server_address, table)]
        _dataset_common.init_table_dataset(
            self, source, lambda address, _: _dataset_common.server_store(address), args, spec
        )

    @classmethod
    @without_autograph
    def from_table_signature(  # noqa: PLR0917, as in Reverb
        cls,
        server_address: str,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: int | None = None,
        max_samples: int = -1,
    ) -> Self:
        """Creates a dataset with the dtypes and shapes of the table's signature.

        The other arguments and errors are those of the constructor.

        Args:
            server_address: `host:port`.
            table: Name of the table.
            get_signature_timeout_secs: Whole seconds to wait for the server. None, 0 or less means up to an hour.

        Raises:
            ValueError: The address is not `host:port`, the table does not exist or has no signature, or a number is out
                of range.
            DeadlineExceededError: The server did not answer in time.
            RuntimeError: The server could not be reached for an hour.
        """
        return cls(
            server_address,
            table,
            *_dataset_common.dtypes_and_shapes(server_address, table, get_signature_timeout_secs),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )
