"""Transitions over `n` steps."""

from collections.abc import Mapping
from typing import Any

from engram import _checks
from engram.adders.base import Adder
from engram.adders.item_writers import ItemSchedule, Priority, open_item_writer, table_priorities
from engram.adders.n_step_returns import NStepReturns, RewardLayout
from engram.adders.step import Step, Transition, final_row, map_leaves
from engram.store import TableStore
from engram.writer import Compression

__all__ = ["NStepTransitionAdder"]


class NStepTransitionAdder(Adder):
    """Makes a `Transition` from each observation to the one `n` steps later, or to the episode's last.

    With rewards `r` and discounts `d` of the `k <= n` steps between them, and `g` the adder's own discount,

        reward   = r_1 + (g d_1) r_2 + (g d_1)(g d_2) r_3 + ... + (g d_1)...(g d_{k-1}) r_k
        discount = g^(k-1) d_1 d_2 ... d_k

    A learner multiplies `discount` by `g` once more: `reward + g discount V(next_observation)` (n-step returns: Sutton
    and Barto 2018, section 7.1; this bookkeeping: Acme's).

    Rewards may be nests; a discount is a number, or fits the axes `[...]` of each reward. With `n` of 1 both stay as
    they are. Otherwise they are reckoned in f64, and come in the dtypes that the first ones had, f64 for integers.

    Items come with the `add` after the one that completes them, and all that are left at an episode's end or `reset`.
    """

    def __init__(
        self,
        client: TableStore,
        n_step: int,
        discount: float,
        *,
        priority_fns: Mapping[str, Priority | None] | None = None,
        chunk_length: int | None = None,
        timeout: float | None = None,
        compression: Compression = "auto",
    ) -> None:
        """Opens a writer.

        Args:
            client: An `engram.Store` or `engram.Client`: where the tables are. They are looked for when rows come.
            n_step: `n`, 1 or more.
            discount: `g`, from 0 to 1.
            priority_fns: The tables, each with its items' priority: a number, a function from an item's data (a
                `Transition` of NumPy arrays `[...]`) to a number, or None for 1. None: one table,
                `DEFAULT_PRIORITY_TABLE`.
            chunk_length: Rows per chunk. None: 1 to 16, about 16 KiB, as of `Store.writer`.
            timeout: Seconds that `add` and `reset` wait for tables; None: for ever, 0: not at all.
            compression: `"auto"`, `"off"`, or `"delta"` for integers that change little from step to step: as of
                `Store.writer`.

        Raises:
            InvalidArgumentError: An argument is not what is said here.
        """
        self._returns = NStepReturns(_checks.integer("`n_step`", n_step), _checks.fraction("`discount`", discount))
        plans = [
            ItemSchedule(table=table, length=n_step + 1, period=1, priority=priority, take=_transition)
            for table, priority in table_priorities(priority_fns).items()
        ]
        self._rows = open_item_writer(
            client, plans, chunk_length=chunk_length, timeout=timeout, compression=compression
        )
        self._last: Step | None = None
        super().__init__(self._rows, timeout)

    def _add(self, row: Step) -> None:
        step = self._returns.read(row.reward, row.discount)
        self._append(row, step.form)
        self._returns.push(step)
        self._last = row

    def _append(self, row: Step, form: RewardLayout) -> None:
        """A row has what led to it: the return of the n steps before its observation."""
        reward, discount = self._returns.total(form)
        self._rows.append(Step(row.observation, row.action, reward, discount, (), row.extras))

    def _end(self, row: Step) -> None:
        # The later a transition begins, the shorter it is: as if the episode stood still at its end.
        form = self._returns.form
        try:
            with self._ending(self._timeout):
                while self._returns.steps and form is not None:
                    self._append(row, form)
                    if self._rows.count > self._returns.n:
                        self._returns.steps.popleft()
        finally:
            self._returns.steps.clear()

    def _give_up(self, timeout: float | None) -> None:
        steps, form = self._returns.steps, self._returns.form
        try:
            with self._ending(timeout):
                if len(steps) == self._returns.n and form is not None and self._last is not None:
                    self._append(final_row(self._observation, self._last), form)
        finally:
            steps.clear()


def _transition(row: Any, length: int) -> Transition:  # noqa: ANN401, a nest
    return Transition(
        observation=map_leaves(lambda leaf: leaf[-length], row.observation),
        action=map_leaves(lambda leaf: leaf[-length], row.action),
        reward=map_leaves(lambda leaf: leaf[-1], row.reward),
        discount=map_leaves(lambda leaf: leaf[-1], row.discount),
        next_observation=map_leaves(lambda leaf: leaf[-1], row.observation),
        extras=map_leaves(lambda leaf: leaf[-length], row.extras),
    )
