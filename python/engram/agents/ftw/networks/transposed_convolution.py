"""A transposed convolution in sub-pixel form: an ordinary convolution whose channels become blocks of pixels.

XLA's convolutions of dilated inputs, the usual form, are slow on CPUs: the sub-pixel form takes less than a tenth of
the time for the pixel-control head.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from engram.agents.ftw.networks.initializers import truncated_normal


class TransposedConv2D(eqx.Module):
    """The transpose of a convolution of NHWC images with TensorFlow's SAME padding.

    Args:
        in_channels: C, channels of the inputs.
        out_channels: O, channels of the outputs.
        kernel: k, height and width of the kernel, in output pixels.
        stride: s, step between input pixels, in output pixels.
        key: Random key of the weights.
    """

    weight: jax.Array  # f[k, k, O, C], TensorFlow's layout
    bias: jax.Array  # f[O]
    stride: int = eqx.field(static=True)

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, *, key: jax.Array) -> None:
        shape = (kernel, kernel, out_channels, in_channels)
        self.weight = truncated_normal(kernel * kernel * in_channels)(key, shape, jnp.float32)
        self.bias = jnp.zeros(out_channels)
        self.stride = stride

    def __call__(self, x: jax.Array, out_size: tuple[int, int]) -> jax.Array:
        """Maps f[N, h, w, C] to f[N, *out_size, O], where h = ceil(out height / s) and w = ceil(out width / s)."""
        return transposed_convolution(x, self.weight, self.stride, out_size) + self.bias


def transposed_convolution(x: jax.Array, weight: jax.Array, stride: int, out_size: tuple[int, int]) -> jax.Array:
    """Returns the transposed convolution f[N, *out_size, O] of x, f[N, h, w, C], without a bias.

    In one dimension: output pixel o is the sum over input pixels i of `x[i] weight[o + before - s i]`, where `before`
    is the padding before the first pixel. With `o + before = s m + r`, 0 <= r < s, and `weight` cut into taps of s
    pixels, that is a convolution over `m - i` for each r, or one convolution to s * O channels for all of them.
    Position m of its output has the channels of s pixels.

    Args:
        x: f[N, h, w, C].
        weight: f[k, k, O, C].
        stride: s.
        out_size: Height and width of the output.
    """
    kernel, _, out_channels, in_channels = weight.shape
    taps = -(-kernel // stride)
    weight = jnp.pad(weight, [(0, taps * stride - kernel)] * 2 + [(0, 0)] * 2)
    blocks = weight.reshape(taps, stride, taps, stride, out_channels, in_channels)[::-1, :, ::-1]
    blocks = blocks.transpose(0, 2, 5, 1, 3, 4)  # f[taps, taps, C, s, s, O]
    blocks = blocks.reshape(taps, taps, in_channels, stride * stride * out_channels)
    before = [_padding_before(kernel, stride, size) for size in out_size]
    first = [pad // stride for pad in before]  # the first m and the last m that hold pixels of the output
    last = [(pad + size - 1) // stride for pad, size in zip(before, out_size, strict=True)]
    padding = [(taps - 1 - m, n - size + 1) for m, n, size in zip(first, last, x.shape[1:3], strict=True)]
    y = jax.lax.conv_general_dilated(x, blocks, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = _depth_to_space(y, stride)
    top, left = (pad - stride * m for pad, m in zip(before, first, strict=True))
    return y[:, top : top + out_size[0], left : left + out_size[1]]


def _padding_before(kernel: int, stride: int, size: int) -> int:
    """Returns the padding before the first pixel of a convolution of `size` pixels with SAME padding."""
    in_size = math.ceil(size / stride)
    return max((in_size - 1) * stride + kernel - size, 0) // 2


def _depth_to_space(x: jax.Array, block: int) -> jax.Array:
    """Maps f[N, h, w, b * b * O] to f[N, b * h, b * w, O]."""
    batch, height, width, depth = x.shape
    channels = depth // block**2
    x = x.reshape(batch, height, width, block, block, channels).swapaxes(2, 3)
    return x.reshape(batch, height * block, width * block, channels)
