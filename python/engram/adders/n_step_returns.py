"""Discounted returns over the last `n` steps."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram import Nest, _checks
from engram.adders.step import check_not_masked, flatten
from engram.errors import SignatureError

__all__ = ["NStepReturns", "RewardLayout"]

_REAL = (float, int, np.floating, np.integer, np.bool_)


@dataclass(frozen=True, slots=True)
class RewardLayout:
    """Structure and shapes of rewards and discounts, and the dtypes of their totals.

    The dtypes are those of the rewards and discounts, except for integers and bools if `n` is above 1: their totals are
    f64.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    discount_shape: tuple[int, ...]
    discount_dtype: np.dtype[Any]

    def is_scalar(self) -> bool:
        """True if reward and discount are single numbers."""
        return self.structure.is_leaf() and self.shapes == ((),) and self.discount_shape == ()


@dataclass(frozen=True, slots=True)
class RewardStep:
    """The leaves of a step's reward, and its discount: in f64 if `n` is above 1, otherwise unchanged."""

    layout: RewardLayout
    rewards: list[Any]
    discount: Any


class NStepReturns:
    """Sums the last `n` rewards, discounted by the steps' discounts and by the adder's own.

    Results are computed in f64 and have the dtypes of the first reward and discount, or f64 if those are integers or
    bools. With `n` of 1, rewards and discounts are returned unchanged.

    Attributes:
        n: Maximum number of steps.
        steps: The last steps, up to `n`, the oldest first.
        layout: The layout of rewards and discounts; None before the first step.
    """

    def __init__(self, n: int, discount: float) -> None:
        self.n = n
        self.steps: deque[RewardStep] = deque(maxlen=n)
        self.layout: RewardLayout | None = None
        self._discount = discount
        self._is_scalar = False  # whether rewards and discounts are single numbers

    def make_step(self, reward: Nest, discount: Nest) -> RewardStep:
        """Checks a reward and a discount, and returns them as a step; `push` the step after its row was written.

        Raises:
            SignatureError: The reward is not a nest of real numbers or arrays, the discount is not a real number or an
                array, one of them is a masked array, or it differs from earlier ones in structure, shape or dtype.
        """
        layout = self.layout
        if self._is_scalar and layout is not None and isinstance(reward, _REAL) and isinstance(discount, _REAL):
            # An int may be too large for NumPy's integers; the code below raises an error for it.
            if self.n > 1 and not isinstance(reward, int) and not isinstance(discount, int):
                return RewardStep(layout, [float(reward)], float(discount))
            if (np.asarray(reward).dtype, np.asarray(discount).dtype) == (layout.dtypes[0], layout.discount_dtype):
                return RewardStep(layout, [reward], discount)
        check_not_masked("reward", reward)
        check_not_masked("discount", discount)
        leaves, structure = flatten(reward)
        try:
            arrays = [np.array(leaf) for leaf in leaves]
            discount_array = np.array(discount)
        except ValueError:
            raise SignatureError(
                f"a reward and a discount must be numbers or arrays; got {_checks.short_repr(reward)} "
                f"and {_checks.short_repr(discount)}"
            ) from None
        new_layout = RewardLayout(
            structure,
            tuple(array.shape for array in arrays),
            tuple(self._result_dtype(array.dtype) for array in arrays),
            discount_array.shape,
            self._result_dtype(discount_array.dtype),
        )
        _check_dtypes(new_layout, reward, discount)
        if self.n > 1:
            _check_discount_shape(new_layout)
        if layout is not None:
            self._check_layout(layout, new_layout)
        if self.n > 1:
            arrays = [array.astype(np.float64) for array in arrays]
            discount_array = discount_array.astype(np.float64)
        return RewardStep(layout or new_layout, arrays, discount_array)

    def _result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return dtype if self.n == 1 or dtype.kind not in "biu" else np.dtype(np.float64)

    def _check_layout(self, expected: RewardLayout, actual: RewardLayout) -> None:
        def fits(dtype: np.dtype[Any], old: np.dtype[Any]) -> bool:
            return dtype == old if self.n == 1 else np.can_cast(dtype, old, "same_kind")

        if (expected.structure, expected.shapes) != (actual.structure, actual.shapes) or not all(
            map(fits, actual.dtypes, expected.dtypes)
        ):
            raise SignatureError(
                f"`reward` must have the dtype and shape of earlier rewards, {_describe_reward(expected)}; "
                f"got {_describe_reward(actual)}"
            )
        if expected.discount_shape != actual.discount_shape or not fits(actual.discount_dtype, expected.discount_dtype):
            raise SignatureError(
                "`discount` must have the dtype and shape of earlier discounts, "
                f"{_describe(expected.discount_dtype, expected.discount_shape)}; "
                f"got {_describe(actual.discount_dtype, actual.discount_shape)}"
            )

    def push(self, step: RewardStep) -> None:
        """Adds a step, and drops the oldest one if there are more than `n`."""
        if self.layout is None:
            self.layout = step.layout
            self._is_scalar = step.layout.is_scalar()
        self.steps.append(step)

    def total(self, layout: RewardLayout) -> tuple[Any, Any]:
        """Returns the total reward and discount over `steps`, in the structure and dtypes of `layout`.

        Both are zeros if there are no steps.
        """
        if not self.steps:
            totals = [np.zeros(shape, dtype) for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)]
            return layout.structure.unflatten(totals), np.zeros(layout.discount_shape, layout.discount_dtype)
        first, *others = self.steps
        totals, product = first.rewards, first.discount
        for step in others:
            weight = self._discount * product
            totals = [total + part * weight for total, part in zip(totals, step.rewards, strict=True)]
            product = weight * step.discount
        results = [np.asarray(total, dtype) for total, dtype in zip(totals, layout.dtypes, strict=True)]
        reward = results[0] if layout.is_scalar() else layout.structure.unflatten(results)
        return reward, np.asarray(product, layout.discount_dtype)


def _check_dtypes(layout: RewardLayout, reward: Nest, discount: Nest) -> None:
    if not layout.dtypes or not all(map(_is_real, layout.dtypes)):
        raise SignatureError(
            "a reward must be a real number, an array of real numbers, or a nest of these; got "
            f"{_checks.short_repr(reward)}"
        )
    if not _is_real(layout.discount_dtype):
        raise SignatureError(
            f"a discount must be a real number or an array of real numbers; got {_checks.short_repr(discount)}"
        )


def _check_discount_shape(layout: RewardLayout) -> None:
    for shape in layout.shapes:
        axes = shape[len(shape) - len(layout.discount_shape) :]
        if len(layout.discount_shape) > len(shape) or any(
            size not in {1, axis} for size, axis in zip(layout.discount_shape, axes, strict=True)
        ):
            raise SignatureError(
                "a discount must be a number, or an array that broadcasts to each reward; "
                f"got shape {layout.discount_shape} for a reward of shape {shape}"
            )


def _is_real(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" or dtype.name == "bfloat16"


def _describe_reward(layout: RewardLayout) -> str:
    return str(layout.structure.unflatten(map(_describe, layout.dtypes, layout.shapes))).replace("'", "")


def _describe(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"
