"""Reads and changes the records of a durable store's files; docs/format.md specifies them."""

import struct
from typing import NamedTuple

FILE_HEAD, RECORD_HEAD = 48, 24  # bytes
KINDS = {
    1: "layout",
    2: "schema",
    3: "shape",
    4: "chunk",
    5: "changes",
    6: "table created",
    7: "dropped",
    8: "begin",
    9: "unlogged",
    16: "logs",
    17: "table",
    18: "items",
    19: "order",
    20: "sessions",
    21: "end",
    22: "serials",
    23: "closed",
    24: "buffer",
    25: "environments",
    26: "steps",
}


def _crc_table():
    """Returns the CRC table of the Castagnoli polynomial, reflected."""
    rows = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        rows.append(byte)
    return rows


CRC_TABLE = _crc_table()


def crc32c(data, previous=0):
    crc = previous ^ 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Head(NamedTuple):
    """The first 48 bytes of a file."""

    version: int
    kind: int
    store: int
    number: int

    @classmethod
    def of(cls, path):
        data = path.read_bytes()[:FILE_HEAD]
        magic, *rest, zeros, crc = struct.unpack("<8sIIQQ12sI", data)
        assert (magic, zeros, crc) == (b"ENGRAM\r\n", bytes(12), crc32c(data[:-4]))
        return cls(*rest)

    def write(self, path):
        """Replaces the head of a file by this one, with a valid checksum."""
        data = struct.pack("<8sIIQQ12x", b"ENGRAM\r\n", *self)
        content = path.read_bytes()
        path.write_bytes(data + struct.pack("<I", crc32c(data)) + content[FILE_HEAD:])


class Record(NamedTuple):
    """One record of a file."""

    kind: str
    offset: int
    body: bytes

    @property
    def body_offset(self):
        return self.offset + RECORD_HEAD

    @property
    def padding_offset(self):
        return self.body_offset + len(self.body)

    @property
    def end(self):
        return self.padding_offset + -len(self.body) % 8

    def u32(self, offset):
        return struct.unpack_from("<I", self.body, offset)[0]

    def u64(self, offset):
        return struct.unpack_from("<Q", self.body, offset)[0]

    def bytes(self, number):
        """Returns the encoded record, for the file with that number."""
        code = next(code for code, kind in KINDS.items() if kind == self.kind)
        head = struct.pack("<IQII", code, len(self.body), number & 0xFFFFFFFF, crc32c(self.body))
        crc = crc32c(struct.pack("<Q", self.offset) + head)
        return struct.pack("<I", crc) + head + self.body + bytes(-len(self.body) % 8)


def records(path):
    """Returns the records of a file, all of which must be valid."""
    data, number = path.read_bytes(), Head.of(path).number
    records, offset = [], FILE_HEAD
    while offset < len(data):
        code, length = struct.unpack_from("<IQ", data, offset + 4)
        body = data[offset + RECORD_HEAD :][:length]
        record = Record(KINDS[code], offset, body)
        assert data[offset : record.end] == record.bytes(number), (
            f"{path.name}: the record at byte {offset} is not valid"
        )
        records.append(record)
        offset = record.end
    return records


def replace(path, record):
    """Replaces the record at the same offset by one of the same length, with valid checksums."""
    overwrite(path, record.offset, record.bytes(Head.of(path).number))


def overwrite(path, offset, data):
    """Overwrites bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path, offset):
    """Flips one bit of the byte at `offset`."""
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 0x10]))


def cut(path, length):
    """Truncates a file."""
    with path.open("r+b") as file:
        file.truncate(length)


def each_damage(record):
    """Yields ways to damage a record: a function that damages the file at a path, and the reason that is reported."""
    size = len(record.body)
    for field in (0, 4, 8, 16, 20, RECORD_HEAD - 1):
        reason = "the checksum of the record's header is wrong"
        yield lambda path, offset=record.offset + field: flip(path, offset), reason
    for index in sorted({0, size // 3, size - 1}):
        reason = f"the checksum of the record's {size} bytes is wrong"
        yield lambda path, offset=record.body_offset + index: flip(path, offset), reason
    for num_bytes in (1, RECORD_HEAD - 1):
        reason = f"expected a record header of 24 bytes, found {num_bytes} byte{'s' if num_bytes > 1 else ''}"
        yield lambda path, offset=record.offset + num_bytes: cut(path, offset), reason
    # The last of these sizes may leave the body complete, and cut only its padding.
    for num_bytes in sorted({0, size // 2, size - 1, record.end - record.body_offset - 1}):
        padded = f"{size} bytes, padded to a multiple of 8"
        reason = f"the record's length is {padded}, but the file has only {num_bytes} more"
        yield lambda path, offset=record.body_offset + num_bytes: cut(path, offset), reason


def files(directory):
    """Returns the content of all files except the lock, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "LOCK"}
