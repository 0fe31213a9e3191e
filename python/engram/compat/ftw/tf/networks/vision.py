"""The torso: from frames to features."""

from collections.abc import Callable
from typing import Any

import jax

from engram import Nest, _checks
from engram.agents.ftw import networks
from engram.agents.ftw.networks.torso import Filters, checked_filters
from engram.compat.ftw.tf.networks._lazy_module import FrameNetwork, LazyModule, Seed

__all__ = ["FtwTorso"]


class FtwTorso(FrameNetwork, LazyModule):
    """Convolutions, residual blocks and a dense layer; see `engram.agents.ftw.networks.FtwTorso`."""

    def __init__(
        self,
        conv_filters: Filters = ((32, 8, 4), (64, 4, 2)),
        residual_filters: Filters = ((64, 3, 1), (64, 3, 1)),
        hidden_size: int = 256,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        activate_last: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        *,
        compute_dtype: Any = None,  # noqa: ANN401, a dtype
        seed: Seed | None = None,
    ) -> None:
        """Checks the sizes; the weights are made at the first call.

        Args:
            conv_filters: (channels, kernel, stride) of each convolution.
            residual_filters: The same of each residual block; strides are 1.
            hidden_size: Number of features, D.
            activation: The nonlinearity, of JAX arrays.
            activate_last: Whether the features pass the nonlinearity.
            compute_dtype: dtype of the arithmetic. Default: that of the weights, f32.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value.
        """
        super().__init__(seed)
        conv_filters = checked_filters("`conv_filters`", conv_filters)
        residual_filters = checked_filters("`residual_filters`", residual_filters)
        self.hidden_size = _checks.integer("`hidden_size`", hidden_size)
        _checks.boolean("`activate_last`", activate_last)
        _checks.function("`activation`", activation)

        def make(observation_shape: tuple[int, ...], key: jax.Array) -> networks.FtwTorso:
            return networks.FtwTorso(
                observation_shape, conv_filters, residual_filters, hidden_size, activation,
                activate_last=activate_last, compute_dtype=compute_dtype, key=key,
            )  # fmt: skip

        self._make = make

    def _build(self, observation_shape: tuple[int, ...], key: jax.Array | None) -> None:
        self._make_module(lambda made_key: self._make(observation_shape, made_key), key)

    def __call__(self, observation: Nest) -> jax.Array:
        """Maps frames `[N, H, W, C]`, u8 or floating-point from 0 to 1, to features f32 `[N, D]`."""
        features: jax.Array = self.build(observation.shape[1:]).module(networks.pixels_to_float(observation))
        return features
