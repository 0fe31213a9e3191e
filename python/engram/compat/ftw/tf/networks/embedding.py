"""The embedding of observation, previous action and previous reward (OAR)."""

from typing import Any

import jax
import numpy as np

from engram import Nest, _checks
from engram.agents.ftw import networks
from engram.agents.ftw.actions import NumActions
from engram.agents.ftw.internal_rewards import numbers_of
from engram.agents.ftw.networks import OAR
from engram.agents.ftw.networks.num_actions import static_num_actions
from engram.compat.ftw.tf.networks._lazy_module import FrameNetwork, LazyModule, attach, check_is_free, value_of
from engram.errors import InvalidArgumentError

__all__ = ["OAREmbedding"]


class OAREmbedding(FrameNetwork, LazyModule):
    """Concatenates features, one-hot previous actions and `tanh(w . r)`; see `engram.agents.ftw.networks`."""

    def __init__(self, torso: Any, num_actions: NumActions, internal_rewards: Any = None) -> None:  # noqa: ANN401, see Args
        """Checks the arguments; the weights are those of the torso.

        Args:
            torso: `FtwTorso`, or another callable with the attribute `hidden_size`, from frames `[N, ...]` to features
                `[N, hidden_size]`.
            num_actions: Number of actions; of decomposed actions, that of each group.
            internal_rewards: `InternalRewards`, or their weights `[E]`. Default: those of the learner; without one, 1.

        Raises:
            InvalidArgumentError: An argument has the wrong type.
        """
        super().__init__(None)
        if not callable(torso) or not hasattr(torso, "hidden_size"):
            raise InvalidArgumentError(
                "`torso` must be a callable with the attribute `hidden_size`, such as FtwTorso; got"
                f" {_checks.short_repr(torso)}"
            )
        self.torso = torso
        self.num_actions = static_num_actions(num_actions)
        self.internal_rewards = internal_rewards
        self.weights()

    def weights(self) -> Nest:
        """Returns the current weights of the events, f64 `[E]`.

        Raises:
            InvalidArgumentError: They are no numbers `[E]`.
        """
        given = value_of(self.internal_rewards)
        weights = np.atleast_1d(numbers_of(1.0 if given is None else given))
        if weights.ndim != 1:
            raise InvalidArgumentError(
                f"`internal_rewards` must be InternalRewards, or numbers [E]; got {_checks.short_repr(given)}"
            )
        return weights

    def _build(self, observation_shape: tuple[int, ...], key: jax.Array | None) -> None:
        torso = self.torso
        if not isinstance(torso, LazyModule):
            self._make_module(lambda _: networks.OAREmbedding(torso, self.num_actions), key)
            return
        check_is_free(torso, self)
        torso.build(observation_shape, key)  # type: ignore[attr-defined]  # FtwTorso has it
        self._make_module(lambda _: networks.OAREmbedding(torso.module, self.num_actions), key)
        attach(torso, self, lambda: self.module.torso)

    def __call__(self, oar: Nest) -> jax.Array:
        """Maps observations, actions and rewards `[N, ...]` to embeddings f32 `[N, D + A + 1]`."""
        oar = OAR(*oar)
        embedding: jax.Array = self.build(np.shape(oar.observation)[1:]).module(oar, self.weights())
        return embedding
