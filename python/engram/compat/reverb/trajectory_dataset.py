"""A dataset of whole trajectories."""

from engram.compat.reverb._elements import trajectories
from engram.compat.reverb._lazy import LazyDataset
from engram.compat.reverb._server_dataset import ServerDataset

__all__ = ["TrajectoryDataset"]


class TrajectoryDataset(ServerDataset, metaclass=LazyDataset):
    """A `tf.data.Dataset` of a table's items: each element is a `ReplaySample` with whole columns, `[T, ...]`.

    Items that it has fetched and TensorFlow has not taken go back when an iteration ends: to their old places, where
    items are used up. Taken is what has left this dataset: what a `batch` or a `prefetch` after it has asked for, too.
    However many workers it is given, elements come in the order in which they were drawn.
    """

    _convert = staticmethod(trajectories)
