"""Base of wrappers for environments of dm_env."""

from typing import Any

from engram._extras import importing_extra
from engram.nests import Nest

with importing_extra("agents", "engram.envs"):
    import dm_env


class EnvironmentWrapper(dm_env.Environment):  # type: ignore[misc]  # untyped
    """An environment that behaves like another one; subclasses change some of its methods.

    Attributes that dm_env does not define are the other one's, too.
    """

    def __init__(self, environment: dm_env.Environment) -> None:
        """Wraps an environment."""
        self._environment = environment

    def reset(self) -> dm_env.TimeStep:
        """Begins a new episode."""
        return self._environment.reset()

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Does an action, or begins a new episode if the last one is over."""
        return self._environment.step(action)

    def observation_spec(self) -> Nest:
        """Spec of the observations."""
        return self._environment.observation_spec()

    def action_spec(self) -> Nest:
        """Spec of the actions."""
        return self._environment.action_spec()

    def reward_spec(self) -> Nest:
        """Spec of the rewards."""
        return self._environment.reward_spec()

    def discount_spec(self) -> Nest:
        """Spec of the discounts."""
        return self._environment.discount_spec()

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401, any attribute
        if name == "_environment":  # not set yet, for example while this object is unpickled
            raise AttributeError(name)
        return getattr(self._environment, name)
