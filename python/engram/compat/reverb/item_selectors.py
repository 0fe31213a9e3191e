"""Selectors: how a table chooses the items that it samples, and those that it removes when full."""

import functools

from engram import selectors as native
from engram.compat.reverb import _arguments

__all__ = ["Fifo", "HeapSelector", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Selector", "Uniform"]


class Selector:
    """Base of the selectors: what the engine calls it."""

    def __init__(self, selector: native.Selector) -> None:
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
    """An item with probability proportional to `priority ** priority_exponent`."""

    def __init__(self, priority_exponent: float) -> None:
        self._exponent = _arguments.number("priority_exponent", priority_exponent)
        super().__init__(native.Prioritized(self._exponent))

    def __repr__(self) -> str:
        return f"PrioritizedSelector(priority_exponent={self._exponent:g})"


class HeapSelector(Selector):
    """The item with the lowest (`min_heap`) or highest priority; among equals the one not touched for longest."""

    def __init__(self, min_heap: bool) -> None:  # noqa: FBT001, as Reverb has it
        self._sign = 1 if min_heap else -1
        super().__init__(native.MinHeap() if min_heap else native.MaxHeap())

    def __repr__(self) -> str:
        return f"HeapSelector(sign={self._sign})"


MaxHeap = functools.partial(HeapSelector, False)  # noqa: FBT003, as Reverb has it
MinHeap = functools.partial(HeapSelector, True)  # noqa: FBT003, as Reverb has it
