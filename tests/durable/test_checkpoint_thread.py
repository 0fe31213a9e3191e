"""When the thread of a store writes checkpoints, and when it tries again."""

import itertools
import threading
from types import SimpleNamespace

import pytest

from engram import _checkpoint_thread
from engram._checkpoint_thread import CheckpointThread
from engram.errors import StorageError


class ChangedStore:
    """A store that has changes until its third checkpoint; the first two fail."""

    def __init__(self):
        self._native = self
        self.attempts = 0

    def log_bytes(self):
        return 1_000 if self.attempts < 3 else 0

    def checkpoint(self):
        self.attempts += 1
        if self.attempts < 3:
            raise StorageError("disk full")


class RecordedWaits:
    """Replaces the event that ends the thread: records the timeouts of five waits, then ends the thread."""

    def __init__(self):
        self.timeouts = []

    def wait(self, timeout):
        self.timeouts.append(timeout)
        return len(self.timeouts) == 5

    def set(self):
        pass


@pytest.mark.parametrize(
    ("triggers", "poll_interval", "retry_delay"),
    [
        ((600.0, None), 1.0, 10.0),
        ((600.0, 500), 1.0, 10.0),
        ((None, 500), 1.0, 10.0),
        ((3.0, 500), 1.0, 3.0),
        ((0.2, None), 0.2, 0.2),
        ((1e-9, None), 0.01, 0.01),
    ],
)
def test_a_failed_checkpoint_is_tried_again_after_a_delay(monkeypatch, caplog, triggers, poll_interval, retry_delay):
    waits = RecordedWaits()
    # The clock jumps to 700 s, later than any interval, and stops there: without a failure, no interval passes again.
    clock = itertools.chain([0.0], itertools.repeat(700.0))
    monkeypatch.setattr(_checkpoint_thread, "threading", SimpleNamespace(**vars(threading) | {"Event": lambda: waits}))
    monkeypatch.setattr(_checkpoint_thread, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    store = ChangedStore()
    CheckpointThread(store, *triggers, journaled=True).stop()
    assert store.attempts == 3
    assert waits.timeouts == [poll_interval, retry_delay, retry_delay, poll_interval, poll_interval]
    assert caplog.messages == [f"checkpoint failed; the next attempt is in {retry_delay:g} s: disk full"] * 2
