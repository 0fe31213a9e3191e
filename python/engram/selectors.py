"""Selectors: how a table chooses the items to sample, and the items to remove when it is full.

Any selector can have either role:

    engram.Table("replay", sampler=selectors.Prioritized(0.6), remover=selectors.Fifo())
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias, get_args

from engram import _checks

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Selector", "Uniform"]


@dataclass(frozen=True, slots=True)
class Uniform:
    """Chooses every item with the same probability."""

    kind: ClassVar[str] = "Uniform"


@dataclass(frozen=True, slots=True)
class Fifo:
    """Chooses the item that was inserted first."""

    kind: ClassVar[str] = "Fifo"


@dataclass(frozen=True, slots=True)
class Lifo:
    """Chooses the item that was inserted last."""

    kind: ClassVar[str] = "Lifo"


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Chooses an item with probability proportional to `priority ** exponent`.

    An item with priority 0 is chosen only if all items have priority 0; then all are equally likely.

    Attributes:
        exponent: Exponent of the priorities. 1: proportional to them. 0: all items with a priority above 0 are equally
            likely. Below 0: low priorities are preferred.
    """

    kind: ClassVar[str] = "Prioritized"
    exponent: float = 0.6

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", _checks.finite("`exponent`", self.exponent))


@dataclass(frozen=True, slots=True)
class MinHeap:
    """Chooses the item with the lowest priority; of equal ones, the item inserted or updated least recently."""

    kind: ClassVar[str] = "MinHeap"


@dataclass(frozen=True, slots=True)
class MaxHeap:
    """Chooses the item with the highest priority; of equal ones, the item inserted or updated least recently."""

    kind: ClassVar[str] = "MaxHeap"


Selector: TypeAlias = Uniform | Fifo | Lifo | Prioritized | MinHeap | MaxHeap

_SELECTORS = {selector.kind: selector for selector in get_args(Selector)}


def from_kind(kind: str, exponent: float | None) -> Selector:
    """Returns the selector that the native engine describes by kind and, for `Prioritized`, exponent."""
    selector: Selector = _SELECTORS[kind]() if exponent is None else _SELECTORS[kind](exponent)
    return selector
