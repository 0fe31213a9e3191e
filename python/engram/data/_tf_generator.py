"""A `tf.data.Dataset` of what a reader in Python reads, which knows which elements TensorFlow has taken."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from engram.consumption import ConsumptionTracker
from engram.data._exit_guard import ExitGuard
from engram.data._tf_element_counter import TfElementCounter, count_elements, is_eager_program
from engram.data._tf_function_dataset import ArrayPacker, function_dataset, unbatch
from engram.data._tf_types import Tensor, TfDataset

__all__ = ["OpenReads", "generator_dataset"]

R = TypeVar("R")

OpenReads = Callable[..., AbstractContextManager[tuple[Iterator[R | None], ConsumptionTracker | None]]]
"""Opens a reader, given the arguments of a dataset as arrays. Returns what it reads, and None from time to time while
there is nothing to read; and the tracker of consumed items, unless the reader counts them itself."""

_iterators: dict[int, Generator[Sequence[Any]]] = {}
"""The running iterations of all datasets, by the slot of their element counter."""


def _close_all() -> None:
    for iterator in list(_iterators.values()):
        with suppress(ValueError):  # it is running in another thread
            iterator.close()


_exit_guard = ExitGuard(_close_all)


def generator_dataset(
    open_reads: OpenReads[R],
    pack: Callable[[R], Iterable[list[Any]]],
    packer: ArrayPacker,
    *,
    args: Sequence[Any] = (),
    counted: bool = False,
    pieces_per_element: int = 1,
) -> TfDataset:
    """Returns a dataset of elements that Python reads, several per call of Python where possible.

    Each iteration opens a reader, and closes it when it ends. tf.data's automatic prefetching is disabled, as it would
    consume elements that no code requested. For the datasets of `compat.reverb`, three generators are nested: `iterate`
    below, `BlockReader.blocks` and `Dataset.read`.

    Args:
        open_reads: Opens the reader.
        pack: Receives what is read; returns the arrays of one call or of several, packed by `packer`, whose first axis
            is that of the elements of a call.
        packer: An `ArrayPacker` for the tensors of several elements. The axes of its packed tensors are those of the
            pieces that the reader's tracker counts.
        args: Tensors, which `open_reads` receives as arrays.
        counted: True if the reader has a tracker: then the elements that have left the dataset are counted. Items that
            sampling removes from their table are acknowledged before their first element is passed on.
        pieces_per_element: Number of the tracker's pieces per element.
    """
    _exit_guard.register()
    counts_in_python = not is_eager_program()

    def iterations(*values: object) -> Generator[int]:
        """Yields one slot, for which `_iterators` has an iteration until this generator ends.

        Yields none while the process exits.
        """
        with _exit_guard as may_run:
            if not may_run:
                return
            counter = TfElementCounter(in_python=counts_in_python)
            iterator = _iterators[counter.slot] = iterate(counter, values)
        try:
            yield counter.slot
        finally:
            with _exit_guard:
                del _iterators[counter.slot]
                iterator.close()
                counter.close()

    def iterate(counter: TfElementCounter, values: Sequence[Any]) -> Generator[list[Any]]:
        delivered_pieces = 0
        with open_reads(*values) as (reads, tracker):
            for read in reads:
                # TensorFlow cancels an iterator only between calls, so an idle one returns no elements now and then.
                for arrays in [packer.no_elements] if read is None else pack(read):
                    if tracker is None:
                        yield arrays
                        continue
                    if tracker.removes_items:  # one item was read, of which TensorFlow takes the first element next
                        tracker.delivered = tracker.fetched
                    try:
                        yield arrays
                    except BaseException:  # the generator is closed, or Ctrl-C
                        tracker.consumed = tracker.count_pieces_up_to(counter.elements * pieces_per_element)
                        raise
                    # TensorFlow requests more only after it has taken all elements.
                    delivered_pieces += math.prod(arrays[0].shape[1:])
                    tracker.consumed = tracker.count_pieces_up_to(delivered_pieces)

    def elements_of(slot: Tensor) -> TfDataset:
        elements = unbatch(function_dataset(_next, slot, packer), empty_rows=packer.has_empty_rows)
        return count_elements(elements, slot) if counted else elements

    slots = tf.data.Dataset.from_generator(iterations, args=tuple(args), output_signature=tf.TensorSpec([], tf.int64))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return slots.flat_map(tf.autograph.experimental.do_not_convert(elements_of)).with_options(options)


def _next(slot: npt.NDArray[np.int64]) -> Sequence[Any]:
    with _exit_guard as may_run:
        iterator = _iterators.get(int(slot)) if may_run else None
        if iterator is None:
            raise StopIteration  # ends the dataset
        return next(iterator)
