"""Converts a signature from TensorFlow's `StructuredValue` message to a nest of tensor specs."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engram.compat.reverb._table_note import dtype_named, namedtuple_class
from engram.compat.reverb.tensor_spec import BoundedTensorSpec, TensorSpec
from engram.nests import Nest

__all__ = ["Message", "signature_from_proto"]

Message: TypeAlias = Any
"""A message of protobuf."""

_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
"""The dtypes by their numbers in TensorFlow's enum `DataType`."""

_BOUND_FIELDS = {
    "float32": "float_val",
    "float64": "double_val",
    "int8": "int_val",
    "int16": "int_val",
    "int32": "int_val",
    "int64": "int64_val",
    "uint8": "int_val",
    "uint16": "int_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "bool": "bool_val",
    "float16": "half_val",
    "bfloat16": "half_val",
}
"""The field of a `TensorProto` that has the values of a dtype."""


def signature_from_proto(value: Message) -> Nest:
    """Returns the signature of a `StructuredValue`: a nest of lists, tuples, dicts and namedtuples of specs."""
    kind = value.WhichOneof("kind")
    match kind:
        case "list_value":
            return [signature_from_proto(each) for each in value.list_value.values]
        case "tuple_value":
            return tuple(signature_from_proto(each) for each in value.tuple_value.values)
        case "dict_value":
            return {key: signature_from_proto(each) for key, each in sorted(value.dict_value.fields.items())}
        case "named_tuple_value":
            named = value.named_tuple_value
            namedtuple = namedtuple_class(named.name, tuple(pair.key for pair in named.values))
            return namedtuple(*[signature_from_proto(pair.value) for pair in named.values])
        case "tensor_spec_value":
            spec = value.tensor_spec_value
            return TensorSpec(_shape(spec.shape), dtype_named(_dtype_name(spec.dtype)), spec.name or None)
        case "bounded_tensor_spec_value":
            spec = value.bounded_tensor_spec_value
            name = _dtype_name(spec.dtype)
            low, high = (_bound(bound, name) for bound in (spec.minimum, spec.maximum))
            return BoundedTensorSpec(_shape(spec.shape), dtype_named(name), low, high, spec.name or None)
    raise ValueError(
        f"a signature consists of lists, tuples, dicts, named tuples and tensor specs; got {kind or 'an empty value'}"
    )


def _dtype_name(number: int) -> str:
    try:
        return _DTYPES[number]
    except KeyError:
        raise ValueError(
            f"dtype {number} of TensorFlow's DataType is not supported; supported are {', '.join(_DTYPES.values())}"
        ) from None


def _shape(shape: Message) -> tuple[int | None, ...] | None:
    """The sizes; None for any size. An unknown rank is None."""
    if shape.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in shape.dim)


def _bound(bound: Message, name: str) -> npt.NDArray[Any]:
    """Decodes a `TensorProto`: raw bytes, or values of which the last one is repeated."""
    if name not in _BOUND_FIELDS:
        raise ValueError(f"a spec of dtype {name} must not have bounds")
    dtype = dtype_named(name)
    shape = [dim.size for dim in bound.tensor_shape.dim]
    if bound.tensor_content:
        values: npt.NDArray[Any] = np.frombuffer(bound.tensor_content, dtype.newbyteorder("<"))
    elif _BOUND_FIELDS[name] == "half_val":
        values = np.array(bound.half_val, np.uint16).view(dtype)
    else:
        numbers = list(getattr(bound, _BOUND_FIELDS[name]))
        if np.issubdtype(dtype, np.integer):
            _check_range(numbers, dtype)
        values = np.array(numbers, dtype)
    size = int(np.prod(shape))
    if len(values) > size or (size and not len(values)):
        expected = f"1 to {size}" if size > 1 else size
        raise ValueError(f"a bound of shape {shape} has {len(values)} values; expected {expected}")
    return np.concatenate([values, np.repeat(values[-1:], size - len(values))]).reshape(shape)


def _check_range(numbers: list[int], dtype: np.dtype[Any]) -> None:
    limits = np.iinfo(dtype)
    for number in numbers:
        if not limits.min <= number <= limits.max:
            raise ValueError(f"a bound of dtype {dtype} must be from {limits.min} to {limits.max}; got {number}")
