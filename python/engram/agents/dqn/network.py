"""The network, as arithmetic that works on JAX arrays (to learn) and on NumPy arrays (to act)."""

import itertools
import math
from typing import Any, NamedTuple, TypeAlias

from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Spaces

CONV_AXES = 4
"""Axes of the weight of a convolution."""


class Layer(NamedTuple):
    """A dense layer or a convolution; a network is a tuple of layers, convolutions first."""

    weight: Any  # f32[I, O]; of a convolution f32[2, 2, I, O], see `convolve`
    bias: Any  # f32[O]


Params: TypeAlias = tuple[Layer, ...]


def layer_shapes(config: DQNConfig, spaces: Spaces) -> list[tuple[int, ...]]:
    """Returns the shapes of the layers' weights for observations and actions of these spaces."""
    shapes: list[tuple[int, ...]] = []
    if len(spaces.shape) == 1:
        inputs = spaces.stack * spaces.shape[0]
    else:
        (height, width), channels = spaces.shape, spaces.stack
        for outputs, stride in config.conv_layers:
            shapes.append((2, 2, stride * stride * channels, outputs))
            height, width, channels = height // stride - 1, width // stride - 1, outputs
        inputs = height * width * channels
    return [*shapes, *itertools.pairwise((inputs, *config.hidden_sizes, spaces.num_actions))]


def q_values(params: Params, observation: Any) -> Any:  # noqa: ANN401, JAX or NumPy arrays, as given
    """Returns action values f32[..., A] of stacked vectors f32[..., S, O] or stacked images u8[..., S, H, W]."""
    convolutions = [layer for layer in params if layer.weight.ndim == CONV_AXES]
    *hidden, head = params[len(convolutions) :]
    if convolutions:
        x = observation.swapaxes(-3, -2).swapaxes(-2, -1).astype("float32") / 255  # the stack becomes channels
        for layer in convolutions:
            x = rectify(convolve(x, layer))
        x = x.reshape(*x.shape[:-3], -1)
    else:
        x = observation.reshape(*observation.shape[:-2], -1)
    for layer in hidden:
        x = rectify(x @ layer.weight + layer.bias)
    return x @ head.weight + head.bias


def convolve(x: Any, layer: Layer) -> Any:  # noqa: ANN401, JAX or NumPy arrays, as given
    """Returns an unpadded convolution with stride s and kernel 2s x 2s.

    Blocks of s x s pixels become one pixel with s * s * C channels, and each output depends on 2 x 2 of those pixels:
    four matrix products, in NumPy as in JAX. The weight's I is s * s * C, from which s follows; s must divide H and W.

    Args:
        x: f32[..., H, W, C].
        layer: The weights.

    Returns:
        f32[..., H/s - 1, W/s - 1, O].
    """
    *batch, height, width, channels = x.shape
    s = math.isqrt(layer.weight.shape[2] // channels)
    h, w = height // s, width // s
    blocks = x.reshape(*batch, h, s, w, s, channels).swapaxes(-4, -3).reshape(*batch, h, w, s * s * channels)
    corners = itertools.product((0, 1), (0, 1))
    return sum(blocks[..., i : h - 1 + i, j : w - 1 + j, :] @ layer.weight[i, j] for i, j in corners) + layer.bias


def rectify(x: Any) -> Any:  # noqa: ANN401, JAX or NumPy arrays, as given
    """ReLU."""
    return x * (x > 0)
