"""A dataset of whole trajectories."""

from engram.compat.reverb._elements import trajectories
from engram.compat.reverb._lazy_tensorflow import LazyDataset
from engram.compat.reverb._server_dataset import ServerDataset

__all__ = ["TrajectoryDataset"]


class TrajectoryDataset(ServerDataset, metaclass=LazyDataset):
    """A `tf.data.Dataset` of a table's items: each element is a `ReplaySample` of whole columns, `[T, ...]`.

        dataset = reverb.TrajectoryDataset(
            "localhost:8000",
            table="replay",
            dtypes={"observation": tf.float32},
            shapes={"observation": tf.TensorShape([None, 4])},
            max_in_flight_samples_per_worker=10,
        )
        for sample in dataset:
            learn(sample.data["observation"])  # [T, 4]

    A column that was written without a time axis is `[...]`. Info fields are scalars, see `SampleInfo`. Elements are in
    the order in which the items were sampled, for any number of workers.

    When an iteration ends, fetched items that have not left this dataset are returned to the table, in a queue to their
    old positions. Items that a later `batch` or `prefetch` has requested have left this dataset.

    Iteration raises TensorFlow's errors: `tf.errors.UnknownError` if the table does not exist, and
    `tf.errors.InvalidArgumentError` if the columns of its signature or of an item are not the requested ones, or if the
    address is not `host:port`. It waits while the server is unreachable.
    """

    _convert = staticmethod(trajectories)
