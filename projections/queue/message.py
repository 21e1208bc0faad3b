"""Messages as they stand in the log: what a producer sends, and how a consumer reads it back.

The state of a queue holds indexes only. Body and headers stay in the entry that brought them: an
``enqueue``, or a ``schedule_create`` for the messages that a schedule makes. ``decode_message``
reads either of them, for whoever serves a lease or a peek.
"""

import struct
from dataclasses import dataclass

from onelog.projections.codec import U8, U16, U64, Reader, encode_sized, read_prefix
from onelog.projections.errors import BadPayload
from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.queue.limits import (
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
from onelog.projections.reasons import Reason
from onelog.ual.entry import OWNER_QUEUE, Entry

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
_unpack_u64 = U64.unpack_from

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


Sent = tuple[int, int | None, int | None, int | None, bytes, bytes, bytes, Headers, int]
"""Priority, delay, time, lifetime, dedup id, group, tenant, headers; where the body begins."""


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
    queue = reader.number(U64)
    data = reader.rest()
    sent = scan_enqueue(data, 0)
    return Enqueue(queue, data[sent[-1] :], *sent[:-1])


def scan_enqueue(data: bytes, at: int) -> Sent:
    """Read what an ``enqueue`` entry has behind the queue's id, at ``at``, but for the body."""
    if len(data) < at + 2:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    options, priority = data[at], data[at + 1]
    if options & ~_OPTIONS_ENQUEUE:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    if priority > PRIORITY_MAX:
        raise BadPayload(Reason.PRIORITY_INVALID, priority)
    if options & OPTION_DELAY and options & OPTION_AT:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    at += 2
    delay_ns = at_ns = ttl_ns = None
    dedup = group = tenant = b""
    headers: Headers = ()
    try:
        if options & OPTION_DELAY:
            (delay_ns,) = _unpack_u64(data, at)
            at += 8
            if delay_ns > DELAY_NS_MAX:
                raise BadPayload(Reason.DELAY_INVALID, delay_ns)
        if options & OPTION_AT:
            (at_ns,) = _unpack_u64(data, at)
            at += 8
        if options & OPTION_TTL:
            (ttl_ns,) = _unpack_u64(data, at)
            at += 8
            if not 1 <= ttl_ns <= TTL_NS_MAX:
                raise BadPayload(Reason.TTL_INVALID, ttl_ns)
        if options & OPTION_DEDUP:
            dedup, at = _scan_key(data, at)
        if options & OPTION_GROUP:
            group, at = _scan_key(data, at)
        if options & OPTION_TENANT:
            tenant, at = _scan_key(data, at)
        if options & OPTION_HEADERS:
            headers, at = _scan_headers(data, at)
    except (struct.error, IndexError) as error:
        raise BadPayload(Reason.PAYLOAD_TRUNCATED) from error
    if len(data) - at > MESSAGE_SIZE_MAX:
        raise BadPayload(Reason.MESSAGE_TOO_LARGE, len(data) - at)
    return priority, delay_ns, at_ns, ttl_ns, dedup, group, tenant, headers, at


def read_schedule(reader: Reader) -> ScheduleCreate:
    """Read what ``encode_schedule`` writes."""
    queue, options, priority = reader.fields(_HEAD)
    if options & ~_OPTIONS_SCHEDULE:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    if priority > PRIORITY_MAX:
        raise BadPayload(Reason.PRIORITY_INVALID, priority)
    cron = reader.sized(U8)
    assert len(cron) <= CRON_SIZE_MAX, "its size is one byte"
    # The rest is as in an enqueue with these options.
    data = bytes((options, priority)) + reader.rest()
    _, _, _, ttl_ns, _, group, tenant, headers, body_at = scan_enqueue(data, 0)
    return ScheduleCreate(queue, cron, data[body_at:], priority, ttl_ns, group, tenant, headers)


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


def _scan_key(data: bytes, at: int) -> tuple[bytes, int]:
    size = data[at]
    end = at + 1 + size
    if end > len(data):
        raise BadPayload(Reason.PAYLOAD_TRUNCATED)
    if not 1 <= size <= MESSAGE_KEY_SIZE_MAX:
        raise BadPayload(Reason.MESSAGE_KEY_INVALID, size)
    return data[at + 1 : end], end


def _scan_headers(data: bytes, at: int) -> tuple[Headers, int]:
    headers = []
    count = data[at] | data[at + 1] << 8
    at += 2
    if count > HEADERS_MAX:
        raise BadPayload(Reason.PAYLOAD_COUNT_TOO_LARGE, count)
    if not count:  # there is one way to have none, so that equal messages have equal bytes
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, 0)
    for _ in range(count):
        name_at, name_end = at + 1, at + 1 + data[at]
        value_size = data[name_end] | data[name_end + 1] << 8
        value_at = name_end + 2
        at = value_at + value_size
        if at > len(data):
            raise BadPayload(Reason.PAYLOAD_TRUNCATED)
        name = data[name_at:name_end]
        if not 1 <= len(name) <= HEADER_NAME_SIZE_MAX or name.startswith(HEADERS_RESERVED):
            raise BadPayload(Reason.HEADER_INVALID, len(name))
        if value_size > HEADER_VALUE_SIZE_MAX:
            raise BadPayload(Reason.HEADER_INVALID, value_size)
        headers.append((name, data[value_at:at]))
    return tuple(headers), at
