"""Packed fields of protobuf as plain bytes, so that arrays pass without a loop over values.

A packed field of numbers with a fixed size is the bytes of the array itself, little-endian, behind
the field's tag and a size. Wrapping and stripping those is all that it takes, in the client and in
the server.
"""

# Tags of sized fields: the field's number and the wire type.
TIMES = b"\x12"  # SeriesPoints.times_ns = 2
VALUES = b"\x0a"  # DoubleValues.values = 1, and of integers and bools


def sized(tag: bytes, data: bytes) -> bytes:
    """Return a sized field: its tag, the size as a varint, the bytes."""
    size, head = len(data), bytearray(tag)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + data


def unsized(field: bytes) -> bytes:
    """Return the bytes of a message that is one sized field; nothing, if it is empty."""
    if not field:
        return b""
    at = 1
    while field[at] & 0x80:
        at += 1
    return field[at + 1 :]
