"""What a table tells about itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from engram import selectors
from engram.selectors import Selector

__all__ = ["Checkpoint", "TableInfo"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was written.

    Attributes:
        number: They count up.
        bytes: Of its own file; the content of items is in the logs beside it.
        items: Of all tables.
    """

    number: int
    bytes: int
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """Sizes, rates, and why calls wait, at one moment.

    Attributes:
        name: Of the table.
        size: Items, those on their last lease included.
        max_size: Most items it holds.
        bytes: Of the distinct chunks it refers to, and of its items.
        max_bytes: Most bytes it holds; None: no limit.
        leased_out: Items that a reader holds for the last time; nobody else can sample them.
        num_episodes: Distinct episodes it holds steps of.
        num_deleted_episodes: Episodes whose last step left, since creation or reset.
        num_unique_samples: Items sampled at least once, since creation or reset.
        inserts: Items inserted, since creation or reset.
        samples: Samples taken, since creation or reset.
        deletes: Items removed for whatever reason, since creation or reset.
        inserts_per_s: Average over the last seconds.
        samples_per_s: Average over the last seconds.
        waiting_inserts: Insert calls that wait now.
        waiting_samples: Sample calls that wait now.
        inserting_blocked: Why an insert would wait now, in words; None: it would not.
        sampling_blocked: Why a sample would wait now, in words; None: it would not.
        rate_limiter: Its kind, samples per insert, min size, min diff and max diff.
        sampler: Chooses the items to sample.
        remover: Chooses the items to remove when the table is full.
        max_times_sampled: An item is removed after so many samples; None: never for that.
        ttl: Seconds after which an item is removed; None: never for that.
        signature: The nest of `ArraySpec` that items must match; None: any data.
        note: Text kept with the table; None: none.
    """

    name: str
    size: int
    max_size: int
    bytes: int
    max_bytes: int | None
    leased_out: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    inserts: int
    samples: int
    deletes: int
    inserts_per_s: float
    samples_per_s: float
    waiting_inserts: int
    waiting_samples: int
    inserting_blocked: str | None
    sampling_blocked: str | None
    rate_limiter: tuple[str, float, int, float, float]
    sampler: Selector
    remover: Selector
    max_times_sampled: int | None
    ttl: float | None
    signature: Any
    note: str | None

    @classmethod
    def from_native(cls, told: Mapping[str, Any]) -> Self:
        """What the engine tells of a table."""
        chosen = {role: selectors.from_kind(*told[role]) for role in ("sampler", "remover")}
        return cls(**{**told, **chosen})

    @property
    def samples_per_insert(self) -> float:
        """Samples taken per item inserted so far; 0 before the first insert."""
        return self.samples / self.inserts if self.inserts else 0.0

    @property
    def blocked(self) -> str | None:
        """Why inserts or samples would wait now, in words; None: neither would."""
        reasons = [reason for reason in (self.sampling_blocked, self.inserting_blocked) if reason]
        return "; ".join(reasons) or None
