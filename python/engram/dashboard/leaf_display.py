"""How the arrays of an item are shown: as pictures, curves, values or text, otherwise by dtype, shape and range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.dashboard.png import png_url

__all__ = ["LeafDisplay", "display_leaf", "leaves"]

MAX_FRAMES = 64
"""Number of frames of a film strip."""

MAX_PIXELS = 256
"""Largest side of a frame; larger ones are reduced."""

MIN_PIXELS = 8
"""Smallest side of an image; smaller arrays are shown as numbers."""

MAX_CURVES = 16
MAX_POINTS = 2_000
MAX_TEXT = 2_000
MAX_VALUES = 100
MAX_SUMMARY_BYTES = 64 << 20

LAYOUTS = ("THWC", "TCHW", "HWC", "CHW", "THW", "HW")
"""Layouts of images, by their axes; the first that fits is used."""

CHANNELS = (1, 3, 4)
STACKED = 4
"""Number of channels that are frames of a stack, shown side by side."""


@dataclass(frozen=True)
class LeafDisplay:
    """How an array is shown.

    Attributes:
        name: Path of the column in the item, such as `obs/image`.
        summary: Dtype, shape and range.
        frames: Images as data URLs, in order of time; empty if it is not an image.
        curves: Values over time, one list per component; `None` for values that are not finite.
        text: Text or a single value.
    """

    name: str
    summary: str
    frames: tuple[str, ...] = ()
    curves: tuple[list[float | None], ...] = ()
    text: str | None = None


def leaves(nest: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields path and value of each leaf of a nest."""
    if isinstance(nest, Mapping):
        items = [(str(key), value) for key, value in nest.items()]
    elif isinstance(nest, tuple | list):
        names = getattr(nest, "_fields", range(len(nest)))
        items = [(str(key), value) for key, value in zip(names, nest, strict=True)]
    else:
        yield path or "(data)", nest
        return
    for key, value in items:
        yield from leaves(value, f"{path}/{key}" if path else key)


def display_leaf(name: str, value: object) -> LeafDisplay:
    """Returns how a leaf is shown. Never fails for data that a table can have."""
    array = np.asarray(value)
    if array.dtype.kind in "OUST":
        text = "\n".join(_as_text(each) for each in array.ravel()[:MAX_VALUES].tolist())
        return LeafDisplay(name, _shape_text(array), text=text[:MAX_TEXT])
    if array.dtype.kind == "c":
        return LeafDisplay(name, _shape_text(array), text=str(array.ravel()[:MAX_VALUES]))
    summary = _shape_text(array)
    if array.dtype.kind not in "biuf":
        array = array.astype(np.float32)  # bfloat16 and float8
    return _display_numbers(name, summary + _range_text(array), array)


def _display_numbers(name: str, summary: str, array: npt.NDArray[Any]) -> LeafDisplay:
    if array.size == 0:
        return LeafDisplay(name, summary)
    if array.ndim == 0:
        return LeafDisplay(name, summary, text=str(array[()]))
    frames = as_frames(array)
    if frames is not None:
        return LeafDisplay(name, summary, frames=tuple(png_url(_reduced(frame)) for frame in frames))
    curves = _curves(array) if array.ndim <= 2 else ()  # noqa: PLR2004, [T] or [T, D]
    return LeafDisplay(name, summary, curves=curves)


def as_frames(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
    """Returns an array as u8 `[T, H, W]` or `[T, H, W, 3]`; `None` if it does not look like images."""
    frames = _with_channels_last(array)
    if frames is None:
        return None
    frames = _bytes(frames[:MAX_FRAMES])
    if frames.shape[-1] == 1:
        return frames[..., 0]
    if frames.shape[-1] == STACKED:
        return np.concatenate([frames[..., channel] for channel in range(STACKED)], axis=2)
    return frames


def _with_channels_last(array: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Returns `[T, H, W, C]`."""
    if array.dtype.kind not in "buf":
        return None
    layouts = [layout for layout in LAYOUTS if len(layout) == array.ndim and _fits(layout, array)]
    if not layouts:
        return None
    layout = layouts[0]
    frames = array.transpose([layout.index(axis) for axis in "THWC" if axis in layout])
    frames = frames if "T" in layout else frames[None]
    return frames if "C" in layout else frames[..., None]


def _fits(layout: str, array: npt.NDArray[Any]) -> bool:
    sizes = dict(zip(layout, array.shape, strict=True))
    if layout == "HW" and array.dtype != np.uint8:
        return False  # a matrix, or vectors over time
    return min(sizes["H"], sizes["W"]) >= MIN_PIXELS and sizes.get("C", 1) in CHANNELS


def _bytes(frames: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns u8: floats from 0 to 1 as 0 to 255, others stretched from their smallest to their largest value."""
    if frames.dtype == np.uint8:
        return frames
    if frames.dtype == np.bool_:
        return frames.astype(np.uint8) * np.uint8(255)
    values = frames.astype(np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = float(values[finite].min()), float(values[finite].max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    scale = 255.0 / (high - low) if high > low and np.isfinite(high - low) else 0.0
    return ((values - low) * scale).astype(np.uint8)


def _reduced(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    step = -(-max(frame.shape[:2]) // (MAX_PIXELS * (STACKED if frame.ndim == 2 else 1)))  # noqa: PLR2004
    return np.ascontiguousarray(frame[::step, ::step])


def _curves(array: npt.NDArray[Any]) -> tuple[list[float | None], ...]:
    table = array.reshape(len(array), -1)[:MAX_POINTS, :MAX_CURVES].astype(np.float64)
    return tuple([float(value) if np.isfinite(value) else None for value in column] for column in table.T)


def _as_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _shape_text(array: npt.NDArray[Any]) -> str:
    dtype = "text" if array.dtype.kind in "OUT" else str(array.dtype)
    return f"{dtype} {list(array.shape)}"


def _range_text(array: npt.NDArray[Any]) -> str:
    if array.size == 0:
        return ", empty"
    if array.nbytes > MAX_SUMMARY_BYTES:
        return ", large"
    finite = array if array.dtype.kind in "biu" else array[np.isfinite(array)]
    missing = array.size - finite.size
    note = f", {missing:,} NaN or infinite" if missing else ""
    if finite.size == 0:
        return note
    return f", from {finite.min():.5g} to {finite.max():.5g}{note}" if array.dtype.kind != "b" else note
