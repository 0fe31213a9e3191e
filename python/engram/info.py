"""Descriptions of tables and checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from engram import rate_limiters, selectors
from engram._display import html_table
from engram.rate_limiters import AnyRateLimiter
from engram.selectors import Selector

__all__ = ["Checkpoint", "TableInfo"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was written.

    Attributes:
        number: Number of the checkpoint; later checkpoints have higher numbers.
        bytes: Size of the checkpoint file in bytes. The items' data is in the logs in the same directory.
        items: Number of items in all tables.
    """

    number: int
    bytes: int
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """Configuration and statistics of a table at one moment.

    Counters start at 0 when the table is created or reset.

    Attributes:
        name: Name of the table.
        size: Number of items, including those in `hidden_items`.
        total_weight: Sum of the weights of the items that can be sampled: `priority ** exponent` with a Prioritized
            sampler, otherwise 1 each.
        max_size: Maximum number of items.
        bytes: Size in bytes of the distinct chunks that the table refers to, and of its items.
        max_bytes: Maximum of `bytes`. `None` means unlimited.
        hidden_items: Number of items that were sampled as often as `max_times_sampled` allows, with samples still
            leased to readers. They cannot be sampled again unless a reader returns a sample; once all are acknowledged,
            they are removed.
        num_episodes: Number of distinct episodes with steps in the table.
        num_deleted_episodes: Number of episodes that had steps in the table and no longer have any.
        num_unique_samples: Number of items that were sampled at least once, including items removed since.
        inserts: Number of items inserted.
        samples: Number of samples drawn, including those leased to readers.
        deletes: Number of items removed for any reason.
        unreadable_items: Number of items removed because their stored bytes could not be read. Not saved with a
            durable store: 0 again each time it is opened.
        inserts_per_s: Average number of inserts per second over the last 5 seconds.
        samples_per_s: Average number of samples per second over the last 5 seconds.
        waiting_inserts: Number of writers and insert calls whose items wait now. A writer counts once, however many of
            its items wait; for dm-reverb's clients, it is the number of waiting items.
        waiting_samples: Number of sample calls that wait now.
        inserting_blocked: Reason why an insert would wait now; None if it would not.
        sampling_blocked: Reason why a sample would wait now; None if it would not.
        storage_problem: Reason why the store's changes are not stored durably now; None if they are, or if the store is
            in memory.
        rate_limiter: Rate limiter of the table, equal to the one of `engram.rate_limiters` that was configured.
        sampler: Selector of the items to sample.
        remover: Selector of the items to remove when `max_size` or `max_bytes` is exceeded.
        max_times_sampled: Number of samples after which an item is removed. `None` means unlimited.
        ttl: Seconds after which an item is removed. `None` means unlimited.
        signature: Nest of `ArraySpec` that items must match. `None` allows any data.
        note: Text stored with the table, if any.
    """

    name: str
    size: int
    total_weight: float
    max_size: int
    bytes: int
    max_bytes: int | None
    hidden_items: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    inserts: int
    samples: int
    deletes: int
    unreadable_items: int
    inserts_per_s: float
    samples_per_s: float
    waiting_inserts: int
    waiting_samples: int
    inserting_blocked: str | None
    sampling_blocked: str | None
    storage_problem: str | None
    rate_limiter: AnyRateLimiter
    sampler: Selector
    remover: Selector
    max_times_sampled: int | None
    ttl: float | None
    signature: Any
    note: str | None

    @classmethod
    def from_native(cls, values: Mapping[str, Any]) -> Self:
        """Creates an info from the values that the native engine returns."""
        by_role = {role: selectors.from_kind(*values[role]) for role in ("sampler", "remover")}
        return cls(**{**values, **by_role, "rate_limiter": rate_limiters.from_native(*values["rate_limiter"])})

    def _repr_html_(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        rows = [(name, str(value)) for name, value in values if value is not None and name != "name"]
        return html_table(f"TableInfo of {self.name}", ("field", "value"), rows)

    @property
    def samples_per_insert(self) -> float:
        """Samples drawn per item inserted so far; 0 before the first insert."""
        return self.samples / self.inserts if self.inserts else 0.0

    @property
    def blocked(self) -> str | None:
        """Reason why inserts or samples would wait now; None if neither would."""
        reasons = [reason for reason in (self.sampling_blocked, self.inserting_blocked) if reason]
        return "; ".join(reasons) or None
