"""Messages in the log, the settings of a queue, and the results of queue commands.

The state of a queue holds indexes only. Body and headers stay in the entry that brought them: an
``enqueue``, or a ``schedule_create`` for the messages that a schedule makes. ``decode_message``
reads either of them, to serve a lease or a peek.

``QueueConfig`` is what a queue is set to do: retries, dead letters, lifetimes, dedup window,
limits. A configuration is replaced whole. It is read when something happens, so a change never
walks over messages: a lower ``max_deliveries`` applies at the next failure, a default lifetime to
the next message.

``encode_leased``, ``encode_verdicts`` and ``encode_cursor`` write what leases, settles and purges
return (``Applied.value``). Sessions store results, so they have an encoding; docs/queue.md has the
tables. Decoding raises ``BadPayload`` for entries and ``BadResult`` for results.
"""

import struct
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from onelog.projections.codec import U8, U16, U64, Reader, SectionReader, encode_sized, read_prefix
from onelog.projections.errors import BadPayload, BadResult
from onelog.projections.limits import TTL_NS_MAX, OutOfBounds, find_out_of_bounds
from onelog.projections.queue.limits import (
    BACKOFF_STEPS_MAX,
    CRON_SIZE_MAX,
    DEDUP_ENTRIES_DEFAULT,
    DEDUP_ENTRIES_MAX,
    DEDUP_WINDOW_NS_DEFAULT,
    DELAY_NS_MAX,
    DELIVERIES_MAX,
    HEADER_NAME_SIZE_MAX,
    HEADER_VALUE_SIZE_MAX,
    HEADERS_MAX,
    HEADERS_RESERVED,
    MESSAGE_KEY_SIZE_MAX,
    MESSAGE_SIZE_MAX,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    TENANT_WEIGHT_MAX,
    TENANT_WEIGHTS_MAX,
    VISIBILITY_NS_DEFAULT,
    VISIBILITY_NS_MAX,
)
from onelog.projections.queue.table import (
    DELIVERIES_SHIFT,
    HAS_DEAD,
    Dead,
    decode_dead,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied
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
    """Add one message to a queue; its id is the index of the entry."""

    queue: int
    body: bytes
    priority: int = PRIORITY_DEFAULT
    delay_ns: int | None = None  # from the entry's timestamp
    at_ns: int | None = None  # absolute; not together with a delay
    ttl_ns: int | None = None  # from the entry's timestamp; None: the queue's default
    dedup: bytes = b""
    group: bytes = b""
    tenant: bytes = b""
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class ScheduleCreate:
    """Add a message to a queue at each time of a cron expression."""

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
"""Priority, delay, time, lifetime, dedup id, group, tenant, headers, position of the body."""


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
    """Read the fields of an ``enqueue`` between queue id and body, from position ``at`` on."""
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
    """Decode the message of an entry; raise ``BadPayload`` if the entry holds none."""
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
    if not count:  # no headers have one encoding, so that equal messages have equal bytes
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


# Settings

# max_deliveries, dead_queue, visibility, ageing, ttl, dedup window, dedup entries, messages
CONFIG = struct.Struct("<HQQQQQIQ")
CONFIG_SIZE = 54
assert CONFIG.size == CONFIG_SIZE


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Settings of one queue."""

    max_deliveries: int = 0  # failures after which a message is dead; 0: never
    dead_queue: int = 0  # id of the queue that takes dead letters; needed with max_deliveries
    visibility_ns: int = VISIBILITY_NS_DEFAULT  # default length of a lease
    ageing_ns: int = 0  # waiting time worth one step of priority; 0: priority is strict
    ttl_ns: int = 0  # default lifetime of a message; 0: none
    dedup_window_ns: int = DEDUP_WINDOW_NS_DEFAULT
    dedup_max: int = DEDUP_ENTRIES_DEFAULT  # ids remembered; 0: no dedup
    messages_max: int = 0  # live messages; 0: no limit
    backoff_ns: tuple[int, ...] = ()  # delay after the first, second, … failure; the last repeats
    # Messages that a tenant gets in its turn, by name, ascending; a tenant that is not here: 1.
    tenant_weights: tuple[tuple[bytes, int], ...] = ()

    def invalid(self) -> OutOfBounds | None:
        """Return the first setting that is outside its bounds, None if all are inside."""
        return find_out_of_bounds((
            ("max_deliveries", self.max_deliveries, 0, DELIVERIES_MAX),
            ("visibility_ns", self.visibility_ns, 1, VISIBILITY_NS_MAX),
            ("ageing_ns", self.ageing_ns, 0, TTL_NS_MAX),
            ("ttl_ns", self.ttl_ns, 0, TTL_NS_MAX),
            ("dedup_window_ns", self.dedup_window_ns, 0, TTL_NS_MAX),
            ("dedup_max", self.dedup_max, 0, DEDUP_ENTRIES_MAX),
            *(("backoff_ns", delay_ns, 0, DELAY_NS_MAX) for delay_ns in self.backoff_ns),
            ("the number of backoff_ms", len(self.backoff_ns), 0, BACKOFF_STEPS_MAX),
            *((f"the weight of tenant {name!r}", weight, 1, TENANT_WEIGHT_MAX)
              for name, weight in self.tenant_weights),
            *(("the size of a tenant with a weight", len(name), 0, MESSAGE_KEY_SIZE_MAX)
              for name, _ in self.tenant_weights),
            ("the number of tenant_weights", len(self.tenant_weights), 0, TENANT_WEIGHTS_MAX),
        ))  # fmt: skip

    def find_weight(self, tenant: bytes) -> int:
        """Return how many messages a tenant gets in its turn."""
        weights = self.tenant_weights
        if not weights:
            return 1
        at = bisect_left(weights, (tenant,))
        return weights[at][1] if at < len(weights) and weights[at][0] == tenant else 1

    def backoff_after(self, failures: int) -> int:
        """Return the delay after this number of failures."""
        if not self.backoff_ns:
            return 0
        return self.backoff_ns[min(max(failures, 1), len(self.backoff_ns)) - 1]

    def encode(self) -> bytes:
        """Return the bytes of docs/queue.md in an entry: weights only if there are any."""
        return self.encode_settings() + (self.encode_weights() if self.tenant_weights else b"")

    def encode_settings(self) -> bytes:
        """Return the bytes of everything but the weights."""
        fixed = CONFIG.pack(
            self.max_deliveries,
            self.dead_queue,
            self.visibility_ns,
            self.ageing_ns,
            self.ttl_ns,
            self.dedup_window_ns,
            self.dedup_max,
            self.messages_max,
        )
        delays = b"".join(map(U64.pack, self.backoff_ns))
        return fixed + U8.pack(len(self.backoff_ns)) + delays

    def encode_weights(self) -> bytes:
        """Return the bytes of the weights."""
        weights = (encode_sized(U8, name) + U16.pack(each) for name, each in self.tenant_weights)
        return U8.pack(len(self.tenant_weights)) + b"".join(weights)


def read_settings(reader: Reader | SectionReader) -> QueueConfig:
    """Read a configuration without weights; the caller checks ``invalid``."""
    fixed = reader.fields(CONFIG)
    fields: list[Any] = [*fixed, tuple(reader.number(U64) for _ in range(reader.number(U8)))]
    return QueueConfig(*fields)


def read_weights(reader: Reader | SectionReader) -> tuple[tuple[bytes, int], ...] | None:
    """Read the weights of tenants; None if they are out of order."""
    count = reader.number(U8)
    weights = tuple((reader.sized(U8), reader.number(U16)) for _ in range(count))
    names = [name for name, _ in weights]
    return weights if all(before < after for before, after in pairwise(names)) else None


def read_config(reader: Reader) -> QueueConfig:
    """Read a configuration at the end of an entry; the caller checks ``invalid``."""
    config = read_settings(reader)
    if not reader.left:
        return config
    weights = read_weights(reader)
    if not weights:
        raise BadPayload(Reason.QUEUE_CONFIG_INVALID)
    return replace(config, tenant_weights=weights)


# Results

LEASE_HEAD = struct.Struct("<QQH")  # token, deadline_ns, count
LEASE_ROW = struct.Struct("<QQI")  # id, body_index, deliveries << 16 | flags
_CURSOR = struct.Struct("<Q")

ACKED = Applied(1)  # the result of an ack of one message, shared because it is so common


class LeasedMessage(NamedTuple):
    """A message that a lease got; ``body_index`` is the entry that holds body and headers.

    A tuple: a frozen dataclass takes 1.3 instead of 0.5 µs to make, and a lease has many.
    """

    id: int
    body_index: int
    deliveries: int
    dead: Dead | None = None


@dataclass(frozen=True, slots=True)
class Leased:
    """The result of a lease: all messages have one token and one deadline."""

    token: int
    deadline_ns: int
    messages: tuple[LeasedMessage, ...]


def dead_headers(message_id: int, dead: Dead) -> dict[str, str]:
    """Return the four headers of a dead letter."""
    return {
        "dlq.original_msg_id": str(message_id),
        "dlq.retry_count": str(dead.retry_count),
        "dlq.failure_reason": dead.failure.decode(errors="replace"),
        "dlq.last_failure": str(dead.failed_ns),
    }


def decode_leased(result: Applied) -> Leased:
    """Decode the result of a lease; raise ``BadResult`` for other bytes."""
    if result.value is None:
        return Leased(0, 0, ())
    data = result.value
    try:
        token, deadline_ns, count = LEASE_HEAD.unpack_from(data)
        at = LEASE_HEAD.size
        if len(data) == at + count * LEASE_ROW.size:
            rows = list(LEASE_ROW.iter_unpack(memoryview(data)[at:]))
            if not any(row[2] & HAS_DEAD for row in rows):  # the usual case: no dead letters
                alive = [LeasedMessage(row[0], row[1], row[2] >> DELIVERIES_SHIFT) for row in rows]
                return Leased(token, deadline_ns, tuple(alive))
        messages = []
        for _ in range(count):
            message_id, body_index, meta = LEASE_ROW.unpack_from(data, at)
            at += LEASE_ROW.size
            dead = None
            if meta & HAS_DEAD:
                dead, at = decode_dead(data, at)
            messages.append(LeasedMessage(message_id, body_index, meta >> DELIVERIES_SHIFT, dead))
    except struct.error as error:
        raise BadResult(f"{len(data)} bytes are not what a lease got") from error
    if at != len(data):
        raise BadResult(f"{len(data) - at} bytes behind what a lease got")
    return Leased(token, deadline_ns, tuple(messages))


def encode_verdicts(verdicts: list[Reason | None]) -> bytes | None:
    """Return one byte per item, 0 where it took effect; None if all did."""
    if not any(verdicts):
        return None
    return bytes(0 if verdict is None else int(verdict) for verdict in verdicts)


def decode_verdicts(result: Applied, item_count: int) -> list[Reason | None]:
    """Return why each item was refused, None where it took effect."""
    if result.value is None:
        return [None] * item_count
    if len(result.value) != item_count:
        raise BadResult(f"{len(result.value)} verdicts about {item_count} items")
    try:
        return [Reason(code) if code else None for code in result.value]
    except ValueError as error:
        raise BadResult(str(error)) from error


def encode_cursor(message_id: int) -> bytes:
    """Encode where to continue a purge, or the id of a redrive that continues by itself."""
    return _CURSOR.pack(message_id)


def decode_cursor(result: Applied) -> int | None:
    """Decode where to continue; None if all is done."""
    if result.value is None:
        return None
    if len(result.value) != _CURSOR.size:
        raise BadResult(f"{len(result.value)} bytes are no cursor")
    (message_id,) = _CURSOR.unpack(result.value)
    return int(message_id)
