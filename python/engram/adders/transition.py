"""Transitions over `n` steps."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import optree

from engram import _checks
from engram.adders.base import Adder
from engram.adders.step import Step, Transition, each_leaf
from engram.adders.windows import Priority, Window, rows_for, tables_of
from engram.errors import SignatureError
from engram.store import AnyStore

__all__ = ["NStepTransitionAdder"]


class NStepTransitionAdder(Adder):
    """Makes a `Transition` from each observation to the one `n` steps later, or to the episode's last.

    With rewards `r` and discounts `d` of the `k <= n` steps between them, and `g` the adder's own discount,

        reward   = r_1 + (g d_1) r_2 + (g d_1)(g d_2) r_3 + ... + (g d_1)...(g d_{k-1}) r_k
        discount = g^(k-1) d_1 d_2 ... d_k

    A learner multiplies `discount` by `g` once more: `reward + g discount V(next_observation)` (n-step returns: Sutton
    and Barto 2018, section 7.1; this bookkeeping: Acme's).

    Items come one step after the observation they end with, and all of an episode's with its last time step.
    """

    def __init__(
        self,
        client: AnyStore,
        n_step: int,
        discount: float,
        *,
        priority_fns: Mapping[str, Priority | None] | None = None,
        chunk_length: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Opens a writer.

        Args:
            client: Where the tables are.
            n_step: `n`, 1 or more.
            discount: `g`, from 0 to 1.
            priority_fns: The tables, each with a priority, a function of the `Transition`'s NumPy arrays, or None for
                1. None: one table, `DEFAULT_PRIORITY_TABLE`.
            chunk_length: Rows per chunk, as of `Store.writer`.
            timeout: Seconds that `add` waits for tables; None: for ever.
        """
        self._n = _checks.integer("`n_step`", n_step)
        self._discount = _checks.fraction("`discount`", discount)
        windows = [
            Window(table=table, length=self._n + 1, period=1, priority=priority, take=_transition)
            for table, priority in tables_of(priority_fns).items()
        ]
        self._rows = rows_for(client, windows, chunk_length=chunk_length, timeout=timeout)
        super().__init__(self._rows, timeout)
        self._reward, self._factor = _Numbers("reward", whole=self._n == 1), _Numbers("discount", whole=self._n == 1)
        self._rewards: deque[list[Any]] = deque(maxlen=self._n)
        self._discounts: deque[list[Any]] = deque(maxlen=self._n)

    def _add(self, row: Step) -> None:
        # A row has what led to it: the return of the n steps before its observation.
        reward, discount = self._reward.read(row.reward), self._factor.read(row.discount)
        self._rows.append(self._with_return(row))
        self._rewards.append(reward)
        self._discounts.append(discount)

    def _end(self, row: Step) -> None:
        # The later a transition begins, the shorter it is: as if the episode stood still at its end.
        try:
            while self._rewards:
                self._rows.append(self._with_return(row))
                if self._rows.count > self._n:
                    self._rewards.popleft()
                    self._discounts.popleft()
        finally:
            self._give_up()

    def _give_up(self) -> None:
        self._rewards.clear()
        self._discounts.clear()
        super()._give_up()

    def _with_return(self, row: Step) -> Step:
        """The row with the return of the steps before it, however many they are."""
        totals, product = self._reward.zeros, self._factor.zeros[0] + 1.0
        weight = product
        for reward, discount in zip(self._rewards, self._discounts, strict=True):
            totals = [total + part * weight for total, part in zip(totals, reward, strict=True)]
            product = weight * discount[0]
            weight = self._discount * product
        return Step(
            row.observation, row.action, self._reward.write(totals), self._factor.write([product]), (), row.extras
        )


_NUMBER = (float, int, np.number, np.bool_)


class _Numbers:
    """Numbers to reckon with: those of a nest as f64, and back in the dtypes that it came with."""

    def __init__(self, what: str, *, whole: bool) -> None:
        self._what = what
        self._whole = whole
        """Sums of integers are integers: nothing is multiplied."""
        self._dtypes: list[np.dtype[Any]] | None = None
        self._structure: Any = None
        self.zeros: list[Any] = []
        self._is_number = False

    def read(self, nest: Any) -> list[Any]:  # noqa: ANN401, a nest
        """Its leaves as f64: numbers, and arrays of one axis or more."""
        if self._is_number and isinstance(nest, _NUMBER):
            return [float(nest)]
        leaves = optree.tree_leaves(nest, none_is_leaf=True, namespace="engram")
        try:
            numbers = [np.asarray(leaf, np.float64) if np.ndim(leaf) else float(leaf) for leaf in leaves]
        except (TypeError, ValueError):
            raise SignatureError(f"the {self._what} must be numbers, arrays or a nest of them; got {nest!r}") from None
        if self._dtypes is None:
            self._structure = optree.tree_structure(nest, none_is_leaf=True, namespace="engram")
            arrays = [np.asarray(leaf) for leaf in leaves]
            self._dtypes = [self._kept(array.dtype) for array in arrays]
            self.zeros = [np.zeros(array.shape) if array.ndim else 0.0 for array in arrays]
            self._is_number = isinstance(nest, _NUMBER)
        if [np.shape(number) for number in numbers] != [np.shape(zero) for zero in self.zeros]:
            shapes = [np.shape(zero) for zero in self.zeros]
            raise SignatureError(f"the {self._what} had leaves of the shapes {shapes} before; got {nest!r}")
        return numbers

    def _kept(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return dtype if self._whole or np.issubdtype(dtype, np.inexact) else np.dtype(np.float64)

    def write(self, leaves: list[Any]) -> Any:  # noqa: ANN401, a nest
        """The nest of these leaves."""
        assert self._dtypes is not None  # noqa: S101, read before
        made = [np.asarray(leaf, dtype) for leaf, dtype in zip(leaves, self._dtypes, strict=True)]
        return made[0] if self._is_number else self._structure.unflatten(made)


def _transition(row: Any, length: int) -> Transition:  # noqa: ANN401, a nest
    return Transition(
        observation=each_leaf(lambda leaf: leaf[-length], row.observation),
        action=each_leaf(lambda leaf: leaf[-length], row.action),
        reward=each_leaf(lambda leaf: leaf[-1], row.reward),
        discount=each_leaf(lambda leaf: leaf[-1], row.discount),
        next_observation=each_leaf(lambda leaf: leaf[-1], row.observation),
        extras=each_leaf(lambda leaf: leaf[-length], row.extras),
    )
