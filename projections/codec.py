"""Reading and writing bytes with bounds: payloads of entries, and sections of snapshots.

``Reader`` reads a payload field by field. Every payload opens with the same prefix: version u8
(1), flags u8 (bit 0: a session follows), namespace (u8 size, UTF-8), and with the flag session
u64, sequence u64, first_unacknowledged u64. docs/payloads.md has the tables.

``chunked`` writes a snapshot section as chunks of at most CHUNK_SIZE_MAX; ``SectionReader`` reads
it back from chunks that may be cut anywhere else.

Both readers trust nothing. A payload that does not fit its format raises ``BadPayload`` with a
stable reason. A section in which a field crosses the end, or bytes follow the last field, raises
``CorruptSection``. Neither allocates more memory than there are bytes, whatever a damaged size
says.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from onelog.projections.errors import BadPayload, CorruptSection
from onelog.projections.limits import CHUNK_SIZE_MAX, NAMESPACE_SIZE_MAX, PASSED_RANGES_MAX
from onelog.projections.reasons import Reason

PAYLOAD_VERSION = 1
HEADS_MAX = 1024  # prefixes kept in the cache
FLAG_SESSION = 0x01

U8 = struct.Struct("<B")
U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
I64 = struct.Struct("<q")
_SESSION = struct.Struct("<QQQ")
_RANGE = struct.Struct("<QQ")  # first, last
SESSION_SIZE = _SESSION.size


class SessionRef(NamedTuple):
    """The session and sequence of a request, and the lowest sequence not yet acknowledged."""

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
        """The number of bytes not read yet."""
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
        """Return the next number; ``layout`` is one of ``U8`` … ``I64``."""
        value: int = self.fields(layout)[0]
        return value

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers, as ``layout`` describes them."""
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
        """Return all bytes not read yet."""
        data = self._data[self.position :]
        self.position = len(self._data)
        return data

    def finish(self) -> None:
        """Refuse bytes behind the last field: they belong to a format that is not known here."""
        if self.position != len(self._data):
            raise BadPayload(Reason.PAYLOAD_TRAILING_BYTES, self.left)


Ranges = tuple[tuple[int, int], ...]
"""Ranges of entries, first and last, ascending."""


def encode_ranges(ranges: Ranges) -> bytes:
    """Return ranges as bytes; nothing for none, so the field has to be the last one."""
    if not ranges:
        return b""
    return U16.pack(len(ranges)) + b"".join(_RANGE.pack(*each) for each in ranges)


def read_ranges(reader: Reader) -> Ranges:
    """Read the ranges at the end of a body, if there are any."""
    if not reader.left:
        return ()
    ranges = tuple(_RANGE.iter_unpack(reader.take(reader.count(PASSED_RANGES_MAX) * _RANGE.size)))
    last_before = -1
    for first, last in ranges:
        if not last_before < first <= last:
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, first)
        last_before = last
    return ranges


def bound_ranges(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Return as many ranges as a body takes: the last reaches over what is between the rest."""
    if len(ranges) <= PASSED_RANGES_MAX:
        return tuple(ranges)
    kept = PASSED_RANGES_MAX - 1
    return (*ranges[:kept], (ranges[kept][0], ranges[-1][1]))


def is_within(ranges: Ranges, index: int) -> bool:
    """Tell whether an entry is in one of the ranges."""
    number = bisect_right(ranges, index, key=itemgetter(0)) - 1
    return number >= 0 and index <= ranges[number][1]


def read_prefix(payload: bytes) -> tuple[Prefix, Reader]:
    """Read the common prefix; return it and a reader positioned after it.

    Every entry passes here, so the fields are unpacked directly and not through a ``Reader``.
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


def parse_namespace(prefix: bytes) -> str:
    """Parse the namespace out of a prefix without a session."""
    return prefix[3:].decode()


def encode_prefix(namespace: str, session: SessionRef | None = None) -> bytes:
    """Return the prefix of a payload."""
    if session is None:
        return _encode_head(namespace, 0)
    return _encode_head(namespace, FLAG_SESSION) + _SESSION.pack(*session)


def encode_prefixes(namespace: str, session: SessionRef | None) -> Iterator[bytes]:
    """Return the prefixes of payloads that follow each other, without an end.

    In a session each has the next sequence.
    """
    if session is None:
        return repeat(_encode_head(namespace, 0))
    head, pack = _encode_head(namespace, FLAG_SESSION), _SESSION.pack
    number, sequence, first = session
    return (head + pack(number, each, first) for each in count(sequence))


def count_sessions(session: SessionRef | None) -> Iterator[SessionRef | None]:
    """Return the references of entries that follow each other, without an end."""
    if session is None:
        return repeat(None)
    number, sequence, first = session
    return (SessionRef(number, each, first) for each in count(sequence))


@lru_cache(HEADS_MAX)
def _encode_head(namespace: str, flags: int) -> bytes:
    name = namespace.encode()
    assert len(name) <= NAMESPACE_SIZE_MAX, f"a namespace name of {len(name)} bytes"
    return bytes((PAYLOAD_VERSION, flags, len(name))) + name


def encode_sized(layout: struct.Struct, data: bytes) -> bytes:
    """Return ``data`` preceded by its size."""
    return layout.pack(len(data)) + data


# Sections of snapshots


def chunked(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts and split large ones, into chunks of bounded size."""
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
        """Return the next fields, as ``layout`` describes them."""
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
        """Return the error that names the broken rule."""
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
