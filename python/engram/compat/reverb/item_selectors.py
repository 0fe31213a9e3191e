"""Selectors: how a table chooses the items that it samples, and those that it removes when full."""

import functools

from engram import selectors as native
from engram.compat.reverb import _arguments

__all__ = ["Fifo", "HeapSelector", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Selector", "Uniform"]


class Selector:
    """Base of the selectors; use one of the others."""

    def __init__(self, selector: native.Selector) -> None:
        """Wraps a selector of the engine's.

        Args:
            selector: One of `engram.selectors`.
        """
        self._native = selector


class Fifo(Selector):
    """The item that was inserted first."""

    def __init__(self) -> None:
        super().__init__(native.Fifo())

    def __repr__(self) -> str:
        return "FifoSelector"


class Lifo(Selector):
    """The item that was inserted last."""

    def __init__(self) -> None:
        super().__init__(native.Lifo())

    def __repr__(self) -> str:
        return "LifoSelector"


class Uniform(Selector):
    """Every item with the same probability."""

    def __init__(self) -> None:
        super().__init__(native.Uniform())

    def __repr__(self) -> str:
        return "UniformSelector"


class Prioritized(Selector):
    """An item with probability `priority ** priority_exponent / sum(priorities ** priority_exponent)`.

    This is equation 1 of Schaul et al., "Prioritized Experience Replay" (2015), which calls the exponent alpha.
    Priorities are finite and not negative. An item with the priority 0 is chosen only when all items have it; then each
    is as likely as any other.
    """

    def __init__(self, priority_exponent: float) -> None:
        """Makes a selector.

        Args:
            priority_exponent: How much priorities count: 0 not at all, 1 in proportion; below 0 the least count most.

        Raises:
            TypeError: It is no number.
            ValueError: It is NaN or infinite.
        """
        self._exponent = _arguments.number("priority_exponent", priority_exponent)
        super().__init__(native.Prioritized(self._exponent))

    def __repr__(self) -> str:
        return f"PrioritizedSelector(priority_exponent={self._exponent:g})"


class HeapSelector(Selector):
    """The item with the least or the greatest priority; among equals the one not inserted or updated for longest.

    `MinHeap()` is `HeapSelector(True)`, `MaxHeap()` is `HeapSelector(False)`.
    """

    def __init__(self, min_heap: bool) -> None:  # noqa: FBT001, as Reverb has it
        """Makes a selector.

        Args:
            min_heap: The least; otherwise the greatest.
        """
        self._sign = 1 if min_heap else -1
        super().__init__(native.MinHeap() if min_heap else native.MaxHeap())

    def __repr__(self) -> str:
        return f"HeapSelector(sign={self._sign})"


MaxHeap = functools.partial(HeapSelector, False)  # noqa: FBT003, as Reverb has it
"""The item with the greatest priority."""

MinHeap = functools.partial(HeapSelector, True)  # noqa: FBT003, as Reverb has it
"""The item with the least priority."""
