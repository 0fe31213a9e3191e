"""The actor: selects actions with the policy network, and records what happens."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from engram import Nest, _checks
from engram._extras import importing_extra
from engram.adders import Adder, TimeStep
from engram.agents.ftw.networks import OAR
from engram.compat.ftw.tf.networks._lazy_module import Seed, random_key
from engram.compat.ftw.tf.networks.ftw_network import FtwNetwork
from engram.errors import DeadlineExceededError, EngramError, InvalidArgumentError, ItemError, UnsatisfiableError

with importing_extra("agents", "engram.compat.ftw"):
    import equinox as eqx
    import jax

__all__ = ["FtwActor"]


class FtwActor:
    """An actor of one environment of dm_env, whose observations are triples of observation, action and reward (OAR)."""

    def __init__(
        self,
        network: FtwNetwork,
        adder: Adder | None = None,
        reward_prediction_adder: Adder | None = None,
        variable_client: Any = None,  # noqa: ANN401, see Args
        uint_pixels_to_float: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        *,
        seed: Seed | None = None,
    ) -> None:
        """Sets up the actor.

        Args:
            network: The policy network. Its parameters are read at each action.
            adder: Receives the steps, with the extras `logits` and `core_state`, those before the step. Default: they
                are not recorded.
            reward_prediction_adder: Receives the steps without extras. Default: none.
            variable_client: Has a method `update`, which `update` calls. Default: parameters are those of `network`.
            uint_pixels_to_float: Whether pixels of unsigned integers are divided by 255. Floats never are.
            seed: Seed of actions and latent variables.

        Raises:
            InvalidArgumentError: An argument has the wrong type.
        """
        if not isinstance(network, FtwNetwork):
            raise InvalidArgumentError(f"`network` must be an FtwNetwork; got {_checks.short_repr(network)}")
        _checks.boolean("`uint_pixels_to_float`", uint_pixels_to_float)
        self._network = network
        self._adder, self._reward_prediction_adder = adder, reward_prediction_adder
        self._variable_client = variable_client
        self._scales_pixels = uint_pixels_to_float
        self._key = random_key(seed)
        self._state: Any = None
        self._extras: Any = None

    def select_action(self, observation: Nest) -> Nest:
        """Samples an action.

        Args:
            observation: A triple of observation, previous action and previous reward, without a batch axis.

        Returns:
            The action, i32 `[]`, or `[G]` if decomposed.
        """
        oar = OAR(*(np.asarray(part)[None] for part in observation))
        oar = oar._replace(observation=as_pixels(oar.observation, scale=self._scales_pixels))
        network = self._network.build(oar.observation.shape[1:])
        before = network.initial_state(1) if self._state is None else self._state
        params, static = eqx.partition(network.module, eqx.is_inexact_array)
        action, logits, self._state, self._key = _select(
            params, oar, before, self._key, network.hypers(), static=static
        )
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], before)
        self._extras = {"logits": np.asarray(logits)[0], "core_state": state}
        return np.asarray(action)[0]

    def observe_first(self, timestep: TimeStep) -> None:
        """Starts an episode with its first time step, `timestep`, and with the core's initial state."""
        for adder in (self._adder, self._reward_prediction_adder):
            if adder is not None:
                adder.add_first(timestep)
        self._state = self._extras = None

    def reset(self) -> None:
        """Abandons the episode in progress; `observe_first` starts another one.

        Raises:
            EngramError: See `engram.adders.Adder.reset`; the episode was abandoned.
        """
        self._state = self._extras = None
        with ExitStack() as stack:
            for adder in (self._reward_prediction_adder, self._adder):
                if adder is not None:
                    stack.callback(adder.reset)

    def observe(self, action: Nest, next_timestep: Any) -> None:  # noqa: ANN401, a dm_env.TimeStep
        """Records a step. Action, reward and discount are stored in the dtypes of the OAR, discounts as f32.

        Args:
            action: The action of the last `select_action`.
            next_timestep: What it led to.

        Raises:
            InvalidArgumentError: No action was selected since the last step.
            EngramError: See `engram.adders.Adder.add`. If `adder` did not keep the step, the other adder has not got it
                either, and the call can be repeated.
        """
        if self._adder is None and self._reward_prediction_adder is None:
            return
        if self._extras is None:
            raise InvalidArgumentError("`observe` records the last selected action, but none was; call `select_action`")
        _, previous_action, previous_reward = next_timestep.observation
        action = np.asarray(action, np.asarray(previous_action).dtype)
        timestep = next_timestep._replace(
            reward=np.asarray(next_timestep.reward, np.asarray(previous_reward).dtype),
            discount=np.float32(next_timestep.discount),
        )
        item_error: EngramError | None = None
        if self._adder is not None:
            try:
                self._adder.add(action, timestep, self._extras)
            except (ItemError, DeadlineExceededError, UnsatisfiableError) as error:
                # The step was added if only its items failed, or have to wait after the end of the episode.
                if not isinstance(error, ItemError) and not timestep.last():
                    raise
                item_error = error
        if self._reward_prediction_adder is not None:
            self._reward_prediction_adder.add(action, timestep)
        self._extras = None
        if item_error is not None:
            raise item_error

    def update(self) -> None:
        """Fetches the parameters, if there is a variable client."""
        if self._variable_client is not None:
            self._variable_client.update()


def as_pixels(frames: Nest, *, scale: bool) -> Nest:
    """Returns frames as networks take them.

    Args:
        frames: u8, which networks divide by 255, or floating-point.
        scale: If False, u8 becomes f32, which they do not.
    """
    return frames.astype(np.float32) if not scale and frames.dtype == np.uint8 else frames


@partial(jax.jit, static_argnames="static")
def _select(params: Nest, oar: OAR, state: Nest, key: jax.Array, hypers: Nest, *, static: Nest) -> tuple[Any, ...]:
    """Returns actions, logits, and the next states of core and random key."""
    key, next_key = jax.random.split(key)
    action, logits, state = eqx.combine(params, static).select_action(oar, state, key, hypers)
    return action, logits, state, next_key
