"""The dataset of Reverb before 0.8: steps, or sequences of equal length."""

from typing import Self

from engram.compat.reverb import _arguments
from engram.compat.reverb._dataset_common import dtypes_and_shapes
from engram.compat.reverb._elements import fixed_length_timesteps, sequences, timesteps
from engram.compat.reverb._lazy_tensorflow import LazyDataset, Tensor, import_tensorflow, without_autograph
from engram.compat.reverb._server_dataset import ServerDataset
from engram.nests import Nest

__all__ = ["ReplayDataset"]


class ReplayDataset(ServerDataset, metaclass=LazyDataset):
    """The `tf.data.Dataset` of Reverb 0.1 to 0.7. Newer code uses `TimestepDataset` or `TrajectoryDataset`.

    Unlike Reverb's, its info has the field `times_sampled`. Iteration raises the same errors as those two datasets, and
    `tf.errors.InvalidArgumentError` for an item whose length is not `sequence_length`.
    """

    def __init__(  # noqa: PLR0917, as in Reverb
        self,
        server_address: str | Tensor,
        table: str | Tensor,
        dtypes: Nest,
        shapes: Nest,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        sequence_length: int | None = None,
        emit_timesteps: bool = True,  # noqa: FBT001, FBT002, as in Reverb
        rate_limiter_timeout_ms: int = -1,
        flexible_batch_size: int = -1,
    ) -> None:
        """Creates the dataset. Nothing is fetched before iteration begins.

        The other arguments and errors are those of `TimestepDataset`.

        Args:
            shapes: A nest of `tf.TensorShape` like `dtypes`: `[...]` for steps; with `emit_timesteps=False`, shapes
                whose first axis is `sequence_length`.
            sequence_length: Number of steps T that every item must have, at least 1. Default: any number.
            emit_timesteps: If True, elements are steps: data `[...]`, info scalars. If False, elements are whole
                sequences: data `[T, ...]`, info `[T]` with the same value for each step. Default: True.
            flexible_batch_size: Accepted, at least 1 or -1, and ignored: items are sent as soon as they are available.

        Raises:
            ValueError: The nests differ, a number is out of range, or a shape does not begin with `sequence_length`.
                The message names the argument.
        """
        if sequence_length is not None and _arguments.integer("sequence_length", sequence_length) < 1:
            raise ValueError(f"sequence_length ({sequence_length}) must be None or a positive integer")
        if _arguments.integer("flexible_batch_size", flexible_batch_size) < 1 and flexible_batch_size != -1:
            raise ValueError(f"flexible_batch_size ({flexible_batch_size}) must be a positive integer or -1")
        if emit_timesteps:
            self._convert = timesteps if sequence_length is None else fixed_length_timesteps(sequence_length)
        else:
            _check_shapes(shapes, sequence_length)
            self._convert = sequences(sequence_length)
            self._info_shape = (sequence_length,)
        ServerDataset.__init__(  # `super()` would look for the class that `LazyDataset` replaces
            self,
            server_address,
            table,
            dtypes,
            shapes,
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
        )

    @classmethod
    @without_autograph
    def from_table_signature(  # type: ignore[override]  # noqa: PLR0917, as in Reverb
        cls,
        server_address: str,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        sequence_length: int | None = None,
        emit_timesteps: bool = True,  # noqa: FBT001, FBT002, as in Reverb
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: int | None = None,
        flexible_batch_size: int = -1,
    ) -> Self:
        """Creates a dataset with the dtypes and shapes of the table's signature, which must describe one step.

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
        leading_axes = () if emit_timesteps else (sequence_length,)
        return cls(
            server_address,
            table,
            *dtypes_and_shapes(server_address, table, get_signature_timeout_secs, leading_axes),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            sequence_length,
            emit_timesteps,
            rate_limiter_timeout_ms,
            flexible_batch_size,
        )


def _check_shapes(shapes: Nest, sequence_length: int | None) -> None:
    """Checks that all shapes begin with `sequence_length`; None means an axis of unknown size."""
    tf = import_tensorflow("reverb.ReplayDataset")
    for leaf in tf.nest.flatten(shapes):
        shape = tf.TensorShape(leaf)
        if shape.rank is None or shape.as_list()[:1] != [sequence_length]:
            raise ValueError(
                f"every shape must begin with sequence_length ({sequence_length}) if emit_timesteps is False; "
                f"got {shape}"
            )
