"""The note of a table: JSON text with the properties of Reverb's table that the engine's lacks (see `TableNote`).

The engine stores the note with the table and does not interpret it. `docs/format.md` does not specify its content. The
import of dm-reverb's checkpoints writes notes of the same form (`note_encoder.rs` in the crate `engram-reverb`).
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
from engram.nests import Nest

__all__ = ["TableNote", "decode", "dtype_named", "encode", "encode_signature", "namedtuple_class"]

_MAX_BYTES = 64 << 10
"""Maximum size of a note in the engine."""


class TableNote(NamedTuple):
    """The content of a note.

    Attributes:
        max_times_sampled: As passed to `Table`, where less than 1 means no limit; None if there is no note
            in this form.
        signature: A nest of this package's `TensorSpec`; None allows any data.
        directory: Where the server writes checkpoints; None if the note does not contain it.
    """

    max_times_sampled: int | None
    signature: Any
    directory: str | None = None


def encode(max_times_sampled: int, signature: Nest, directory: str | None = None) -> str:
    """Returns the note of a table, at most 64 KiB. An empty nest as signature means no signature."""
    content = {"max_times_sampled": max_times_sampled, "signature": encode_signature(signature)}
    if directory is not None:
        content["directory"] = directory
    note = json.dumps({"reverb": content})
    if len(note) > _MAX_BYTES:
        raise ValueError(
            f"Unsupported signature: its encoding has {len(note)} bytes, the maximum is {_MAX_BYTES}; use fewer "
            "columns, shorter names, or no array bounds of BoundedTensorSpec"
        )
    return note


def encode_signature(signature: Nest) -> Any:  # noqa: ANN401, JSON
    """Returns the signature as JSON values; None if it is None or an empty nest."""
    if signature is None or (isinstance(signature, Mapping | list | tuple) and not signature):
        return None
    return _encode(signature)


def decode(note: str | None) -> TableNote:
    """Returns the content of a note; empty if it is None or has another form."""
    try:
        content = json.loads(note or "")["reverb"]
        signature = content["signature"]
    except (ValueError, KeyError, TypeError):
        return TableNote(None, None)
    decoded = None if signature is None else _decode(signature)
    return TableNote(content["max_times_sampled"], decoded, content.get("directory"))


def _encode(nest: Nest) -> Any:  # noqa: ANN401, JSON
    if isinstance(nest, Mapping):
        for key in nest:
            if not isinstance(key, str):
                raise ValueError(f"Unsupported signature spec: the key {key!r} is not text")  # noqa: TRY004, Reverb's type
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
    encoded: dict[str, Any] = {
        "name": spec.name,
        "dtype": dtype,
        "shape": None if spec.shape is None else list(spec.shape),
    }
    if isinstance(spec, BoundedTensorSpec):
        for side in ("minimum", "maximum"):
            bound = np.asarray(getattr(spec, side))
            little = bound.astype(bound.dtype.newbyteorder("<"))
            data = base64.b64encode(_deduplicated(little.tobytes(), bound.size)).decode()
            encoded[side] = {"shape": list(bound.shape), "data": data}
    return encoded


def _deduplicated(data: bytes, size: int) -> bytes:
    """Returns the bytes of an array of `size` elements, or of one element if all are equal."""
    element = data[: len(data) // max(1, size)]
    return element if size and element * size == data else data


def _decode_bound(encoded: Mapping[str, Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Decodes a bound that `_encode_spec` encoded."""
    values = np.frombuffer(base64.b64decode(encoded["data"]), dtype)
    shape = tuple(encoded["shape"])
    return np.full(shape, values[0]) if values.size == 1 else values.reshape(shape)


def _decode(nest: Any) -> Nest:  # noqa: ANN401, JSON
    ((kind, content),) = nest.items()
    match kind:
        case "dict":
            return {key: _decode(value) for key, value in content.items()}
        case "tuple":
            return tuple(_decode(each) for each in content)
        case "list":
            return [_decode(each) for each in content]
        case "namedtuple":
            namedtuple = namedtuple_class(content["name"], tuple(key for key, _ in content["fields"]))
            return namedtuple(*[_decode(value) for _, value in content["fields"]])
        case "spec":
            return _decode_spec(content)
        case _:  # "none", in signatures imported from dm-reverb
            return None


def _decode_spec(encoded: dict[str, Any]) -> TensorSpec:
    shape = None if encoded["shape"] is None else tuple(encoded["shape"])
    dtype = dtype_named(encoded["dtype"])
    if "minimum" not in encoded:
        return TensorSpec(shape, dtype, encoded["name"])
    low, high = (_decode_bound(encoded[side], dtype.newbyteorder("<")) for side in ("minimum", "maximum"))
    return BoundedTensorSpec(shape, dtype, low, high, encoded["name"])


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns the dtype with this name in the engine; `object` for `"string"`."""
    if name == "string":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: PLC0415, optional: needed for dtypes like bfloat16

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


@functools.lru_cache(maxsize=1_024)
def namedtuple_class(name: str, fields: tuple[str, ...]) -> Any:  # noqa: ANN401, a class
    """Returns a namedtuple class with this name and these fields. The same arguments return the same class."""
    return collections.namedtuple(name, fields)  # noqa: PYI024, the fields are dynamic
