"""Counts the elements that a tf.data dataset yields.

In an eager program, TensorFlow's statistics count the elements without calling Python. In a graph that a session runs,
Python cannot read these statistics, so a Python function counts.
"""

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engram.data._exit_guard import ExitGuard

__all__ = ["TfElementCounter", "count_elements", "is_eager_program", "reserve_slot", "with_element_counter"]

_AGGREGATOR_NAME = "engram_element_counter"
"""TensorFlow resource that holds the counts of all iterations, each under its slot as the tag."""

_lock = threading.Lock()
_free_slots: list[int] = []
_last_slot = 0
_python_counts: dict[int, int] = {}
"""The counts of the slots that a Python function counts in."""

_exit_guard = ExitGuard()
_NO_SLOT = np.int64(0)
"""Slot of iterations that begin while the process exits; nothing reads its count."""


def with_element_counter(make: Callable[[list[Any]], Any], args: Sequence[Any]) -> Any:  # noqa: ANN401, a tf.data.Dataset
    """Returns the dataset that `make` builds from tensors, with its elements counted.

    TensorFlow's own prefetching is disabled, so that no element is counted before it is requested.

    Args:
        make: Receives the tensors of `args` and, last, the slot of a `TfElementCounter`, i64 `[]`.
        args: Tensors, or values that become tensors.
    """
    tf = _tensorflow()
    _exit_guard.register()
    in_python = not is_eager_program()

    def iteration(*tensors: Any) -> Any:  # noqa: ANN401, tensors
        slot = tf.numpy_function(_reserve_python_slot if in_python else _reserve_slot, [], tf.int64)
        slot.set_shape([])
        return count_elements(make([*tensors, slot]), slot)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    unconverted = tf.autograph.experimental.do_not_convert(iteration)
    return tf.data.Dataset.from_tensors(tuple(args)).flat_map(unconverted).with_options(options)


def count_elements(dataset: Any, slot: Any) -> Any:  # noqa: ANN401, TensorFlow's
    """Returns a dataset of the same tuples that counts each yielded element in `slot`, an i64 tensor `[]`."""
    tf = _tensorflow()
    _exit_guard.register()
    if not is_eager_program():

        def counted(*tensors: Any) -> tuple[Any, ...]:  # noqa: ANN401, tensors
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
        input_dataset=variant, stats_aggregator=_aggregator(tf), tag="", counter_prefix="", **outputs
    )
    return tf.data.experimental.from_variant(variant, spec)


class TfElementCounter:
    """Counts the elements that one iteration of a dataset has yielded.

    Attributes:
        slot: Number of the iteration's counter, reused after `close`.
    """

    def __init__(self, slot: int) -> None:
        """Starts at 0, in a slot that `with_element_counter` or `reserve_slot` reserved."""
        self.slot = int(slot)
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
    return bool(_tensorflow().compat.v1.executing_eagerly_outside_functions())


def reserve_slot(*, in_python: bool) -> int:
    """Returns a free slot for a `TfElementCounter`; `in_python` is True for datasets in the graph of a session."""
    return int(_reserve_python_slot() if in_python else _reserve_slot())


def _reserve_slot() -> Any:  # noqa: ANN401, NumPy's
    """Returns a free slot in which TensorFlow counts, an i64; `_NO_SLOT` while the process exits."""
    global _last_slot  # noqa: PLW0603, one sequence for the process
    with _exit_guard as may_run, _lock:
        if not may_run:
            return _NO_SLOT
        if _free_slots:
            return np.int64(_free_slots.pop())
        _last_slot += 1
        return np.int64(_last_slot)


def _reserve_python_slot() -> Any:  # noqa: ANN401, NumPy's
    """Like `_reserve_slot`, for a slot in which `_count_one` counts."""
    with _exit_guard:
        slot = _reserve_slot()
        _python_counts[int(slot)] = 0
        return slot


def _count_one(slot: Any) -> Any:  # noqa: ANN401, NumPy's
    """Adds 1 to the count of a slot; returns the slot."""
    with _exit_guard as may_run:
        # False after `close`, while TensorFlow cancels the iteration.
        if may_run and (number := int(slot)) in _python_counts:
            _python_counts[number] += 1
        return slot


def _tensorflow() -> Any:  # noqa: ANN401, a module
    return importlib.import_module("tensorflow")


def _aggregator(tf: Any) -> Any:  # noqa: ANN401, a tensor
    return tf.raw_ops.StatsAggregatorHandle(container="", shared_name=_AGGREGATOR_NAME)


def _count(slot: int) -> int:
    """Number of elements counted in a slot. Where TensorFlow counts, earlier iterations in the slot are included."""
    if (count := _python_counts.get(slot)) is not None:
        return count
    tf = _tensorflow()
    # Garbage collection may end an iteration at any point, also while a function is being traced.
    with tf.init_scope(), tf.device("CPU:0"):
        text = tf.raw_ops.StatsAggregatorSummary(iterator=_aggregator(tf)).numpy()
    summary = tf.compat.v1.Summary.FromString(text)
    return next((int(value.histo.num) for value in summary.value if value.tag == str(slot)), 0)
