"""Packed protobuf fields as plain bytes, so that arrays need no loop over their values.

A packed field of fixed-size numbers is a tag, a size and the bytes of the array, little-endian.
Client and server add and strip the tag and the size themselves.
"""

# Tags: the field's number and the wire type "length-delimited".
TIMES = b"\x12"  # SeriesPoints.times_ns = 2
VALUES = b"\x0a"  # DoubleValues.values = 1, and of integers and bools


def sized(tag: bytes, data: bytes) -> bytes:
    """Encode a length-delimited field: its tag, the size as a varint, the bytes."""
    size, head = len(data), bytearray(tag)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + data


def unsized(field: bytes) -> bytes:
    """Return the content of a message that has one length-delimited field, or none."""
    if not field:
        return b""
    at = 1
    while field[at] & 0x80:
        at += 1
    return field[at + 1 :]
