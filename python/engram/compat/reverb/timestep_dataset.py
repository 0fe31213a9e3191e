"""A dataset of the steps of items."""

from engram.compat.reverb._elements import timesteps
from engram.compat.reverb._lazy_tensorflow import LazyDataset
from engram.compat.reverb._server_dataset import ServerDataset

__all__ = ["TimestepDataset"]


class TimestepDataset(ServerDataset, metaclass=LazyDataset):
    """A `tf.data.Dataset` of a table's steps: each element is a `ReplaySample` with one step of an item, `[...]`.

        dataset = reverb.TimestepDataset(
            "localhost:8000",
            table="replay",
            dtypes={"observation": tf.float32},
            shapes={"observation": tf.TensorShape([4])},
            max_in_flight_samples_per_worker=10,
        )
        for sample in dataset.batch(2):
            learn(sample.data["observation"])  # [2, 4]

    The steps of one item follow each other, with the item's info, whose fields are scalars, see `SampleInfo`; nothing
    marks where the next item begins. However many workers it is given, elements come in the order in which they were
    drawn.

    Items that it has fetched and of which TensorFlow has taken no step go back when an iteration ends: to their old
    places, where items are used up. Taken is what has left this dataset: what a `batch` or a `prefetch` after it has
    asked for, too.

    Errors of an iteration are TensorFlow's: `tf.errors.NotFoundError` where there is no such table, and
    `tf.errors.InvalidArgumentError` where its signature, or an item, has other columns than were asked for, an item's
    columns differ in length, or the address is not `host:port`. An iteration waits for a server that is not there.
    """

    _convert = staticmethod(timesteps)
