"""The head of the auxiliary task pixel control: action values of changing the pixels of each cell of the screen.

Jaderberg et al., "Reinforcement learning with unsupervised auxiliary tasks" (2017), section 3.1: a deconvolutional,
dueling network.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from engram import _checks
from engram.agents.ftw.actions import NumActions, group_sizes, split_logits
from engram.agents.ftw.networks.layers import Linear
from engram.agents.ftw.networks.num_actions import static_num_actions
from engram.agents.ftw.networks.transposed_convolution import TransposedConv2D

STRIDE = 3  # of the first transposed convolution


class PixelControlHead(eqx.Module):
    """Action values `Q = V + advantage - mean over actions of advantage` of each cell of a grid.

    A dense layer to an image of ceil(cells/3) x ceil(cells/3) pixels; a transposed convolution (9x9, stride 3) to one
    pixel per cell; transposed convolutions (4x4) to the value and to the advantages. Decomposed actions have advantages
    and a mean per group; the value is common to all.

    Args:
        in_size: Size of the input.
        num_actions: A, or a sequence of the sizes of action groups.
        activation: The nonlinearity.
        num_cells: Cells along each side of the grid.
        channels: Channels of the hidden images.
        key: Random key of the weights.

    Raises:
        InvalidArgumentError: If an argument has a wrong type or value.
    """

    linear: Linear
    deconvolution: TransposedConv2D
    value: TransposedConv2D
    advantage: TransposedConv2D
    num_actions: int | tuple[int, ...] = eqx.field(static=True)
    activation: Callable[[jax.Array], jax.Array] = eqx.field(static=True)
    num_cells: int = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        num_actions: NumActions,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        *,
        num_cells: int = 20,
        channels: int = 32,
        key: jax.Array,
    ) -> None:
        self.num_actions = static_num_actions(num_actions)
        self.num_cells = _checks.integer("`num_cells`", num_cells)
        channels = _checks.integer("`channels`", channels)
        keys = jax.random.split(key, 4)
        self.linear = Linear(in_size, channels * self._small_size**2, key=keys[0])
        self.deconvolution = TransposedConv2D(channels, channels, 9, STRIDE, key=keys[1])
        self.value = TransposedConv2D(channels, 1, 4, 1, key=keys[2])
        self.advantage = TransposedConv2D(channels, sum(group_sizes(self.num_actions)), 4, 1, key=keys[3])
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns action values f[..., cells, cells, A] for inputs f[..., I]; A is that of all groups."""
        value, advantage = self.value_and_advantage(x)
        groups = split_logits(advantage, self.num_actions)
        return jnp.concatenate([value + group - group.mean(axis=-1, keepdims=True) for group in groups], axis=-1)

    def value_and_advantage(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the value f[..., cells, cells, 1] and the advantages f[..., cells, cells, A] for inputs f[..., I]."""
        size = (self.num_cells, self.num_cells)
        channels = self.value.weight.shape[-1]
        image = self.activation(self.linear(x)).reshape(-1, self._small_size, self._small_size, channels)
        image = self.activation(self.deconvolution(image, size))
        value, advantage = self.value(image, size), self.advantage(image, size)
        batch = x.shape[:-1]
        return value.reshape(*batch, *value.shape[1:]), advantage.reshape(*batch, *advantage.shape[1:])

    @property
    def _small_size(self) -> int:
        return -(-self.num_cells // STRIDE)
