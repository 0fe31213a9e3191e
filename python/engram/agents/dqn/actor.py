"""The actor: acts epsilon-greedily, with NumPy, and writes its steps to a store, in process or remote."""

from collections import deque
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import engram
from engram._extras import importing_extra
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.network import Params, q_values
from engram.agents.dqn.tables import Step, begin_episode, make_pattern, pad_episode

with importing_extra("agents", "engram.agents"):
    from threadpoolctl import threadpool_limits


def epsilon_at(config: DQNConfig, step: int) -> float:
    """Returns the share of random actions after `step` steps of all actors together."""
    return 1 - (1 - config.epsilon_end) * min(1.0, step / config.epsilon_steps)


def act(params: Params, stack: npt.NDArray[Any], epsilon: float, rng: np.random.Generator) -> int:
    """Returns an epsilon-greedy action; for a single observation, NumPy is faster than a compiled JAX function."""
    values = q_values(params, stack)
    return int(rng.integers(len(values)) if rng.random() < epsilon else np.argmax(values))


class Actor:
    """Acts in one environment and writes to one store, step by step.

    NumPy uses one thread from the creation of an actor to the end of its `with` block.
    """

    def __init__(
        self, env: Environment, store: engram.TableStore, config: DQNConfig, *, env_seed: int, seed: int
    ) -> None:
        """Starts the first episode.

        Args:
            env: The environment.
            store: The store that receives the steps.
            config: The agent's configuration.
            env_seed: Seed of the environment.
            seed: Seed of the exploration.
        """
        self._env, self._config = env, config
        self._rng = np.random.default_rng(seed)
        self._stack: deque[npt.NDArray[Any]] = deque(maxlen=env.spaces.stack)
        pattern = make_pattern(config, env.spaces)
        self._writer = store.pattern_writer([pattern], max_in_flight_items=config.actor_lead)
        # Matrix products for one observation are too small for several threads, which would only slow down the learner.
        self._one_thread = threadpool_limits(1, user_api="blas")
        self._begin_episode(env.reset(seed=env_seed))

    def _begin_episode(self, observation: npt.NDArray[Any]) -> None:
        self._return = 0.0
        self._stack.extend([observation] * self._env.spaces.stack)
        begin_episode(self._writer, observation, stack=self._env.spaces.stack)

    def step(self, params: Params, epsilon: float) -> float | None:
        """Does one step; returns the episode's undiscounted return if the step ended it, else None."""
        observation = self._stack[-1]
        action = act(params, np.stack(self._stack), epsilon, self._rng)
        outcome = self._env.step(action)
        discount = 0.0 if outcome.terminated else self._config.gamma
        self._writer.append(Step(observation, np.int32(action), np.float32(outcome.reward), np.float32(discount)))
        self._stack.append(outcome.observation)
        self._return += outcome.reward
        if not (outcome.terminated or outcome.truncated):
            return None
        episode_return = self._return
        pad_episode(self._writer, outcome.observation, terminated=outcome.terminated, n_step=self._config.n_step)
        self._begin_episode(self._env.reset())
        return episode_return

    def flush(self) -> None:
        """Makes all complete items visible."""
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._one_thread.restore_original_limits()
        self._writer.__exit__(kind, error, trace)
