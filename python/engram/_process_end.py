"""What happens to writers and clients that are still open when their process ends.

Worker processes of `multiprocessing` run neither `atexit` nor the calls of `weakref.finalize`: they end with
`os._exit`, after the calls that are registered with `multiprocessing.util.Finalize` in the worker itself.
"""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["at_process_end", "finalize"]

_T = TypeVar("_T")

_opened: "weakref.WeakKeyDictionary[Any, Callable[[Any], object]]" = weakref.WeakKeyDictionary()
"""What to call with each object at the end, oldest first."""

_is_hooked = False
"""Whether `multiprocessing` calls `_finalize_worker` in each new worker."""

_LAST = -100
"""Priority of the call in a worker: after the calls of others, and the end of the worker's own workers."""


def at_process_end(opened: _T, end: Callable[[_T], object]) -> None:
    """Calls `end(opened)` when the process ends, unless `opened` was garbage-collected before; newest objects first.

    At the end, threads that are not daemons have ended, and the functions that the program has registered with `atexit`
    since it imported Engram have returned. A forked child calls the ends of inherited objects, too. `end` must not
    refer to `opened`.
    """
    _opened[opened] = end
    _hook_multiprocessing()


def finalize(opened: object, call: Callable[..., object], *arguments: object) -> "weakref.finalize[..., Any]":
    """Like `weakref.finalize`, but also calls the function at the end of a worker process of `multiprocessing`."""
    finalizer = weakref.finalize(opened, call, *arguments)
    at_process_end(opened, lambda _: finalizer())
    return finalizer


def _end_all() -> None:
    for _ in range(len(_opened)):  # not those that other threads go on to open
        try:
            opened, end = _opened.popitem()
        except KeyError:  # what was left has been garbage-collected
            return
        try:
            end(opened)
        except BaseException:  # noqa: BLE001, as at other calls of `atexit`
            sys.excepthook(*sys.exc_info())


atexit.register(_end_all)


def _hook_multiprocessing() -> None:
    """Makes each worker, and this process if it is one, call the ends. Does not import `multiprocessing`."""
    global _is_hooked  # noqa: PLW0603
    if _is_hooked or "multiprocessing.util" not in sys.modules:
        return
    from multiprocessing import parent_process, util  # noqa: PLC0415, a worker has imported it

    _is_hooked = True
    util.register_after_fork(_opened, _finalize_worker)  # runs in spawned workers, too
    if parent_process() is not None:
        _finalize_worker()


# The worker of a process that has imported Engram and opened nothing.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hook_multiprocessing)


def _finalize_worker(_: object = None) -> None:
    from multiprocessing import util  # noqa: PLC0415, this is a worker

    util.Finalize(None, _end_worker, exitpriority=_LAST)


def _end_worker() -> None:
    """Calls the ends after the last thread that is not a daemon. `multiprocessing` waits for these threads later."""
    here = threading.current_thread()
    threads = [thread for thread in threading.enumerate() if thread is not here and not thread.daemon]

    def end_after_threads() -> None:
        for thread in threads:
            thread.join()
        _end_all()

    if threads:
        threading.Thread(target=end_after_threads, name="engram-process-end").start()
    else:
        _end_all()
