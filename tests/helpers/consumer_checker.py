"""Kills a server, and cuts connections, while producers and consumers use its queue; accounts for every item."""

import random
import threading
import time
from collections import Counter

from helpers.faults import Proxy, ServerProcess
from helpers.python_process import PIPE, PythonProcess

TABLES = "[engram.Table.queue('q', max_size=200)]"

PRODUCER = """
import sys, threading
import numpy as np
import engram
address, first = sys.argv[1], int(sys.argv[2])
stopping = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
client = engram.Client(address, reconnect_timeout=60)
number = first
with client.writer() as writer:
    while not stopping.is_set():
        writer.append({"x": np.int64(number)})
        writer.create_item("q", num_steps=1)
        number += 1
print(number, flush=True)
"""

CONSUMER = """
import itertools, sys
import numpy as np
import engram
from engram.compat import reverb
from engram.data import numpy as data
address, kind = sys.argv[1:]
client = engram.Client(address, reconnect_timeout=60)
if kind == "sample":
    batches = (client.sample("q", 3, at_least=1) for _ in itertools.count())
elif kind == "numpy":
    batches = data.dataset(client, "q", prefetch=8)
elif kind == "reverb":
    batches = reverb.Client(address).sample("q", 10**9, emit_timesteps=False)
else:
    batches = engram.Dataset(client, "q", 3, at_least=1, prefetch=4, hold=kind == "hold")
for batch in batches:
    values = batch.data[0] if kind == "reverb" else batch.data["x"]
    print(*np.ravel(values).tolist(), flush=True)
"""

CONSUMERS = ("sample", "sample", "dataset", "hold", "numpy", "reverb")
PRODUCERS = 2
BLOCK = 10**12
"""A producer's numbers begin at a multiple of this."""


class Consumer:
    """A process that consumes the queue; `received` has the numbers that its program has received."""

    def __init__(self, address, kind):
        self.kind, self.received = kind, []
        self.process = PythonProcess(CONSUMER, address, kind, stdin=PIPE, stdout=PIPE)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.received += map(int, line.split())

    def end(self):
        self.process.kill()
        self.process.wait()
        self._thread.join()


class ConsumerChecker:
    """Processes that use one queue through a proxy, and the faults that they survive.

    `round` makes one fault. `finish` consumes what is left, and returns how many items no program has received, and how
    many some have received twice.
    """

    def __init__(self, path, seed):
        self._random = random.Random(seed)  # noqa: S311, no secret
        self._server = ServerProcess(TABLES, path)
        self._proxy = Proxy(self._server.port)
        self.faults = Counter()
        self.consumers = [Consumer(self._proxy.address, kind) for kind in CONSUMERS]
        self._producers = [
            PythonProcess(PRODUCER, self._proxy.address, str(number * BLOCK), stdin=PIPE, stdout=PIPE)
            for number in range(PRODUCERS)
        ]
        self._wait_for_progress(60)

    def _wait_for_progress(self, seconds=30):
        """Waits until each consumer has received something."""
        before = [len(consumer.received) for consumer in self.consumers]
        end = time.monotonic() + seconds
        while any(len(each.received) == had for each, had in zip(self.consumers, before, strict=True)):
            assert time.monotonic() < end, {each.kind: each.process.poll() for each in self.consumers}
            time.sleep(0.002)

    def round(self):
        fault = self._random.choice(["kill", "kill muted", "cut", "cut muted", "freeze"])
        self.faults[fault] += 1
        time.sleep(self._random.uniform(0.0, 0.1))
        if "muted" in fault:
            self._proxy.mute()
            time.sleep(self._random.uniform(0.0, 0.03))
        if fault == "freeze":
            self._server.freeze()
            time.sleep(self._random.uniform(0.0, 0.05))
        if "cut" not in fault:
            self._server.kill()
        self._proxy.cut()
        if "cut" not in fault:
            self._server.start()
        self._wait_for_progress()

    @property
    def num_received(self):
        return sum(len(consumer.received) for consumer in self.consumers)

    def finish(self):
        written = []
        for number, producer in enumerate(self._producers):
            output, _ = producer.communicate("", timeout=60)
            written += range(number * BLOCK, int(output))
        end = time.monotonic() + 30
        while self.num_received < len(written) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)  # for what is received twice
        self.close()
        received = Counter(value for consumer in self.consumers for value in consumer.received)
        lost = [value for value in written if value not in received]
        return lost, {value: count for value, count in received.items() if count > 1}

    def close(self):
        for consumer in self.consumers:
            consumer.end()
        for producer in self._producers:
            producer.kill()
            producer.wait()
        self._proxy.close()
        self._server.__exit__()
