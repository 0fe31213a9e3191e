"""Selectors: how a table chooses the items that it samples, and those that it removes when full.

Any of them serves in either role:

    engram.Table("replay", sampler=selectors.Prioritized(0.6), remover=selectors.Fifo())
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from engram import _checks

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Selector", "Uniform"]


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every item with the same probability."""

    kind: ClassVar[str] = "uniform"


@dataclass(frozen=True, slots=True)
class Fifo:
    """The item that was inserted first."""

    kind: ClassVar[str] = "fifo"


@dataclass(frozen=True, slots=True)
class Lifo:
    """The item that was inserted last."""

    kind: ClassVar[str] = "lifo"


@dataclass(frozen=True, slots=True)
class Prioritized:
    """An item with probability proportional to `priority ** exponent`.

    An item with priority 0 is chosen only when all items have priority 0; then each is as likely
    as any other.

    Attributes:
        exponent: How much priorities count: 0 not at all, 1 in proportion; below 0 the lowest count most.
    """

    kind: ClassVar[str] = "prioritized"
    exponent: float = 0.6

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", _checks.finite("`exponent`", self.exponent))


@dataclass(frozen=True, slots=True)
class MinHeap:
    """The item with the lowest priority; among equals the one not touched for longest."""

    kind: ClassVar[str] = "min_heap"


@dataclass(frozen=True, slots=True)
class MaxHeap:
    """The item with the highest priority; among equals the one not touched for longest."""

    kind: ClassVar[str] = "max_heap"


_SELECTORS = {kind.kind: kind for kind in (Uniform, Fifo, Lifo, MinHeap, MaxHeap)}


def from_kind(kind: str, exponent: float | None) -> "Selector":
    """The selector that the engine tells of."""
    return _SELECTORS[kind]() if exponent is None else Prioritized(exponent)


Selector: TypeAlias = Uniform | Fifo | Lifo | Prioritized | MinHeap | MaxHeap
