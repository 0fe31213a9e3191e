"""A thread that makes elements before they are asked for."""

import queue
import threading
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

__all__ = ["POLL_INTERVAL", "prefetch_in_thread"]

POLL_INTERVAL = 0.05  # seconds after which a thread that waits for data looks whether anybody still wants it

T = TypeVar("T")

_END = object()


def prefetch_in_thread(elements: Generator[T | None], number: int) -> Generator[T]:
    """The elements that are not None, up to `number` of them made before they are asked for.

    Errors come after what was made before them. `elements` is closed when this ends; it yields None now and then, so
    that it can be.
    """
    made: queue.SimpleQueue[object] = queue.SimpleQueue()
    room = threading.Semaphore(number)
    stop = threading.Event()

    def run() -> None:
        end: object = _END
        try:
            with closing(elements):
                room.acquire()
                for element in elements:
                    if element is not None:
                        made.put(element)
                        room.acquire()
                    if stop.is_set():
                        break
        except BaseException as error:  # noqa: BLE001, the reader's to see
            end = _Raised(error)
        made.put(end)

    thread = threading.Thread(target=run, name="engram-ahead", daemon=True)
    thread.start()
    try:
        while (found := made.get()) is not _END:
            if isinstance(found, _Raised):
                raise found.error
            room.release()
            yield found  # type: ignore[misc]  # what `run` put there
    finally:
        stop.set()
        room.release()
        thread.join()


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error
