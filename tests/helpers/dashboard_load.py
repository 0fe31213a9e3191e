"""Tables for tests of the dashboard, and a load on one of them."""

import threading
from contextlib import suppress

import numpy as np

from engram import Client
from engram.errors import ClosedError

HTML_NAME = "<b onclick='x()'>html</b>"


class Load:
    """A writer and a reader of the table `replay`; the reader can be paused, so that the writer is blocked."""

    def __init__(self, address):
        self.is_reading = threading.Event()
        self.is_reading.set()
        self._end = threading.Event()
        self._client = Client(address)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self):
        with suppress(ClosedError):
            while not self._end.wait(0.02):
                self._client.insert_batch("replay", {"x": np.arange(20)})

    def _read(self):
        with suppress(ClosedError):
            while not self._end.wait(0.01):
                if self.is_reading.wait(0.1):
                    self._client.sample("replay", 160)

    def close(self):
        self._end.set()
        self._client.close()
        for thread in self._threads:
            thread.join(40)


def fill(store):
    random = np.random.default_rng(0)
    ramp = np.arange(32 * 48, dtype=np.float32).reshape(32, 48) / (32 * 48)
    frames = np.stack([np.roll(ramp, shift, axis=1) for shift in range(10)])
    for index in range(5):
        item = {
            "channels_last": (255 * np.stack([frames, frames[:, ::-1], 1 - frames], axis=-1)).astype(np.uint8),
            "channels_first": np.stack([frames, frames[:, ::-1], 1 - frames], axis=1),
            "position": np.cumsum(random.normal(size=(10, 3)), axis=0),
            "reward": np.append(random.normal(size=9), np.nan),
            "note": np.array(["<script>alert(1)</script>"] * 10),
            "nothing": np.zeros((10, 0)),
        }
        store.insert(item, {"frames": float(index)}, time_axis=True)
    store.insert({"x": np.zeros(70 << 20, np.uint8)}, {HTML_NAME: 1.0})
    for priority in (float("inf"), 1.0, 2.0):
        store.insert({"x": np.inf}, {"heap": priority})
