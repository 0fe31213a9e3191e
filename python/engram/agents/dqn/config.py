"""The agent's configuration."""

from dataclasses import dataclass
from typing import Any, Final, Self

from engram.errors import InvalidArgumentError

ATARI_DEFAULTS: Final[dict[str, Any]] = {
    "max_steps": 200_000,
    "solved_return": None,
    "hidden_sizes": (256,),
    "learning_rate": 1e-4,
    "n_step": 3,
    "target_period": 500,
    "epsilon_steps": 50_000,
    "batch_size": 32,
    "learn_period": 4,
}
"""Defaults that differ for Atari games; sized for a demonstration on two CPU cores, not for high scores."""


def is_atari(env_id: str) -> bool:
    """True if the id names a game of the Arcade Learning Environment."""
    return env_id.startswith("ALE/")


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig:
    """Environment, hyperparameters and stopping conditions.

    Frozen and hashable, so that jitted functions accept it as a static argument. The defaults are tuned for CartPole-v1
    on two CPU cores. A "step" is one environment step.
    """

    env_id: str = "CartPole-v1"
    """Gymnasium id of an environment with vector observations and discrete actions, or of an Atari game."""
    seed: int = 0
    """Seed of everything random: weights, exploration, environment, samples of the store.

    With several processes, results also depend on timing."""

    max_steps: int = 100_000
    """Maximum number of steps."""
    solved_return: float | None = 195.0
    """Mean undiscounted return over `solved_episodes` at which training stops. `None` trains for `max_steps`."""
    solved_episodes: int = 20
    """Number of the last finished training episodes in that mean."""

    conv_layers: tuple[tuple[int, int], ...] = ((16, 4), (32, 2))
    """Channels and stride of each convolution (kernel: twice the stride), for observations that are images."""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """Units of each hidden layer."""
    learning_rate: float = 1e-3
    """Adam's step size at the start; it decays linearly to a tenth over `max_steps`."""
    max_gradient_norm: float = 10.0
    """Gradients whose global L2 norm is larger are scaled down to this norm."""
    gamma: float = 0.99
    """Discount of a step that does not terminate the episode."""
    n_step: int = 5
    """Rewards summed before the target bootstraps."""
    target_period: int = 100
    """Learner steps between copies of the online parameters to the target network."""

    epsilon_end: float = 0.01
    """Share of random actions after `epsilon_steps`; it starts at 1."""
    epsilon_steps: int = 5_000
    """Steps over which epsilon falls linearly from 1 to `epsilon_end`."""

    replay_size: int = 50_000
    """Maximum number of items; the oldest is removed first."""
    min_replay_size: int = 1_000
    """Number of items at which learning starts: the `min_size` of the table's rate limiter."""
    batch_size: int = 128
    """Items per learner step."""
    learn_period: int = 2
    """Steps between learner steps."""
    priority_exponent: float = 0.6
    """The alpha of Schaul et al. 2016, eq. 1."""
    beta_start: float = 0.4
    """The beta of Schaul et al. 2016, section 3.4, at the first step; it grows linearly to 1 at `max_steps`."""

    processes: int = 1
    """Number of processes. With 1, acting and learning alternate; with more, the calling one learns, the others act."""
    actor_lead: int = 32
    """Maximum number of items that an actor has in flight.

    With several processes, also how many steps the actors together may be ahead of the learner, or behind it; if
    `learn_period` is larger, up to `learn_period` steps ahead or behind, because the learner samples one batch per
    `learn_period` steps."""
    publish_period: int = 10
    """With several processes, learner steps between two publications of the network for the actors."""
    refresh_period: int = 20
    """With several processes, steps after which each actor loads the published network again."""

    @classmethod
    def for_env(cls, env_id: str, **overrides: Any) -> Self:  # noqa: ANN401, the fields
        """Returns the defaults for `env_id`, with `overrides` applied."""
        return cls(env_id=env_id, **{**(ATARI_DEFAULTS if is_atari(env_id) else {}), **overrides})

    def __post_init__(self) -> None:
        """Checks the ranges of counts, `gamma`, `epsilon_end` and `beta_start`.

        Raises:
            InvalidArgumentError: One of these values is out of its range.
        """
        for name in (
            "max_steps",
            "solved_episodes",
            "n_step",
            "target_period",
            "epsilon_steps",
            "batch_size",
            "learn_period",
            "processes",
            "actor_lead",
            "publish_period",
            "refresh_period",
        ):
            if getattr(self, name) < 1:
                msg = f"`{name}` must be at least 1; got {getattr(self, name)}"
                raise InvalidArgumentError(msg)
        if not 1 <= self.min_replay_size <= self.replay_size:
            msg = f"`min_replay_size` must be from 1 to `replay_size`, {self.replay_size}; got {self.min_replay_size}"
            raise InvalidArgumentError(msg)
        for name in ("gamma", "epsilon_end", "beta_start"):
            if not 0 <= getattr(self, name) <= 1:
                msg = f"`{name}` must be from 0 to 1; got {getattr(self, name)}"
                raise InvalidArgumentError(msg)
