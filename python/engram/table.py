"""Tables: what is kept, what is replayed, and how fast either side may run."""

from dataclasses import KW_ONLY, dataclass, field

from engram import _checks, rate_limiters, selectors
from engram.errors import InvalidArgumentError
from engram.rate_limiters import AnyRateLimiter
from engram.selectors import Selector

__all__ = ["Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """Describes one table of a store; a value, checked when it is made.

    Attributes:
        name: What calls refer to it by.
        max_size: Most items it holds; above that the remover chooses which goes.
        sampler: Chooses the items to sample.
        remover: Chooses the items to remove when the table is full.
        rate_limiter: Says when inserts and samples wait for each other.
        max_times_sampled: An item is removed after so many samples; None: never for that.
        max_bytes: Most bytes of stored steps and items; None: no limit.
        ttl: Seconds after which an item is removed; None: never for that.
        signature: A pytree of `ArraySpec` that every item's data must match; None: any data.
        seed: Seeds the sampler and the remover; None: derived from the store's seed.
        note: Text kept with the table, for those who read its `info`; at most 64 KiB.
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
            raise InvalidArgumentError(f"`name` must be a non-empty string; got {self.name!r}")
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
            object.__setattr__(self, "ttl", _checks.positive(f"{about}`ttl`", self.ttl))

        if self.note is not None:
            _checks.text(f"{about}`note`", self.note)

        if self.rate_limiter.min_size > max_size:
            raise InvalidArgumentError(
                f"{about}nothing could ever be sampled: {self.rate_limiter.kind} waits for "
                f"{self.rate_limiter.min_size} items, `max_size` is {max_size}"
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
        """First in, first out; each item is sampled once, and inserts wait while it is full."""
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
        """Last in, first out; each item is sampled once, and inserts wait while it is full."""
        size = _checks.integer(f"table `{name}`: `max_size`", max_size)
        return cls(
            name,
            max_size=size,
            sampler=selectors.Lifo(),
            remover=selectors.Lifo(),
            rate_limiter=rate_limiters.Stack(size),
            max_times_sampled=1,
            max_bytes=max_bytes,
            ttl=ttl,
            signature=signature,
        )
