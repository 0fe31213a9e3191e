"""Faults for tests: servers that are killed, and connections that are cut."""

import contextlib
import os
import signal
import socket
import threading
import time
from functools import partial

from helpers.python_process import PIPE, PythonProcess

SERVE = """
import sys
import engram
tables, path = {tables}, {path!r}
store = tables if path is None else engram.Store.open(path, tables)
server = engram.Server(store, port=int(sys.argv[1]), shard_id={shard_id})
print(server.port, flush=True)
sys.stdin.read()
server.close()
"""


class ServerProcess:
    """A server in another process; it keeps its port when it is started again. With a `path`, its store is durable.

    `tables` is the text of a Python expression, such as `"[engram.Table('t')]"`.
    """

    def __init__(self, tables, path=None, shard_id=None):
        self._code = SERVE.format(tables=tables, path=None if path is None else str(path), shard_id=shard_id)
        self.port = 0
        self.start()

    def start(self):
        """Starts the server; returns when it accepts connections."""
        self._process = PythonProcess(self._code, self.port, stdin=PIPE, stdout=PIPE)
        self.port = int(self._process.stdout.readline())

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self._process.pid

    def signal(self, number):
        os.kill(self.pid, number)

    def freeze(self):
        """Stops the process without closing its connections; returns when it has stopped."""
        self._process.freeze()

    def kill(self):
        """Kills the process, as `kill -9` does."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.returncode is None:
            self.kill()


class Proxy:
    """Forwards TCP connections to a port of this machine."""

    def __init__(self, port):
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets = []  # two for each connection
        self._client_gates = []
        self._muted = []  # an event for each connection, set if it drops data from the server
        self._mutes_new = False
        self._delay = 0.0
        self._start(self._accept)

    def delay(self, seconds):
        """From now on, delays each piece of data from the server by `seconds`."""
        self._delay = seconds

    def hold(self):
        """Holds data from clients over the existing connections until `release`."""
        for gate in self._client_gates:
            gate.clear()

    def release(self):
        for gate in self._client_gates:
            gate.set()

    def mute(self):
        """Drops data from the server, over existing and new connections, until the connections are cut."""
        with self._lock:
            self._mutes_new = True
            for muted in self._muted:
                muted.set()

    def refuse(self):
        """Accepts no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self, spare=0):
        """Cuts all connections except the newest `spare`; new ones are accepted. Ends `mute`."""
        with self._lock:
            end = len(self._sockets) - 2 * spare
            sockets, self._sockets = self._sockets[:end], self._sockets[end:]
            # Connections that are cut stay muted; the client may connect again before all of them are shut down.
            self._muted = self._muted[end // 2 :]
            self._mutes_new = False
            for muted in self._muted:
                muted.clear()
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self):
        """Cuts all connections, and accepts no more."""
        self.refuse()
        self.cut()
        self.release()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @staticmethod
    def _start(work, *args):
        threading.Thread(target=work, args=args, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            gate = threading.Event()
            gate.set()
            muted = threading.Event()
            with self._lock:
                self._sockets += [client, server]
                self._client_gates.append(gate)
                self._muted.append(muted)
                if self._mutes_new:
                    muted.set()
            self._start(self._forward, client, server, gate.wait)
            self._start(self._forward, server, client, partial(self._passes_response, muted))

    def _passes_response(self, muted):
        time.sleep(self._delay)
        return not muted.is_set()

    def _forward(self, source, sink, passes):
        try:
            while data := source.recv(1 << 16):
                if passes():
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
