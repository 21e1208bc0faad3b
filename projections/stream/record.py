"""Records of a stream as bytes: what a producer appends, and what a dead letter refers to.

A record is one entry, and its offset is the entry's index. Two types of entry are records:
``append`` (0x0401), which carries the record, and ``dead_letter`` (0x0412), which carries a
reference to a record that a group gave up on. docs/streams.md has the tables.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from onelog.projections.codec import (
    U8,
    U16,
    Reader,
    SessionRef,
    encode_prefix,
    encode_sized,
    read_prefix,
)
from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.stream.limits import (
    GROUP_NAME_SIZE_MAX,
    HEADERS_MAX,
    NACK_REASON_SIZE_MAX,
    RECORD_KEY_SIZE_MAX,
    STREAM_NAME_SIZE_MAX,
)
from onelog.ual.entry import OWNER_STREAM, Draft, Entry

TYPE_APPEND = OWNER_STREAM << 8 | 0x01
TYPE_DEAD_LETTER = OWNER_STREAM << 8 | 0x12

OPTION_KEY = 0x01
OPTION_HEADERS = 0x02
OPTION_PRODUCER = 0x04
OPTION_PARTITION = 0x08
OPTION_TAG = 0x10
OPTIONS_KNOWN = 0x1F

SESSION_SIZE = 24  # of a session in the prefix of a payload
_PRODUCER = struct.Struct("<QHQ")  # id, epoch, sequence
_DEAD_HEAD = struct.Struct("<QB")  # source stream, partition
_DEAD = struct.Struct("<QQHQ")  # offset, origin, deliveries, failed_ns


class ProducerRef(NamedTuple):
    """Which record of which producer this is; sequences count from 0 in each epoch."""

    producer: int
    epoch: int
    sequence: int


Options = tuple[
    int | None, ProducerRef | None, bytes | None, str | None, tuple[tuple[str, bytes], ...], int
]
"""Of an append: partition, producer, key, tag, headers, and where the value begins."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append one record; without ``partition`` the key decides where, without a key the index."""

    stream: str
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    tag: str | None = None
    partition: int | None = None
    producer: ProducerRef | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The leader's entry: a record that a group gave up on becomes a record of ``target``.

    ``partition`` and ``offset`` name what was pending; ``origin`` is the append that it leads to.
    """

    target: str
    source_id: int
    group: str
    partition: int
    offset: int
    origin: int
    deliveries: int
    failed_ns: int
    reason: bytes


def encode_append(command: Append, namespace: str, session: SessionRef | None = None) -> Draft:
    """Return the draft of the entry that appends a record."""
    return Draft(TYPE_APPEND, encode_prefix(namespace, session) + append_body(command))


def append_body(command: Append) -> bytes:
    """Return what follows the prefix of an append."""
    options = 0
    parts: list[bytes] = []
    if command.partition is not None:
        options |= OPTION_PARTITION
        parts.append(U8.pack(command.partition))
    if command.producer is not None:
        options |= OPTION_PRODUCER
        parts.append(_PRODUCER.pack(*command.producer))
    if command.key is not None:
        options |= OPTION_KEY
        parts.append(encode_sized(U16, command.key))
    if command.tag is not None:
        options |= OPTION_TAG
        parts.append(encode_sized(U8, command.tag.encode()))
    if command.headers:
        options |= OPTION_HEADERS
        parts.append(U16.pack(len(command.headers)))
        for name, value in command.headers:
            parts += (encode_sized(U8, name.encode()), encode_sized(U16, value))
    head = U8.pack(options) + encode_sized(U8, command.stream.encode())
    return b"".join((head, *parts, command.value))


def read_append(reader: Reader) -> Append:
    """Read the body of an append."""
    options = reader.number(U8)
    if options & ~OPTIONS_KNOWN:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    stream = read_stream_name(reader)
    data = reader.rest()
    partition, producer, key, tag, headers, value_at = parse_options(data, 0, options)
    return Append(stream, data[value_at:], key, headers, tag, partition, producer)


def parse_options(data: bytes, at: int, options: int) -> Options:
    """Read what stands between name and value of an append, and where the value begins."""
    partition, producer, key, tag = None, None, None, None
    headers: tuple[tuple[str, bytes], ...] = ()
    if options & OPTION_PARTITION:
        partition, at = Reader(data, at).number(U8), at + U8.size
    if options & OPTION_PRODUCER:
        producer, at = ProducerRef(*Reader(data, at).fields(_PRODUCER)), at + _PRODUCER.size
    if options & OPTION_KEY:
        key, at = parse_key(data, at)
    if options & OPTION_TAG:
        tag, at = _parse_text(data, at)
    if options & OPTION_HEADERS:
        headers, at = _parse_headers(data, at, options)
    return partition, producer, key, tag, headers, at


def parse_key(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the key of a record, and where it ends."""
    key, end = _parse_sized(data, at)
    if not 0 < len(key) <= RECORD_KEY_SIZE_MAX:
        raise BadPayload(Reason.KEY_SIZE_INVALID, len(key))
    return key, end


def _parse_headers(data: bytes, at: int, options: int) -> tuple[tuple[tuple[str, bytes], ...], int]:
    count = Reader(data, at).count(HEADERS_MAX)
    if not count:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    at += U16.size
    headers = []
    for _ in range(count):
        name, at = _parse_text(data, at)
        value, at = _parse_sized(data, at)
        headers.append((name, value))
    return tuple(headers), at


def _parse_text(data: bytes, at: int) -> tuple[str, int]:
    """Return text behind its size (u8), and where it ends; as ``Reader.text``, in half the time."""
    end = at + 1 + data[at] if at < len(data) else at + 1
    if end > len(data):
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    try:
        return data[at + 1 : end].decode(), end
    except UnicodeDecodeError as error:
        raise BadPayload(Reason.PAYLOAD_NOT_UTF8) from error


def _parse_sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes behind their size (u16), and where they end."""
    start = at + U16.size
    end = start + data[at] + (data[at + 1] << 8) if start <= len(data) else start
    if end > len(data):
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    return data[start:end], end


def open_append(
    payload: bytes,
) -> tuple[bytes | None, str | None, tuple[tuple[str, bytes], ...], bytes]:
    """Return key, tag, headers and value of an append that was applied.

    What apply accepted needs no second check, and a reader wants neither stream nor producer: for
    a record with a key this takes 1.2 µs where prefix and ``read_append`` take 10.9 µs.
    """
    options_at = payload[2] + 3
    if payload[1]:  # the prefix holds a session
        options_at += SESSION_SIZE
    options = payload[options_at]
    at = options_at + 2 + payload[options_at + 1]
    if not options:
        return None, None, (), payload[at:]
    _, _, key, tag, headers, at = parse_options(payload, at, options)
    return key, tag, headers, payload[at:]


def dead_letter_body(command: DeadLetter) -> bytes:
    """Return what follows the prefix of a dead letter."""
    return b"".join(
        (
            encode_sized(U8, command.target.encode()),
            _DEAD_HEAD.pack(command.source_id, command.partition),
            encode_sized(U8, command.group.encode()),
            _DEAD.pack(command.offset, command.origin, command.deliveries, command.failed_ns),
            encode_sized(U8, command.reason),
        )
    )


def read_dead_letter(reader: Reader) -> DeadLetter:
    """Read the body of a dead letter."""
    target = read_stream_name(reader)
    source_id, partition = reader.fields(_DEAD_HEAD)
    group = read_group_name(reader)
    offset, origin, deliveries, failed_ns = reader.fields(_DEAD)
    reason = read_nack_reason(reader)
    return DeadLetter(
        target, source_id, group, partition, offset, origin, deliveries, failed_ns, reason
    )


def read_stream_name(reader: Reader) -> str:
    """Read the name of a stream; refuse one that no stream can have."""
    name = reader.text(U8)
    if not 0 < len(name.encode()) <= STREAM_NAME_SIZE_MAX or ":" in name:
        raise BadPayload(Reason.STREAM_NAME_INVALID, len(name.encode()))
    return name


def read_group_name(reader: Reader) -> str:
    """Read the name of a consumer group."""
    name = reader.text(U8)
    if not 0 < len(name.encode()) <= GROUP_NAME_SIZE_MAX:
        raise BadPayload(Reason.GROUP_NAME_INVALID, len(name.encode()))
    return name


def read_nack_reason(reader: Reader) -> bytes:
    """Read why a record was given back."""
    reason = reader.sized(U8)
    if len(reason) > NACK_REASON_SIZE_MAX:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, len(reason))
    return reason


def decode_record(entry: Entry) -> Append | DeadLetter:
    """Return the record that an entry of a stream table is; raise ``BadPayload`` for others."""
    _, reader = read_prefix(entry.plain_payload())
    if entry.entry_type == TYPE_APPEND:
        return read_append(reader)
    if entry.entry_type != TYPE_DEAD_LETTER:
        raise BadPayload(Reason.OPERATION_UNKNOWN, entry.entry_type & 0xFF)
    letter = read_dead_letter(reader)
    reader.finish()
    return letter


def append_offset(index: int, number: int) -> int:
    """Return the offset that an append at ``index`` had, given the number of its result."""
    return number or index
