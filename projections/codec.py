"""Payload primitives: a bounded reader, and the prefix that all payloads share.

Prefix: version u8 (1), flags u8 (bit 0: a session follows), namespace (u8 size, UTF-8), and with
the flag session u64, sequence u64, first_unacknowledged u64. docs/payloads.md has the tables.

A payload comes from the log, so it may hold anything. Whatever does not fit raises ``BadPayload``
with a stable reason; nothing here allocates more than the payload itself.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

from onelog.projections.errors import BadPayload
from onelog.projections.limits import NAMESPACE_SIZE_MAX
from onelog.projections.reasons import Reason

PAYLOAD_VERSION = 1
HEADS_MAX = 1024  # of prefixes that are remembered
FLAG_SESSION = 0x01

U8 = struct.Struct("<B")
U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
I64 = struct.Struct("<q")
_SESSION = struct.Struct("<QQQ")
SESSION_SIZE = _SESSION.size


class SessionRef(NamedTuple):
    """Which request of which session an entry is, and what that session has seen answered."""

    session: int
    sequence: int
    first_unacknowledged: int


class Prefix(NamedTuple):
    """The decoded prefix of a payload."""

    namespace: str
    session: SessionRef | None


class Reader:
    """Reads fields from ``data`` one after the other; every read is checked against the end."""

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self.position = position

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self.position

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        end = self.position + size
        if end > len(self._data):
            raise BadPayload(Reason.PAYLOAD_TRUNCATED)
        data = self._data[self.position : end]
        self.position = end
        return data

    def number(self, layout: struct.Struct) -> int:
        """Return the next number, whose layout is one of ``U8`` … ``I64``."""
        value: int = self.fields(layout)[0]
        return value

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers, laid out as ``layout`` says."""
        end = self.position + layout.size
        if end > len(self._data):
            raise BadPayload(Reason.PAYLOAD_TRUNCATED)
        values = layout.unpack_from(self._data, self.position)
        self.position = end
        return values

    def count(self, count_max: int) -> int:
        """Return the next u16 count; refuse one above ``count_max`` before anything is built."""
        count = self.number(U16)
        if count > count_max:
            raise BadPayload(Reason.PAYLOAD_COUNT_TOO_LARGE, count)
        return count

    def sized(self, layout: struct.Struct) -> bytes:
        """Return bytes that are preceded by their size."""
        return self.take(self.number(layout))

    def text(self, layout: struct.Struct) -> str:
        """Return UTF-8 text that is preceded by its size in bytes."""
        try:
            return self.sized(layout).decode()
        except UnicodeDecodeError as error:
            raise BadPayload(Reason.PAYLOAD_NOT_UTF8) from error

    def rest(self) -> bytes:
        """Return all that is left."""
        data = self._data[self.position :]
        self.position = len(self._data)
        return data

    def part(self, size: int) -> "Reader":
        """Return a reader for the next ``size`` bytes alone."""
        return Reader(self.take(size))

    def finish(self) -> None:
        """Refuse bytes that no field claimed: they would be a format that we do not know."""
        if self.position != len(self._data):
            raise BadPayload(Reason.PAYLOAD_TRAILING_BYTES, self.left)


def read_prefix(payload: bytes) -> tuple[Prefix, Reader]:
    """Read the common prefix; return it and a reader that stands behind it.

    Every entry comes by here, so the fields are taken directly instead of one by one.
    """
    if len(payload) < 3:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    version, flags, name_size = payload[0], payload[1], payload[2]
    if version != PAYLOAD_VERSION:
        raise BadPayload(Reason.PAYLOAD_VERSION_UNKNOWN, version)
    if flags & ~FLAG_SESSION:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, flags)
    end = 3 + name_size
    session_end = end + _SESSION.size if flags else end
    if session_end > len(payload):
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    try:
        namespace = payload[3:end].decode()
    except UnicodeDecodeError as error:
        raise BadPayload(Reason.PAYLOAD_NOT_UTF8) from error
    session = SessionRef(*_SESSION.unpack_from(payload, end)) if flags else None
    return Prefix(namespace, session), Reader(payload, session_end)


def namespace_of(prefix: bytes) -> str:
    """Return the namespace that a prefix without a session names."""
    return prefix[3:].decode()


def encode_prefix(namespace: str, session: SessionRef | None = None) -> bytes:
    """Return the bytes that open a payload."""
    if session is None:
        return _encode_head(namespace, 0)
    return _encode_head(namespace, FLAG_SESSION) + _SESSION.pack(*session)


@lru_cache(HEADS_MAX)
def _encode_head(namespace: str, flags: int) -> bytes:
    name = namespace.encode()
    assert len(name) <= NAMESPACE_SIZE_MAX, f"a namespace name of {len(name)} bytes"
    return bytes((PAYLOAD_VERSION, flags, len(name))) + name


def encode_sized(layout: struct.Struct, data: bytes) -> bytes:
    """Return ``data`` with its size before it."""
    return layout.pack(len(data)) + data
