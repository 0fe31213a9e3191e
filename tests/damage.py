"""A store's files as bytes: where records lie, and how to change them so that checksums still fit, or do not."""

import struct

FILE_HEAD, RECORD_HEAD = 48, 24

CHUNK, CHANGES, TABLE = 4, 5, 17


def crc32c(data, crc=0):
    """The checksum of the format: CRC-32C, bit by bit."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records(file):
    """Place and kind of each record."""
    data, place, found = file.read_bytes(), FILE_HEAD, []
    while place < len(data):
        kind, length = struct.unpack_from("<IQ", data, place + 4)
        found.append((place, kind))
        place += RECORD_HEAD + length + -length % 8
    return found


def places(file, kind):
    """Where records of a kind begin."""
    return [place for place, found in records(file) if found == kind]


def body_length(file, place):
    """Bytes of a record's body."""
    return struct.unpack_from("<Q", file.read_bytes(), place + 8)[0]


def flip(file, place):
    """Flips one bit."""
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


def set_version(file, version):
    """Says that a file is of another version of the format, with the checksum of that."""
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 8, version)
    struct.pack_into("<I", data, FILE_HEAD - 4, crc32c(data[: FILE_HEAD - 4]))
    file.write_bytes(data)


def set_byte(file, place, offset, value):
    """Changes a byte of a record's body, and its checksums with it."""
    data = bytearray(file.read_bytes())
    body = place + RECORD_HEAD
    length = body_length(file, place)
    data[body + offset] = value
    struct.pack_into("<I", data, place + 20, crc32c(data[body : body + length]))
    head = struct.pack("<Q", place) + data[place + 4 : body]
    struct.pack_into("<I", data, place, crc32c(head))
    file.write_bytes(data)
