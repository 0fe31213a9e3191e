"""Blocks that close what they were opened with."""

import abc
from contextlib import suppress
from types import TracebackType
from typing import Self

from engram.errors import EngramError, ForkedError

__all__ = ["ClosingContext"]


class ClosingContext(abc.ABC):
    """Writes until its block is left."""

    @abc.abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Flushes, for at most `timeout` seconds, and takes no more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # In a forked child, finishing is the parent's business.
            with suppress(ForkedError):
                self.close()
            return
        # Something failed: what can go at once goes, but nobody waits, and nothing hides the error.
        with suppress(EngramError):
            self.close(timeout=0)
