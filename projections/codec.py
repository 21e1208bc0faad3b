"""Payload primitives: a bounded reader, and the prefix that all payloads share.

Prefix: version u8 (1), flags u8 (bit 0: a session follows), namespace (u8 size, UTF-8), and with
the flag session u64, sequence u64, first_unacknowledged u64. docs/payloads.md has the tables.

A payload comes from the log, so it may hold anything. Whatever does not fit raises ``BadPayload``
with a stable reason; nothing here allocates more than the payload itself.

Section
-------
Snapshot sections as byte streams: chunks out, fields in.

A section is written as chunks of at most CHUNK_SIZE_MAX and may come back cut anywhere else.
Reading trusts nothing: a field that crosses the end, or bytes behind the last field, is a
``CorruptSection``; a damaged size costs no more memory than the section has bytes.
"""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from onelog.projections.errors import BadPayload, CorruptSection
from onelog.projections.limits import CHUNK_SIZE_MAX, NAMESPACE_SIZE_MAX
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


# Section


def chunked(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts, and cut large ones, into chunks of bounded size."""
    pending: list[bytes] = []
    size = 0
    for part in parts:
        pending.append(part)
        size += len(part)
        if size >= CHUNK_SIZE_MAX:
            data = b"".join(pending)
            end = size - size % CHUNK_SIZE_MAX
            for start in range(0, end, CHUNK_SIZE_MAX):
                yield data[start : start + CHUNK_SIZE_MAX]
            pending = [data[end:]]
            size -= end
    if size:
        yield b"".join(pending)


class SectionReader:
    """Reads fields from the chunks of one section."""

    __slots__ = ("_at", "_buffer", "_chunks", "_owner")

    def __init__(self, owner: int, chunks: Iterable[bytes]) -> None:
        self._owner = owner
        self._chunks = iter(chunks)
        self._buffer = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        end = self._at + size
        if end > len(self._buffer):
            self._fill(size)
            end = size
        data = self._buffer[self._at : end]
        self._at = end
        return data

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next fields, laid out as ``layout`` says."""
        end = self._at + layout.size
        if end > len(self._buffer):
            self._fill(layout.size)
            end = layout.size
        values = layout.unpack_from(self._buffer, self._at)
        self._at = end
        return values

    def number(self, layout: struct.Struct) -> int:
        """Return the next field, which is one number."""
        number: int = self.fields(layout)[0]
        return number

    def sized(self, layout: struct.Struct) -> bytes:
        """Return bytes that are preceded by their size."""
        return self.take(self.number(layout))

    def text(self, layout: struct.Struct) -> str:
        """Return UTF-8 text that is preceded by its size."""
        try:
            return self.sized(layout).decode()
        except UnicodeDecodeError as error:
            raise self.corrupt("a name is not UTF-8") from error

    def expect(self, holds: object, rule: str) -> None:
        """Refuse the section unless ``holds``."""
        if not holds:
            raise self.corrupt(rule)

    def finish(self) -> None:
        """Refuse bytes behind the last field."""
        if self._at < len(self._buffer) or any(self._chunks):
            raise self.corrupt("bytes behind the last field")

    def corrupt(self, rule: str) -> CorruptSection:
        """Return the error that says which rule broke."""
        return CorruptSection(self._owner, rule)

    def _fill(self, size: int) -> None:
        """Make at least ``size`` bytes available at the buffer's start."""
        parts = [self._buffer[self._at :]]
        have = len(parts[0])
        while have < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise self.corrupt("the section ends inside a field")
            parts.append(chunk)
            have += len(chunk)
        self._buffer = b"".join(parts)
        self._at = 0
