"""A dataset of the steps of items."""

from engram.compat.reverb._elements import timesteps
from engram.compat.reverb._lazy import LazyDataset
from engram.compat.reverb._server_dataset import ServerDataset

__all__ = ["TimestepDataset"]


class TimestepDataset(ServerDataset, metaclass=LazyDataset):
    """A `tf.data.Dataset` of a table's steps: each element is a `ReplaySample` with one step of an item, `[...]`.

    The steps of one item follow each other, with the item's info, and nothing marks where the next item begins. Items
    that it has fetched and of which TensorFlow has taken no step go back when an iteration ends: to their old places,
    where items are used up. Taken is what has left this dataset: what a `batch` or a `prefetch` after it has asked
    for, too. However many workers it is given, elements come in the order in which they were drawn.
    """

    _convert = staticmethod(timesteps)
