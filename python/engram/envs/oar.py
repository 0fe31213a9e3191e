"""Observations with the action and reward that led to them (OAR), for environments of dm_env.

The observation at t + 1 contains the action at t and the reward that came with that observation. The first observation
of an episode has the action 0 and the reward 0.
"""

from typing import Any, NamedTuple

import numpy as np

from engram._extras import importing_extra
from engram.envs.grid_environment import BatchedGridEnvironment
from engram.envs.wrapper import EnvironmentWrapper
from engram.nests import Nest

with importing_extra("agents", "engram.envs"):
    import dm_env


class OAR(NamedTuple):
    """What an agent of FTW observes.

    Attributes:
        observation: The environment's observation.
        action: The action of the step that led to it, in the action's dtype.
        reward: The reward of this step, in the reward's dtype; a number, or the events `[E]`.
    """

    observation: Any
    action: Any
    reward: Any


class ObservationActionReward(EnvironmentWrapper):
    """An environment whose observations are `OAR`."""

    def __init__(self, environment: dm_env.Environment) -> None:
        """Wraps an environment."""
        super().__init__(environment)
        self._specs = OAR(environment.observation_spec(), environment.action_spec(), environment.reward_spec())

    def reset(self) -> dm_env.TimeStep:
        """Begins a new episode."""
        return self._with_oar(super().reset(), None)

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Does an action, or begins a new episode if the last one is over."""
        return self._with_oar(super().step(action), action)

    def observation_spec(self) -> OAR:
        """Specs of observation, action and reward."""
        return self._specs

    def _with_oar(self, timestep: dm_env.TimeStep, action: Nest) -> dm_env.TimeStep:
        action, reward = (0, 0) if timestep.first() else (action, timestep.reward)
        oar = OAR(timestep.observation, _filled(self._specs.action, action), _filled(self._specs.reward, reward))
        return timestep._replace(observation=oar)


class BatchedObservationActionReward:
    """Grid environments whose observations are `OAR`: frames `[N, ...]`, actions i32 `[N]` and rewards f32 `[N]`."""

    def __init__(self, environment: BatchedGridEnvironment) -> None:
        """Wraps environments; all other attributes are passed on."""
        self._environment = environment

    def reset(self) -> dm_env.TimeStep:
        """Begins a new episode in each environment."""
        return self._with_oar(self._environment.reset(), np.zeros(self._environment.num_envs, np.int32))

    def step(self, actions: Nest) -> dm_env.TimeStep:
        """Does an action in each environment, or begins a new episode where the last one is over."""
        return self._with_oar(self._environment.step(actions), np.asarray(actions))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, any attribute
        if name == "_environment":  # not set yet, for example while this object is unpickled
            raise AttributeError(name)
        return getattr(self._environment, name)

    def _with_oar(self, timestep: dm_env.TimeStep, actions: Nest) -> dm_env.TimeStep:
        actions = np.where(timestep.first(), 0, actions).astype(np.int32)
        return timestep._replace(observation=OAR(timestep.observation, actions, timestep.reward.copy()))


def _filled(spec: Any, value: Nest) -> Nest:  # noqa: ANN401, a spec of dm_env
    """Returns a new array of the spec's shape and dtype; the caller may reuse its own."""
    return np.full(spec.shape, value, spec.dtype)
