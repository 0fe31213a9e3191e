"""What the agent needs of an environment: N of them that step together, with observations of OAR."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from engram.agents.ftw.actions import NumActions, group_sizes
from engram.agents.ftw.networks import OAR
from engram.nests import Nest


class BatchedTimeStep(Protocol):
    """Time steps of N environments, as `dm_env.TimeStep` of arrays."""

    @property
    def step_type(self) -> Nest:
        """Of `dm_env.StepType`, int `[N]`."""

    @property
    def reward(self) -> Nest:
        """Rewards f32 `[N]`, or events `[N, E]`; of first time steps 0."""

    @property
    def discount(self) -> Nest:
        """Discounts f32 `[N]`: 0 at a termination."""

    @property
    def observation(self) -> OAR:
        """An `OAR` `[N, ...]`."""


class BatchedEnvironment(Protocol):
    """N environments. After an environment's LAST time step, its action is ignored, and a FIRST one follows."""

    @property
    def num_envs(self) -> int:
        """N."""

    def reset(self) -> BatchedTimeStep:
        """Begins a new episode in each environment."""

    def step(self, actions: Nest) -> BatchedTimeStep:
        """Does an action in each environment, int `[N]` or `[N, G]`."""

    def get_state(self) -> Mapping[str, Any]:
        """Returns the arrays that the next time steps depend on; called for checkpoints only."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from such a state; called to resume a run only."""


class EnvironmentSpec(NamedTuple):
    """Shapes and dtypes of one environment.

    Attributes:
        observation_shape: (H, W, C) of a frame.
        observation_dtype: uint8, or a floating-point type for pixels from 0 to 1.
        num_actions: See `engram.agents.ftw.actions`.
        num_events: E. With 1, rewards are scalars.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: Any
    num_actions: NumActions
    num_events: int = 1

    def zeros(self) -> OAR:
        """Returns an observation of zeros."""
        groups = () if isinstance(self.num_actions, int) else (len(group_sizes(self.num_actions)),)
        events = () if self.num_events == 1 else (self.num_events,)
        observation = np.zeros(self.observation_shape, self.observation_dtype)
        return OAR(observation, np.zeros(groups, np.int32), np.zeros(events, np.float32))


def make_environment(name: str, seeds: Sequence[int]) -> tuple[BatchedEnvironment, EnvironmentSpec]:
    """Returns one environment per seed, and their spec.

    Raises:
        InvalidArgumentError: The name is unknown.
    """
    from engram import _checks, envs  # noqa: PLC0415, an actor of other environments does not need dm_env

    kinds: dict[str, Callable[[Any], Any]] = {"fetch": envs.BatchedFetch, "cue": envs.BatchedCue}
    _checks.choice("`environment`", name, tuple(kinds))
    environment = kinds[name](list(seeds))
    frame = environment.observation_spec()
    spec = EnvironmentSpec(tuple(frame.shape), frame.dtype, int(environment.num_actions))
    return envs.BatchedObservationActionReward(environment), spec
