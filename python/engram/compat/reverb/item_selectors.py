"""Selectors: how a table chooses the items to sample, and the items to remove when it is full."""

import functools

from engram import selectors as native
from engram.compat.reverb import _arguments

__all__ = ["Fifo", "HeapSelector", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Selector", "Uniform"]


class Selector:
    """Base class of the selectors."""

    def __init__(self, selector: native.Selector) -> None:
        """Wraps `selector`, one of `engram.selectors`."""
        self._native = selector


class Fifo(Selector):
    """Selects the item that was inserted first."""

    def __init__(self) -> None:
        super().__init__(native.Fifo())

    def __repr__(self) -> str:
        return "FifoSelector"


class Lifo(Selector):
    """Selects the item that was inserted last."""

    def __init__(self) -> None:
        super().__init__(native.Lifo())

    def __repr__(self) -> str:
        return "LifoSelector"


class Uniform(Selector):
    """Selects every item with the same probability."""

    def __init__(self) -> None:
        super().__init__(native.Uniform())

    def __repr__(self) -> str:
        return "UniformSelector"


class Prioritized(Selector):
    """Selects an item with probability `priority ** priority_exponent / sum(priorities ** priority_exponent)`.

    This is equation 1 of Schaul et al., "Prioritized Experience Replay" (2015); the exponent is alpha there. Priorities
    must be finite and at least 0. Items with priority 0 are selected only if all items have priority 0, and then with
    equal probability.
    """

    def __init__(self, priority_exponent: float) -> None:
        """Creates a selector.

        Args:
            priority_exponent: 0 makes all items with a priority above 0 equally likely, 1 makes probabilities
                proportional to priorities, and a negative exponent favours low priorities above 0.

        Raises:
            TypeError: `priority_exponent` is not a number.
            ValueError: `priority_exponent` is NaN or infinite.
        """
        self._exponent = _arguments.number("priority_exponent", priority_exponent)
        super().__init__(native.Prioritized(self._exponent))

    def __repr__(self) -> str:
        return f"PrioritizedSelector(priority_exponent={self._exponent:g})"


class HeapSelector(Selector):
    """Selects the item with the lowest or highest priority; among equal ones, the least recently inserted or updated.

    `MinHeap()` is `HeapSelector(True)`, `MaxHeap()` is `HeapSelector(False)`.
    """

    def __init__(self, min_heap: bool) -> None:  # noqa: FBT001, as in Reverb
        """Creates a selector of the lowest priority if `min_heap` is True, otherwise of the highest."""
        self._sign = 1 if min_heap else -1
        super().__init__(native.MinHeap() if min_heap else native.MaxHeap())

    def __repr__(self) -> str:
        return f"HeapSelector(sign={self._sign})"


MaxHeap = functools.partial(HeapSelector, False)  # noqa: FBT003, as in Reverb
"""Selects the item with the highest priority."""

MinHeap = functools.partial(HeapSelector, True)  # noqa: FBT003, as in Reverb
"""Selects the item with the lowest priority."""
