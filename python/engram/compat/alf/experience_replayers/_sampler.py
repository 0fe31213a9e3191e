"""Which steps sequences can begin with, and random choices among them."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engram import _checks
from engram.compat.alf._host import Ints, float_dtype, random_units
from engram.compat.alf.experience_replayers._priorities import StartPriorities
from engram.compat.alf.experience_replayers._starts import Starts

__all__ = ["SampleOptions", "Sampler"]

_Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """What is sampled, and how.

    Attributes:
        ignored: Number of oldest steps of each environment that no sequence begins with.
        recent_steps: Number of newest starts of each environment that count as recent.
        recent_ratio: Fraction of a batch that is drawn from recent starts.
        with_replacement: False to draw one sequence from each of equal strata.
    """

    ignored: int
    recent_steps: int
    recent_ratio: float
    with_replacement: bool

    def __post_init__(self) -> None:
        _checks.integer("`num_earliest_frames_ignored`", self.ignored, low=0)
        _checks.integer("`recent_data_steps`", self.recent_steps)
        _checks.fraction("`recent_data_ratio`", self.recent_ratio)


class Sampler:
    """Draws the steps that sequences begin with, given the sizes and next positions of all environments, both [E].

    Without priorities, all starts are equally likely.
    """

    def __init__(self, options: SampleOptions, length: int, priorities: StartPriorities | None) -> None:
        self._options, self._length, self._priorities = options, length, priorities

    def starts(self, envs: Ints, sizes: Ints, positions: Ints, sequence_length: int | None = None) -> Starts:
        """The possible starts of some environments, for the length that the priorities are for if none is given."""
        if sequence_length is None:
            sequence_length = 1 if self._priorities is None else self._priorities.sequence_length
        end = positions[envs]
        return Starts(envs, end - sizes[envs] + self._options.ignored, end - sequence_length + 1)

    def draw(self, sizes: Ints, positions: Ints, n: int, sequence_length: int) -> tuple[Ints, Ints, _Weights | None]:
        """Draws `n` starts: environments, positions, and importance weights if there are priorities."""
        starts = self.starts(np.arange(len(sizes)), sizes, positions, sequence_length)
        mean_starts = sizes.mean() - (sequence_length - 1 + self._options.ignored)
        num_recent = 0
        if mean_starts * self._options.recent_ratio > self._options.recent_steps:
            num_recent = min(n, math.ceil(n * self._options.recent_ratio))
        if self._priorities is None:
            counts = starts.end - starts.first
            if (counts < 1).any():
                env = int(np.argmin(sizes))
                raise AssertionError(
                    f"each environment must have at least {sequence_length + self._options.ignored} steps "
                    "(`batch_length` + `num_earliest_frames_ignored`) to sample; environment "
                    f"{env} has {sizes[env]}"
                )
            return *self._draw_uniformly(starts, num_recent, n), None
        self._prepare(self._priorities, self.starts(starts.envs, sizes, positions), starts, sequence_length)
        return self._draw_by_priority(self._priorities, starts, positions, num_recent, n)

    def _draw_uniformly(self, starts: Starts, num_recent: int, n: int) -> tuple[Ints, Ints]:
        recent = starts.after(starts.end - self._options.recent_steps)
        others = self._of_each_env(starts, n - num_recent)  # drawn first, as in ALF
        parts = zip(self._of_each_env(recent, num_recent), others, strict=True)
        envs, positions = (np.concatenate(part) for part in parts)
        return envs, positions

    def _of_each_env(self, starts: Starts, n: int) -> tuple[Ints, Ints]:
        """Draws equally many starts of each environment, give or take one.

        Their environments are all of them, as often as they fit into `n`, then different ones in random order. Without
        replacement, the positions of an environment do not decrease.
        """
        num_envs = len(starts.envs)
        rounds, rest = divmod(n, num_envs)
        extra = np.empty(0, np.int64)
        if rest > 0:
            extra = torch.randperm(num_envs, device="cpu")[:rest].numpy()
        envs = np.concatenate([np.tile(starts.envs, rounds), extra])
        draws = np.full(num_envs, rounds)
        draws[extra] += 1
        number = np.arange(n) // num_envs  # of the draw, among those of its environment
        counts = starts.end - starts.first
        return envs, starts.first[envs] + self._offsets(number, draws[envs], counts[envs])

    def _draw_by_priority(
        self, priorities: StartPriorities, starts: Starts, positions: Ints, num_recent: int, n: int
    ) -> tuple[Ints, Ints, _Weights]:
        recent = np.empty(0, np.int64)
        if num_recent > 0:
            recent = starts.after(starts.end - self._options.recent_steps).rows(self._length)
            recent = recent[priorities.values[recent] > 0]
        if len(recent) > 0:
            drawn = self._offsets(np.arange(num_recent), np.array(num_recent), np.array(len(recent)))
            recent = recent[drawn]
        others = priorities.draw(n - len(recent), with_replacement=self._options.with_replacement)
        rows = np.concatenate([recent, others])
        envs, slots = np.divmod(rows, self._length)
        newest = positions[envs] - 1
        return envs, newest - (newest - slots) % self._length, priorities.weights(rows)

    def _offsets(self, number: Ints, draws: Ints, counts: Ints) -> Ints:
        """Draws numbers below `counts`; without replacement, each from stratum `number` of `draws` equal ones."""
        dtype = float_dtype(self._length)
        units = random_units(len(number), dtype)
        fractions = units if self._options.with_replacement else (number.astype(dtype) + units) / draws.astype(dtype)
        # The product can round up to `counts`.
        offsets: Ints = np.minimum((fractions * counts.astype(dtype)).astype(np.int64), counts - 1)
        return offsets

    def _prepare(self, priorities: StartPriorities, old: Starts, new: Starts, sequence_length: int) -> None:
        """Makes the priorities those for sequences of this length, whose starts are `new`."""
        gone, added = old.after(new.end).rows(self._length), new.after(old.end).rows(self._length)
        num_left = priorities.non_zero() - np.count_nonzero(priorities.values[gone])
        if num_left == 0 and (len(added) == 0 or priorities.initial() == 0):
            raise AssertionError(
                f"no stored step can begin a sequence of {sequence_length} steps: too few steps are stored, or their "
                "priorities are 0"
            )
        if sequence_length == priorities.sequence_length:
            return
        if priorities.sequence_length > 1:
            effect = "are lost" if sequence_length > priorities.sequence_length else "are reset to the initial priority"
            warnings.warn(
                f"`batch_length` changes from {priorities.sequence_length} to {sequence_length}: the priorities of "
                f"some steps {effect}; use one buffer for each `batch_length`",
                stacklevel=4,
            )
        priorities.change_sequence_length(sequence_length, gone, added)
