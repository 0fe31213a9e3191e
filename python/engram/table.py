"""Tables: which items to store and sample, and how inserts and samples wait for each other."""

from dataclasses import KW_ONLY, dataclass, field, replace

from engram import _checks, rate_limiters, selectors
from engram.errors import InvalidArgumentError
from engram.rate_limiters import AnyRateLimiter
from engram.selectors import Selector

__all__ = ["Table"]

MIN_TTL = 1e-9
"""Minimum of `ttl` in seconds: the engine counts nanoseconds."""


@dataclass(frozen=True, slots=True)
class Table:
    """Configuration of one table; an immutable value that is checked on creation.

    Attributes:
        name: Name of the table.
        max_size: Maximum number of items.
        sampler: Selector of the items to sample.
        remover: Selector of the items to remove when `max_size` or `max_bytes` is exceeded.
        rate_limiter: Controls when inserts and samples wait for each other.
        max_times_sampled: Number of samples after which an item is removed. `None` means unlimited.
        max_bytes: Maximum size in bytes of the stored chunks and items. `None` means unlimited.
        ttl: Seconds after its insertion at which an item is removed. `None` means unlimited.
        signature: Nest of `ArraySpec` that every item's data must match. `None` allows any data.
        seed: Seed of the sampler and the remover. Default: derived from the store's seed.
        note: Text stored with the table and shown in its `info`; at most 64 KiB.
    """

    name: str
    _: KW_ONLY
    max_size: int = 1_000_000
    sampler: Selector = field(default_factory=selectors.Uniform)
    remover: Selector = field(default_factory=selectors.Fifo)
    rate_limiter: AnyRateLimiter = field(default_factory=lambda: rate_limiters.MinSize(1))
    max_times_sampled: int | None = None
    max_bytes: int | None = None
    ttl: float | None = None
    signature: object = field(default=None, hash=False)  # a pytree may be unhashable
    seed: int | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError(f"`name` must be a non-empty str; got {self.name!r}")
        about = f"table `{self.name}`: "
        for role in ("sampler", "remover"):
            _checks.instance_of(
                f"{about}`{role}`",
                getattr(self, role),
                Selector,
                "one of engram.selectors, such as Uniform()",
            )
        _checks.instance_of(
            f"{about}`rate_limiter`",
            self.rate_limiter,
            AnyRateLimiter,
            "one of engram.rate_limiters, such as MinSize(1)",
        )

        max_size = _checks.integer(f"{about}`max_size`", self.max_size)
        object.__setattr__(self, "max_size", max_size)
        for name, low, high in (
            ("max_times_sampled", 1, _checks.MAX_I32),
            ("max_bytes", 1, _checks.MAX_I64),
            ("seed", 0, _checks.MAX_U64),
        ):
            value = getattr(self, name)
            if value is not None:
                value = _checks.integer(f"{about}`{name}`", value, low=low, high=high)
                object.__setattr__(self, name, value)
        if self.ttl is not None:
            ttl = _checks.positive(f"{about}`ttl`", self.ttl)
            if ttl < MIN_TTL:
                raise InvalidArgumentError(f"{about}`ttl` must be at least {MIN_TTL:g} seconds; got {ttl:g}")
            object.__setattr__(self, "ttl", ttl)

        if self.note is not None:
            _checks.text(f"{about}`note`", self.note)

        if self.rate_limiter.min_size > max_size:
            raise InvalidArgumentError(
                f"{about}nothing could ever be sampled: {self.rate_limiter.kind} waits for "
                f"{self.rate_limiter.min_size} items, but `max_size` is {max_size}; increase `max_size`"
            )

    @classmethod
    def queue(
        cls,
        name: str,
        *,
        max_size: int,
        max_bytes: int | None = None,
        ttl: float | None = None,
        signature: object = None,
    ) -> "Table":
        """Creates a first-in-first-out table: each item is sampled once, and inserts wait at `max_size` items.

        Items that are removed unsampled, by `max_bytes` or `ttl`, still count until the table is reset: inserts can
        wait although the table has fewer items; an empty table always accepts one. See `rate_limiters.Queue`.

        Args:
            name: Name of the table.
            max_size: Maximum number of items.
            max_bytes: As in `Table`. Inserts do not wait for it: the oldest items are removed, also unsampled ones.
            ttl: As in `Table`.
            signature: As in `Table`.
        """
        size = _checks.integer(f"table `{name}`: `max_size`", max_size)
        return cls(
            name,
            max_size=size,
            sampler=selectors.Fifo(),
            remover=selectors.Fifo(),
            rate_limiter=rate_limiters.Queue(size),
            max_times_sampled=1,
            max_bytes=max_bytes,
            ttl=ttl,
            signature=signature,
        )

    @classmethod
    def stack(
        cls,
        name: str,
        *,
        max_size: int,
        max_bytes: int | None = None,
        ttl: float | None = None,
        signature: object = None,
    ) -> "Table":
        """Creates a last-in-first-out table: each item is sampled once, and inserts wait at `max_size` items.

        Items that are removed unsampled, by `max_bytes` or `ttl`, still count until the table is reset: inserts can
        wait although the table has fewer items; an empty table always accepts one. See `rate_limiters.Stack`.

        Args:
            name: Name of the table.
            max_size: Maximum number of items.
            max_bytes: As in `Table`. Inserts do not wait for it: the newest items are removed, also unsampled ones.
            ttl: As in `Table`.
            signature: As in `Table`.
        """
        queue = cls.queue(name, max_size=max_size, max_bytes=max_bytes, ttl=ttl, signature=signature)
        lifo = selectors.Lifo()
        return replace(queue, sampler=lifo, remover=lifo, rate_limiter=rate_limiters.Stack(queue.max_size))
