"""A dataset of the steps of items."""

from engram.compat.reverb._elements import timesteps
from engram.compat.reverb._lazy_tensorflow import LazyDataset
from engram.compat.reverb._server_dataset import ServerDataset

__all__ = ["TimestepDataset"]


class TimestepDataset(ServerDataset, metaclass=LazyDataset):
    """A `tf.data.Dataset` of the steps of a table's items: each element is a `ReplaySample` of one step, `[...]`.

        dataset = reverb.TimestepDataset(
            "localhost:8000",
            table="replay",
            dtypes={"observation": tf.float32},
            shapes={"observation": tf.TensorShape([4])},
            max_in_flight_samples_per_worker=10,
        )
        for sample in dataset.batch(2):
            learn(sample.data["observation"])  # [2, 4]

    The steps of an item are consecutive, each with the item's info, see `SampleInfo`; info fields are scalars. Nothing
    marks the end of an item. Elements are in the order in which the items were sampled, for any number of workers.

    When an iteration ends, fetched items of which no step has left this dataset are returned to the table, in a queue
    to their old positions. Steps that a later `batch` or `prefetch` has requested have left this dataset.

    Iteration raises TensorFlow's errors: `tf.errors.UnknownError` if the table does not exist, and
    `tf.errors.InvalidArgumentError` if the columns of its signature or of an item are not the requested ones, if an
    item's columns differ in length, or if the address is not `host:port`. It waits while the server is unreachable.
    """

    _convert = staticmethod(timesteps)
