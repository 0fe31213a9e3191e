"""Elements of FTW's datasets: whole items, or items cut into sequences."""

from collections.abc import Sequence

import numpy as np

from engram.compat.reverb._block_reader import MismatchError
from engram.compat.reverb._elements import Convert, Elements, Rows, timesteps, trajectories
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.data.column_block import ColumnBlock

__all__ = ["as_whole_items", "check_lengths", "cut_into_sequences"]


def as_whole_items(sequence_length: int | None, is_state: Sequence[bool]) -> Convert:
    """Each item is an element; all but the recurrent state has `sequence_length` steps, if that is given."""

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        if sequence_length is not None and len(is_state) == len(block.columns):
            parts = zip(block.columns, block.splits, block.squeezed, is_state, strict=True)
            for column, splits, squeezed, state in parts:
                if state or squeezed:
                    continue
                for length in {column.shape[1]} if splits is None else set(np.diff(splits).tolist()):
                    if length != sequence_length:
                        raise MismatchError(_differ(table, length, sequence_length))
        return trajectories(table, specs, block)

    return convert


def cut_into_sequences(sequence_length: int) -> Convert:
    """Each item is cut into elements of `sequence_length` steps, with the item's info for each step."""

    def convert(table: str, specs: Sequence[TensorSpec], block: ColumnBlock) -> Elements:
        for column, splits, squeezed in zip(block.columns, block.splits, block.squeezed, strict=True):
            even = 1 if squeezed else column.shape[1] if splits is None else 0
            for length in {even} if splits is None else set(np.diff(splits).tolist()):
                check_lengths(table, length, sequence_length)
        steps = [TensorSpec(None if spec.shape is None else spec.shape[1:], spec.dtype) for spec in specs]
        rows = timesteps(table, steps, block)
        return [Rows(row.values.reshape(-1, sequence_length, *row.values.shape[1:])) for row in rows]

    return convert


def check_lengths(table: str, length: int, sequence_length: int) -> None:
    """Checks that items may be cut.

    Raises:
        MismatchError: They do not come out even.
    """
    if length % sequence_length:
        raise MismatchError(
            f"items of table `{table}` have {length} steps, which `sequence_length` {sequence_length} does not divide"
        )


def _differ(table: str, length: int, sequence_length: int) -> str:
    return f"an item of table `{table}` has {length} steps, `sequence_length` is {sequence_length}"
