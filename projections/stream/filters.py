"""Filters of records: which ones a reader or a consumer group wants.

A filter has conditions, and a record must meet all that are set. Readers send one with each
request. A group has one in its settings, so it has bytes: those of docs/streams.md, in one order,
so that equal filters have equal bytes and equal hashes. Apply stores the filter of a group and
never evaluates it: the leader reads the records and names those that it delivers.
"""

from dataclasses import dataclass
from typing import Protocol

from onelog.projections.codec import U8, U16, Reader, encode_sized
from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.stream.limits import GROUP_FILTER_SIZE_MAX, RECORD_KEY_SIZE_MAX

Headers = tuple[tuple[str, bytes | None], ...]


class Filterable(Protocol):
    """What a filter looks at."""

    @property
    def key(self) -> bytes | None:
        """The key of the record, if it has one."""

    @property
    def tag(self) -> str | None:
        """Its tag, if it has one."""

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Its headers."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records are wanted: those that meet every condition that is set."""

    keys: frozenset[bytes] = frozenset()
    key_prefix: bytes = b""
    tags: frozenset[str] = frozenset()
    headers: Headers = ()  # None: any value

    def wants(self, record: Filterable) -> bool:
        """Return whether the record meets all conditions."""
        if self.keys and record.key not in self.keys:
            return False
        if self.key_prefix and not (record.key or b"").startswith(self.key_prefix):
            return False
        if self.tags and record.tag not in self.tags:
            return False
        return all(
            any(name == each and value in (None, found) for each, found in record.headers)
            for name, value in self.headers
        )

    def encode(self) -> bytes:
        """Return the bytes of docs/streams.md, without the size before them."""
        parts = [encode_sized(U16, self.key_prefix), U16.pack(len(self.keys))]
        parts += (encode_sized(U16, key) for key in sorted(self.keys))
        parts.append(U16.pack(len(self.tags)))
        parts += sorted(encode_sized(U8, tag.encode()) for tag in self.tags)
        headers = sorted({_encode_header(name, value) for name, value in self.headers})
        return b"".join((*parts, U16.pack(len(headers)), *headers))


EVERYTHING = RecordFilter()


def _encode_header(name: str, value: bytes | None) -> bytes:
    head = encode_sized(U8, name.encode())
    return head + b"\x00" if value is None else head + b"\x01" + encode_sized(U16, value)


def parse_filter(data: bytes) -> RecordFilter:
    """Read what ``encode`` writes; refuse anything else."""
    if len(data) > GROUP_FILTER_SIZE_MAX:
        raise BadPayload(Reason.FILTER_TOO_LARGE, len(data))
    reader = Reader(data)
    key_prefix = reader.sized(U16)
    keys = frozenset(reader.sized(U16) for _ in range(reader.number(U16)))
    tags = frozenset(reader.text(U8) for _ in range(reader.number(U16)))
    headers = tuple(_read_header(reader) for _ in range(reader.number(U16)))
    reader.finish()
    found = RecordFilter(keys, key_prefix, tags, headers)
    for key in (key_prefix, *keys):
        if len(key) > RECORD_KEY_SIZE_MAX:
            raise BadPayload(Reason.KEY_SIZE_INVALID, len(key))
    # One filter has one encoding; a filter without conditions is not written at all.
    if found == EVERYTHING or found.encode() != data:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, len(data))
    return found


def _read_header(reader: Reader) -> tuple[str, bytes | None]:
    name, has_value = reader.text(U8), reader.number(U8)
    if has_value > 1:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, has_value)
    return name, reader.sized(U16) if has_value else None
