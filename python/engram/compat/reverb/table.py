"""Reverb's `Table`."""

import abc
import dataclasses
from collections.abc import Sequence

import engram
from engram.compat.reverb import _arguments, _table_note, rate_limiters
from engram.compat.reverb._errors import translated
from engram.compat.reverb._table_info import to_reverb_info
from engram.compat.reverb.item_selectors import Fifo, Lifo, Selector
from engram.compat.reverb.rate_limiters import RateLimiter
from engram.compat.reverb.reverb_types import TableInfo

__all__ = ["Table", "TableExtensionBase"]

_MAX_SIZE = 2**31 - 1
"""Largest `max_size`, and largest number of samples or inserts to ask about: Reverb's are 32-bit integers."""


class TableExtensionBase(abc.ABC):
    """Base class of table extensions. Engram supports none: an extension that adds anything is rejected."""

    @abc.abstractmethod
    def build_internal_extensions(self, table_name: str) -> Sequence[object]:
        """Returns the internal extensions to add to a table; `Table` accepts only an empty sequence.

        Args:
            table_name: Name of the table.

        Returns:
            A sequence of extensions, which must be empty.
        """


class Table:
    """A named set of items, with a sampler, a remover and a rate limiter.

        table = reverb.Table(
            name="replay",
            sampler=reverb.selectors.Prioritized(0.6),
            remover=reverb.selectors.Fifo(),
            max_size=1_000_000,
            rate_limiter=reverb.rate_limiters.MinSize(1_000),
        )

    The items are stored by the table's server. A table without a server is empty.
    """

    def __init__(  # noqa: PLR0917, as in Reverb
        self,
        name: str,
        sampler: Selector,
        remover: Selector,
        max_size: int,
        rate_limiter: RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[TableExtensionBase] = (),
        signature: engram.Nest | None = None,
    ) -> None:
        """Creates a table.

        Args:
            name: Name of the table.
            sampler: Chooses the items to sample.
            remover: Chooses the items to remove when the table is full.
            max_size: Maximum number of items, from 1 to 2**31 - 1.
            rate_limiter: Decides when inserts and samples wait. Each table needs its own rate limiter.
            max_times_sampled: Number of samples after which an item is removed, at most 2**31 - 1. Below 1 means no
                limit. Default: 0.
            extensions: Extensions that add nothing; others are not supported. Default: none.
            signature: A nest of tensor specs that writers and datasets check data against: of a step, `[...]`, for
                `TimestepDataset`, or of an item's columns, `[T, ...]`, for `TrajectoryDataset`. Default: any data.

        Raises:
            TypeError: An argument has the wrong type, or `max_size` is above 2**31 - 1.
            ValueError: The name is empty, `max_size` is below 1, `max_times_sampled` is above 2**31 - 1, the rate
                limiter belongs to another table, a leaf of the signature is not a tensor spec, a key is not text, the
                encoded signature is larger than 64 KiB, or no item could ever be sampled.
            NotImplementedError: An extension adds something.
        """
        self._name = _arguments.text("name", name)
        if not name:
            raise ValueError("name must be nonempty")
        size = _count("max_size", max_size)
        _arguments.instance("sampler", sampler, Selector, "one of reverb.selectors")
        _arguments.instance("remover", remover, Selector, "one of reverb.selectors")
        self._sampler, self._remover = sampler, remover
        _arguments.instance("rate_limiter", rate_limiter, RateLimiter, "one of reverb.rate_limiters")
        self._max_times_sampled = _arguments.integer("max_times_sampled", max_times_sampled)
        self._extensions = tuple(extensions)
        for extension in self._extensions:
            _arguments.instance("extensions[...]", extension, TableExtensionBase, "a TableExtensionBase")
            if extension.build_internal_extensions(name):
                raise NotImplementedError(f"table '{name}': extensions are not supported; got {extension!r}")
        self._signature = signature
        self._native = engram.Table(
            name,
            max_size=size,
            sampler=self._sampler._native,  # noqa: SLF001, same package
            remover=self._remover._native,  # noqa: SLF001, same package
            rate_limiter=rate_limiter._native,  # noqa: SLF001, same package
            max_times_sampled=self._max_times_sampled if self._max_times_sampled > 0 else None,
            note=_table_note.encode(self._max_times_sampled, signature),
        )
        rate_limiter._claim(name)  # noqa: SLF001, same package
        self._rate_limiter = rate_limiter
        self._store: engram.Store | None = None
        self._served = False

    @classmethod
    def queue(
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: engram.Nest | None = None,
    ) -> "Table":
        """Creates a first-in, first-out table: each item is sampled once, and inserts wait while the table is full.

        Arguments and errors are those of the constructor.
        """
        return cls(name, Fifo(), Fifo(), max_size, rate_limiters.Queue(max_size), 1, extensions, signature)

    @classmethod
    def stack(
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: engram.Nest | None = None,
    ) -> "Table":
        """Creates a last-in, first-out table: each item is sampled once, and inserts wait while the table is full.

        Arguments and errors are those of the constructor.
        """
        return cls(name, Lifo(), Lifo(), max_size, rate_limiters.Stack(max_size), 1, extensions, signature)

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._name

    @property
    def info(self) -> TableInfo:
        """Options and current counts of the table. The counts are those at its server, or 0 without a server."""
        with translated():
            return to_reverb_info(self._current_store().info()[self._name])

    def can_sample(self, num_samples: int) -> bool:
        """True if the rate limiter allows `num_samples` samples now, from 1 to 2**31 - 1.

        Raises:
            TypeError: `num_samples` is not an integer, or is above 2**31 - 1.
            ValueError: `num_samples` is below 1.
        """
        with translated():
            return self._current_store()._native.can_sample(self._name, _count("num_samples", num_samples))  # noqa: SLF001

    def can_insert(self, num_inserts: int) -> bool:
        """True if the rate limiter allows `num_inserts` inserts now, from 1 to 2**31 - 1.

        Raises:
            TypeError: `num_inserts` is not an integer, or is above 2**31 - 1.
            ValueError: `num_inserts` is below 1.
        """
        with translated():
            return self._current_store()._native.can_insert(self._name, _count("num_inserts", num_inserts))  # noqa: SLF001

    def replace(  # noqa: PLR0917, as in Reverb
        self,
        name: str | None = None,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        max_size: int | None = None,
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int | None = None,
        extensions: Sequence[TableExtensionBase] | None = None,
        signature: engram.Nest | None = None,
    ) -> "Table":
        """Creates an empty table with the options of this table, except for the arguments given.

        By default, it gets a new rate limiter with the same numbers. A signature cannot be removed this way. Arguments
        and errors are those of the constructor.
        """
        return Table(
            name=self._name if name is None else name,
            sampler=self._sampler if sampler is None else sampler,
            remover=self._remover if remover is None else remover,
            max_size=self._native.max_size if max_size is None else max_size,
            rate_limiter=self._rate_limiter._unclaimed_copy() if rate_limiter is None else rate_limiter,  # noqa: SLF001
            max_times_sampled=self._max_times_sampled if max_times_sampled is None else max_times_sampled,
            extensions=self._extensions if extensions is None else extensions,
            signature=self._signature if signature is None else signature,
        )

    def _current_store(self) -> engram.Store:
        """The server's store, or a store with only this table if it has no server."""
        if self._store is None:
            self._store = engram.Store([self._native])
        return self._store

    def _with_note(self, directory: str) -> engram.Table:
        """Returns the engine's table with a note that contains the server's checkpoint directory."""
        note = _table_note.encode(self._max_times_sampled, self._signature, directory)
        return dataclasses.replace(self._native, note=note)

    def _check_free(self) -> None:
        """Raises a ValueError if the table belongs to a running server."""
        if self._served:
            raise ValueError(
                f"table '{self._name}' already belongs to a running server; create separate tables for each server, "
                "for example with table.replace()"
            )

    def _bind(self, store: engram.Store) -> None:
        """Attaches the table to a server's store."""
        self._store, self._served = store, True

    def _release(self) -> None:
        """Detaches the table from its stopped server, so that another server can use it."""
        self._store, self._served = None, False

    def __repr__(self) -> str:
        return (
            f"Table(sampler={self._sampler}, remover={self._remover}, max_size={self._native.max_size}, "
            f"max_times_sampled={self._max_times_sampled}, name={self._name}, rate_limiter={self._rate_limiter}, "
            f"signature={self._signature})"
        )


def _count(name: str, value: int) -> int:
    count = _arguments.positive(name, value)
    if count > _MAX_SIZE:
        raise TypeError(f"`{name}` must be at most {_MAX_SIZE}; got {value}")
    return count
