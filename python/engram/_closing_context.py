"""Context managers that close their object: one for writers and adders; one for stores, servers, scans and buffers."""

import abc
import logging
from contextlib import suppress
from types import TracebackType
from typing import Self

from engram.errors import DeadlineExceededError, EngramError, ForkedError, ItemError, UnavailableError

__all__ = ["ClosedAtBlockEnd", "ClosingContext"]

_LOG = logging.getLogger("engram")


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

    @abc.abstractmethod
    def _pending_text(self) -> str:
        """Number of pending items and their tables, such as "2 pending items of table `replay`"; empty if none."""

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
        # The block failed: send what can be sent without waiting, and keep the block's error. Items that wait for their
        # tables or the server stay pending: they are reported when the object is garbage-collected.
        with suppress(EngramError):
            self._close_at_once()

    def _close_at_once(self) -> None:
        """Closes without waiting. Logs errors of items: each call of `close` raises the next one."""
        while True:
            pending = self._pending_text()
            try:
                self.close(timeout=0)
            except (DeadlineExceededError, UnavailableError):
                return
            except EngramError as error:
                items = f" with {pending}" if pending else ""
                text = (
                    f"a {type(self).__name__}{items} was left by an exception, and not all of its items were inserted"
                )
                _LOG.warning("%s: %s", text, error)
                if self._pending_text() == pending and not isinstance(error, ItemError):
                    return
            else:
                return
