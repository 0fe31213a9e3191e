"""The networks of the auxiliary tasks: pixel control and reward prediction."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from engram import Nest, _checks
from engram.agents.ftw import networks
from engram.agents.ftw.actions import NumActions
from engram.agents.ftw.networks import OAR, PixelControlHead, RewardPredictionHead, RPTHOutput
from engram.agents.ftw.networks.num_actions import static_num_actions
from engram.agents.ftw.networks.policy_network import CoreState
from engram.compat.ftw.tf.networks._lazy_module import FrameNetwork, LazyModule, Seed, SizedModule
from engram.compat.ftw.tf.networks.embedding import OAREmbedding
from engram.compat.ftw.tf.networks.recurrence import LSTM, RPTH, RPTHZWrapper
from engram.compat.ftw.tf.networks.vision import FtwTorso
from engram.errors import InvalidArgumentError

__all__ = ["PixelControl", "RNNPixelControlNetwork", "RewardPrediction", "RewardPredictionNetwork"]

Activation = Callable[[jax.Array], jax.Array]


class PixelControl(SizedModule):
    """Action values of each cell of the picture; see `engram.agents.ftw.networks.PixelControlHead`."""

    def __init__(
        self,
        num_actions: NumActions,
        activation: Activation = jax.nn.relu,
        *,
        num_cells: int = 20,
        channels: int = 32,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments; the weights are made at the first call.

        Args:
            num_actions: Number of actions; of decomposed actions, that of each group.
            activation: The nonlinearity, of JAX arrays.
            num_cells: Cells along each side of the picture.
            channels: Channels of the hidden images.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value.
        """
        super().__init__(seed)
        num_actions = static_num_actions(num_actions)
        _checks.integer("`num_cells`", num_cells)
        _checks.integer("`channels`", channels)
        self._make = lambda in_size, key: PixelControlHead(
            in_size, num_actions, activation, num_cells=num_cells, channels=channels, key=key
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., I]` to action values `[..., cells, cells, A]`."""
        values: jax.Array = self.build(x.shape[-1]).module(x)
        return values


class RNNPixelControlNetwork(FrameNetwork):
    """Pixel control on the outputs of the policy network's core; embedding and core are the policy network's own."""

    def __init__(
        self,
        embed: OAREmbedding,
        core: LSTM | RPTH | RPTHZWrapper,
        num_actions: NumActions,
        activation: Activation = jax.nn.relu,
        *,
        num_cells: int = 20,
        channels: int = 32,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments. The other arguments and errors are those of `PixelControl`.

        Args:
            embed: The embedding of the policy network.
            core: The core of the policy network, or a wrapper of it.
        """
        core = core.core if isinstance(core, RPTHZWrapper) else core
        if not isinstance(embed, OAREmbedding):
            raise InvalidArgumentError(f"`embed` must be an OAREmbedding; got {_checks.short_repr(embed)}")
        if not isinstance(core, LSTM | RPTH):
            raise InvalidArgumentError(
                f"`core` must be an LSTM, an RPTH or its wrapper; got {_checks.short_repr(core)}"
            )
        self.embed, self.core = embed, core
        self.head = PixelControl(num_actions, activation, num_cells=num_cells, channels=channels, seed=seed)

    def _build(self, observation_shape: tuple[int, ...], key: jax.Array | None) -> None:
        core = self.core.build(self.embed.build(observation_shape).module.size)
        self.head.build(core.hidden_size if isinstance(core, LSTM) else core.num_dimensions, key)

    def unroll(self, oar: Nest, state: CoreState) -> jax.Array:
        """Takes T steps.

        Args:
            oar: Observations, previous actions and rewards `[T, B, ...]`.
            state: The state before the first step, `[B, ...]`.

        Returns:
            Action values `[T, B, cells, cells, A]`.
        """
        self.build(np.shape(oar[0])[2:])
        outputs: list[Any] = []
        for step in range(np.shape(oar[0])[0]):
            embedding = self.embed(OAR(*(part[step] for part in oar)))
            output, state = self.core(embedding, state)  # type: ignore[arg-type]  # of this core
            outputs.append(output.z if isinstance(output, RPTHOutput) else output)
        return self.head(jax.numpy.stack(outputs))

    def __call__(self, oar: Nest, state: CoreState) -> jax.Array:
        """Returns the action values `[B, cells, cells, A]` of one step."""
        return self.unroll(OAR(*(part[None] for part in oar)), state)[0]

    def initial_state(self, batch_size: int) -> CoreState:
        """Returns the state of the core at the start of an episode, for `batch_size` elements."""
        return self.core.initial_state(batch_size)


class RewardPrediction(SizedModule):
    """Logits of the classes zero, negative and positive; see `engram.agents.ftw.networks.RewardPredictionHead`."""

    def __init__(
        self, hidden_size: int = 128, activation: Activation = jax.nn.relu, *, seed: Seed | None = None
    ) -> None:
        """Checks the arguments; the weights are made at the first call.

        Args:
            hidden_size: Units of the hidden layer.
            activation: The nonlinearity, of JAX arrays.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: `hidden_size` is not an integer of at least 1.
        """
        super().__init__(seed)
        _checks.integer("`hidden_size`", hidden_size)
        self._make = lambda in_size, key: RewardPredictionHead(in_size, 1, hidden_size, activation, key=key)

    def __call__(self, features: jax.Array) -> jax.Array:
        """Maps features `[B, D]`, of a window's frames in order, the oldest first, to logits `[B, 3]`."""
        logits: jax.Array = self.build(features.shape[-1]).module(features[None])
        return logits


class RewardPredictionNetwork(FrameNetwork):
    """Reward prediction on the features of the policy network's torso."""

    def __init__(
        self,
        embed: FtwTorso,
        hidden_size: int = 128,
        activation: Activation = jax.nn.relu,
        *,
        sequence_length: int = 3,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments. The other arguments are those of `RewardPrediction`.

        Args:
            embed: The torso of the policy network.
            sequence_length: Frames of a window, L.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value.
        """
        if not callable(embed) or not hasattr(embed, "hidden_size"):
            raise InvalidArgumentError(f"`embed` must be a torso; got {_checks.short_repr(embed)}")
        self.torso = embed
        self.embedding: OAREmbedding | None = None
        """The embedding of the policy network with this torso; a learner sets it, and the features are its torso's."""
        self.sequence_length = _checks.integer("`sequence_length`", sequence_length)
        self.head = RewardPrediction(hidden_size, activation, seed=seed)

    def _build(self, observation_shape: tuple[int, ...], key: jax.Array | None) -> None:
        if isinstance(self.torso, LazyModule):
            self.torso.build(observation_shape)
        self.head.build(self.sequence_length * self.torso.hidden_size, key)

    def __call__(self, frames: jax.Array) -> jax.Array:
        """Maps windows of frames `[B, L, H, W, C]`, the oldest first, to logits `[B, 3]`."""
        self.build(frames.shape[2:])
        torso = self.torso if self.embedding is None else self.embedding.build(frames.shape[2:]).module.torso
        features = torso(networks.pixels_to_float(frames.reshape(-1, *frames.shape[2:])))
        return self.head(features.reshape(len(frames), -1))
