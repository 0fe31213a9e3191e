"""Actors: N environments, one batched inference per step. They record each step for the learner."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from engram._extras import importing_extra
from engram.adders.step import MaskedStep
from engram.agents.ftw.actions import group_sizes
from engram.agents.ftw.agent_networks import AgentNetworks, forget
from engram.agents.ftw.environment import BatchedEnvironment, EnvironmentSpec
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.networks import OAR, FtwNetwork
from engram.agents.ftw.networks.policy_network import CoreState
from engram.agents.ftw.recorder import Action, Recorder, timestep_arrays, timestep_of_arrays
from engram.agents.ftw.replay import Replay
from engram.agents.ftw.trajectory import pack_state
from engram.nests import Nest

with importing_extra("agents", "engram.agents"):
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    from dm_env import StepType
    from jax import Array


class ActorState(NamedTuple):
    """The state that `act` reads and replaces.

    Attributes:
        core: `[N, ...]`, of the core after the last step.
        key: Random key of all later steps.
    """

    core: CoreState
    key: Array


@partial(jax.jit, static_argnames="static")
def act(
    params: Nest, state: ActorState, oar: OAR, is_first: Array, hypers: Hypers, *, static: AgentNetworks
) -> tuple[Action, ActorState]:
    """Samples an action for each environment.

    Args:
        params: Parameters of the networks.
        state: The state.
        oar: `[N, ...]`.
        is_first: bool `[N]`, True at the start of an episode.
        hypers: Hyperparameters.
        static: What of the networks is no parameter; see `split_networks`.
    """
    networks: AgentNetworks = eqx.combine(params, static)
    key, next_key = jax.random.split(state.key)
    policy = networks.policy
    if networks.memory:
        before = policy.reset(state.core, is_first)
    else:
        oar, before = forget(oar), policy.initial_state(len(is_first))
    actions, logits, core = policy.select_action(oar, before, key, hypers)
    return Action(actions, logits, pack_state(before)), ActorState(core, next_key)


def example_row(spec: EnvironmentSpec, policy: FtwNetwork) -> MaskedStep:
    """Returns a row of zeros of the items that actors write, which defines the tables' signatures."""
    oar = spec.zeros()
    core_state = jax.eval_shape(lambda: pack_state(policy.initial_state(1)))
    core_state = tuple(np.zeros(part.shape[1:], part.dtype) for part in core_state)
    extras = {"core_state": core_state, "logits": np.zeros(sum(group_sizes(spec.num_actions)), np.float32)}
    return MaskedStep(oar, oar.action, oar.reward, np.float32(0), np.bool_(0), extras, np.float32(0))


class Actors:
    """N environments with one policy, and N adders.

    Attributes:
        frames: Transitions of all environments so far.
    """

    def __init__(
        self, environment: BatchedEnvironment, static: AgentNetworks, replay: Replay | None, key: Array
    ) -> None:
        """Begins an episode in each environment.

        Args:
            environment: The environments.
            static: What of the networks is no parameter; see `split_networks`.
            replay: Receives the steps; None: they are not recorded.
            key: Random key of actions and latent variables.
        """
        self._environment = environment
        self._static = static
        number = environment.num_envs
        self._state = ActorState(static.policy.initial_state(number), key)
        self._timestep = environment.reset()
        self._returns = np.zeros(number)
        self._recorder = None if replay is None else Recorder(replay, self._timestep)
        self.frames = 0

    def step(self, params: Nest, hypers: Hypers) -> list[tuple[int, float]]:
        """Does one step in each environment.

        Where an episode is over, the step begins the next one.

        Returns:
            Environment and undiscounted return (of events, their sum) of each episode that this step ended.
        """
        before = self._timestep
        is_first = np.asarray(before.step_type) == StepType.FIRST
        action, self._state = act(params, self._state, before.observation, is_first, hypers, static=self._static)
        after = self._timestep = self._environment.step(np.asarray(action.actions))
        if self._recorder is not None:
            self._recorder.record(before, jax.tree.map(np.asarray, action), after)
        ended = np.asarray(before.step_type) == StepType.LAST
        self.frames += int((~ended).sum())
        self._returns[ended] = 0
        self._returns += np.asarray(after.reward).reshape(len(ended), -1).sum(1)
        over = np.flatnonzero(np.asarray(after.step_type) == StepType.LAST).tolist()
        return [(index, float(self._returns[index])) for index in over]

    def get_state(self) -> dict[str, Any]:
        """Returns all that the next steps depend on, as nested dictionaries of arrays."""
        state = {
            "core": {str(index): np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(self._state.core))},
            "key": np.asarray(jax.random.key_data(self._state.key)),
            "environment": dict(self._environment.get_state()),
            "timestep": timestep_arrays(self._timestep),
            "returns": self._returns.copy(),
            "frames": np.array(self.frames),
        }
        return state if self._recorder is None else {**state, "recorder": self._recorder.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `get_state` returned, of actors with the same arguments.

        The replay must have the items that these actors had written.
        """
        leaves = [jnp.array(state["core"][str(index)]) for index in range(len(state["core"]))]
        core: CoreState = jax.tree.unflatten(jax.tree.structure(self._state.core), leaves)
        self._state = ActorState(core, jax.random.wrap_key_data(jnp.array(state["key"])))
        self._environment.set_state(state["environment"])
        self._timestep = timestep_of_arrays(state["timestep"])
        self._returns = np.array(state["returns"])
        self.frames = int(state["frames"])
        if self._recorder is not None:
            self._recorder.set_state(state["recorder"], self._timestep)

    def close(self) -> None:
        """Abandons the episodes in progress."""
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
