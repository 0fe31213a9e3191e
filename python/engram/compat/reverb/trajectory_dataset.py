"""A dataset of whole trajectories."""

from engram.compat.reverb._elements import trajectories
from engram.compat.reverb._lazy_tensorflow import LazyDataset
from engram.compat.reverb._server_dataset import ServerDataset

__all__ = ["TrajectoryDataset"]


class TrajectoryDataset(ServerDataset, metaclass=LazyDataset):
    """A `tf.data.Dataset` of a table's items: each element is a `ReplaySample` with whole columns, `[T, ...]`.

        dataset = reverb.TrajectoryDataset(
            "localhost:8000",
            table="replay",
            dtypes={"observation": tf.float32},
            shapes={"observation": tf.TensorShape([None, 4])},
            max_in_flight_samples_per_worker=10,
        )
        for sample in dataset:
            learn(sample.data["observation"])  # [T, 4]

    A column that was written without a time axis is `[...]`. The info's fields are scalars, see `SampleInfo`. However
    many workers it is given, elements come in the order in which they were drawn.

    Items that it has fetched and TensorFlow has not taken go back when an iteration ends: to their old places, where
    items are used up. Taken is what has left this dataset: what a `batch` or a `prefetch` after it has asked for, too.

    Errors of an iteration are TensorFlow's: `tf.errors.NotFoundError` where there is no such table, and
    `tf.errors.InvalidArgumentError` where its signature, or an item, has other columns than were asked for, or the
    address is not `host:port`. An iteration waits for a server that is not there.
    """

    _convert = staticmethod(trajectories)
