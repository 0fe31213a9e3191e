"""A lock for the threads of forked processes, and signals between them."""

import contextlib
import errno
import fcntl
import os
import select
import threading
import time
import weakref
from types import TracebackType

__all__ = ["BufferLock", "Signal"]

_RETRY_INTERVAL = 0.001
"""Seconds between attempts to lock a file if the system suspects a deadlock."""


class BufferLock:
    """A re-entrant lock. With `processes`, it also excludes forked processes; it becomes free when its process dies."""

    def __init__(self, *, processes: bool = False) -> None:
        # The system releases a record lock when its process dies.
        self._file = os.memfd_create("engram-lock") if processes else None
        self._reset()
        _LOCKS.add(self)

    def _reset(self) -> None:
        self._threads = threading.RLock()
        self._depth = 0

    def __enter__(self) -> None:
        self._threads.acquire()
        if self._depth == 0 and self._file is not None:
            try:
                _lock_file(self._file)
            except BaseException:
                self._threads.release()
                raise
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._threads.release()

    def __reduce__(self) -> tuple[type["BufferLock"], tuple[()]]:
        if self._file is not None:
            raise TypeError("a buffer with `allow_multiprocess=True` cannot be copied or pickled; inherit it by fork")
        return BufferLock, ()

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)


_LOCKS: weakref.WeakSet[BufferLock] = weakref.WeakSet()


def _reset_locks() -> None:
    # In a forked child, no thread exists that could release a lock of threads. Its process holds no record lock.
    for lock in _LOCKS:
        lock._reset()  # noqa: SLF001, of this module


os.register_at_fork(after_in_child=_reset_locks)


def _lock_file(file: int) -> None:
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError as error:
            # The system sees processes, not threads: two threads that hold and await different locks look like a
            # deadlock. No thread awaits a lock while it holds another one.
            if error.errno != errno.EDEADLK:
                raise
            time.sleep(_RETRY_INTERVAL)
        else:
            return


class Signal:
    """Wakes waiting threads, also those of forked processes. A wake-up may be lost if several threads wait."""

    def __init__(self) -> None:
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Ends the current wait, or the next one."""
        os.eventfd_write(self._file, 1)

    def wait(self, seconds: float) -> None:
        """Waits for a signal, at most `seconds`."""
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        poll.poll(seconds * 1000)
        with contextlib.suppress(BlockingIOError):  # no signal, or another thread has taken it
            os.eventfd_read(self._file)

    def __del__(self) -> None:
        os.close(self._file)
