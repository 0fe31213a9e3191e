"""How many elements have left a dataset, as TensorFlow itself counts them: calls of a function would cost much more."""

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["TfElementCounter", "count_elements", "with_element_counter"]

_NAME = "engram_taken"
"""Of the resource that counts for all iterations, each under the number that it has while it lasts."""

_lock = threading.Lock()
_free: list[int] = []
_most = 0


def with_element_counter(make: Callable[[list[Any]], Any], args: Sequence[Any]) -> Any:  # noqa: ANN401, a tf.data.Dataset
    """The dataset that `make` makes of tensors: those of `args`, and a number for `TfElementCounter`.

    Nothing leaves it unasked: TensorFlow's own idea of reading ahead is switched off.
    """
    tf = _tensorflow()

    def iteration(*tensors: Any) -> Any:  # noqa: ANN401, tensors
        number = tf.numpy_function(_begin, [], tf.int64)
        number.set_shape([])
        return count_elements(make([*tensors, number]), number)

    only_asked = tf.data.Options()
    only_asked.experimental_optimization.inject_prefetch = False
    as_it_is = tf.autograph.experimental.do_not_convert(iteration)
    return tf.data.Dataset.from_tensors(tuple(args)).flat_map(as_it_is).with_options(only_asked)


def count_elements(dataset: Any, number: Any) -> Any:  # noqa: ANN401, TensorFlow's
    """The same dataset; the elements that leave it count for the `TfElementCounter` of that number, a tensor."""
    tf = _tensorflow()
    spec = dataset.element_spec
    leaves = tf.nest.flatten(spec)
    like = {"output_types": [leaf.dtype for leaf in leaves], "output_shapes": [leaf.shape for leaf in leaves]}
    variant = tf.data.experimental.to_variant(dataset)
    # What it measures of each is of no interest.
    variant = tf.raw_ops.LatencyStatsDataset(input_dataset=variant, tag=tf.as_string(number), **like)
    variant = tf.raw_ops.SetStatsAggregatorDataset(
        input_dataset=variant, stats_aggregator=_counter(tf), tag="", counter_prefix="", **like
    )
    return tf.data.experimental.from_variant(variant, spec)


class TfElementCounter:
    """The elements that have left one iteration of a dataset, which has a number while it lasts."""

    def __init__(self, number: int | None = None) -> None:
        self.number = int(_begin() if number is None else number)
        self._before = _count(self.number)

    @property
    def elements(self) -> int:
        """So many so far."""
        return _count(self.number) - self._before

    def close(self) -> None:
        """No more leave it."""
        with _lock:
            _free.append(self.number)


def _tensorflow() -> Any:  # noqa: ANN401, a module
    return importlib.import_module("tensorflow")


def _begin() -> Any:  # noqa: ANN401, NumPy's
    global _most  # noqa: PLW0603, there is one counter
    with _lock:
        if _free:
            return np.int64(_free.pop())
        _most += 1
        return np.int64(_most)


def _counter(tf: Any) -> Any:  # noqa: ANN401, a tensor
    return tf.raw_ops.StatsAggregatorHandle(container="", shared_name=_NAME)


def _count(number: int) -> int:
    tf = _tensorflow()
    # An iteration may end wherever Python collects garbage: also where a function is being traced.
    with tf.init_scope(), tf.device("CPU:0"):
        text = tf.raw_ops.StatsAggregatorSummary(iterator=_counter(tf)).numpy()
    summary = tf.compat.v1.Summary.FromString(text)
    return next((int(value.histo.num) for value in summary.value if value.tag == str(number)), 0)
