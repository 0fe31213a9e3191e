"""Every knob of the agent, each default written once."""

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
"""What Atari wants otherwise; sized for two CPU cores, to be watched rather than to set records."""


def is_atari(env_id: str) -> bool:
    """Whether it is a game of the Arcade Learning Environment."""
    return env_id.startswith("ALE/")


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig:
    """What to play, how to learn it and when to stop.

    Frozen and hashable, so that jitted functions take it as a static argument.
    The defaults are tuned for CartPole-v1 on two CPU cores. "Step" is one environment step throughout.
    """

    env_id: str = "CartPole-v1"
    """Any Gymnasium id with a vector observation and discrete actions, or an Atari game."""
    seed: int = 0
    """Everything random follows from it: weights, exploration, the environment, what the store samples.

    With several processes, timing plays a part, too."""

    max_steps: int = 100_000
    """Budget; training stops here if it has not solved the environment before."""
    solved_return: float | None = 195.0
    """Mean undiscounted return over `solved_episodes` at which training stops; None: use up the budget."""
    solved_episodes: int = 20
    """How many of the last finished training episodes that mean covers."""

    conv_layers: tuple[tuple[int, int], ...] = ((16, 4), (32, 2))
    """Channels and stride of each convolution (kernel: twice the stride), where observations are images."""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """Units of each hidden layer."""
    learning_rate: float = 1e-3
    """Adam's step size at the start; it decays linearly to a tenth over `max_steps`."""
    max_gradient_norm: float = 10.0
    """Gradients are scaled down to this global L2 norm."""
    gamma: float = 0.99
    """Discount of a step that did not end the episode."""
    n_step: int = 5
    """Rewards summed before the target bootstraps."""
    target_period: int = 100
    """Learner steps between copies of the online parameters to the target network."""

    epsilon_end: float = 0.01
    """Share of random actions once exploration has been annealed (it starts at 1)."""
    epsilon_steps: int = 5_000
    """Steps over which epsilon falls linearly from 1 to `epsilon_end`."""

    replay_size: int = 50_000
    """Items kept; the oldest leaves first."""
    min_replay_size: int = 1_000
    """Items needed before learning starts: the table's `MinSize` limit."""
    batch_size: int = 128
    """Items per learner step."""
    learn_period: int = 2
    """Steps between learner steps."""
    priority_exponent: float = 0.6
    """The alpha of Schaul et al. 2016, eq. 1."""
    beta_start: float = 0.4
    """The beta of Schaul et al. 2016, section 3.4, at the first step; it grows linearly to 1 at `max_steps`."""

    processes: int = 1
    """1: everything in this one, by turns. More: this one learns, the others act, all at once."""
    actor_lead: int = 32
    """Steps by which actors may run ahead of the learner, or it of them, where they do not take turns."""
    publish_period: int = 10
    """Learner steps between two publications of the network to actors in other processes."""
    refresh_period: int = 20
    """Steps of an actor in another process between two looks at the published network."""

    @classmethod
    def for_env(cls, env_id: str, **given: Any) -> Self:  # noqa: ANN401, the fields
        """The defaults for `env_id`, and what is `given` otherwise."""
        return cls(env_id=env_id, **{**(ATARI_DEFAULTS if is_atari(env_id) else {}), **given})

    def __post_init__(self) -> None:
        """Check every bound once.

        Raises:
            InvalidArgumentError: If a value is out of its range.
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
                msg = f"`{name}` is {getattr(self, name)}; allowed are 1 and more"
                raise InvalidArgumentError(msg)
        if not 1 <= self.min_replay_size <= self.replay_size:
            msg = f"`min_replay_size` is {self.min_replay_size}; allowed are 1 to `replay_size`, {self.replay_size}"
            raise InvalidArgumentError(msg)
        for name in ("gamma", "epsilon_end", "beta_start"):
            if not 0 <= getattr(self, name) <= 1:
                msg = f"`{name}` is {getattr(self, name)}; allowed are 0 to 1"
                raise InvalidArgumentError(msg)
