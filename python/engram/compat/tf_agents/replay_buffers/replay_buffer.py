"""The base class of replay buffers."""

from collections.abc import Callable
from dataclasses import dataclass

from engram._extras import importing_extra
from engram.nests import Nest

with importing_extra("tensorflow", "engram.compat.tf_agents"):
    import tensorflow as tf

    from engram.compat.tf_agents.replay_buffers._python_calls import Tensor, TfDataset, without_autograph

__all__ = ["ReplayBuffer"]


@dataclass(frozen=True)
class _Settings:
    """What the constructor received. As attributes of a `tf.Module`, nests would be replaced by other containers."""

    data_spec: Nest
    capacity: int
    stateful_dataset: bool


class ReplayBuffer(tf.Module):
    """The methods that TF-Agents' replay buffers have in common. Subclasses implement those with an underscore.

    Raises:
        NotImplementedError: By a method that the subclass does not implement.
    """

    def __init__(self, data_spec: Nest, capacity: int, stateful_dataset: bool = False) -> None:  # noqa: FBT001, FBT002, TF-Agents' signature
        """Creates a replay buffer.

        Args:
            data_spec: Nest of `tf.TensorSpec` that describes one item, without a batch axis.
            capacity: Maximum number of items.
            stateful_dataset: Without effect: TensorFlow 2.15 and newer have no mark for stateful datasets.
        """
        super().__init__()
        self._settings = _Settings(data_spec, capacity, stateful_dataset)

    @property
    def data_spec(self) -> Nest:
        """Nest of `tf.TensorSpec` that describes one item."""
        return self._settings.data_spec

    @property
    def capacity(self) -> Tensor:
        """Maximum number of items, an int64 tensor `[]`."""
        return tf.constant(self._settings.capacity, tf.int64)

    @property
    def stateful_dataset(self) -> bool:
        """The argument of the constructor."""
        return self._settings.stateful_dataset

    @without_autograph
    def num_frames(self) -> Tensor:
        """Number of items in the buffer, an int64 tensor `[]`."""
        return self._num_frames()

    @without_autograph
    def add_batch(self, items: Nest) -> Tensor | None:
        """Adds one item to each segment. After an error, the buffer is unchanged.

        Args:
            items: Nest with the structure of `data_spec`: tensors `[batch_size, ...]`, or values that convert to them.

        Returns:
            None if called eagerly, otherwise the operation.

        Raises:
            ValueError: The structure differs, or the dtype of a leaf cannot be converted.
            tf.errors.InvalidArgumentError: The shape of a leaf differs.
        """
        return self._add_batch(items)

    @without_autograph
    def get_next(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        time_stacked: bool = True,  # noqa: FBT001, FBT002, TF-Agents' signature
    ) -> tuple[Nest, Nest]:
        """Draws sequences of consecutive items with replacement. All sequences of all segments are equally likely.

        A sequence contains items of one segment, but may contain items of several episodes.

        Args:
            sample_batch_size: Number of sequences, `N`. Default: one, without the axis `N`.
            num_steps: Number of items of a sequence, `T`. Default: one, without the axis `T`.
            time_stacked: If False, and `num_steps` is given, items are not stacked: the data is a tuple of `T` nests of
                tensors `[N, ...]`, and the ids are a tuple of `T` tensors `[N]`.

        Returns:
            The data, and its `BufferInfo`:

            - a nest of tensors `[N, T, ...]` with the structure of `data_spec`;
            - `ids`: int64 `[N, T]`;
            - `probabilities`: float32 `[N]`: 1 divided by the number of sequences that could have been drawn.

        Raises:
            ValueError: `sample_batch_size` is negative, or `num_steps` is below 1.
            tf.errors.InvalidArgumentError: No segment has `num_steps` items.
        """
        return self._get_next(sample_batch_size, num_steps, time_stacked)

    @without_autograph
    def as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        num_parallel_calls: int | Tensor | None = None,
        sequence_preprocess_fn: Callable[..., Nest] | None = None,
        single_deterministic_pass: bool = False,  # noqa: FBT001, FBT002, TF-Agents' signature
    ) -> TfDataset:
        """Creates a dataset of the buffer's items.

        An element is created when it is requested: tf.data's automatic prefetching is disabled, as it would make what a
        program samples depend on time. Call `prefetch`.

        Args:
            sample_batch_size: Number of draws per element. Default: one, without a batch axis.
            num_steps: Number of consecutive items per draw. Default: one, without a time axis.
            num_parallel_calls: Number of elements that are created in parallel. Default: one.
            sequence_preprocess_fn: A function that converts sequences before they are split, if the buffer supports it.
            single_deterministic_pass: If True, the dataset visits the items once, in order. Otherwise it is infinite,
                and its elements are random.

        Returns:
            A `tf.data.Dataset` of pairs: the data, and information about it.

        Raises:
            ValueError: `data_spec` contains lists, which `tf.data` does not support.
        """
        if _contains_list(self.data_spec):
            raise ValueError(
                "as_dataset: `data_spec` must not contain lists, which datasets treat as tensors; use tuples"
            )
        create = self._single_deterministic_pass_dataset if single_deterministic_pass else self._as_dataset
        dataset = create(sample_batch_size, num_steps, sequence_preprocess_fn, num_parallel_calls)
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)

    @without_autograph
    def gather_all(self) -> Nest:
        """Returns all items.

        Returns:
            A nest of tensors `[batch_size, T, ...]`, in the order in which they were added.
        """
        return self._gather_all()

    @without_autograph
    def clear(self) -> Tensor | None:
        """Removes all items.

        Returns:
            None if called eagerly, otherwise the operation.
        """
        return self._clear()

    def _num_frames(self) -> Tensor:
        raise NotImplementedError

    def _add_batch(self, items: Nest) -> Tensor | None:
        raise NotImplementedError

    def _get_next(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        time_stacked: bool = True,  # noqa: FBT001, FBT002, as `get_next`
    ) -> tuple[Nest, Nest]:
        raise NotImplementedError

    def _as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        sequence_preprocess_fn: Callable[..., Nest] | None = None,
        num_parallel_calls: int | Tensor | None = None,
    ) -> TfDataset:
        raise NotImplementedError

    def _single_deterministic_pass_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        sequence_preprocess_fn: Callable[..., Nest] | None = None,
        num_parallel_calls: int | Tensor | None = None,
    ) -> TfDataset:
        raise NotImplementedError

    def _gather_all(self) -> Nest:
        raise NotImplementedError

    def _clear(self) -> Tensor | None:
        raise NotImplementedError


def _contains_list(nest: Nest) -> bool:
    """True if the nest, or a container in it, is a list."""
    if isinstance(nest, list):
        return True
    if isinstance(nest, dict):
        nest = nest.values()
    elif not isinstance(nest, tuple):
        return False
    return any(map(_contains_list, nest))
