"""A dataset of the items that a structured writer would create from the steps of another dataset."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy.typing as npt

import engram
from engram.compat.reverb import _arguments, _nest
from engram.compat.reverb._configs import Config, check_configs
from engram.compat.reverb._dataset_common import lists_to_tuples
from engram.compat.reverb._elements import Elements, TensorBlock
from engram.compat.reverb._lazy_tensorflow import DatasetMixin, LazyDataset, TfDataset, import_tensorflow
from engram.compat.reverb._pattern_writer import check_source_leaves, pattern_writer, source_leaves
from engram.compat.reverb._signature_inference import infer_signature
from engram.compat.reverb._steps import LONGEST_CHUNK
from engram.compat.reverb._unbatched_dataset import unbatched_dataset
from engram.compat.reverb.replay_sample import ReplaySample, SampleInfo
from engram.compat.reverb.tensor_spec import as_spec

__all__ = ["PatternDataset", "pattern_dataset_with_info"]

Array = npt.NDArray[Any]

_BATCHED_STEPS = 64
"""Steps read per batch from an input of known size. Other inputs may be slow streams and are read step by step."""

_ITEMS = "items"
"""Name of the table of the items."""


class PatternDataset(DatasetMixin, metaclass=LazyDataset):
    """A `tf.data.Dataset` of the items that configs create from a dataset of steps, without a server.

        steps = tf.data.Dataset.from_tensor_slices({"observation": tf.range(6), "is_last": [False, False, True] * 2})
        step = reverb.structured.create_reference_step(steps.element_spec)
        config = reverb.structured.create_config({"observation": step["observation"][-2:]}, table="unused")
        for pair in reverb.PatternDataset(steps, [config], True, lambda step: step["is_last"]):
            learn(pair["observation"])  # [2]

    Leaves of elements are `[T, ...]` for slices, `[...]` for single steps. The configs' priorities and tables are
    ignored; the tables need not exist. The input is read in Python, so create it outside of a `tf.function` and of a
    `tf.Graph`.
    """

    def __init__(
        self,
        input_dataset: TfDataset,
        configs: Sequence[Config],
        respect_episode_boundaries: bool,  # noqa: FBT001, as in Reverb
        is_end_of_episode: Callable[[Any], Any],
    ) -> None:
        """Creates the dataset. Nothing is read before iteration begins.

        Args:
            input_dataset: A `tf.data.Dataset` of consecutive steps, nests of tensors `[...]`.
            configs: At least one config, as for a `StructuredWriter`. All must have the same table and structure.
            respect_episode_boundaries: If True, no element contains steps of two episodes.
            is_end_of_episode: A TensorFlow function, which is traced. It receives a step and returns a bool scalar:
                True for the last step of an episode.

        Raises:
            TypeError: `input_dataset` is not a `tf.data.Dataset`, `respect_episode_boundaries` is not a bool, or
                `is_end_of_episode` is not callable.
            ValueError: There are no configs, one is invalid, they differ in table or structure, or one reads a leaf
                that steps do not have; or the function does not return a bool scalar.
            ImportError: TensorFlow is not installed.
        """
        tf = import_tensorflow("reverb.PatternDataset")
        _arguments.instance("input_dataset", input_dataset, tf.data.Dataset, "a tf.data.Dataset")
        _arguments.boolean("respect_episode_boundaries", respect_episode_boundaries)
        steps = input_dataset.element_spec
        check_configs(configs, with_priority=False)
        element_spec = lists_to_tuples(
            _nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), infer_signature(configs, steps))
        )
        check_source_leaves(configs, len(tf.nest.flatten(steps)))
        traced = tf.function(is_end_of_episode).get_concrete_function(steps).structured_outputs
        if getattr(traced, "dtype", None) != tf.bool or traced.shape.rank not in (0, None):
            returned = tf.TensorSpec(traced.shape, traced.dtype) if tf.is_tensor(traced) else traced
            raise ValueError(
                "Invalid `is_end_of_episode`. `is_end_of_episode` must return `bool`, but its return type is "
                f"{returned}."
            )
        specs = tf.nest.flatten(element_spec)
        reader = _StepReader(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)
        time_axes = {tuple(node.window()[3] for node in config.flat) for config in configs}
        # The items of a batch have the same shapes, and a time axis in the same columns.
        same_shape = len(time_axes) == 1 and all(spec.shape.is_fully_defined() for spec in specs)

        @contextmanager
        def open_elements() -> Iterator[tuple[Iterator[Elements], None]]:
            with closing(reader.elements(same_shape=same_shape)) as elements:
                yield elements, None

        self._initialize(unbatched_dataset(open_elements, [], specs, _nest.column_names(element_spec)), element_spec)


def pattern_dataset_with_info(
    input_dataset: TfDataset,
    configs: Sequence[Config],
    respect_episode_boundaries: bool,  # noqa: FBT001, as in Reverb
    is_end_of_episode: Callable[[Any], Any],
) -> TfDataset:
    """Creates a `PatternDataset` whose elements are `ReplaySample`s.

    Arguments and errors are those of `PatternDataset`.

    Returns:
        A `tf.data.Dataset`. All info fields are 0: float32 for probability and priority, int32 for the others.
    """
    dataset = PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)
    return dataset.map(lambda data: ReplaySample(SampleInfo.zeros(), data))  # type: ignore[attr-defined]  # TensorFlow's


class _StepReader:
    """Reads the steps of the input, and lets the engine create the items in a store of its own.

    `clear` and `is_end` are `respect_episode_boundaries` and `is_end_of_episode` of `PatternDataset`.
    """

    def __init__(
        self,
        steps: TfDataset,
        configs: Sequence[Config],
        clear: bool,  # noqa: FBT001, private
        is_end: Callable[[Any], Any],
    ) -> None:
        self._steps = steps
        self._configs = [Config(flat=each.flat, conditions=each.conditions, table=_ITEMS) for each in configs]
        for config in self._configs:
            config.priority.constant_fn.value = 1.0
        self._clear = clear
        self._is_end = is_end

    def elements(self, *, same_shape: bool) -> Generator[Elements]:
        """Yields the items, several at once if all have the same shape."""
        leaves_read = source_leaves(self._configs)
        max_items = _BATCHED_STEPS * len(self._configs) if same_shape else 1
        with engram.Store([engram.Table(_ITEMS, sampler=engram.selectors.Fifo(), max_times_sampled=1)]) as store:
            writer = pattern_writer(store, self._configs, chunk_length=LONGEST_CHUNK)
            for leaves, ends in self._step_batches():
                for index, end in enumerate(ends):
                    writer.append(tuple(leaves[leaf][index, ...] for leaf in leaves_read))
                    if end:
                        writer.end_episode(None, self._clear)
                writer.flush(None)
                while store._native.can_sample(_ITEMS, 1):  # noqa: SLF001, the store's native object
                    yield [*map(TensorBlock, store.sample(_ITEMS, max_items, at_least=1).data)]

    def _step_batches(self) -> Iterator[tuple[list[Array], Array]]:
        """Yields N steps, each leaf `[N, ...]`, and bools `[N]`: True for the last step of an episode."""
        tf = import_tensorflow("reverb.PatternDataset")
        steps = self._steps
        specs = [as_spec(spec) for spec in tf.nest.flatten(steps.element_spec)]
        same_shape = all(spec.shape is not None and None not in spec.shape for spec in specs)
        known_size = int(steps.cardinality()) >= 0
        size = _BATCHED_STEPS if same_shape and known_size else 1
        for step, ends in steps.map(lambda step: (step, self._is_end(step))).batch(size):
            yield [_nest.as_array(leaf.numpy()) for leaf in tf.nest.flatten(step)], ends.numpy()
