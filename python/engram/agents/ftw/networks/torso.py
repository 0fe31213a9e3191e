"""The torso: two convolutions, two residual blocks and a dense layer (figure S11 of the paper's supplement)."""

import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.networks.layers import Conv2D, Linear
from engram.errors import InvalidArgumentError

Filters: TypeAlias = Sequence[tuple[int, int, int]]
"""Convolutions, each as (channels, kernel, stride)."""


class FtwTorso(eqx.Module):
    """Maps images to feature vectors.

    Convolutions, each followed by the activation; residual blocks `x + convolution(activation(x))`, where the first
    block leaves out the activation, because its input has passed one; the activation; a dense layer.

    Args:
        observation_shape: (H, W, C) of an image.
        conv_filters: (channels, kernel, stride) of each convolution.
        residual_filters: The same of each residual block; it must keep the shape, so its stride is 1 and its channels
            are those of the last convolution.
        hidden_size: D, size of the features.
        activation: The nonlinearity.
        activate_last: Whether the features pass the activation, too.
        compute_dtype: dtype of the arithmetic, for example bfloat16; the features have the dtype of the parameters.
            Default: that of the parameters.
        key: Random key of the weights.

    Raises:
        InvalidArgumentError: If an argument has a wrong type, or a residual block changes the shape.
    """

    convolutions: tuple[Conv2D, ...]
    residuals: tuple[Conv2D, ...]
    linear: Linear
    activation: Callable[[jax.Array], jax.Array] = eqx.field(static=True)
    activate_last: bool = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    compute_dtype: jnp.dtype | None = eqx.field(static=True)

    def __init__(
        self,
        observation_shape: Sequence[int],
        conv_filters: Filters = ((32, 8, 4), (64, 4, 2)),
        residual_filters: Filters = ((64, 3, 1), (64, 3, 1)),
        hidden_size: int = 256,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        *,
        activate_last: bool = False,
        compute_dtype: jnp.dtype | None = None,
        key: jax.Array,
    ) -> None:
        height, width, channels = _image_shape(observation_shape)
        conv_filters = checked_filters("`conv_filters`", conv_filters)
        residual_filters = checked_filters("`residual_filters`", residual_filters)
        channels = conv_filters[-1][0] if conv_filters else channels
        for filters in residual_filters:
            if filters != (channels, filters[1], 1):
                raise InvalidArgumentError(
                    f"each of `residual_filters` must have {channels} channels and stride 1, to keep the shape of its "
                    f"input; got {filters}"
                )
        self.hidden_size = _checks.integer("`hidden_size`", hidden_size)
        _checks.boolean("`activate_last`", activate_last)
        keys = iter(jax.random.split(key, len(conv_filters) + len(residual_filters) + 1))
        convolutions, in_channels = [], observation_shape[-1]
        for out_channels, kernel, stride in conv_filters:
            convolutions.append(Conv2D(in_channels, out_channels, kernel, stride, key=next(keys)))
            height, width, in_channels = -(-height // stride), -(-width // stride), out_channels
        residuals = [Conv2D(channels, channels, kernel, 1, key=next(keys)) for _, kernel, _ in residual_filters]
        self.convolutions, self.residuals = tuple(convolutions), tuple(residuals)
        self.linear = Linear(height * width * channels, self.hidden_size, key=next(keys))
        self.activation, self.activate_last = activation, bool(activate_last)
        self.compute_dtype = compute_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images f[N, H, W, C] to features f[N, D]."""
        layers = (self.convolutions, self.residuals, self.linear)
        if self.compute_dtype is not None:
            layers, x = jax.tree.map(lambda leaf: leaf.astype(self.compute_dtype), (layers, x))
        convolutions, residuals, linear = layers
        for convolution in convolutions:
            x = self.activation(convolution(x))
        for index, convolution in enumerate(residuals):
            x = x + convolution(x if index == 0 else self.activation(x))
        x = linear(self.activation(x).reshape(len(x), -1)).astype(self.linear.weight.dtype)
        return self.activation(x) if self.activate_last else x


def _image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    sizes = tuple(shape)
    if len(sizes) != 3:  # noqa: PLR2004, height, width and channels
        raise InvalidArgumentError(f"`observation_shape` must be (height, width, channels); got {sizes}")
    height, width, channels = (_checks.integer("each of `observation_shape`", size) for size in sizes)
    return height, width, channels


def checked_filters(what: str, filters: object) -> tuple[tuple[int, int, int], ...]:
    """Returns (channels, kernel, stride) of each convolution as a tuple of tuples."""
    try:
        if isinstance(filters, str) or not isinstance(filters, Sequence):
            raise TypeError  # noqa: TRY301, as `operator.index` raises for other types
        triples = tuple(tuple(map(operator.index, triple)) for triple in filters)
    except TypeError:
        triples = None
    if triples is None or not all(len(triple) == 3 and min(triple) > 0 for triple in triples):  # noqa: PLR2004
        raise InvalidArgumentError(
            f"{what} must be a sequence of (channels, kernel, stride), each an integer above 0; "
            f"got {_checks.short_repr(filters)}"
        )
    return triples  # type: ignore[return-value]  # of three integers each
