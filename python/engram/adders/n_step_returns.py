"""The return of the last `n` steps."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.adders.step import flatten
from engram.errors import SignatureError

__all__ = ["NStepReturns", "RewardLayout"]

_REAL = (float, int, np.floating, np.integer, np.bool_)


@dataclass(frozen=True, slots=True)
class RewardLayout:
    """What rewards and discounts look like."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    discount_shape: tuple[int, ...]
    discount_dtype: np.dtype[Any]

    def is_number(self) -> bool:
        """A reward is a single number, and a discount too."""
        return self.structure.is_leaf() and self.shapes == ((),) and self.discount_shape == ()


@dataclass(frozen=True, slots=True)
class RewardStep:
    """A reward's leaves and a discount."""

    form: RewardLayout
    rewards: list[Any]
    discount: Any


class NStepReturns:
    """Sums of the last `n` rewards, discounted by the steps' discounts and one's own.

    They are reckoned in f64, and come in the dtypes that the first rewards and discounts had, f64 for integers. With
    `n` of 1 there is nothing to reckon: all stays as it is.
    """

    def __init__(self, n: int, discount: float) -> None:
        self.n = n
        self.steps: deque[RewardStep] = deque(maxlen=n)
        self.form: RewardLayout | None = None
        self._discount = discount
        self._is_plain = False
        """Rewards and discounts are single numbers."""

    def read(self, reward: Any, discount: Any) -> RewardStep:  # noqa: ANN401, nests
        """A step to `push`, once it is in.

        Raises:
            SignatureError: They are not numbers, arrays, or, the reward, a nest of those; or look unlike those before.
        """
        form = self.form
        if self._is_plain and form is not None and isinstance(reward, _REAL) and isinstance(discount, _REAL):
            if self.n > 1 and not isinstance(reward, int):
                return RewardStep(form, [float(reward)], float(discount))
            if (np.asarray(reward).dtype, np.asarray(discount).dtype) == (form.dtypes[0], form.discount_dtype):
                return RewardStep(form, [reward], discount)
        leaves, structure = flatten(reward)
        try:
            arrays = [np.array(leaf) for leaf in leaves]
            factor = np.array(discount)
        except ValueError:
            raise SignatureError(
                f"a reward and a discount must be numbers or arrays; got {reward!r} and {discount!r}"
            ) from None
        found = RewardLayout(
            structure,
            tuple(array.shape for array in arrays),
            tuple(self._kept(array.dtype) for array in arrays),
            factor.shape,
            self._kept(factor.dtype),
        )
        _check(found, reward, discount)
        if self.n > 1:
            _check_axes(found)
        if form is not None:
            self._check_alike(form, found, reward, discount)
        if self.n > 1:
            arrays = [array.astype(np.float64) for array in arrays]
            factor = factor.astype(np.float64)
        return RewardStep(form or found, arrays, factor)

    def _kept(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return dtype if self.n == 1 or dtype.kind not in "biu" else np.dtype(np.float64)

    def _check_alike(self, asked: RewardLayout, found: RewardLayout, reward: Any, discount: Any) -> None:  # noqa: ANN401, nests
        def fits(now: np.dtype[Any], before: np.dtype[Any]) -> bool:
            return now == before if self.n == 1 else np.can_cast(now, before, "same_kind")

        if (asked.structure, asked.shapes) != (found.structure, found.shapes) or not all(
            map(fits, found.dtypes, asked.dtypes)
        ):
            before = asked.structure.unflatten(map(_words, asked.dtypes, asked.shapes))
            raise SignatureError(f"a reward looks unlike those before, which were {before}; got {reward!r}")
        if asked.discount_shape != found.discount_shape or not fits(found.discount_dtype, asked.discount_dtype):
            before = _words(asked.discount_dtype, asked.discount_shape)
            raise SignatureError(f"a discount looks unlike those before, which were {before}; got {discount!r}")

    def push(self, step: RewardStep) -> None:
        """Another step; the one `n` before it is forgotten."""
        if self.form is None:
            self.form = step.form
            self._is_plain = step.form.is_number()
        self.steps.append(step)

    def total(self, form: RewardLayout) -> tuple[Any, Any]:
        """Reward and discount over the steps; without any, zeros of that form."""
        if not self.steps:
            totals = [np.zeros(shape, dtype) for shape, dtype in zip(form.shapes, form.dtypes, strict=True)]
            return form.structure.unflatten(totals), np.zeros(form.discount_shape, form.discount_dtype)
        first, *others = self.steps
        totals, product = first.rewards, first.discount
        for step in others:
            weight = self._discount * product
            totals = [total + part * weight for total, part in zip(totals, step.rewards, strict=True)]
            product = weight * step.discount
        kept = [np.asarray(total, dtype) for total, dtype in zip(totals, form.dtypes, strict=True)]
        reward = kept[0] if form.is_number() else form.structure.unflatten(kept)
        return reward, np.asarray(product, form.discount_dtype)


def _check(found: RewardLayout, reward: Any, discount: Any) -> None:  # noqa: ANN401, nests
    if not found.dtypes or not all(map(_is_real, found.dtypes)):
        raise SignatureError(f"a reward must be a number, an array or a nest of them; got {reward!r}")
    if not _is_real(found.discount_dtype):
        raise SignatureError(f"a discount must be a number or an array; got {discount!r}")


def _check_axes(found: RewardLayout) -> None:
    for shape in found.shapes:
        axes = shape[len(shape) - len(found.discount_shape) :]
        if len(found.discount_shape) > len(shape) or any(
            size not in {1, axis} for size, axis in zip(found.discount_shape, axes, strict=True)
        ):
            raise SignatureError(
                f"a discount must be a number, or fit the axes of each reward; got one of shape {found.discount_shape} "
                f"for a reward of shape {shape}"
            )


def _is_real(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" or dtype.name == "bfloat16"


def _words(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"
