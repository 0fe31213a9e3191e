"""A dataset of what a structured writer would make of the steps of another dataset."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _arguments, _nest
from engram.compat.reverb._configs import Config, config_problem
from engram.compat.reverb._dataset_common import lists_to_tuples
from engram.compat.reverb._elements import Elements, Rows
from engram.compat.reverb._lazy_tensorflow import DatasetMixin, LazyDataset, import_tensorflow
from engram.compat.reverb._patterns import PatternItem, PatternSet, check_source_leaves, stack_column
from engram.compat.reverb._signature_inference import infer_signature
from engram.compat.reverb._unbatched_dataset import unbatched_dataset
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.tensor_spec import as_spec

__all__ = ["PatternDataset", "pattern_dataset_with_info"]

Array = npt.NDArray[Any]

_READ_AHEAD_STEPS = 64
"""Steps that are read at once where they are all there: one by one from a stream, which may be slow."""


class PatternDataset(DatasetMixin, metaclass=LazyDataset):
    """A `tf.data.Dataset` of the items that configs make of a dataset of steps, without a server.

        steps = tf.data.Dataset.from_tensor_slices({"observation": tf.range(6), "is_last": [False, False, True] * 2})
        step = reverb.structured.create_reference_step(steps.element_spec)
        config = reverb.structured.create_config({"observation": step["observation"][-2:]}, table="unused")
        for pair in reverb.PatternDataset(steps, [config], True, lambda step: step["is_last"]):
            learn(pair["observation"])  # [2]

    Elements are `[T, ...]` for slices, `[...]` for single steps. Tables and priorities of the configs are not looked
    at. It reads its input in Python: make the input outside of a `tf.function`.
    """

    def __init__(
        self,
        input_dataset: Any,  # noqa: ANN401, TensorFlow's
        configs: Sequence[Config],
        respect_episode_boundaries: bool,  # noqa: FBT001, as Reverb has it
        is_end_of_episode: Callable[[Any], Any],
    ) -> None:
        """Describes the elements; nothing is read before iteration begins.

        Args:
            input_dataset: A `tf.data.Dataset` of steps, nests of tensors `[...]`, one after the other.
            configs: As for a `StructuredWriter`, at least one; all for one table, and of one structure.
            respect_episode_boundaries: No element reaches back into an episode that has ended.
            is_end_of_episode: Given a step, a nest like the input's, returns whether it is its episode's last, a bool
                scalar. In TensorFlow's words: it is traced.

        Raises:
            TypeError: `input_dataset` is no `tf.data.Dataset`, or `is_end_of_episode` cannot be called.
            ValueError: There are no configs, one is invalid, they do not go together, or read a leaf that steps do not
                have; or the function does not return a bool scalar.
            ImportError: TensorFlow is not installed.
        """
        tf = import_tensorflow("reverb.PatternDataset")
        _arguments.instance("input_dataset", input_dataset, tf.data.Dataset, "a tf.data.Dataset")
        steps = input_dataset.element_spec
        for number, config in enumerate(configs):
            problem = config_problem(config)
            if problem is not None:
                raise ValueError(f"Invalid configuration at position {number}: {problem}")
        self._element_spec = lists_to_tuples(
            _nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), infer_signature(configs, steps))
        )
        check_source_leaves(configs, len(tf.nest.flatten(steps)))
        traced = tf.function(is_end_of_episode).get_concrete_function(steps).structured_outputs
        if getattr(traced, "dtype", None) != tf.bool or traced.shape.rank not in (0, None):
            found = tf.TensorSpec(traced.shape, traced.dtype) if tf.is_tensor(traced) else traced
            raise ValueError(
                f"Invalid `is_end_of_episode`. `is_end_of_episode` must return `bool`, but its return type is {found}."
            )
        specs = tf.nest.flatten(self._element_spec)
        reading = _Reading(input_dataset, configs, bool(respect_episode_boundaries), is_end_of_episode)
        is_even = all(spec.shape.is_fully_defined() for spec in specs)
        variant, kept = unbatched_dataset(lambda: reading.elements(is_even=is_even), [], specs)
        self._kept = (kept, input_dataset)
        tf.data.Dataset.__init__(self, variant)


def pattern_dataset_with_info(
    input_dataset: Any,  # noqa: ANN401, TensorFlow's
    configs: Sequence[Config],
    respect_episode_boundaries: bool,  # noqa: FBT001, as Reverb has it
    is_end_of_episode: Callable[[Any], Any],
) -> Any:  # noqa: ANN401, TensorFlow's
    """A `PatternDataset` whose elements are `ReplaySample`s.

    Args:
        input_dataset: As for `PatternDataset`, as are the others.
        configs: At least one.
        respect_episode_boundaries: No element reaches back into an episode that has ended.
        is_end_of_episode: Says of a step whether it is its episode's last.

    Returns:
        A `tf.data.Dataset`. The fields of its elements' info are 0, int32; probability and priority are float32.

    Raises:
        TypeError, ValueError, ImportError: As of `PatternDataset`.
    """
    made = PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)
    return made.map(lambda data: ReplaySample(SampleInfo.zeros(), data))  # type: ignore[attr-defined]  # TensorFlow's


class _Reading:
    """Reads the steps, and makes items of them."""

    def __init__(
        self,
        steps: Any,  # noqa: ANN401, a tf.data.Dataset
        configs: Sequence[Config],
        clear: bool,  # noqa: FBT001, of the episodes' ends
        is_end: Callable[[Any], Any],
    ) -> None:
        self._steps = steps
        self._configs = configs
        self._clear = clear
        self._is_end = is_end

    def elements(self, *, is_even: bool) -> Iterator[Elements | None]:
        """Yields the items, several at once where they have one shape."""
        patterns = PatternSet(self._configs)
        for leaves, ends in self._chunks():
            found: list[list[Array]] = []
            for at, end in enumerate(ends):
                made = patterns.append([leaf[at] for leaf in leaves])
                if end:
                    made += patterns.end_episode(clear=self._clear)
                found += map(_columns, made)
            if is_even and found:
                yield [Rows(np.stack(column)) for column in zip(*found, strict=True)]
            elif found:
                yield from ([Rows(column[None]) for column in item] for item in found)

    def _chunks(self) -> Iterator[tuple[list[Array], Array]]:
        """Yields several steps, `[N, ...]` each leaf, and which of them are the last of their episodes."""
        tf = import_tensorflow("reverb.PatternDataset")
        steps = self._steps
        specs = [as_spec(spec) for spec in tf.nest.flatten(steps.element_spec)]
        are_even = all(spec.shape is not None and None not in spec.shape for spec in specs)
        are_there = int(steps.cardinality()) >= 0
        size = _READ_AHEAD_STEPS if are_even and are_there else 1
        for step, ends in steps.map(lambda step: (step, self._is_end(step))).batch(size):
            yield [_nest.as_array(leaf.numpy()) for leaf in tf.nest.flatten(step)], ends.numpy()


def _columns(made: PatternItem) -> list[Array]:
    return [stack_column(column) for column in made.columns]
