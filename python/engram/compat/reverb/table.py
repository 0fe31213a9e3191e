"""Tables, as Reverb describes them."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import engram
from engram.compat.reverb import _arguments, _table_note, rate_limiters
from engram.compat.reverb._errors import translated
from engram.compat.reverb._table_info import to_reverb_info
from engram.compat.reverb.item_selectors import Fifo, Lifo, Selector
from engram.compat.reverb.rate_limiters import RateLimiter
from engram.compat.reverb.reverb_types import TableInfo

__all__ = ["Table", "TableExtensionBase"]

_MAX_SIZE = 2**31 - 1


class TableExtensionBase(abc.ABC):
    """Base of extensions; the engine has none, so one that wants any is refused."""

    @abc.abstractmethod
    def build_internal_extensions(self, table_name: str) -> Sequence[Any]:
        """What it adds to a table; a table takes only what adds nothing.

        Args:
            table_name: Name of the table that it is given to.

        Returns:
            A sequence, empty for nothing.
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

    Its items are where its server is; without one it is empty, and stays so.
    """

    def __init__(  # noqa: PLR0917, as Reverb has it
        self,
        name: str,
        sampler: Selector,
        remover: Selector,
        max_size: int,
        rate_limiter: RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[TableExtensionBase] = (),
        signature: Any = None,  # noqa: ANN401, a nest
    ) -> None:
        """Describes a table.

        Args:
            name: What calls refer to it by.
            sampler: Chooses the items to sample.
            remover: Chooses the items to remove when the table is full.
            max_size: Most items it holds, from 1 to 2**31 - 1.
            rate_limiter: Says when inserts and samples wait for each other. It belongs to this table alone.
            max_times_sampled: An item is removed after so many samples, at most 2**31 - 1; below 1: never for that.
            extensions: None that do anything: the engine has no extensions.
            signature: A nest of tensor specs that writers and readers check data against: of a step `[...]`, or of an
                item's columns `[T, ...]`, as `TimestepDataset` or `TrajectoryDataset` is to read it. None: any data.

        Raises:
            TypeError: An argument has another type, or `max_size` is above 2**31 - 1.
            ValueError: The name is empty, `max_size` below 1, `max_times_sampled` above 2**31 - 1, the limiter another
                table's, a leaf of the signature no tensor spec, a key of it no text, the signature larger than 64 KiB,
                or nothing could ever be sampled.
            NotImplementedError: An extension wants to add something.
        """
        self._name = _arguments.text("name", name)
        if not name:
            raise ValueError("name must be nonempty")
        size = _arguments.integer("max_size", max_size)
        if size <= 0:
            raise ValueError(f"max_size ({max_size}) must be a positive integer")
        if size > _MAX_SIZE:
            raise TypeError(f"`max_size` must be at most {_MAX_SIZE}; got {max_size}")
        _arguments.instance("sampler", sampler, Selector, "one of reverb.selectors")
        _arguments.instance("remover", remover, Selector, "one of reverb.selectors")
        self._sampler, self._remover = sampler, remover
        _arguments.instance("rate_limiter", rate_limiter, RateLimiter, "one of reverb.rate_limiters")
        self._max_times_sampled = _arguments.integer("max_times_sampled", max_times_sampled)
        self._extensions = tuple(extensions)
        for extension in self._extensions:
            _arguments.instance("extensions[...]", extension, TableExtensionBase, "a TableExtensionBase")
            if extension.build_internal_extensions(name):
                raise NotImplementedError(f"table '{name}': the engine has no extensions, such as {extension!r} wants")
        self._signature = signature
        self._native = engram.Table(
            name,
            max_size=size,
            sampler=self._sampler._native,  # noqa: SLF001, this package's
            remover=self._remover._native,  # noqa: SLF001, this package's
            rate_limiter=rate_limiter._native,  # noqa: SLF001, this package's
            max_times_sampled=self._max_times_sampled if self._max_times_sampled > 0 else None,
            note=_table_note.encode(self._max_times_sampled, signature),
        )
        rate_limiter._claim(name)  # noqa: SLF001, this package's
        self._rate_limiter = rate_limiter
        self._store: engram.Store | None = None
        self._served = False

    @classmethod
    def queue(
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: Any = None,  # noqa: ANN401, a nest
    ) -> "Table":
        """First in, first out; each item is sampled once, and inserts wait while it is full.

        Args:
            name: As for the class, as are the others.
            max_size: Most items it holds.
            extensions: None that do anything.
            signature: A nest of tensor specs; None: any data.

        Raises:
            TypeError, ValueError, NotImplementedError: As of the class.
        """
        return cls(name, Fifo(), Fifo(), max_size, rate_limiters.Queue(max_size), 1, extensions, signature)

    @classmethod
    def stack(
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: Any = None,  # noqa: ANN401, a nest
    ) -> "Table":
        """Last in, first out; each item is sampled once, and inserts wait while it is full.

        Args:
            name: As for the class, as are the others.
            max_size: Most items it holds.
            extensions: None that do anything.
            signature: A nest of tensor specs; None: any data.

        Raises:
            TypeError, ValueError, NotImplementedError: As of the class.
        """
        return cls(name, Lifo(), Lifo(), max_size, rate_limiters.Stack(max_size), 1, extensions, signature)

    @property
    def name(self) -> str:
        """What calls refer to it by."""
        return self._name

    @property
    def info(self) -> TableInfo:
        """What it is and holds now: asked of the server that it was given to, or of itself."""
        with translated():
            return to_reverb_info(self._current_store().info()[self._name])

    def can_sample(self, num_samples: int) -> bool:
        """True if the rate limiter would let so many samples through now.

        Args:
            num_samples: From 1 to 2**31 - 1.

        Raises:
            TypeError: It is no integer, or above 2**31 - 1.
            ValueError: It is below 1.
        """
        with translated():
            return self._current_store()._native.can_sample(self._name, _count("num_samples", num_samples))  # noqa: SLF001

    def can_insert(self, num_inserts: int) -> bool:
        """True if the rate limiter would let so many inserts through now.

        Args:
            num_inserts: From 1 to 2**31 - 1.

        Raises:
            TypeError: It is no integer, or above 2**31 - 1.
            ValueError: It is below 1.
        """
        with translated():
            return self._current_store()._native.can_insert(self._name, _count("num_inserts", num_inserts))  # noqa: SLF001

    def replace(  # noqa: PLR0917, as Reverb has it
        self,
        name: str | None = None,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        max_size: int | None = None,
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int | None = None,
        extensions: Sequence[TableExtensionBase] | None = None,
        signature: Any = None,  # noqa: ANN401, a nest
    ) -> "Table":
        """A new, empty table like this one, but for what is given.

        Args:
            name: As for the class, as are the others; None: as it is.
            sampler: None: an equal one.
            remover: None: an equal one.
            max_size: None: as it is.
            rate_limiter: None: one with the same numbers, whose counts begin at 0.
            max_times_sampled: None: as it is.
            extensions: None: the same.
            signature: None: the same; a table without one is made with `Table`.

        Raises:
            TypeError, ValueError, NotImplementedError: As of the class.
        """
        return Table(
            name=self._name if name is None else name,
            sampler=self._sampler if sampler is None else sampler,
            remover=self._remover if remover is None else remover,
            max_size=self._native.max_size if max_size is None else max_size,
            rate_limiter=self._rate_limiter._fresh() if rate_limiter is None else rate_limiter,  # noqa: SLF001
            max_times_sampled=self._max_times_sampled if max_times_sampled is None else max_times_sampled,
            extensions=self._extensions if extensions is None else extensions,
            signature=self._signature if signature is None else signature,
        )

    def _current_store(self) -> engram.Store:
        """Where it is: its server's store, or one of its own while it has no server."""
        if self._store is None:
            self._store = engram.Store([self._native])
        return self._store

    def _with_note(self, directory: str) -> engram.Table:
        """What the engine makes of it for a server whose checkpoints are in a directory."""
        note = _table_note.encode(self._max_times_sampled, self._signature, directory)
        return dataclasses.replace(self._native, note=note)

    def _check_free(self) -> None:
        if self._served:
            raise ValueError(
                f"table '{self._name}' belongs to a running server already; give each server tables of its own, "
                "such as table.replace()"
            )

    def _bind(self, store: engram.Store) -> None:
        """It is in a server's store from now on."""
        self._store, self._served = store, True

    def _release(self) -> None:
        """Its server has stopped: it is empty again, and may be given to another."""
        self._store, self._served = None, False

    def __repr__(self) -> str:
        return (
            f"Table(sampler={self._sampler}, remover={self._remover}, max_size={self._native.max_size}, "
            f"max_times_sampled={self._max_times_sampled}, name={self._name}, rate_limiter={self._rate_limiter}, "
            f"signature={self._signature})"
        )


def _count(name: str, value: int) -> int:
    count = _arguments.integer(name, value)
    if count < 1:
        raise ValueError(f"{name} ({value}) must be a positive integer")
    if count > _MAX_SIZE:
        raise TypeError(f"`{name}` must be at most {_MAX_SIZE}; got {value}")
    return count
