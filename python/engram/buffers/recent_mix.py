"""Samples a part of each batch from the newest items."""

from dataclasses import KW_ONLY, dataclass

from engram import _checks
from engram.errors import InvalidArgumentError

__all__ = ["RecentMix"]


@dataclass(frozen=True, slots=True)
class RecentMix:
    """Chooses a part of each batch among the newest items, and the rest among all items, with equal probabilities.

        buffer = ReplayBuffer(1_000_000, sampler=RecentMix(0.25, newest=10_000))

    A batch of `B` items begins with `fraction * B` ones of which each is one of the newest; if that is not a whole
    number, it is rounded up or down at random, so that it is `fraction * B` on average. The others can be any, also the
    newest. `batch.info.probability` is the mean over the draws, so that `batch.importance_weights()` correct for the
    recent part.

    With several environments, the newest items are an equal number of each: `newest / num_envs`, rounded up, or all of
    its items if it has fewer. While no environment has more items than that, all are equally likely.

    Attributes:
        fraction: Part of a batch, above 0 and at most 1.
        newest: Number of items, for all environments together; at least one of each environment.

    Raises:
        InvalidArgumentError: An attribute is invalid.
    """

    fraction: float
    _: KW_ONLY
    newest: int

    def __post_init__(self) -> None:
        fraction = _checks.fraction("RecentMix: `fraction`", self.fraction)
        if fraction == 0:
            raise InvalidArgumentError("RecentMix: `fraction` must be above 0; got 0; use selectors.Uniform()")
        object.__setattr__(self, "fraction", fraction)
        object.__setattr__(self, "newest", _checks.integer("RecentMix: `newest`", self.newest))

    def _compile(self, num_envs: int) -> tuple[float, int]:
        """Returns the part of a batch, and the number of newest items of each environment."""
        return self.fraction, -(-self.newest // num_envs)
