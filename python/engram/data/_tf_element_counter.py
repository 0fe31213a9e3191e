"""Counts the elements that a tf.data dataset yields.

In an eager program, TensorFlow's statistics count the elements without calling Python. In a graph that a session runs,
Python cannot read these statistics, so a Python function counts.
"""

import threading
from typing import Any

import tensorflow as tf

from engram.data._exit_guard import ExitGuard
from engram.data._tf_types import Tensor, TfDataset

__all__ = ["TfElementCounter", "count_elements", "is_eager_program"]

_AGGREGATOR_NAME = "engram_element_counter"
"""TensorFlow resource that holds the counts of all iterations, each under its slot as the tag."""

_lock = threading.Lock()
_free_slots: list[int] = []
_last_slot = 0
_python_counts: dict[int, int] = {}
"""The counts of the slots that a Python function counts in."""

_exit_guard = ExitGuard()


def count_elements(dataset: TfDataset, slot: Tensor) -> TfDataset:
    """Returns a dataset of the same tuples that counts each yielded element in `slot`, an i64 tensor `[]`."""
    _exit_guard.register()
    if not is_eager_program():

        def counted(*tensors: Tensor) -> tuple[Any, ...]:
            with tf.control_dependencies([tf.numpy_function(_count_one, [slot], tf.int64)]):
                return tuple(map(tf.identity, tensors))

        return dataset.map(tf.autograph.experimental.do_not_convert(counted))
    spec = dataset.element_spec
    leaves = tf.nest.flatten(spec)
    outputs = {"output_types": [leaf.dtype for leaf in leaves], "output_shapes": [leaf.shape for leaf in leaves]}
    variant = tf.data.experimental.to_variant(dataset)
    # This dataset records the latency of each element; `_count` reads only the number of records.
    variant = tf.raw_ops.LatencyStatsDataset(input_dataset=variant, tag=tf.as_string(slot), **outputs)
    variant = tf.raw_ops.SetStatsAggregatorDataset(
        input_dataset=variant, stats_aggregator=_aggregator(), tag="", counter_prefix="", **outputs
    )
    return tf.data.experimental.from_variant(variant, spec)


class TfElementCounter:
    """Counts the elements that one iteration of a dataset has yielded.

    Attributes:
        slot: Number of the iteration's counter, reused after `close`.
    """

    def __init__(self, *, in_python: bool) -> None:
        """Starts at 0 in a free slot; `in_python` is True for datasets in the graph of a session."""
        global _last_slot  # noqa: PLW0603, one sequence for the process
        with _lock:
            if _free_slots:
                self.slot = _free_slots.pop()
            else:
                self.slot = _last_slot = _last_slot + 1
            if in_python:
                _python_counts[self.slot] = 0
        self._start = _count(self.slot)

    @property
    def elements(self) -> int:
        """Number of elements yielded so far."""
        return _count(self.slot) - self._start

    def close(self) -> None:
        """Frees the slot; the iteration has ended."""
        with _lock:
            _python_counts.pop(self.slot, None)
            _free_slots.append(self.slot)


def is_eager_program() -> bool:
    """True in an eager program, also while a `tf.function` is traced; False in a graph that a session will run."""
    return bool(tf.compat.v1.executing_eagerly_outside_functions())


def _count_one(slot: Any) -> Any:  # noqa: ANN401, NumPy's
    """Adds 1 to the count of a slot; returns the slot."""
    with _exit_guard as may_run:
        # False after `close`, while TensorFlow cancels the iteration.
        if may_run and (number := int(slot)) in _python_counts:
            _python_counts[number] += 1
        return slot


def _aggregator() -> Tensor:
    return tf.raw_ops.StatsAggregatorHandle(container="", shared_name=_AGGREGATOR_NAME)


def _count(slot: int) -> int:
    """Number of elements counted in a slot. Where TensorFlow counts, earlier iterations in the slot are included."""
    if (count := _python_counts.get(slot)) is not None:
        return count
    # Garbage collection may end an iteration at any point, also while a function is being traced.
    with tf.init_scope(), tf.device("CPU:0"):
        text = tf.raw_ops.StatsAggregatorSummary(iterator=_aggregator()).numpy()
    summary = tf.compat.v1.Summary.FromString(text)
    return next((int(value.histo.num) for value in summary.value if value.tag == str(slot)), 0)
