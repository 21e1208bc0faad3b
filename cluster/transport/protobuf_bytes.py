"""The bytes around a length-delimited field of protobuf, for messages put together by hand.

Groups of the log are megabytes: joining them behind their tags and lengths copies them once, which
the generated classes would do several times.
"""

from typing import Any


def field_tag(message: Any, field: str) -> bytes:
    """Return the byte before a length-delimited field of a generated class."""
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    assert number < 16, "a larger number needs more bytes"
    return bytes([number << 3 | 2])


def varint(number: int) -> bytes:
    """Return a length as protobuf writes it."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
