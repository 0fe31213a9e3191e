"""The hyperparameters as one pytree, an argument of compiled functions: new values need no compilation."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from engram import _checks
from engram.agents.ftw.internal_rewards import numbers_of
from engram.errors import InvalidArgumentError


class Hypers(NamedTuple):
    """Hyperparameters of a learner step. Create it with `create` and change it with `replace`.

    These convert every value to the Python type of its field, because a compiled function would be compiled again for
    another type. JAX gives Python numbers the precision of what they are combined with.

    Attributes:
        learning_rate: Learning rate of RMSProp, before its decay.
        entropy_cost: Weight of the entropy loss.
        reward_prediction_cost: Weight of the reward prediction loss.
        pixel_control_cost: Weight of the pixel control loss.
        kld_prior_fixed_cost: Weight of KL(prior || fixed prior).
        kld_prior_posterior_cost: Weight of KL(posterior || prior).
        scale_grads_fast_to_slow: Factor of the gradients from the fast to the slow core.
        slow_core_period: Period of the slow core in steps; of several slow cores, a tuple.
        internal_rewards: f64 `[E]`, weights of the environment's events.
        baseline_cost: Weight of the baseline loss.
        discount: The agent's discount.
        max_abs_reward: Internal rewards are clipped to this magnitude; inf: they are not.
        max_gradient_norm: Gradients with a larger global norm are scaled down to it.
        rms_prop_epsilon: Added to the mean squared gradients of RMSProp.
        learning_rate_decay_steps: Updates until the learning rate is 0; 0 or negative: it is constant.
        fixed_prior_scale: Standard deviation of the fixed prior.
        pixel_control_discount: Discount of the pseudo rewards of pixel control.
    """

    learning_rate: Any
    entropy_cost: Any
    reward_prediction_cost: Any
    pixel_control_cost: Any
    kld_prior_fixed_cost: Any
    kld_prior_posterior_cost: Any
    scale_grads_fast_to_slow: Any
    slow_core_period: Any
    internal_rewards: Any
    baseline_cost: Any = 0.5
    discount: Any = 0.99
    max_abs_reward: Any = float("inf")
    max_gradient_norm: Any = 1e10
    rms_prop_epsilon: Any = 1e-5
    learning_rate_decay_steps: Any = 0
    fixed_prior_scale: Any = 0.1
    pixel_control_discount: Any = 0.9

    @classmethod
    def create(cls, **values: Any) -> Self:  # noqa: ANN401, the fields
        """Returns hyperparameters with these values, by the names of the fields.

        "period" is another name of "slow_core_period". None as `max_abs_reward` or `max_gradient_norm` is no maximum.

        Raises:
            InvalidArgumentError: A name is unknown or missing, or a value is invalid.
        """
        converted = _converted(values)
        missing = [name for name in cls._fields if name not in converted and name not in cls._field_defaults]
        if missing:
            raise InvalidArgumentError(f"hyperparameters: no value for {', '.join(missing)}")
        return cls(**converted)

    def replace(self, values: Mapping[str, Any]) -> Self:
        """Returns hyperparameters with some new values; the names are those of `create`.

        Raises:
            InvalidArgumentError: A name is unknown, a value is invalid, or the number of internal rewards or periods
                changes, for which functions would be compiled again.
        """
        converted = _converted(values)
        for name in ("internal_rewards", "slow_core_period"):
            if name in converted and np.shape(converted[name]) != np.shape(getattr(self, name)):
                raise InvalidArgumentError(
                    f"`{name}`: the number of values is fixed; got the shape {np.shape(converted[name])}, expected"
                    f" {np.shape(getattr(self, name))}"
                )
        return self._replace(**converted)


_NO_MAXIMUM = {"max_abs_reward": float("inf"), "max_gradient_norm": 1e10}


def _converted(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _convert(name, value) for name, value in _with_full_names(values).items()}


def _with_full_names(values: Mapping[str, Any]) -> dict[str, Any]:
    names = {"slow_core_period" if name == "period" else name: value for name, value in values.items()}
    unknown = [name for name in names if name not in Hypers._fields]
    if unknown:
        raise InvalidArgumentError(
            f"hyperparameters: unknown {', '.join(unknown)}; expected some of {', '.join(Hypers._fields)}"
        )
    return names


def _convert(name: str, value: Any) -> Any:  # noqa: ANN401, a value of any field
    what = f"`{name}`"
    if name == "internal_rewards":
        weights = numbers_of(value)
        if weights.ndim != 1 or not weights.size or not np.isfinite(weights).all():
            raise InvalidArgumentError(f"{what} must be finite numbers [E]; got {_checks.short_repr(value)}")
        return weights
    if name == "slow_core_period":
        several = isinstance(value, list | tuple) or np.ndim(value) == 1
        return tuple(_checks.integer(what, each) for each in value) if several else _checks.integer(what, value)
    if name == "learning_rate_decay_steps":
        return _checks.integer(what, value, low=-_checks.MAX_I32, high=_checks.MAX_I32)
    if name in _NO_MAXIMUM:
        return _NO_MAXIMUM[name] if value is None else _checks.number(what, value)
    return _checks.finite(what, value)
