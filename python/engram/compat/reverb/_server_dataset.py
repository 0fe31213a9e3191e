"""What `TimestepDataset` and `TrajectoryDataset` share: all but what their elements are."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from engram.compat.reverb import _dataset_common
from engram.compat.reverb._elements import Elements
from engram.compat.reverb._lazy_tensorflow import DatasetMixin, without_autograph
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.data.column_block import ColumnBlock

__all__ = ["ServerDataset"]


class ServerDataset(DatasetMixin):
    """The body of a dataset of one table of a server."""

    _convert: Callable[[str, Sequence[TensorSpec], ColumnBlock], Elements]
    """Makes elements of items: of a table, as its specs say."""

    def __init__(  # noqa: PLR0917, as Reverb has it
        self,
        server_address: Any,  # noqa: ANN401, text or a tensor
        table: Any,  # noqa: ANN401, text or a tensor
        dtypes: Any,  # noqa: ANN401, a nest
        shapes: Any,  # noqa: ANN401, a nest
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        """Describes the elements; nothing is fetched before iteration begins.

        Args:
            server_address: `host:port`, text or a string tensor.
            table: Its name, text or a string tensor.
            dtypes: A nest of the data's `tf.DType`, as they lie in the table: nothing is converted.
            shapes: The same nest, of `tf.TensorShape`: plain lists are nests. None: of any rank.
            max_in_flight_samples_per_worker: Items that may be fetched ahead of their use, for each worker, at least 1.
            num_workers_per_iterator: At least 1, or -1: one.
            max_samples_per_stream: Items after which a new stream to the server is opened, at least 1; -1: never.
            rate_limiter_timeout_ms: Milliseconds of waiting for the rate limiter, from 0, after which it ends; -1:
                never.
            max_samples: Ends after so many items, at least 1; -1: never.

        Raises:
            TypeError: A number is no integer, the address or the table no text, or a dtype or a shape is none.
            ValueError: The nests differ, or a number is not allowed; the text says which.
            ImportError: TensorFlow is not installed.
        """
        fetch_options = _dataset_common.make_fetch_options(
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )
        source = _dataset_common.ElementSource(fetch_options=fetch_options, convert=self._convert)
        _dataset_common.init_server_dataset(
            self, source, server_address=server_address, table=table, dtypes=dtypes, shapes=shapes
        )

    @classmethod
    @without_autograph
    def from_table_signature(  # noqa: PLR0917, as Reverb has it
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
        """A dataset whose dtypes and shapes are those of the table's signature.

        Args:
            server_address: `host:port`.
            table: Its name.
            max_in_flight_samples_per_worker: This and the others as for the class.
            num_workers_per_iterator: As for the class.
            max_samples_per_stream: As for the class.
            rate_limiter_timeout_ms: Milliseconds, as for the class.
            get_signature_timeout_secs: Whole seconds to wait for the server; None or 0: up to an hour.
            max_samples: As for the class.

        Raises:
            TypeError: As of the class.
            ValueError: The address is not `host:port`, the table is not there or has no signature, or a number is not
                allowed.
            DeadlineExceededError: The server did not answer in time.
            RuntimeError: There has been no server for an hour.
            ImportError: TensorFlow is not installed.
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
