"""Dense layers and convolutions."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp

from engram.agents.ftw.networks.initializers import Initializer, truncated_normal


class Linear(eqx.Module):
    """`x @ weight + bias`. The bias is zero at first.

    Args:
        in_size: I, size of the inputs' last axis.
        out_size: O, size of the outputs' last axis.
        key: Random key of the weights.
        w_init: Initial weight. Default: a truncated normal distribution with standard deviation `1/sqrt(I)`.
        b_init: Initial bias. Default: zeros.
    """

    weight: jax.Array  # f[I, O]
    bias: jax.Array  # f[O]

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        key: jax.Array,
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
    ) -> None:
        w_key, b_key = jax.random.split(key)
        w_init = truncated_normal(in_size) if w_init is None else w_init
        b_init = jax.nn.initializers.zeros if b_init is None else b_init
        self.weight = w_init(w_key, (in_size, out_size), jnp.float32)
        self.bias = b_init(b_key, (out_size,), jnp.float32)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f[..., I] to f[..., O]."""
        return x @ self.weight + self.bias


class Conv2D(eqx.Module):
    """A convolution of NHWC images with TensorFlow's SAME padding: the smaller half is at the top and at the left.

    Args:
        in_channels: C, channels of the inputs.
        out_channels: O, channels of the outputs.
        kernel: k, height and width of the kernel, in pixels.
        stride: s, step between output pixels, in input pixels.
        key: Random key of the weights.
    """

    weight: jax.Array  # f[k, k, C, O]
    bias: jax.Array  # f[O]
    stride: int = eqx.field(static=True)

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, *, key: jax.Array) -> None:
        shape = (kernel, kernel, in_channels, out_channels)
        self.weight = truncated_normal(math.prod(shape[:-1]))(key, shape, jnp.float32)
        self.bias = jnp.zeros(out_channels)
        self.stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f[N, H, W, C] to f[N, ceil(H/s), ceil(W/s), O]."""
        window_strides = (self.stride, self.stride)
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, self.weight, window_strides, "SAME", dimension_numbers=dimensions) + (
            self.bias
        )
