"""What sampling returns: an item's data, and what is known about the item."""

from typing import Any, NamedTuple

__all__ = ["ReplaySample", "SampleInfo"]


class SampleInfo(NamedTuple):
    """What is known about a sampled item.

    `Client.sample` gives Python's numbers, datasets and `TFClient` scalar tensors of the dtypes below. In batches of a
    dataset the fields are `[B]`, in a `ReplayDataset` of sequences `[T]`.

    Attributes:
        key: uint64, to update the item's priority with.
        probability: float64, with which it was drawn, from 0 to 1: the P(i) of equation 1 of Schaul et al.,
            "Prioritized Experience Replay" (2015), for a prioritized sampler. 1 where chance has no part in it.
        table_size: int64, items in the table when it was drawn: the N of an importance weight `(N * P(i)) ** -beta`.
        priority: float64, when it was drawn.
        times_sampled: int32, this time included.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any

    @classmethod
    def tf_dtypes(cls) -> "SampleInfo":
        """The fields' TensorFlow dtypes, a `SampleInfo` of `tf.DType`.

        Raises:
            ImportError: TensorFlow is not installed.
        """
        import tensorflow as tf  # noqa: PLC0415, not every user has it

        return cls(tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)

    @classmethod
    def tf_shapes(cls) -> "SampleInfo":
        """The fields' TensorFlow shapes, a `SampleInfo` of `tf.TensorShape`: all are scalars.

        Raises:
            ImportError: TensorFlow is not installed.
        """
        import tensorflow as tf  # noqa: PLC0415, not every user has it

        scalar = tf.TensorShape([])
        return cls(scalar, scalar, scalar, scalar, scalar)

    @classmethod
    def zeros(cls) -> "SampleInfo":
        """A `SampleInfo` whose fields are Python's 0 and 0.0."""
        return cls(key=0, probability=0.0, table_size=0, priority=0.0, times_sampled=0)


class ReplaySample(NamedTuple):
    """An item, or one step of it.

    Attributes:
        info: What is known about the item.
        data: Its columns: whole ones `[T, ...]`, or `[...]` those of one step. A flat list, or a nest, as whatever
            made it says.
    """

    info: SampleInfo
    data: Any
