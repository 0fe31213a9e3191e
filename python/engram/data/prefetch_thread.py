"""A thread that computes elements before they are requested."""

import queue
import threading
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

__all__ = ["POLL_INTERVAL", "prefetch_in_thread"]

POLL_INTERVAL = 0.05
"""Seconds after which a thread that waits for data checks whether the reader of the data has stopped."""

T = TypeVar("T")

_END = object()


def prefetch_in_thread(elements: Generator[T | None], max_ahead: int) -> Generator[T]:
    """Yields the elements that are not None; a thread computes up to `max_ahead` of them in advance.

    An error of `elements` is raised after the elements computed before it. While `elements` waits, it must yield None
    about every `POLL_INTERVAL` seconds: only then can the thread stop. The thread closes `elements` when the returned
    generator ends or is closed.
    """
    ready: queue.SimpleQueue[object] = queue.SimpleQueue()
    free_slots = threading.Semaphore(max_ahead)
    stop = threading.Event()

    def run() -> None:
        end: object = _END
        try:
            with closing(elements):
                free_slots.acquire()
                for element in elements:
                    if element is not None:
                        ready.put(element)
                        free_slots.acquire()
                    if stop.is_set():
                        break
        except BaseException as error:  # noqa: BLE001, raised in the reader's thread
            end = _Raised(error)
        ready.put(end)

    thread = threading.Thread(target=run, name="engram-prefetch", daemon=True)
    thread.start()
    try:
        while (element := ready.get()) is not _END:
            if isinstance(element, _Raised):
                raise element.error
            free_slots.release()
            yield element  # type: ignore[misc]  # what `run` put there
    finally:
        stop.set()
        free_slots.release()
        thread.join()


class _Raised:
    """An error of the thread, to be raised in the reader's thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
