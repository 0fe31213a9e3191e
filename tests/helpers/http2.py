"""A minimal HTTP/2 client for gRPC streams, which can send any bytes and ignores the replies."""

import socket
import struct
import threading

DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Returns an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def length_prefix(length: int) -> bytes:
    """Returns the first bytes of a gRPC message of this length."""
    return struct.pack(">BI", 0, length)


class SilentConnection:
    """A connection whose streams have a window of `window` bytes; with 0, the server cannot send messages."""

    def __init__(self, address: str, *, window: int = 0) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.is_open = True
        self._send_lock = threading.Lock()
        self._streams = 0
        self._ping_answered = threading.Event()
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self._send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))
        threading.Thread(target=self._answer_pings, daemon=True).start()

    def open_stream(self, path: str, body: bytes) -> None:
        """Begins the call `path` and sends `body`, the first bytes of its messages; leaves the stream open."""
        self._streams += 1
        stream = 2 * self._streams - 1
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "server"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        # Literal fields without indexing, whose names and values have fewer than 127 bytes.
        block = b"".join(
            b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in headers
        )
        self._send(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, 0, stream, body))

    def ping(self, seconds: float = 60.0) -> bool:
        """Waits until the server has received everything sent so far; False if it does not reply within `seconds`."""
        self._ping_answered.clear()
        self._send(frame(PING, 0, 0, bytes(8)))
        return self._ping_answered.wait(seconds)

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def _send(self, data: bytes) -> None:
        with self._send_lock:
            self.socket.sendall(data)

    def _answer_pings(self) -> None:
        """Reads all frames and answers pings, so that only the HTTP/2 windows limit what the server sends.

        It never enlarges a window, so all streams together receive at most 65,535 bytes, the connection's window.
        """
        try:
            with self.socket.makefile("rb") as incoming:
                while len(head := incoming.read(9)) == 9:
                    payload = incoming.read(int.from_bytes(head[:3], "big"))
                    if head[3] == PING and head[4] & ACK:
                        self._ping_answered.set()
                    elif head[3] == PING:
                        self._send(frame(PING, ACK, 0, payload))
        except OSError:
            pass
        self.is_open = False
