"""Hyperparameters that population-based training draws, perturbs and inherits (Jaderberg et al. 2019, supplement).

`Hyperparameter` objects hold values on the host; `engram.agents.ftw.hypers.Hypers` passes them to compiled functions.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from engram import _checks
from engram.agents.ftw.seeds import Seed, generator, seed_sequence
from engram.errors import InvalidArgumentError

Range: TypeAlias = float | tuple[float, float]
"""An exact value, or the bounds of a log-uniform distribution."""

MAX_PCT_CHANGE: Final = 0.20
"""Default of the largest relative change of a perturbed value."""

_log = logging.getLogger(__name__)


def draw_log_uniform(value_or_range: Range, rng: np.random.Generator, size: int | None = None) -> Any:  # noqa: ANN401
    """Returns the exact value, or draws from the log-uniform distribution of a range: a float, or f64 `[size]`.

    Raises:
        InvalidArgumentError: The argument is neither a float nor a tuple of two floats `0 < low <= high`.
    """
    if isinstance(value_or_range, float):
        _checks.finite("`init_value_or_range`", value_or_range)
        return value_or_range if size is None else np.full(size, value_or_range)
    low, high = _float_range(value_or_range)
    drawn = np.exp(rng.uniform(np.log(low), np.log(high), size))
    return float(drawn) if size is None else drawn


def scale(
    value: npt.ArrayLike, rng: np.random.Generator, *, probability: float, max_pct_change: float = MAX_PCT_CHANGE
) -> npt.NDArray[np.float64]:
    """Multiplies each element by `1 + U(-max_pct_change, max_pct_change)` with a probability, independently.

    Args:
        value: Numbers `[...]`.
        rng: Generator; the number of its draws does not depend on the outcome.
        probability: With which an element changes.
        max_pct_change: Largest relative change, from 0 to 1, so that no sign changes.

    Returns:
        f64 `[...]`, a new array.
    """
    array = np.asarray(value, np.float64)
    factor = 1 + rng.uniform(-max_pct_change, max_pct_change, array.shape)
    return np.where(rng.random(array.shape) < probability, array * factor, array)


def resample(value: int, low: int, high: int, rng: np.random.Generator, *, probability: float) -> int:
    """Returns an integer from `low` to `high` with a probability, otherwise the value."""
    drawn = int(rng.integers(low, high, endpoint=True))
    return drawn if rng.random() < probability else value


class Hyperparameter(ABC):
    """A value that can be read, set and perturbed."""

    @abstractmethod
    def get(self) -> Any:  # noqa: ANN401, depends on the class
        """Returns the value."""

    @abstractmethod
    def set(self, value: Any) -> None:  # noqa: ANN401, depends on the class
        """Replaces the value."""

    @abstractmethod
    def perturb(self) -> None:
        """Changes the value at random."""


class FloatHyperparameter(Hyperparameter):
    """A float, drawn log-uniformly, which `perturb` multiplies by a random factor."""

    def __init__(
        self,
        init_value_or_range: Range,
        perturb_probability: float = 1.0,
        perturb_max_pct_change: float = MAX_PCT_CHANGE,
        *,
        bounds: tuple[float, float] | None = None,
        seed: Seed | None = None,
    ) -> None:
        """Draws the value.

        Args:
            init_value_or_range: The exact value, or the bounds of a log-uniform distribution.
            perturb_probability: With which `perturb` changes the value.
            perturb_max_pct_change: Largest relative change by `perturb`.
            bounds: Perturbed values are clipped to these. Default: they are not clipped.
            seed: See `engram.agents.ftw.seeds`.

        Raises:
            InvalidArgumentError: An argument is not a Python float or a tuple of two, or is out of its range.
        """
        self._probability = python_fraction("`perturb_probability`", perturb_probability)
        self._max_pct_change = python_fraction("`perturb_max_pct_change`", perturb_max_pct_change)
        self._bounds = bounds
        self._rng = generator(seed)
        self._value = float(draw_log_uniform(init_value_or_range, self._rng))

    def get(self) -> float:
        """Returns the value."""
        return self._value

    def set(self, value: float) -> None:
        """Replaces the value.

        Raises:
            InvalidArgumentError: The value is not a finite number.
        """
        self._value = _checks.finite("`value`", value)

    def perturb(self) -> None:
        """Changes the value at random."""
        value = scale(self._value, self._rng, probability=self._probability, max_pct_change=self._max_pct_change)
        self._value = float(value if self._bounds is None else np.clip(value, *self._bounds))


class IntHyperparameter(Hyperparameter):
    """An integer, drawn uniformly, which `perturb` draws again."""

    def __init__(
        self,
        min_value: int,
        max_value: int,
        initial_value: int | None = None,
        perturb_probability: float = 1.0,
        *,
        lowest: int | None = None,
        seed: Seed | None = None,
    ) -> None:
        """Draws the value.

        Args:
            min_value: Smallest value that is drawn.
            max_value: Largest value that is drawn.
            initial_value: The value to start from, which may be outside these bounds. Default: it is drawn.
            perturb_probability: With which `perturb` draws a new value.
            lowest: Smallest value that may be set. Default: any integer may be.
            seed: See `engram.agents.ftw.seeds`.

        Raises:
            InvalidArgumentError: A bound or value is not an int or below `lowest`, the bounds are in the wrong order,
                or the probability is not a float from 0 to 1.
        """
        self._lowest = -_checks.MAX_I64 if lowest is None else _checks.integer("`lowest`", lowest, low=-_checks.MAX_I64)
        self._low = self._integer("`min_value`", min_value)
        self._high = _checks.integer("`max_value`", max_value, low=self._low)
        self._probability = python_fraction("`perturb_probability`", perturb_probability)
        self._rng = generator(seed)
        drawn = int(self._rng.integers(self._low, self._high, endpoint=True))
        self._value = drawn if initial_value is None else self._integer("`initial_value`", initial_value)

    def get(self) -> int:
        """Returns the value."""
        return self._value

    def set(self, value: int) -> None:
        """Replaces the value, also by one that is outside the bounds.

        Raises:
            InvalidArgumentError: The value is not an integer, or is below `lowest`.
        """
        self._value = self._integer("`value`", value)

    def perturb(self) -> None:
        """Draws the value again, with the perturbation's probability."""
        self._value = resample(self._value, self._low, self._high, self._rng, probability=self._probability)

    def _integer(self, what: str, value: object) -> int:
        return _checks.integer(what, value, low=self._lowest)


class HyperparametersContainer:
    """Several hyperparameters by name."""

    def __init__(self, hyperparameters: Mapping[str, Hyperparameter]) -> None:
        """Holds these hyperparameters; it does not copy them."""
        self._hyperparameters = hyperparameters

    def get(self) -> dict[str, Any]:
        """Returns the values by name."""
        return {name: hyperparameter.get() for name, hyperparameter in self._hyperparameters.items()}

    def set(self, values: Mapping[str, Any], verbose: bool = False) -> None:  # noqa: FBT001, FBT002, the published signature
        """Replaces the values of these names, all or none; unknown names are ignored.

        Args:
            values: New values by name.
            verbose: Log each changed value and each ignored name.

        Raises:
            InvalidArgumentError: A value is invalid.
        """
        before = self.get()
        try:
            for name, value in values.items():
                if name in self._hyperparameters:
                    self._hyperparameters[name].set(value)
        except InvalidArgumentError as error:
            for other, value in before.items():
                self._hyperparameters[other].set(value)
            raise InvalidArgumentError(f"`values[{name!r}]`: {error}") from error
        if verbose:
            for name, value in values.items():
                _log.info("%s %s = %r", "set" if name in self._hyperparameters else "ignored", name, value)

    def perturb(self) -> None:
        """Perturbs every hyperparameter."""
        for hyperparameter in self._hyperparameters.values():
            hyperparameter.perturb()


class FtwHyperparameters(Mapping[str, Hyperparameter]):
    """The agent's hyperparameters by name; "period" is another name of "slow_core_period", and is not iterated."""

    def __init__(self, hyperparameters: Mapping[str, Hyperparameter]) -> None:
        self._hyperparameters = dict(hyperparameters)

    def __getitem__(self, name: str) -> Hyperparameter:
        return self._hyperparameters["slow_core_period" if name == "period" else name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hyperparameters)

    def __len__(self) -> int:
        return len(self._hyperparameters)


def initialize_hypers(  # noqa: PLR0917, the published signature
    slow_core_period_min_max: tuple[int, int] = (5, 20),
    slow_core_period_init_value: int | None = None,
    learning_rate: Range = (1e-5, 5e-3),
    entropy_cost: Range = (5e-4, 1e-2),
    reward_prediction_cost: Range = (0.1, 1.0),
    pixel_control_cost: Range = (0.01, 0.1),
    kld_prior_fixed_cost: Range = (1e-4, 0.1),
    kld_prior_posterior_cost: Range = (1e-3, 1.0),
    scale_grads_fast_to_slow: Range = (0.1, 1.0),
    *,
    perturb_probability: float = 1.0,
    seed: Seed | None = None,
) -> FtwHyperparameters:
    """Draws the agent's hyperparameters.

    Args:
        slow_core_period_min_max: Smallest and largest period of the slow core, in steps.
        slow_core_period_init_value: An exact period, which `perturb` does not change. Default: it is drawn.
        learning_rate: An exact value, or the bounds of a log-uniform distribution, as for all that follow.
        entropy_cost: Weight of the entropy loss.
        reward_prediction_cost: Weight of the reward prediction loss.
        pixel_control_cost: Weight of the pixel control loss.
        kld_prior_fixed_cost: Weight of KL(prior || fixed prior).
        kld_prior_posterior_cost: Weight of KL(posterior || prior).
        scale_grads_fast_to_slow: Factor of the gradients from the fast to the slow core; perturbed values stay at most
            1.
        perturb_probability: With which `perturb` changes each of them.
        seed: See `engram.agents.ftw.seeds`.

    Raises:
        InvalidArgumentError: A value or range is invalid.
    """
    seeds = iter(seed_sequence(seed).spawn(8))
    if not isinstance(slow_core_period_min_max, tuple) or len(slow_core_period_min_max) != 2:  # noqa: PLR2004, min and max
        got = _checks.short_repr(slow_core_period_min_max)
        raise InvalidArgumentError(f"`slow_core_period_min_max` must be a tuple of two ints; got {got}")
    ranges = {
        "learning_rate": learning_rate,
        "entropy_cost": entropy_cost,
        "reward_prediction_cost": reward_prediction_cost,
        "pixel_control_cost": pixel_control_cost,
        "kld_prior_fixed_cost": kld_prior_fixed_cost,
        "kld_prior_posterior_cost": kld_prior_posterior_cost,
        "scale_grads_fast_to_slow": scale_grads_fast_to_slow,
    }
    low, high = slow_core_period_min_max
    period = IntHyperparameter(
        _checks.integer("`slow_core_period_min_max`", low),
        high,
        slow_core_period_init_value,
        perturb_probability if slow_core_period_init_value is None else 0.0,
        lowest=1,
        seed=next(seeds),
    )
    floats: dict[str, Hyperparameter] = {
        name: FloatHyperparameter(
            value,
            perturb_probability,
            bounds=(0.0, 1.0) if name == "scale_grads_fast_to_slow" else None,
            seed=next(seeds),
        )
        for name, value in ranges.items()
    }
    return FtwHyperparameters({"slow_core_period": period, **floats})


def python_fraction(what: str, value: object) -> float:
    """Returns a Python float from 0 to 1; integers are rejected, as in the published API."""
    if not isinstance(value, float):
        raise InvalidArgumentError(f"{what} must be a float; got {_checks.short_repr(value)} ({type(value).__name__})")
    return _checks.fraction(what, value)


def _float_range(value: object) -> tuple[float, float]:
    match value:
        case (float(low), float(high)) if isinstance(value, tuple) and 0 < low <= high < np.inf:
            return low, high
    raise InvalidArgumentError(
        "`init_value_or_range` must be a float, or a tuple of two floats, 0 < low <= high; got"
        f" {_checks.short_repr(value)} ({type(value).__name__})"
    )
