"""Counts the elements that leave a tf.data dataset with TensorFlow's own statistics: no Python call per element."""

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["TfElementCounter", "count_elements", "with_element_counter"]

_AGGREGATOR_NAME = "engram_element_counter"
"""TensorFlow resource that holds the counts of all iterations, each under its slot as the tag."""

_lock = threading.Lock()
_free_slots: list[int] = []
_last_slot = 0


def with_element_counter(make: Callable[[list[Any]], Any], args: Sequence[Any]) -> Any:  # noqa: ANN401, a tf.data.Dataset
    """Returns the dataset that `make` builds from tensors, with its elements counted.

    TensorFlow's own prefetching is disabled, so that no element leaves before it is requested.

    Args:
        make: Receives the tensors of `args` and, last, the slot of a `TfElementCounter`, i64 `[]`.
        args: Tensors, or values that become tensors.
    """
    tf = _tensorflow()

    def iteration(*tensors: Any) -> Any:  # noqa: ANN401, tensors
        slot = tf.numpy_function(_reserve_slot, [], tf.int64)
        slot.set_shape([])
        return count_elements(make([*tensors, slot]), slot)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    unconverted = tf.autograph.experimental.do_not_convert(iteration)
    return tf.data.Dataset.from_tensors(tuple(args)).flat_map(unconverted).with_options(options)


def count_elements(dataset: Any, slot: Any) -> Any:  # noqa: ANN401, TensorFlow's
    """Returns the dataset with each element that leaves it counted in `slot`, an i64 tensor `[]`."""
    tf = _tensorflow()
    spec = dataset.element_spec
    leaves = tf.nest.flatten(spec)
    outputs = {"output_types": [leaf.dtype for leaf in leaves], "output_shapes": [leaf.shape for leaf in leaves]}
    variant = tf.data.experimental.to_variant(dataset)
    # It records a latency per element; only the number of records is read.
    variant = tf.raw_ops.LatencyStatsDataset(input_dataset=variant, tag=tf.as_string(slot), **outputs)
    variant = tf.raw_ops.SetStatsAggregatorDataset(
        input_dataset=variant, stats_aggregator=_aggregator(tf), tag="", counter_prefix="", **outputs
    )
    return tf.data.experimental.from_variant(variant, spec)


class TfElementCounter:
    """Counts the elements that have left one iteration of a dataset.

    Attributes:
        slot: Number of the iteration's counter, reused after `close`.
    """

    def __init__(self, slot: int | None = None) -> None:
        """Starts at 0, in `slot` or, if None, in a new one."""
        self.slot = int(_reserve_slot() if slot is None else slot)
        self._start = _count(self.slot)

    @property
    def elements(self) -> int:
        """Number of elements that have left so far."""
        return _count(self.slot) - self._start

    def close(self) -> None:
        """Frees the slot; the iteration has ended."""
        with _lock:
            _free_slots.append(self.slot)


def _tensorflow() -> Any:  # noqa: ANN401, a module
    return importlib.import_module("tensorflow")


def _reserve_slot() -> Any:  # noqa: ANN401, NumPy's
    global _last_slot  # noqa: PLW0603, one sequence for the process
    with _lock:
        if _free_slots:
            return np.int64(_free_slots.pop())
        _last_slot += 1
        return np.int64(_last_slot)


def _aggregator(tf: Any) -> Any:  # noqa: ANN401, a tensor
    return tf.raw_ops.StatsAggregatorHandle(container="", shared_name=_AGGREGATOR_NAME)


def _count(slot: int) -> int:
    tf = _tensorflow()
    # Garbage collection may end an iteration at any point, also while a function is being traced.
    with tf.init_scope(), tf.device("CPU:0"):
        text = tf.raw_ops.StatsAggregatorSummary(iterator=_aggregator(tf)).numpy()
    summary = tf.compat.v1.Summary.FromString(text)
    return next((int(value.histo.num) for value in summary.value if value.tag == str(slot)), 0)
