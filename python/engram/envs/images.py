"""Images as agents expect them: `[H, W, C]`, of a given size, u8 or from 0 to 1."""

from functools import cache

import numpy as np
import numpy.typing as npt

from engram.errors import InvalidArgumentError


def image_shape(shape: tuple[int, ...], size: tuple[int, int] | None) -> tuple[int, int, int]:
    """Returns the shape of `convert_image`'s result for an image of a shape.

    Raises:
        InvalidArgumentError: The shape is not that of an image.
    """
    if len(shape) == 4 and shape[-1] == 1:  # noqa: PLR2004, a stack of one frame
        shape = shape[:-1]
    if len(shape) == 2:  # noqa: PLR2004, grey
        shape = (*shape, 1)
    if len(shape) != 3:  # noqa: PLR2004, height, width, channels
        raise InvalidArgumentError(
            f"observation: not an image; got the shape {shape}, expected [H, W], [H, W, C] or [H, W, C, 1]"
        )
    return (*(size or shape[:2]), shape[2])


def convert_image(
    image: npt.NDArray[np.uint8], size: tuple[int, int] | None = None, *, to_float: bool = False
) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
    """Returns an image with channels, resized.

    Args:
        image: u8 `[H, W]` (grey), `[H, W, C]` or `[H, W, C, 1]` (a stack of one frame).
        size: Height and width of the result; each of its pixels is the mean of the pixels that it covers. Default: the
            image's.
        to_float: Return f32 from 0 to 1 instead of u8.

    Raises:
        InvalidArgumentError: The image has another shape or dtype.
    """
    if image.dtype != np.uint8:
        raise InvalidArgumentError(f"observation: not an image; got the dtype {image.dtype}, expected uint8")
    shape = image_shape(image.shape, size)
    pixels = image.reshape(*image.shape[:2], shape[2])
    if shape == pixels.shape:
        return pixels.astype(np.float32) / np.float32(255) if to_float else pixels
    rows, columns = _coverage(pixels.shape[0], shape[0]), _coverage(pixels.shape[1], shape[1])
    resized = np.tensordot(columns, np.tensordot(rows, pixels, 1), (1, 1)).swapaxes(0, 1)
    return (resized / 255).astype(np.float32) if to_float else np.rint(resized).astype(np.uint8)


@cache
def _coverage(source: int, target: int) -> npt.NDArray[np.float64]:
    """Returns which part of each new pixel each old pixel covers, along one axis: f64 `[target, source]`."""
    edges = np.arange(target + 1) * (source / target)
    old = np.arange(source)
    covered = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    coverage: npt.NDArray[np.float64] = np.maximum(covered, 0) * (target / source)
    return coverage
