"""What a table's note says of it: its signature and its `max_times_sampled` as they were given.

The engine keeps the note with the table and reads nothing in it. The text is JSON; `docs/format.md` has none of it.
"""

import base64
import collections
import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.compat.reverb import _nest
from engram.compat.reverb.tensor_spec import BoundedTensorSpec, TensorSpec, as_spec, is_spec

__all__ = ["TableNote", "decode", "encode", "encode_signature"]

_MOST = 64 << 10
"""Bytes of a note that the engine keeps."""


class TableNote(NamedTuple):
    """What a note says.

    Attributes:
        max_times_sampled: As it was given; None: the note does not say.
        signature: A nest of this package's `TensorSpec`; None: any data.
        directory: Where its server writes checkpoints; None: the note does not say.
    """

    max_times_sampled: int | None
    signature: Any
    directory: str | None = None


def encode(max_times_sampled: int, signature: Any, directory: str | None = None) -> str:  # noqa: ANN401, a nest
    """The note of a table; a signature without specs is none.

    Raises:
        ValueError: A leaf of the signature is no tensor spec, or it is larger than what the engine keeps.
    """
    said = {"max_times_sampled": max_times_sampled, "signature": encode_signature(signature)}
    if directory is not None:
        said["directory"] = directory
    note = json.dumps({"reverb": said})
    if len(note) > _MOST:
        raise ValueError(
            f"Unsupported signature: it takes {len(note)} bytes, more than the {_MOST} that are kept with a table. "
            "Bounds whose elements differ take most; give scalars, or a TensorSpec"
        )
    return note


def encode_signature(signature: Any) -> Any:  # noqa: ANN401, a nest, and JSON
    """The signature as values of JSON; None for none."""
    if signature is None or (isinstance(signature, Mapping | list | tuple) and not signature):
        return None
    return _encode(signature)


def decode(note: str | None) -> TableNote:
    """What a note says; that of a table that this package did not make says nothing."""
    try:
        found = json.loads(note or "")["reverb"]
        signature = found["signature"]
    except (ValueError, KeyError, TypeError):
        return TableNote(None, None)
    decoded = None if signature is None else _decode(signature)
    return TableNote(found["max_times_sampled"], decoded, found.get("directory"))


def _encode(nest: Any) -> Any:  # noqa: ANN401, a nest, and JSON
    if isinstance(nest, Mapping):
        for key in nest:
            if not isinstance(key, str):
                raise ValueError(f"Unsupported signature spec: the key {key!r} is not text")  # noqa: TRY004, as Reverb's
        return {"dict": {key: _encode(value) for key, value in nest.items()}}
    if _nest.is_namedtuple(nest):
        fields = [[key, _encode(value)] for key, value in zip(nest._fields, nest, strict=True)]
        return {"namedtuple": {"name": type(nest).__name__, "fields": fields}}
    if isinstance(nest, tuple):
        return {"tuple": [_encode(each) for each in nest]}
    if isinstance(nest, list):
        return {"list": [_encode(each) for each in nest]}
    if not is_spec(nest):
        raise ValueError(f"Unsupported signature spec: {nest}")
    return {"spec": _encode_spec(as_spec(nest))}


def _encode_spec(spec: TensorSpec) -> dict[str, Any]:
    dtype = "string" if spec.dtype == object else spec.dtype.name
    said: dict[str, Any] = {
        "name": spec.name,
        "dtype": dtype,
        "shape": None if spec.shape is None else list(spec.shape),
    }
    if isinstance(spec, BoundedTensorSpec):
        for side in ("minimum", "maximum"):
            bound = np.asarray(getattr(spec, side))
            little = bound.astype(bound.dtype.newbyteorder("<"))
            data = base64.b64encode(_collapsed(little.tobytes(), bound.size)).decode()
            said[side] = {"shape": list(bound.shape), "data": data}
    return said


def _collapsed(data: bytes, size: int) -> bytes:
    """The bytes of an array of so many elements; those of one where all are the same."""
    one = data[: len(data) // max(1, size)]
    return one if size and one * size == data else data


def _bound(said: Mapping[str, Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A bound as it was given, whether or not it was collapsed."""
    found = np.frombuffer(base64.b64decode(said["data"]), dtype)
    shape = tuple(said["shape"])
    return np.full(shape, found[0]) if found.size == 1 else found.reshape(shape)


def _decode(nest: Any) -> Any:  # noqa: ANN401, JSON, and a nest
    ((kind, said),) = nest.items()
    match kind:
        case "dict":
            return {key: _decode(value) for key, value in said.items()}
        case "tuple":
            return tuple(_decode(each) for each in said)
        case "list":
            return [_decode(each) for each in said]
        case "namedtuple":
            made = _namedtuple(said["name"], tuple(key for key, _ in said["fields"]))
            return made(*[_decode(value) for _, value in said["fields"]])
        case "spec":
            return _decode_spec(said)
        case _:
            return None


def _decode_spec(said: dict[str, Any]) -> TensorSpec:
    shape = None if said["shape"] is None else tuple(said["shape"])
    dtype = _dtype(said["dtype"])
    if "minimum" not in said:
        return TensorSpec(shape, dtype, said["name"])
    low, high = (_bound(said[side], dtype.newbyteorder("<")) for side in ("minimum", "maximum"))
    return BoundedTensorSpec(shape, dtype, low, high, said["name"])


def _dtype(name: str) -> np.dtype[Any]:
    if name == "string":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: PLC0415, only whoever has it can have named such a dtype

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


@functools.lru_cache(maxsize=1_024)
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:  # noqa: ANN401, a class
    return collections.namedtuple(name, fields)  # noqa: PYI024, its fields are not known here
