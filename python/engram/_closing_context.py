"""The context manager that writers and adders share."""

import abc
from contextlib import suppress
from types import TracebackType
from typing import Self

from engram.errors import EngramError, ForkedError

__all__ = ["ClosingContext"]


class ClosingContext(abc.ABC):
    """A writer that its `with` block closes."""

    @abc.abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Flushes, waiting at most `timeout` seconds (`None` waits forever), and accepts no more steps."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # In a forked child, the parent closes the writer.
            with suppress(ForkedError):
                self.close()
            return
        # The block failed: send what can be sent without waiting, and keep the block's error.
        with suppress(EngramError):
            self.close(timeout=0)
