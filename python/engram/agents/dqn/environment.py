"""Environments for the agent: vector observations or Atari screens, and discrete actions."""

from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engram._extras import importing_extra
from engram.agents.dqn.config import is_atari
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.agents"):
    import gymnasium as gym
    from gymnasium.spaces import Box, Discrete

EXPECTED = (
    "expected a `Box` observation of one axis and `Discrete` actions, for example CartPole-v1, Acrobot-v1 or"
    " MountainCar-v0, or an Atari game, for example ALE/Pong-v5"
)


class Spaces(NamedTuple):
    """Shapes and types of an environment's observations and actions."""

    shape: tuple[int, ...]
    """Shape of one observation: (O,) or (H, W)."""
    dtype: npt.DTypeLike
    """Dtype of an observation: f32 or u8."""
    stack: int
    """Number of last observations in the network's input, the newest last: 4 for Atari, to show motion, else 1."""
    num_actions: int
    """Actions are 0 ... num_actions - 1."""


class Outcome(NamedTuple):
    """Result of an action."""

    observation: npt.NDArray[Any]  # f32[O] or u8[H, W]
    reward: float
    terminated: bool  # the environment's rules ended the episode
    truncated: bool  # the episode was cut off, for example by a time limit


class Environment:
    """A Gymnasium environment with actions 0 ... A - 1; a context manager."""

    def __init__(self, env_id: str) -> None:
        """Opens the Gymnasium environment `env_id`, and checks that the agent supports its spaces.

        Raises:
            InvalidArgumentError: The environment does not exist, cannot be opened, or has unsupported spaces.
            ModuleNotFoundError: A package of the extra `agents` is not installed.
        """
        try:
            env = _open_atari(env_id) if is_atari(env_id) else gym.make(env_id, disable_env_checker=True)
        except ModuleNotFoundError as err:
            if err.name in {"ale_py", "cv2"}:  # packages of the extra `agents`
                raise
            reason = str(err).removesuffix(".")
            msg = f"cannot open environment `{env_id}`: {reason}; choose for example CartPole-v1 or ALE/Pong-v5"
            raise InvalidArgumentError(msg) from err
        except (gym.error.Error, ImportError) as err:
            reason = str(err).removesuffix(".")
            msg = f"cannot open environment `{env_id}`: {reason}; choose for example CartPole-v1 or ALE/Pong-v5"
            raise InvalidArgumentError(msg) from err
        observation, action = env.observation_space, env.action_space
        axes = 2 if is_atari(env_id) else 1
        if not (isinstance(observation, Box) and len(observation.shape) == axes and isinstance(action, Discrete)):
            env.close()
            msg = f"environment `{env_id}` has observations `{observation}` and actions `{action}`; {EXPECTED}"
            raise InvalidArgumentError(msg)
        dtype, stack = (np.uint8, 4) if is_atari(env_id) else (np.float32, 1)
        self.spaces = Spaces(tuple(observation.shape), dtype, stack, int(action.n))
        self.reward_threshold = env.spec.reward_threshold if env.spec is not None else None
        """Mean return at which Gymnasium considers the environment solved; None if it defines none."""
        self._first_action = int(action.start)  # Gymnasium's number of action 0
        self._env = env

    def reset(self, seed: int | None = None) -> npt.NDArray[Any]:
        """Starts an episode and returns its first observation; a `seed` that is not None reseeds the environment."""
        observation, _ = self._env.reset(seed=seed)
        return np.asarray(observation, self.spaces.dtype)

    def step(self, action: int) -> Outcome:
        """Does an action, from 0 to A - 1."""
        observation, reward, terminated, truncated, _ = self._env.step(self._first_action + action)
        return Outcome(np.asarray(observation, self.spaces.dtype), float(reward), terminated, truncated)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._env.close()


def _open_atari(env_id: str) -> gym.Env[Any, Any]:
    """Returns an Atari game as in Machado et al. 2018: every fourth frame, u8[84, 84] grey, up to 30 no-ops first."""
    with importing_extra("agents", "an Atari environment"):
        import ale_py  # noqa: PLC0415, only Atari needs it
        import cv2  # noqa: F401, PLC0415, Gymnasium's preprocessing imports it later

    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return gym.wrappers.AtariPreprocessing(gym.make(env_id, frameskip=1, disable_env_checker=True))
