"""FTW's datasets as TensorFlow's."""

from collections.abc import Sequence
from typing import Any

from engram.compat.ftw.datasets._options import DatasetOptions
from engram.compat.reverb import _nest
from engram.compat.reverb._dataset_common import init_table_dataset
from engram.compat.reverb._lazy_tensorflow import DatasetMixin, LazyDataset, import_tensorflow
from engram.store import TableStore

__all__ = ["tensorflow_dataset"]


class _Elements(DatasetMixin, metaclass=LazyDataset):
    """Single elements of one of several stores."""

    def __init__(self, options: DatasetOptions, stores: Sequence[TableStore], index: Any) -> None:  # noqa: ANN401, a tensor
        tf = import_tensorflow("a dataset")
        spec = _nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, tf.string if leaf.dtype == object else leaf.dtype), options.nest
        )
        args = [tf.as_string(index), tf.constant(options.table)]
        init_table_dataset(self, options.source, lambda at, _: stores[int(at)], args, spec, owned=False)


def tensorflow_dataset(options: DatasetOptions, stores: Sequence[TableStore]) -> Any:  # noqa: ANN401, a tf.data.Dataset
    """A `tf.data.Dataset` of batches."""
    tf = import_tensorflow("a dataset of the framework `tensorflow`")
    if len(stores) == 1:
        made: Any = _Elements(options, stores, 0)
    else:
        # One sampler for each, whatever the number of threads: two would lose the order.
        threads = min(options.num_parallel_calls, len(stores)) if options.deterministic else len(stores)
        made = _interleaved(options, stores, threads)
    if options.batch_size is not None:
        if options.allows_ragged:
            made = made.ragged_batch(options.batch_size, drop_remainder=True)
        else:
            made = made.batch(options.batch_size, drop_remainder=True)
    if options.prefetch_size:
        made = made.prefetch(options.prefetch_size)
    # TensorFlow would read ahead unasked, and use items up that nobody sees.
    only_asked = tf.data.Options()
    only_asked.experimental_optimization.inject_prefetch = False
    only_asked.experimental_optimization.map_parallelization = False
    return made.with_options(only_asked)


def _interleaved(options: DatasetOptions, stores: Sequence[TableStore], threads: int) -> Any:  # noqa: ANN401, a tf.data.Dataset
    """Elements of one store after the other."""
    tf = import_tensorflow("a dataset")
    numbers = tf.data.Dataset.range(len(stores))

    def elements(index: Any) -> Any:  # noqa: ANN401, tensors
        return _Elements(options, stores, index)

    if threads == 1:
        return numbers.interleave(elements, cycle_length=len(stores), num_parallel_calls=None)
    spec = _Elements(options, stores, 0).element_spec

    def begun(index: Any) -> Any:  # noqa: ANN401, tensors
        return tf.data.experimental.to_variant(elements(index))

    number = [tf.TensorSpec([], tf.int64)]
    function = tf.function(begun, input_signature=number, autograph=False).get_concrete_function()
    # `interleave` would hold several elements of each store.
    variant = tf.raw_ops.ParallelInterleaveDatasetV4(
        input_dataset=tf.data.experimental.to_variant(numbers),
        other_arguments=function.captured_inputs,
        cycle_length=len(stores),
        block_length=1,
        buffer_output_elements=1,
        prefetch_input_elements=0,
        num_parallel_calls=threads,
        f=function,
        output_types=[leaf.dtype for leaf in tf.nest.flatten(spec)],
        output_shapes=[leaf.shape for leaf in tf.nest.flatten(spec)],
        deterministic="true" if options.deterministic else "false",
    )
    made = tf.data.experimental.from_variant(variant, spec)
    made._kept = function, numbers  # noqa: SLF001, they must live as long as it
    return made
