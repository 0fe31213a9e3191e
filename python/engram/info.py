"""Descriptions of tables and checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from engram import rate_limiters, selectors
from engram._display import html_table
from engram.rate_limiters import AnyRateLimiter
from engram.selectors import Selector

__all__ = ["Checkpoint", "TableInfo", "TableUser"]


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


@dataclass(frozen=True, slots=True)
class TableUser:
    """A writer or reader that uses a table over the network at one moment.

    Attributes:
        kind: `"writer"`, or `"reader"` for a dataset and for the `sample` calls of a client.
        session: Id of the writer, the same after it has reconnected; `None` for a reader.
        address: Where it is: `host:port`, or `process PID` on the machine of the server.
        items: Number of items that it has sent or requested.
        items_per_s: The same per second, over the last 5 seconds.
        in_flight: Number of items that a writer has sent and that are not acknowledged yet, or that a reader has
            requested and that are not drawn yet.
        idle_s: Seconds since its last message.
    """

    kind: Literal["writer", "reader"]
    session: int | None
    address: str
    items: int
    items_per_s: float
    in_flight: int
    idle_s: float


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
        users: Writers and readers that use the table through a server, at most 1,000: those that were active last, in
            this order. Those of dm-reverb's clients and of this process are not listed. Not compared by `==`.
        rejected_calls: Number of calls that the table has rejected, by the name of the error in `engram.errors`. Calls
            with invalid arguments, and most items with a wrong structure or a priority that is NaN, are rejected before
            they reach the table, and do not count. Not saved with a durable store.
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
    users: list[TableUser] = field(default_factory=list, compare=False)
    rejected_calls: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_native(cls, values: Mapping[str, Any]) -> Self:
        """Creates an info from the values that the native engine returns."""
        by_role = {role: selectors.from_kind(*values[role]) for role in ("sampler", "remover")}
        users = [TableUser(*user) for user in values["users"]]
        return cls(
            **{**values, **by_role, "users": users, "rate_limiter": rate_limiters.from_native(*values["rate_limiter"])}
        )

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
