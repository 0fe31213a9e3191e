"""Fault injection: servers that are killed, connections that are cut."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

SERVE = """
import sys
import engram
tables = {tables}
server = engram.Server(tables, port=int(sys.argv[1]))
print(server.port, flush=True)
sys.stdin.read()
server.close()
"""


class ServerProcess:
    """A server in its own process, which keeps its port when it is restarted."""

    def __init__(self, tables):
        self._code = SERVE.format(tables=tables)
        self.port = 0
        self.start()

    def start(self):
        """Starts the process, and waits until the server accepts connections."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._code, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
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
        """Suspends the process. Its connections stay open."""
        self.signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def kill(self):
        """Ends the process with SIGKILL."""
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
    """Forwards TCP connections to a local port, until they are cut."""

    def __init__(self, port):
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets = []  # two for each connection
        self._gates = []
        self._mute = False
        self._delay = 0.0
        self._start(self._accept)

    def delay(self, seconds):
        """Delays the server's data by `seconds` from now on."""
        self._delay = seconds

    def hold(self):
        """Holds back the clients' data on existing connections until `release`."""
        for gate in self._gates:
            gate.clear()

    def release(self):
        for gate in self._gates:
            gate.set()

    def mute(self):
        """Drops the server's data from now on, until the connections are cut."""
        self._mute = True

    def refuse(self):
        """Accepts no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self, spare=0):
        """Cuts all connections except the newest `spare`. New ones are accepted."""
        with self._lock:
            end = len(self._sockets) - 2 * spare
            sockets, self._sockets = self._sockets[:end], self._sockets[end:]
        for end in sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._mute = False

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
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            gate = threading.Event()
            gate.set()
            with self._lock:
                self._sockets += [near, far]
                self._gates.append(gate)
            self._start(self._pump, near, far, gate.wait)
            self._start(self._pump, far, near, self._forwards_server_data)

    def _forwards_server_data(self):
        time.sleep(self._delay)
        return not self._mute

    def _pump(self, source, sink, passes):
        try:
            while data := source.recv(1 << 16):
                if passes():
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
