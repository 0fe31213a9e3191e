"""The discounted return of each stored step until its episode has ended."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engram import _checks
from engram.compat.alf._host import HostModule, Ints
from engram.errors import InvalidArgumentError

__all__ = ["EpisodicReturns", "ReturnOptions"]


@dataclass(frozen=True, slots=True)
class ReturnOptions:
    """How returns are computed: discount per step, bounds of a reward, and `default`, a return while it is unknown."""

    default: float
    gamma: float
    clip: tuple[float, float] | None

    def __post_init__(self) -> None:
        _checks.number("`default_return`", self.default)
        _checks.fraction("`gamma`", self.gamma)
        if self.clip is not None:
            low, high = (_checks.number("each of `reward_clip`", bound) for bound in self.clip)
            if low > high:
                raise InvalidArgumentError(f"`reward_clip` must be (minimum, maximum); got {self.clip}")


class EpisodicReturns(HostModule):
    """The return of each step, known from the next step with discount 0 of its episode on."""

    def __init__(self, num_envs: int, length: int, options: ReturnOptions, *, shared: bool) -> None:
        super().__init__(shared=shared)
        self._length, self._options = length, options
        self._add("values", (num_envs, length), torch.float32, options.default)
        # Position of the newest step, at or before each step, that is FIRST or has discount 0.
        self._add("disc_0_begin", (num_envs, length), torch.int64)

    def add(
        self, envs: Ints, positions: Ints, is_first: npt.NDArray[np.bool_], discount_is_0: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[int, int, int]]:
        """Adds a step of each environment, at the position after its newest one, with the default return.

        Yields, for each environment where returns are known now: the environment, the position of the first stored step
        with such a return, and that of the new step.
        """
        begin = self._array("disc_0_begin")
        slots = positions % self._length
        previous = begin[envs, (positions - 1) % self._length]
        begin[envs, slots] = np.where(is_first | discount_is_0, positions, previous)
        self._array("values")[envs, slots] = self._options.default
        previous = np.maximum(previous, positions - self._length + 1)
        # A FIRST step belongs to another episode than the steps before it.
        complete = discount_is_0 & ~is_first & (previous < positions)
        return zip(*(array[complete].tolist() for array in (envs, previous, positions)), strict=True)

    def complete(
        self, env: int, begin: int, rewards: npt.NDArray[np.float64], discounts: npt.NDArray[np.float64]
    ) -> None:
        """Sets the returns of N steps from position `begin` on.

        Rewards and discounts, `[N + 1]`, include those of the step after them.
        """
        if self._options.clip is not None:
            rewards = rewards.clip(*self._options.clip)
        terms, total = (discounts[:-1] * rewards[1:]).tolist(), 0.0
        for index in reversed(range(len(terms))):
            total = terms[index] + self._options.gamma * total
            terms[index] = total
        slots = np.arange(begin, begin + len(terms)) % self._length
        self._array("values")[env, slots] = terms

    def get(self, envs: Ints, positions: Ints) -> npt.NDArray[np.float32]:
        """The returns of stored steps."""
        values: npt.NDArray[np.float32] = self._array("values")[envs, positions % self._length]
        return values

    def begin(self, envs: Ints, positions: Ints) -> Ints:
        """Positions of the newest steps, at or before stored ones, that are FIRST or have discount 0."""
        begin: Ints = self._array("disc_0_begin")[envs, positions % self._length]
        return begin

    def clear(self, envs: Ints) -> None:
        """Sets the returns of environments to the default."""
        self._array("values")[envs] = self._options.default
