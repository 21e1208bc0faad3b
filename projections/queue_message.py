"""Messages as they stand in the log: what a producer sends, and how a consumer reads it back.

The state of a queue holds indexes only. Body and headers stay in the entry that brought them: an
``enqueue``, or a ``schedule_create`` for the messages that a schedule makes. ``decode_message``
reads either of them, for whoever serves a lease or a peek.
"""

import struct
from dataclasses import dataclass

from projections.errors import BadPayload
from projections.limits import TTL_NS_MAX
from projections.payload import U8, U16, U64, Reader, encode_sized, read_prefix
from projections.queue_limits import (
    CRON_SIZE_MAX,
    DELAY_NS_MAX,
    HEADER_NAME_SIZE_MAX,
    HEADER_VALUE_SIZE_MAX,
    HEADERS_MAX,
    HEADERS_RESERVED,
    MESSAGE_KEY_SIZE_MAX,
    MESSAGE_SIZE_MAX,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
)
from projections.reasons import Reason
from ual.entry import OWNER_QUEUE, Entry

TYPE_ENQUEUE = OWNER_QUEUE << 8 | 0x01
TYPE_SCHEDULE_CREATE = OWNER_QUEUE << 8 | 0x0D

OPTION_DELAY = 0x01
OPTION_AT = 0x02
OPTION_TTL = 0x04
OPTION_DEDUP = 0x08
OPTION_GROUP = 0x10
OPTION_TENANT = 0x20
OPTION_HEADERS = 0x40
_OPTIONS_ENQUEUE = 0x7F
_OPTIONS_SCHEDULE = OPTION_TTL | OPTION_GROUP | OPTION_TENANT | OPTION_HEADERS

_HEAD = struct.Struct("<QBB")  # queue, options, priority

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Put one message into a queue; its id is the index of the entry."""

    queue: int
    body: bytes
    priority: int = PRIORITY_DEFAULT
    delay_ns: int | None = None  # from the entry's timestamp
    at_ns: int | None = None  # absolute; not together with a delay
    ttl_ns: int | None = None  # from the entry's timestamp; None: as the queue says
    dedup: bytes = b""
    group: bytes = b""
    tenant: bytes = b""
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class ScheduleCreate:
    """Let a queue send itself a message whenever a cron expression says so."""

    queue: int
    cron: bytes
    body: bytes
    priority: int = PRIORITY_DEFAULT
    ttl_ns: int | None = None
    group: bytes = b""
    tenant: bytes = b""
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Message:
    """What a message carries."""

    headers: Headers
    body: bytes


def encode_enqueue(command: Enqueue) -> bytes:
    """Return the body of an ``enqueue`` entry."""
    options = 0
    parts = []
    if command.delay_ns is not None:
        options |= OPTION_DELAY
        parts.append(U64.pack(command.delay_ns))
    if command.at_ns is not None:
        options |= OPTION_AT
        parts.append(U64.pack(command.at_ns))
    if command.ttl_ns is not None:
        options |= OPTION_TTL
        parts.append(U64.pack(command.ttl_ns))
    if command.dedup:
        options |= OPTION_DEDUP
        parts.append(encode_sized(U8, command.dedup))
    more, keys = _encode_keys(command.group, command.tenant, command.headers)
    head = _HEAD.pack(command.queue, options | more, command.priority)
    return b"".join((head, *parts, keys, command.body))


def encode_schedule(command: ScheduleCreate) -> bytes:
    """Return the body of a ``schedule_create`` entry."""
    more, keys = _encode_keys(command.group, command.tenant, command.headers)
    ttl = b"" if command.ttl_ns is None else U64.pack(command.ttl_ns)
    head = _HEAD.pack(command.queue, more | (OPTION_TTL if ttl else 0), command.priority)
    return b"".join((head, encode_sized(U8, command.cron), ttl, keys, command.body))


def read_enqueue(reader: Reader) -> Enqueue:
    """Read what ``encode_enqueue`` writes."""
    queue, options, priority = _read_head(reader, _OPTIONS_ENQUEUE)
    delay_ns = at_ns = None
    if options & OPTION_DELAY and options & OPTION_AT:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    if options & OPTION_DELAY:
        delay_ns = reader.number(U64)
        if delay_ns > DELAY_NS_MAX:
            raise BadPayload(Reason.DELAY_INVALID, delay_ns)
    if options & OPTION_AT:
        at_ns = reader.number(U64)
    ttl_ns = _read_ttl(reader) if options & OPTION_TTL else None
    dedup = _read_key(reader) if options & OPTION_DEDUP else b""
    group = _read_key(reader) if options & OPTION_GROUP else b""
    tenant = _read_key(reader) if options & OPTION_TENANT else b""
    headers = _read_headers(reader) if options & OPTION_HEADERS else ()
    body = _read_body(reader)
    return Enqueue(queue, body, priority, delay_ns, at_ns, ttl_ns, dedup, group, tenant, headers)


def read_schedule(reader: Reader) -> ScheduleCreate:
    """Read what ``encode_schedule`` writes."""
    queue, options, priority = _read_head(reader, _OPTIONS_SCHEDULE)
    cron = reader.sized(U8)
    assert len(cron) <= CRON_SIZE_MAX, "its size is one byte"
    ttl_ns = _read_ttl(reader) if options & OPTION_TTL else None
    group = _read_key(reader) if options & OPTION_GROUP else b""
    tenant = _read_key(reader) if options & OPTION_TENANT else b""
    headers = _read_headers(reader) if options & OPTION_HEADERS else ()
    return ScheduleCreate(queue, cron, _read_body(reader), priority, ttl_ns, group, tenant, headers)


def decode_message(entry: Entry) -> Message:
    """Return the message that an entry of the log brought; raise ``BadPayload`` for others."""
    _, reader = read_prefix(entry.plain_payload())
    if entry.entry_type == TYPE_ENQUEUE:
        sent = read_enqueue(reader)
        return Message(sent.headers, sent.body)
    if entry.entry_type == TYPE_SCHEDULE_CREATE:
        made = read_schedule(reader)
        return Message(made.headers, made.body)
    raise BadPayload(Reason.OPERATION_UNKNOWN, entry.entry_type & 0xFF)


def _encode_keys(group: bytes, tenant: bytes, headers: Headers) -> tuple[int, bytes]:
    options = 0
    parts = []
    if group:
        options |= OPTION_GROUP
        parts.append(encode_sized(U8, group))
    if tenant:
        options |= OPTION_TENANT
        parts.append(encode_sized(U8, tenant))
    if headers:
        options |= OPTION_HEADERS
        parts.append(U16.pack(len(headers)))
        parts += (encode_sized(U8, name) + encode_sized(U16, value) for name, value in headers)
    return options, b"".join(parts)


def _read_head(reader: Reader, options_known: int) -> tuple[int, int, int]:
    queue, options, priority = reader.fields(_HEAD)
    if options & ~options_known:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    if priority > PRIORITY_MAX:
        raise BadPayload(Reason.PRIORITY_INVALID, priority)
    return queue, options, priority


def _read_ttl(reader: Reader) -> int:
    ttl_ns = reader.number(U64)
    if not 1 <= ttl_ns <= TTL_NS_MAX:
        raise BadPayload(Reason.TTL_INVALID, ttl_ns)
    return ttl_ns


def _read_key(reader: Reader) -> bytes:
    key = reader.sized(U8)
    if not 1 <= len(key) <= MESSAGE_KEY_SIZE_MAX:
        raise BadPayload(Reason.MESSAGE_KEY_INVALID, len(key))
    return key


def _read_headers(reader: Reader) -> Headers:
    headers = []
    count = reader.count(HEADERS_MAX)
    if not count:  # there is one way to have none, so that equal messages have equal bytes
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, 0)
    for _ in range(count):
        name, value = reader.sized(U8), reader.sized(U16)
        if not 1 <= len(name) <= HEADER_NAME_SIZE_MAX or name.startswith(HEADERS_RESERVED):
            raise BadPayload(Reason.HEADER_INVALID, len(name))
        if len(value) > HEADER_VALUE_SIZE_MAX:
            raise BadPayload(Reason.HEADER_INVALID, len(value))
        headers.append((name, value))
    return tuple(headers)


def _read_body(reader: Reader) -> bytes:
    body = reader.rest()
    if len(body) > MESSAGE_SIZE_MAX:
        raise BadPayload(Reason.MESSAGE_TOO_LARGE, len(body))
    return body
