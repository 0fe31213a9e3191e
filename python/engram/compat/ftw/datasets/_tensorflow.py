"""FTW's datasets as a `tf.data.Dataset`."""

from collections.abc import Sequence

from engram.compat.ftw.datasets._options import DatasetOptions
from engram.compat.reverb import _nest
from engram.compat.reverb._dataset_common import init_table_dataset
from engram.compat.reverb._lazy_tensorflow import DatasetMixin, LazyDataset, Tensor, TfDataset, import_tensorflow
from engram.table_store import TableStore

__all__ = ["tensorflow_dataset"]


class _Elements(DatasetMixin, metaclass=LazyDataset):
    """A dataset of single elements of the store `stores[index]`."""

    def __init__(self, options: DatasetOptions, stores: Sequence[TableStore], index: Tensor) -> None:
        tf = import_tensorflow("a dataset")
        spec = _nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, tf.string if leaf.dtype == object else leaf.dtype), options.nest
        )
        args = [tf.as_string(index), tf.constant(options.table)]
        init_table_dataset(self, options.source, lambda index_text, _: stores[int(index_text)], args, spec, owned=False)


def tensorflow_dataset(options: DatasetOptions, stores: Sequence[TableStore]) -> TfDataset:
    """Returns a `tf.data.Dataset` of batches, or of single elements without a batch size."""
    tf = import_tensorflow("a dataset with framework='tensorflow'")
    if len(stores) == 1:
        dataset: TfDataset = _Elements(options, stores, 0)
    else:
        # At most one thread per store: two would lose the order of its items.
        threads = min(options.num_parallel_calls, len(stores)) if options.deterministic else len(stores)
        dataset = _interleaved(options, stores, threads)
    if options.batch_size is not None:
        if options.allows_ragged:
            dataset = dataset.ragged_batch(options.batch_size, drop_remainder=True)
        else:
            dataset = dataset.batch(options.batch_size, drop_remainder=True)
    if options.prefetch_size:
        dataset = dataset.prefetch(options.prefetch_size)
    # TensorFlow adds prefetching by default. It would consume items that the caller does not request.
    no_prefetch = tf.data.Options()
    no_prefetch.experimental_optimization.inject_prefetch = False
    no_prefetch.experimental_optimization.map_parallelization = False
    return dataset.with_options(no_prefetch)


def _interleaved(options: DatasetOptions, stores: Sequence[TableStore], threads: int) -> TfDataset:
    """Returns a dataset of elements of all stores in turn."""
    tf = import_tensorflow("a dataset")
    indices = tf.data.Dataset.range(len(stores))

    def elements(index: Tensor) -> TfDataset:
        return _Elements(options, stores, index)

    if threads == 1:
        return indices.interleave(elements, cycle_length=len(stores), num_parallel_calls=None)
    spec = _Elements(options, stores, 0).element_spec

    def elements_variant(index: Tensor) -> Tensor:
        return tf.data.experimental.to_variant(elements(index))

    index_spec = [tf.TensorSpec([], tf.int64)]
    function = tf.function(elements_variant, input_signature=index_spec, autograph=False).get_concrete_function()
    # `Dataset.interleave` would buffer several elements of each store.
    variant = tf.raw_ops.ParallelInterleaveDatasetV4(
        input_dataset=tf.data.experimental.to_variant(indices),
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
    dataset = tf.data.experimental.from_variant(variant, spec)
    dataset._keep_alive = function, indices  # noqa: SLF001, they must live as long as the dataset
    return dataset
