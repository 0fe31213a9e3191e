"""The actor: looks, acts epsilon-greedily on NumPy, and writes what it saw. In process and in processes of its own."""

from collections import deque
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

import engram
from engram.agents.dqn.config import DQNConfig
from engram.agents.dqn.environment import Environment
from engram.agents.dqn.network import Params, q_values
from engram.agents.dqn.tables import Step, begin_episode, make_pattern, pad_episode


def epsilon_at(config: DQNConfig, step: int) -> float:
    """Share of random actions when the actors have done `step` steps together."""
    return 1 - (1 - config.epsilon_end) * min(1.0, step / config.epsilon_steps)


def act(params: Params, stack: npt.NDArray[Any], epsilon: float, rng: np.random.Generator) -> int:
    """An epsilon-greedy action, on NumPy: for one observation quicker than a call into a compiled function."""
    values = q_values(params, stack)
    return int(rng.integers(len(values)) if rng.random() < epsilon else np.argmax(values))


class Actor:
    """Plays one environment into one store, a step at a time; a context manager, in which NumPy uses one thread."""

    def __init__(
        self, env: Environment, store: engram.Store | engram.Client, config: DQNConfig, *, env_seed: int, seed: int
    ) -> None:
        """Start the first episode.

        Args:
            env: What to play.
            store: Where to write to.
            config: How.
            env_seed: Of the environment.
            seed: Of the exploration.
        """
        self._env, self._config = env, config
        self._rng = np.random.default_rng(seed)
        self._seen: deque[npt.NDArray[Any]] = deque(maxlen=env.spaces.stack)
        pattern = make_pattern(config, env.spaces)
        self._writer = store.pattern_writer([pattern], max_in_flight_items=config.actor_lead)
        # The products of one observation are too small for threads, which would only take the learner's cores.
        self._one_thread = threadpool_limits(1, user_api="blas")
        self._begin(env.reset(seed=env_seed))

    def _begin(self, observation: npt.NDArray[Any]) -> None:
        self._return = 0.0
        self._seen.extend([observation] * self._env.spaces.stack)
        begin_episode(self._writer, observation, stack=self._env.spaces.stack)

    def step(self, params: Params, epsilon: float) -> float | None:
        """Do one step; returns the episode's undiscounted return if that ended it."""
        observation = self._seen[-1]
        action = act(params, np.stack(self._seen), epsilon, self._rng)
        outcome = self._env.step(action)
        discount = 0.0 if outcome.terminated else self._config.gamma
        self._writer.append(Step(observation, np.int32(action), np.float32(outcome.reward), np.float32(discount)))
        self._seen.append(outcome.observation)
        self._return += outcome.reward
        if not (outcome.terminated or outcome.truncated):
            return None
        finished = self._return
        pad_episode(self._writer, outcome.observation, terminated=outcome.terminated, n_step=self._config.n_step)
        self._begin(self._env.reset())
        return finished

    def flush(self) -> None:
        """Make all items visible that are complete."""
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._one_thread.restore_original_limits()
        self._writer.__exit__(kind, error, trace)
