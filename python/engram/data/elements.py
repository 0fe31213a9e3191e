"""What datasets yield, and the options that all of them share."""

import sys
from typing import Any, NamedTuple, TypedDict

import numpy as np

from engram._importance_weights import Divisor, check_arguments, importance_weights
from engram.errors import InvalidArgumentError

__all__ = ["Element", "Info", "Options", "Ragged"]


class Info(NamedTuple):
    """Metadata of the items of an element: NumPy arrays `[B]`, or `[]` without a batch; tensors in TensorFlow.

    In datasets of steps, each step has the metadata of its item.

    Attributes:
        key: u64, for updates of priorities: `store.update_priorities("replay", element.info.key, priorities)`.
        probability: f64, the probability with which the item was drawn; 1 for deterministic selectors.
        table_size: i64, number of items in the table when the item was drawn.
        priority: f64, the item's priority when it was drawn.
        times_sampled: i32, number of times the item has been sampled, including this time.
        candidates: f64, number of items that could have been drawn: those with a probability above 0. 1 for
            deterministic selectors.
        min_probability: f64, smallest probability of the items that are counted in `candidates`.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any
    candidates: Any
    min_probability: Any


class Ragged(NamedTuple):
    """A column of items of different lengths, as NumPy arrays.

    Datasets for PyTorch use it for text only, those for TensorFlow not at all: they have types of their own.

    Attributes:
        values: `[sum of T, ...]`, the steps of all items, concatenated, in the column's dtype.
        row_splits: i64 `[B + 1]`; item `i` is `values[row_splits[i]:row_splits[i + 1]]`.
    """

    values: Any
    row_splits: Any


class Element(NamedTuple):
    """One element of a dataset.

    Attributes:
        info: Metadata of the items, or of each step's item: `[B]`, or `[]` without a batch.
        data: The nest that was written, in the dtypes that were written. Text is arrays of `str` objects and bytes
            are arrays of `bytes` objects, except in TensorFlow, whose strings are bytes: text is encoded in UTF-8.
            Leaves of items are `[B, T, ...]`, or `[B, ...]` for columns without a time axis; leaves of steps are
            `[B, ...]`. Without a batch there is no `B`.
        mask: With `pad`, a nest like `data` whose leaves are bool `[B, T]`, True for real steps, or None for columns
            that needed no padding. None if no column was padded. TensorFlow differs: see
            `engram.data.tensorflow.dataset`.
    """

    info: Info
    data: Any
    mask: Any = None

    def importance_weights(self, beta: float = 1.0, *, normalize: Divisor = "batch") -> Any:  # noqa: ANN401, an array or tensor
        """Computes importance-sampling weights, as `engram.Batch.importance_weights` does.

            for element in dataset(store, "replay", batch_size=256):
                learn(element.data, element.importance_weights(0.4))

        The weight of an item is `(1 / (N * p)) ** beta`: `N` is `info.candidates` and `p` is `info.probability` (Schaul
        et al. 2016, section 3.4). A step has the weight of its item.

        Args:
            beta: How much of the bias to correct, from 0 (nothing) to 1 (all of it).
            normalize: Divisor of the weights: `"batch"`, the largest weight in this batch; `"table"`, the largest that
                any item of the table could have. Both keep weights at most 1. None: the weights are not divided.

        Returns:
            f32 `[B]`: the weights, `[]` without a batch. A tensor if `info` has TensorFlow's tensors, else a NumPy
            array.

        Raises:
            InvalidArgumentError: `beta` is not finite, `normalize` is none of these values, or it is `"batch"` and the
                element has no batch.
        """
        beta = check_arguments(beta, normalize)
        arrays = [self.info.probability, self.info.min_probability, self.info.candidates]
        if normalize == "batch" and len(arrays[0].shape) == 0:
            raise InvalidArgumentError(
                '`normalize` is "batch", and this element has no batch, so its weight would always be 1; give '
                '`normalize="table"` or None, or a `batch_size` to the dataset'
            )
        tf: Any = sys.modules.get("tensorflow")
        if tf is not None and tf.is_tensor(arrays[0]):
            return tf.cast(
                importance_weights(*arrays, beta=beta, normalize=normalize, maximum=tf.reduce_max), tf.float32
            )
        # A DataLoader may have made tensors of the arrays.
        arrays = [np.asarray(array) for array in arrays]
        return np.asarray(importance_weights(*arrays, beta=beta, normalize=normalize), np.float32)


class Options(TypedDict, total=False):
    """Keyword options that every dataset accepts.

    Attributes:
        batch_size: Number of items, or of steps, per element, from 1 to 2**24. Every batch has exactly this size,
            except for a last batch of steps, which may be smaller. Default: None, elements without a batch axis.
        steps: Yield the steps of the items, in order, instead of whole items. All columns need a time axis of the same
            length. An item counts as consumed when its first step is yielded. It counts earlier in three cases: if an
            insert waits for space that is held by items whose steps do not fill a batch yet, if its steps have waited 2
            to 4 minutes for their batch to fill (20 to 40 % of the server's `lease_timeout`, if that is less), and, in
            tables without `max_times_sampled`, if the dataset changes the size of its blocks (see `prefetch`). Default:
            False.
        drop_remainder: Drop a last batch of steps that would be smaller than `batch_size`. Default: False.
        pad: Fill shorter items of a batch up with zeros, text with empty text; without it, their columns are ragged.
            Requires `batch_size`; not allowed with `steps`. Default: False.
        prefetch: Number of batches that are fetched in advance, 1 or more. Datasets of steps and of single items fetch
            blocks of items, and this many blocks in advance. A block has as many items as make about 4 MiB, estimated
            from the items read so far, but at most as many as a batch needs, or 64 without `batch_size`. In tables with
            `max_times_sampled`, where other readers may wait for the items, it is one item. For TensorFlow, a block may
            have the items of `prefetch` batches of steps; then one block is fetched in advance. Default: 2.
        max_batches: Number of elements after which the dataset ends, 1 or more. Default: None, no limit.
        timeout: Seconds to wait for one element; the dataset ends if it does not arrive. Default: None, wait
            forever; an error may end a wait that would never end, as in `engram.Dataset`. Items that the table can
            return at once are waited for up to 0.5 s even if `timeout` is smaller: with 0, a dataset yields everything
            that is available without waiting for an insert. A server that does not reply in time when an iteration
            begins is an error, `DeadlineExceededError`.
    """

    batch_size: int | None
    steps: bool
    drop_remainder: bool
    pad: bool
    prefetch: int
    max_batches: int | None
    timeout: float | None
