"""The dataset of Reverb before 0.8: steps, or sequences of one length."""

from typing import Any, Self

from engram.compat.reverb import _arguments, _dataset_common
from engram.compat.reverb._elements import fixed_length_timesteps, sequences, timesteps
from engram.compat.reverb._lazy_tensorflow import DatasetMixin, LazyDataset, import_tensorflow, without_autograph

__all__ = ["ReplayDataset"]


class ReplayDataset(DatasetMixin, metaclass=LazyDataset):
    """A `tf.data.Dataset` as code for Reverb 0.1 to 0.7 knows it; `TimestepDataset` and `TrajectoryDataset` replace it.

    Its info has the field `times_sampled`, too, which Reverb's had from 0.8 on. Errors of an iteration are as of those
    two; an item of another length than `sequence_length` is a `tf.errors.InvalidArgumentError`.
    """

    def __init__(  # noqa: PLR0917, as Reverb has it
        self,
        server_address: Any,  # noqa: ANN401, text or a tensor
        table: Any,  # noqa: ANN401, text or a tensor
        dtypes: Any,  # noqa: ANN401, a nest
        shapes: Any,  # noqa: ANN401, a nest
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        sequence_length: int | None = None,
        emit_timesteps: bool = True,  # noqa: FBT001, FBT002, as Reverb has it
        rate_limiter_timeout_ms: int = -1,
        flexible_batch_size: int = -1,
    ) -> None:
        """Describes the elements; nothing is fetched before iteration begins.

        Args:
            server_address: `host:port`, text or a string tensor.
            table: Its name, text or a string tensor.
            dtypes: A nest of the data's `tf.DType`, as they lie in the table.
            shapes: The same nest, of `tf.TensorShape`: of one step `[...]`; without `emit_timesteps` of a sequence,
                each beginning with `sequence_length`.
            max_in_flight_samples_per_worker: Items that may be fetched ahead of their use, for each worker, at least 1.
            num_workers_per_iterator: At least 1, or -1: one.
            max_samples_per_stream: Items after which a new stream to the server is opened, at least 1; -1: never.
            sequence_length: T: steps that every item must have, at least 1; None: any number.
            emit_timesteps: Elements are steps: data `[...]`, info of scalars. Otherwise they are whole sequences: data
                `[T, ...]`, info `[T]`, the same for each step.
            rate_limiter_timeout_ms: Milliseconds of waiting for the rate limiter, from 0, after which it ends; -1:
                never.
            flexible_batch_size: At least 1, or -1; not used: a request is answered as soon as there is an item.

        Raises:
            TypeError: A number is no integer, the address or the table no text, or a dtype or a shape is none.
            ValueError: The nests differ, a number is not allowed, or a shape does not begin with `sequence_length`; the
                text says which.
            ImportError: TensorFlow is not installed.
        """
        fetch_options = _dataset_common.make_fetch_options(
            max_in_flight_samples_per_worker, num_workers_per_iterator, max_samples_per_stream, rate_limiter_timeout_ms
        )
        if sequence_length is not None and _arguments.integer("sequence_length", sequence_length) < 1:
            raise ValueError(f"sequence_length ({sequence_length}) must be None or a positive integer")
        if _arguments.integer("flexible_batch_size", flexible_batch_size) < 1 and flexible_batch_size != -1:
            raise ValueError(f"flexible_batch_size ({flexible_batch_size}) must be a positive integer or -1")
        if emit_timesteps:
            convert = timesteps if sequence_length is None else fixed_length_timesteps(sequence_length)
            source = _dataset_common.ElementSource(fetch_options=fetch_options, convert=convert)
        else:
            _check_shapes(shapes, sequence_length)
            convert = sequences(sequence_length)
            source = _dataset_common.ElementSource(
                fetch_options=fetch_options, convert=convert, info_shape=(sequence_length,), unsigned_axes=1
            )
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
        sequence_length: int | None = None,
        emit_timesteps: bool = True,  # noqa: FBT001, FBT002, as Reverb has it
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: int | None = None,
        flexible_batch_size: int = -1,
    ) -> Self:
        """A dataset whose dtypes and shapes are those of the table's signature, which is that of a step.

        Args:
            server_address: `host:port`.
            table: Its name.
            max_in_flight_samples_per_worker: This and the others as for the class.
            num_workers_per_iterator: As for the class.
            max_samples_per_stream: As for the class.
            sequence_length: As for the class.
            emit_timesteps: As for the class.
            rate_limiter_timeout_ms: Milliseconds, as for the class.
            get_signature_timeout_secs: Whole seconds to wait for the server; None or 0: up to an hour.
            flexible_batch_size: As for the class.

        Raises:
            TypeError: As of the class.
            ValueError: The address is not `host:port`, the table is not there or has no signature, or a number is not
                allowed.
            DeadlineExceededError: The server did not answer in time.
            RuntimeError: There has been no server for an hour.
            ImportError: TensorFlow is not installed.
        """
        time = () if emit_timesteps else (sequence_length,)
        return cls(
            server_address,
            table,
            *_dataset_common.dtypes_and_shapes(server_address, table, get_signature_timeout_secs, time),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            sequence_length,
            emit_timesteps,
            rate_limiter_timeout_ms,
            flexible_batch_size,
        )


def _check_shapes(shapes: Any, sequence_length: int | None) -> None:  # noqa: ANN401, a nest
    tf = import_tensorflow("reverb.ReplayDataset")
    for shape in tf.nest.flatten(shapes):
        found = tf.TensorShape(shape)
        if found.rank is None or found.rank == 0 or found[0] != sequence_length:
            raise ValueError(
                f"every shape must begin with sequence_length ({sequence_length}) where emit_timesteps is False; "
                f"got {found}"
            )
