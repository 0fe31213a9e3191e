"""FTW's datasets as TensorFlow's."""

from collections.abc import Sequence
from typing import Any

from engram.compat.ftw.datasets._plan import Plan
from engram.compat.reverb import _nest
from engram.compat.reverb._dataset_face import from_table
from engram.compat.reverb._lazy import LazyDataset, tensorflow
from engram.store import AnyStore

__all__ = ["tensorflow_dataset"]


class _Elements(metaclass=LazyDataset):
    """Single elements of one of several stores."""

    _element_spec: Any

    def __init__(self, plan: Plan, stores: Sequence[AnyStore], index: Any) -> None:  # noqa: ANN401, a tensor
        tf = tensorflow("a dataset")
        spec = _nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, tf.string if leaf.dtype == object else leaf.dtype), plan.nest
        )
        args = [tf.as_string(index), tf.constant(plan.table)]
        from_table(self, plan.source, lambda at, _: stores[int(at)], args, spec, owned=False)

    @property
    def element_spec(self) -> Any:  # noqa: ANN401, a nest
        return self._element_spec

    def _inputs(self) -> list[Any]:
        return []


def tensorflow_dataset(plan: Plan, stores: Sequence[AnyStore]) -> Any:  # noqa: ANN401, a tf.data.Dataset
    """A `tf.data.Dataset` of batches."""
    tf = tensorflow("a dataset of the framework `tensorflow`")
    if len(stores) == 1:
        made: Any = _Elements(plan, stores, 0)
    else:
        # One sampler for each, whatever the number of threads: two would lose the order.
        threads = min(plan.num_parallel_calls, len(stores)) if plan.deterministic else len(stores)
        made = tf.data.Dataset.range(len(stores)).interleave(
            lambda index: _Elements(plan, stores, index),
            cycle_length=len(stores),
            num_parallel_calls=threads if threads > 1 else None,
            deterministic=plan.deterministic if threads > 1 else None,
        )
    if plan.batch_size is not None:
        if plan.may_differ:
            made = made.ragged_batch(plan.batch_size, drop_remainder=True)
        else:
            made = made.batch(plan.batch_size, drop_remainder=True)
    return made.prefetch(plan.prefetch_size) if plan.prefetch_size else made
