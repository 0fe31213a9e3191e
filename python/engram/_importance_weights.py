"""Importance-sampling weights of draws."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from engram import Nest, _checks

__all__ = ["Divisor", "check_arguments", "importance_weights"]

Divisor: TypeAlias = Literal["batch", "table"] | None
"""The divisor of weights: the largest in the batch, the largest that any item of the table could have, or none."""


def check_arguments(beta: float, normalize: Divisor) -> float:
    """Returns `beta` as `float`.

    Raises:
        InvalidArgumentError: `beta` is not finite, or `normalize` is none of the allowed values.
    """
    _checks.choice("`normalize`", normalize, ("batch", "table", None))
    return _checks.finite("`beta`", beta)


def importance_weights(
    probability: Nest,
    min_probability: Nest,
    candidates: Nest,
    *,
    beta: float,
    normalize: Divisor,
    maximum: Callable[[Any], Any] = np.max,
) -> Nest:
    """Returns `(1 / (candidates * probability)) ** beta`, f64 `[B]`, divided as `normalize` requires.

    Args:
        probability: f64 `[B]`: probability with which each item was drawn.
        min_probability: f64 `[B]`: smallest probability above 0 of an item of the table when each item was drawn.
        candidates: f64 `[B]`: number of items with a probability above 0 when each item was drawn.
        beta: The exponent.
        normalize: The divisor.
        maximum: Returns the largest element of an array or tensor.
    """
    weights = (1 / (candidates * probability)) ** beta
    if normalize == "batch":
        return weights / maximum(weights)
    if normalize == "table":
        return weights / (1 / (candidates * min_probability)) ** beta
    return weights
