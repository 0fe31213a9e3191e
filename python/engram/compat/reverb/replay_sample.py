"""What sampling returns: an item's data, and what is known about the item."""

from typing import Any, NamedTuple

__all__ = ["ReplaySample", "SampleInfo"]


class SampleInfo(NamedTuple):
    """What is known about a sampled item.

    Attributes:
        key: uint64, to update the item's priority with.
        probability: float64, with which it was drawn.
        table_size: int64, items in the table when it was drawn.
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
        """The fields' TensorFlow dtypes."""
        import tensorflow as tf  # noqa: PLC0415, not every user has it

        return cls(tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)

    @classmethod
    def tf_shapes(cls) -> "SampleInfo":
        """The fields' TensorFlow shapes: all are scalars."""
        import tensorflow as tf  # noqa: PLC0415, not every user has it

        scalar = tf.TensorShape([])
        return cls(scalar, scalar, scalar, scalar, scalar)

    @classmethod
    def zeros(cls) -> "SampleInfo":
        """All fields zero."""
        return cls(key=0, probability=0.0, table_size=0, priority=0.0, times_sampled=0)


class ReplaySample(NamedTuple):
    """An item, or one step of it.

    Attributes:
        info: What is known about the item.
        data: Its columns.
    """

    info: SampleInfo
    data: Any
