"""Images as PNG files in data URLs."""

import base64
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["png_url"]

GRAY, RGB = 0, 2


def png_url(image: npt.NDArray[np.uint8]) -> str:
    """Returns a data URL of an image, u8 `[H, W]` or `[H, W, 3]`."""
    return "data:image/png;base64," + base64.b64encode(encode_png(image)).decode()


def encode_png(image: npt.NDArray[np.uint8]) -> bytes:
    """Returns a PNG file of an image, u8 `[H, W]` or `[H, W, 3]`."""
    height, width = image.shape[:2]
    colors = GRAY if image.ndim == 2 else RGB  # noqa: PLR2004, [H, W]
    rows = np.ascontiguousarray(image).reshape(height, -1)
    unfiltered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, colors, 0, 0, 0)
    chunks: list[tuple[bytes, Any]] = [(b"IHDR", header), (b"IDAT", zlib.compress(unfiltered.tobytes(), 1))]
    body = b"".join(_chunk(kind, data) for kind, data in [*chunks, (b"IEND", b"")])
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
