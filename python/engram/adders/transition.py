"""An adder of transitions over `n` steps."""

from collections.abc import Mapping
from typing import Unpack

from engram import Nest, _checks
from engram.adders.base import Adder
from engram.adders.item_writers import Priority, open_item_writer, same_schedules
from engram.adders.n_step_returns import NStepReturns, RewardLayout
from engram.adders.step import Step, Transition, final_row, map_leaves
from engram.table_store import TableStore
from engram.writer_options import WriterOptions

__all__ = ["NStepTransitionAdder"]


class NStepTransitionAdder(Adder):
    """Creates a `Transition` from each observation to the one `n` steps later, or to the last of the episode.

    With the rewards `r` and discounts `d` of the `k <= n` steps in between, and the adder's own discount `g`,

        reward   = r_1 + (g d_1) r_2 + (g d_1)(g d_2) r_3 + ... + (g d_1)...(g d_{k-1}) r_k
        discount = g^(k-1) d_1 d_2 ... d_k

    The learner multiplies `discount` by `g` once more, since it has only `k - 1` factors `g`: the target is
    `reward + g discount V(next_observation)`. This is Acme's convention; for n-step returns see Sutton and Barto 2018,
    section 7.1.

    Rewards may be nests; a discount is a number, or an array that broadcasts to each reward `[...]`. With `n` of 1 both
    are stored unchanged. Otherwise they are computed in f64, and stored in the dtypes of the first reward and discount,
    or f64 if those are integers or bools.

    An item is created by the `add` that follows its last step. The last `add` of an episode creates all items that are
    left, also those of fewer than `n` steps. `reset` creates only the item whose `n` steps are complete.
    """

    def __init__(
        self,
        client: TableStore,
        n_step: int,
        discount: float,
        *,
        priority_fns: Mapping[str, Priority | None] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        """Opens an adder.

        Args:
            client: The `engram.Store` or `engram.Client` that has the tables. They need not exist before the first row.
            n_step: Number of steps `n`, 1 or more.
            discount: The adder's discount `g`, from 0 to 1.
            priority_fns: Priority of the items by table: a number, a function from an item's data (a `Transition` of
                NumPy arrays `[...]`) to a number, or None for 1. Default: None, the table `DEFAULT_PRIORITY_TABLE` with
                priority 1.
            **options: Options of `engram.WriterOptions`.

        Raises:
            InvalidArgumentError: An argument has a type or value that is not allowed.
            TypeError: An option is unknown.
        """
        self._returns = NStepReturns(_checks.integer("`n_step`", n_step), _checks.fraction("`discount`", discount))
        schedules = same_schedules(priority_fns, n_step + 1, 1, _select_transition)
        self._item_writer = open_item_writer(client, schedules, **options)
        self._last_row: Step | None = None  # of the last transition
        super().__init__(self._item_writer, options.get("timeout"))

    def _add(self, row: Step) -> None:
        if self._returns.layout is None:
            self._item_writer.check_number_lists(row)  # before its numbers become arrays
        step = self._returns.make_step(row.reward, row.discount)
        self._append(row, step.layout)
        self._returns.push(step)
        self._last_row = row

    def _append(self, row: Step, layout: RewardLayout) -> None:
        """Writes a row with the return of the up to `n` steps before its observation."""
        reward, discount = self._returns.total(layout)
        self._item_writer.append(Step(row.observation, row.action, reward, discount, (), row.extras))

    def _end(self, row: Step) -> None:
        # From row `n + 1` of the episode on, each row completes an item and then drops the oldest step, so the last
        # items have fewer than `n` steps. Rows before that, in a shorter episode, are padding and drop no step.
        layout = self._returns.layout
        try:
            with self._ending(self._timeout):
                while self._returns.steps and layout is not None:
                    self._append(row, layout)
                    if self._item_writer.num_rows > self._returns.n:
                        self._returns.steps.popleft()
        finally:
            self._returns.steps.clear()

    def _abandon(self, timeout: float | None) -> None:
        steps, layout = self._returns.steps, self._returns.layout
        try:
            with self._ending(timeout):
                if len(steps) == self._returns.n and layout is not None and self._last_row is not None:
                    self._append(final_row(self._observation, self._last_row), layout)
        finally:
            steps.clear()


def _select_transition(row: Nest, length: int) -> Transition:
    return Transition(
        observation=map_leaves(lambda leaf: leaf[-length], row.observation),
        action=map_leaves(lambda leaf: leaf[-length], row.action),
        reward=map_leaves(lambda leaf: leaf[-1], row.reward),
        discount=map_leaves(lambda leaf: leaf[-1], row.discount),
        next_observation=map_leaves(lambda leaf: leaf[-1], row.observation),
        extras=map_leaves(lambda leaf: leaf[-length], row.extras),
    )
