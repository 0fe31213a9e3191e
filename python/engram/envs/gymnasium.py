"""Observations with action and reward, and observations that are images, for environments of Gymnasium."""

from typing import Any

import numpy as np

from engram._extras import importing_extra
from engram.envs.images import convert_image, image_shape
from engram.envs.oar import OAR
from engram.errors import InvalidArgumentError
from engram.nests import Nest

with importing_extra("agents", "engram.envs.gymnasium"):
    import gymnasium as gym
    from gymnasium import spaces


class ObservationActionReward(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations are `OAR`; see `engram.envs.oar`."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wraps an environment whose actions are `Discrete`, `MultiDiscrete` or another space of arrays."""
        super().__init__(env)
        reward_space = spaces.Box(-np.inf, np.inf, (), np.float32)
        self.observation_space = spaces.Tuple((env.observation_space, env.action_space, reward_space))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[OAR, dict[str, Any]]:
        """Begins a new episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        # Of a space that does not begin at 0, its first action.
        return self._oar(observation, getattr(self.env.action_space, "start", 0), 0), info

    def step(self, action: Nest) -> tuple[OAR, Any, bool, bool, dict[str, Any]]:
        """Does an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._oar(observation, action, reward), reward, terminated, truncated, info

    def _oar(self, observation: Nest, action: Nest, reward: Nest) -> OAR:
        space = self.env.action_space
        return OAR(observation, np.full(space.shape or (), action, space.dtype), np.array(reward, np.float32))


class PixelObservation(gym.ObservationWrapper[Any, Any, Any]):
    """An environment whose observations are images u8 or f32 `[H, W, C]`.

    Gymnasium's `AddRenderObservation` makes images of what an environment renders.
    """

    def __init__(self, env: gym.Env[Any, Any], *, size: tuple[int, int] | None = None, to_float: bool = False) -> None:
        """Wraps an environment.

        Args:
            env: Its observations are images u8 `[H, W]`, `[H, W, C]` or `[H, W, C, 1]`.
            size: Height and width. Default: the environment's.
            to_float: Convert pixels to f32 from 0 to 1.

        Raises:
            InvalidArgumentError: The environment's observations are something else.
        """
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
            raise InvalidArgumentError(f"observation: not an image; got the space {space}, expected a Box of uint8")
        self._size, self._to_float = size, to_float
        dtype, high = (np.float32, 1) if to_float else (np.uint8, 255)
        self.observation_space = spaces.Box(0, high, image_shape(space.shape, size), dtype)

    def observation(self, observation: Nest) -> Nest:
        """Returns the converted image."""
        return convert_image(np.asarray(observation), self._size, to_float=self._to_float)
