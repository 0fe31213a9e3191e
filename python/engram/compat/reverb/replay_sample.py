"""The results of sampling: an item's data and the info about the item."""

from typing import Any, NamedTuple

from engram.compat.reverb._lazy_tensorflow import import_tensorflow

__all__ = ["ReplaySample", "SampleInfo"]


class SampleInfo(NamedTuple):
    """Info about a sampled item.

    `Client.sample` returns Python numbers; datasets and `TFClient` return scalar tensors of the dtypes below. In a
    batched dataset the fields are `[B]`, in a `ReplayDataset` of sequences `[T]`.

    Attributes:
        key: uint64, the key for `Client.mutate_priorities`.
        probability: float64, from 0 to 1: the probability of the draw. For a prioritized sampler, the P(i) of equation
            1 of Schaul et al., "Prioritized Experience Replay" (2015). 1 for a deterministic sampler.
        table_size: int64, number of items in the table at the time of the draw: the N of an importance weight
            `(N * P(i)) ** -beta`.
        priority: float64, priority at the time of the draw.
        times_sampled: int32, number of times the item was sampled, including this one.
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
        tf = import_tensorflow("SampleInfo.tf_dtypes")
        return cls(tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)

    @classmethod
    def tf_shapes(cls) -> "SampleInfo":
        """The fields' TensorFlow shapes, a `SampleInfo` of scalar `tf.TensorShape`.

        Raises:
            ImportError: TensorFlow is not installed.
        """
        scalar = import_tensorflow("SampleInfo.tf_shapes").TensorShape([])
        return cls(scalar, scalar, scalar, scalar, scalar)

    @classmethod
    def zeros(cls) -> "SampleInfo":
        """A `SampleInfo` with the Python numbers 0 and 0.0 as fields."""
        return cls(key=0, probability=0.0, table_size=0, priority=0.0, times_sampled=0)


class ReplaySample(NamedTuple):
    """An item, or one step of an item.

    Attributes:
        info: Info about the item.
        data: Columns of the item, `[T, ...]`, or of one step, `[...]`. A flat list or a nest, depending on the call
            that returned it.
    """

    info: SampleInfo
    data: Any
