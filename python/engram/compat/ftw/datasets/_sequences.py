"""Converts items to the elements of FTW's datasets: whole items, or sequences of equal length."""

from collections.abc import Sequence

from engram.compat.reverb._block_reader import MismatchError
from engram.compat.reverb._elements import Convert, Elements, TensorBlock, timesteps, trajectories
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.data.column_block import ColumnBlock

__all__ = ["as_whole_items", "check_length", "cut_into_sequences"]


def as_whole_items(sequence_length: int | None, is_state: Sequence[bool]) -> Convert:
    """Returns a function that converts each item to one element.

    If `sequence_length` is given, all columns except the recurrent state must have this many steps.
    """

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        if sequence_length is not None and len(is_state) == len(block.columns):
            for counts, state in zip(block.step_counts(), is_state, strict=True):
                if state or counts is None:
                    continue
                for length in set(counts.tolist()):
                    if length != sequence_length:
                        raise MismatchError(
                            f"an item of table `{table}` has {length} steps, but `sequence_length` is {sequence_length}"
                        )
        return trajectories(table, specs, block)

    return convert


def cut_into_sequences(sequence_length: int) -> Convert:
    """Returns a function that cuts each item into elements of `sequence_length` steps.

    An element has the item's info once per step.
    """

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        for counts in block.step_counts():
            for length in {1} if counts is None else set(counts.tolist()):
                check_length(table, length, sequence_length)
        steps = [TensorSpec(None if spec.shape is None else spec.shape[1:], spec.dtype) for spec in specs]
        tensors = [tensor.values for tensor in timesteps(table, steps, block)]
        return [TensorBlock(values.reshape(-1, sequence_length, *values.shape[1:])) for values in tensors]

    return convert


def check_length(table: str, length: int, sequence_length: int) -> None:
    """Checks that items of `length` steps can be cut into sequences of `sequence_length` steps."""
    if length % sequence_length:
        raise MismatchError(
            f"items of table `{table}` have {length} steps, which `sequence_length` {sequence_length} does not divide"
        )
