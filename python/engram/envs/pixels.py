"""Observations that are images of a given size, for environments of dm_env."""

from collections.abc import Mapping

import numpy as np

from engram._extras import importing_extra
from engram.envs.images import convert_image, image_shape
from engram.envs.wrapper import EnvironmentWrapper
from engram.errors import InvalidArgumentError
from engram.nests import Nest

with importing_extra("agents", "engram.envs"):
    import dm_env
    from dm_env import specs


class PixelObservation(EnvironmentWrapper):
    """An environment whose observations are images u8 or f32 `[H, W, C]`."""

    def __init__(
        self,
        environment: dm_env.Environment,
        *,
        size: tuple[int, int] | None = None,
        to_float: bool = False,
        key: str | None = None,
    ) -> None:
        """Wraps an environment.

        Args:
            environment: Its observations are images u8 `[H, W]`, `[H, W, C]` or `[H, W, C, 1]`, or a mapping with one.
            size: Height and width. Default: the environment's.
            to_float: Convert pixels to f32 from 0 to 1.
            key: Name of the image, for observations that are mappings.

        Raises:
            InvalidArgumentError: The environment's observations are something else.
        """
        super().__init__(environment)
        self._size, self._to_float, self._key = size, to_float, key
        spec = self._select(environment.observation_spec())
        shape = image_shape(spec.shape, size)
        if spec.dtype != np.uint8:
            raise InvalidArgumentError(f"observation: not an image; got the dtype {spec.dtype}, expected uint8")
        dtype, high = (np.float32, 1) if to_float else (np.uint8, 255)
        self._observation_spec = specs.BoundedArray(shape, dtype, 0, high, "pixels")

    def reset(self) -> dm_env.TimeStep:
        """Begins a new episode."""
        return self._with_pixels(super().reset())

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Does an action, or begins a new episode if the last one is over."""
        return self._with_pixels(super().step(action))

    def observation_spec(self) -> specs.BoundedArray:
        """Spec of the images."""
        return self._observation_spec

    def _select(self, observation: Nest) -> Nest:
        if not isinstance(observation, Mapping):
            if self._key is None:
                return observation
            raise InvalidArgumentError(f"`key`: the observations are no mapping; got {self._key!r}, expected None")
        if self._key not in observation:
            raise InvalidArgumentError(f"`key`: unknown; got {self._key!r}, expected one of {sorted(observation)}")
        return observation[self._key]

    def _with_pixels(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        image = np.asarray(self._select(timestep.observation))
        return timestep._replace(observation=convert_image(image, self._size, to_float=self._to_float))
