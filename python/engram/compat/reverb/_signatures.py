"""Checks data against signatures, with Reverb's error texts."""

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from engram.compat.reverb import _nest
from engram.compat.reverb.tensor_spec import TensorSpec, dtype_name, is_compatible

__all__ = ["check_step", "columns_text", "named_specs", "shape_text"]


def named_specs(signature: Any) -> list[tuple[str, TensorSpec]]:  # noqa: ANN401, a nest
    """Returns the flattened specs of a signature, each with its name: its path, then the spec's own name.

    The name is empty for a signature that is a single spec without a name.
    """
    return [
        ("/".join([*map(str, path), *([spec.name] if spec.name else [])]), spec)
        for path, spec in _nest.flatten_with_path(signature)
    ]


def shape_text(shape: Iterable[int | None] | None) -> str:
    """Formats a shape as Reverb does: `[2,?]`."""
    if shape is None:
        return "<unknown>"
    return f"[{','.join('?' if axis is None else str(axis) for axis in shape)}]"


def columns_text(columns: Iterable[tuple[str, npt.DTypeLike, Iterable[int | None] | None]]) -> str:
    """Formats columns as Reverb does: name, dtype and shape of each. Leaves out empty names."""
    return ", ".join(
        f"{index}: Tensor<{_name_text(name)}dtype: {dtype_name(dtype)}, shape: {shape_text(shape)}>"
        for index, (name, dtype, shape) in enumerate(columns)
    )


def _name_text(name: str) -> str:
    return f"name: '{name}', " if name else ""


def check_step(table: str, signature: Any, columns: list[npt.NDArray[Any]]) -> None:  # noqa: ANN401, a nest
    """Checks that an item of one step fits a table's signature. None as signature allows any data.

    The signature may describe the step, `[...]`, or the item, `[1, ...]`.
    """
    if signature is None:
        return
    specs = named_specs(signature)
    problem = None
    if len(specs) != len(columns):
        count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
        problem = f"it has {count}, the signature has {len(specs)}"
    else:
        for index, ((name, spec), column) in enumerate(zip(specs, columns, strict=True)):
            shape = column.shape
            fits = is_compatible(spec.shape, shape) or is_compatible(spec.shape, (1, *shape))
            if spec.dtype != column.dtype or not fits:
                expected = f"'{name}'" if name else "the signature"
                problem = (
                    f"flattened index {index} is of dtype {dtype_name(column.dtype)} and shape {shape_text(shape)}, "
                    f"but {expected} is of dtype {dtype_name(spec.dtype)} and shape compatible with "
                    f"{shape_text(spec.shape)}"
                )
                break
    if problem is None:
        return
    signature_text = columns_text((name, spec.dtype, spec.shape) for name, spec in specs)
    data_text = columns_text(("", column.dtype, column.shape) for column in columns)
    raise ValueError(
        f"Unable to insert into table '{table}' since the data is inconsistent with the table signature: {problem}. "
        f"Table signature: {signature_text}. Data signature: {data_text}."
    )
