"""What datasets yield, and what they can be told: the same words for every framework."""

from typing import Any, NamedTuple, TypedDict

__all__ = ["Element", "Info", "Options", "Ragged"]


class Info(NamedTuple):
    """What is known about the items of an element: arrays `[B]`, or `[]` where there is no batch.

    They are NumPy's, but for TensorFlow's datasets, where they are tensors. Of steps, each has its item's.

    Attributes:
        key: u64, to update priorities with: `store.update_priorities("replay", element.info.key, priorities)`.
        probability: f64, with which the item was drawn; 1 for the deterministic selectors.
        table_size: i64, items in the table at the draw.
        priority: f64, at the draw.
        times_sampled: i32, this time included.
    """

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any


class Ragged(NamedTuple):
    """A column of items of different lengths, in NumPy's arrays: other frameworks have types of their own for it.

    Attributes:
        values: `[sum of T, ...]`, the items' steps end to end, in the column's dtype.
        row_splits: i64 `[B + 1]`: item `i` is `values[row_splits[i]:row_splits[i + 1]]`.
    """

    values: Any
    row_splits: Any


class Element(NamedTuple):
    """What a dataset yields.

    Attributes:
        info: Of the items, or of each step's item: `[B]`, or `[]` without a batch.
        data: The nest that was written, in its dtypes; NumPy has text as bytes, in arrays of objects. Of items its
            leaves are `[B, T, ...]` (`[B, ...]` for squeezed columns), of steps `[B, ...]`; without a batch there is
            no `B`.
        mask: With `pad`: a nest like `data` with bool `[B, T]` leaves, True where there is a step, and None where a
            column needed no padding; None where none did. TensorFlow's says more: see its `dataset`.
    """

    info: Info
    data: Any
    mask: Any = None


class Options(TypedDict, total=False):
    """What every dataset can be told, by keyword.

    Attributes:
        batch_size: Items, or steps, per element, exactly, from 1 to 2**24; only the last batch of steps may be smaller.
            None (the default): one by one.
        steps: Yield the items' steps, in order, instead of whole items. All columns must have a time axis of one
            length. An item counts as used with its first step, once that is yielded; but where an insert waits for the
            room of items whose steps do not fill a batch yet, these count as used before, from then on. Default False.
        drop_remainder: Leave out a last batch of steps that would be smaller. Default False.
        pad: Fill shorter items of a batch up with zeros (text: empty text); otherwise their columns are ragged. Needs
            a `batch_size`, and does not go with `steps`. Default False.
        prefetch: Batches kept ready, 1 or more. Steps and single items come in blocks of items, and so many of those
            are kept ready. A block holds as many items as make 4 MiB when read, by what was read so far, and no more
            than a batch takes, or 64 without; it is one item where the table hands each item out so many times only, as
            others may wait for them. Default 2.
        max_batches: Elements to end after, 1 or more. None (the default): never.
        timeout: Seconds that a reader waits in vain for an element until the dataset ends. None (the default): for
            ever. What the table could give at once, or has given already, is waited for up to 0.5 s all the same: with
            0, a dataset yields what can be had without waiting for an insert.
    """

    batch_size: int | None
    steps: bool
    drop_remainder: bool
    pad: bool
    prefetch: int
    max_batches: int | None
    timeout: float | None
