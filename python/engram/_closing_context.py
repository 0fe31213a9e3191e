"""Context managers that close their object: one for writers and adders; one for stores, servers, scans and buffers."""

import abc
from contextlib import suppress
from types import TracebackType
from typing import Self

from engram.errors import EngramError, ForkedError

__all__ = ["ClosedAtBlockEnd", "ClosingContext"]


class ClosedAtBlockEnd(abc.ABC):
    """An object that is closed at the end of its `with` block, also if the block fails."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the object. Can be called more than once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ForkedError):  # a forked child cannot close it; its parent does
            self.close()


class ClosingContext(abc.ABC):
    """A writer or adder whose `with` block closes it."""

    @abc.abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Flushes, waiting at most `timeout` seconds (`None` waits forever), and accepts no more steps."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # A forked child cannot close a writer; its parent does.
            with suppress(ForkedError):
                self.close()
            return
        # The block failed: send what can be sent without waiting, and keep the block's error.
        with suppress(EngramError):
            self.close(timeout=0)
