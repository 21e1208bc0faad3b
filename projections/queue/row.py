"""A message as the state knows it, and the canonical bytes of that.

``encode_row`` makes the bytes that the state hash hashes and a snapshot holds: equal rows have
equal bytes, whatever columns, heaps and lists they came from. ``meta`` packs what every message
has into 32 bits, and says which of the other fields there are.

Invariants of a row: a READY message has neither due time nor token; a DELAYED one has a due time;
a LEASED one has a due time (its lease's end) and a token (the index of the lease entry). ``body``
is 0 where the message's own entry holds the body, else the index of the entry that does.
"""

import struct
from typing import NamedTuple

from onelog.projections.codec import U8, U16, U64
from onelog.projections.queue.limits import (
    FAILURE_SIZE_MAX,
    MESSAGE_KEY_SIZE_MAX,
)
from onelog.projections.section import SectionReader

READY = 0
DELAYED = 1
LEASED = 2
STATES = 3

# meta: bits 0-1 state, 2-5 priority, 8-12 which fields follow, 16-31 deliveries
STATE_MASK = 0x03
PRIORITY_SHIFT = 2
PRIORITY_MASK = 0x0F
HAS_EXPIRES = 0x0100
HAS_BODY = 0x0200
HAS_GROUP = 0x0400
HAS_TENANT = 0x0800
HAS_DEAD = 0x1000
UNUSUAL = 0x1F00
DELIVERY = 0x10000
DELIVERIES_SHIFT = 16
PLAIN_META = 0xFFFF_003C  # all that a ready message without any option may have
_META_KNOWN = 0xFFFF_1F3F

PLAIN = struct.Struct("<QQI")  # id, since_ns, meta
DELAYED_ROW = struct.Struct("<QQIQ")  # …, due_ns
LEASED_ROW = struct.Struct("<QQIQQ")  # …, due_ns, token
_DEAD = struct.Struct("<QHQH")  # source, retry_count, failed_ns, size of the failure


class Dead(NamedTuple):
    """Why and where a message died; kept when it is redriven."""

    source: int  # id of the queue that it died in
    retry_count: int
    failed_ns: int
    failure: bytes


class Row(NamedTuple):
    """One live message of one queue."""

    id: int
    since_ns: int  # waiting from here on: when it was enqueued or due, died, or was redriven
    state: int
    priority: int
    deliveries: int = 0
    due_ns: int = 0
    token: int = 0
    expires_ns: int = 0
    body: int = 0
    group: bytes = b""
    tenant: bytes = b""
    dead: Dead | None = None

    @property
    def body_index(self) -> int:
        """The index of the entry that holds body and headers."""
        return self.body or self.id


def meta_of(row: Row) -> int:
    """Return the packed form of what every message has."""
    meta = row.state | row.priority << PRIORITY_SHIFT | row.deliveries << DELIVERIES_SHIFT
    if row.expires_ns:
        meta |= HAS_EXPIRES
    if row.body:
        meta |= HAS_BODY
    if row.group:
        meta |= HAS_GROUP
    if row.tenant:
        meta |= HAS_TENANT
    if row.dead is not None:
        meta |= HAS_DEAD
    return meta


def encode_state(message_id: int, since_ns: int, meta: int, due_ns: int, token: int) -> bytes:
    """Return the canonical bytes of a row up to what only some messages have."""
    state = meta & STATE_MASK
    if state == LEASED:
        return LEASED_ROW.pack(message_id, since_ns, meta, due_ns, token)
    if state == DELAYED:
        return DELAYED_ROW.pack(message_id, since_ns, meta, due_ns)
    return PLAIN.pack(message_id, since_ns, meta)


def encode_row(row: Row) -> bytes:
    """Return the canonical bytes of a row."""
    meta = meta_of(row)
    head = encode_state(row.id, row.since_ns, meta, row.due_ns, row.token)
    if not meta & UNUSUAL:
        return head
    parts = [head]
    if row.expires_ns:
        parts.append(U64.pack(row.expires_ns))
    if row.body:
        parts.append(U64.pack(row.body))
    if row.group:
        parts += (U8.pack(len(row.group)), row.group)
    if row.tenant:
        parts += (U8.pack(len(row.tenant)), row.tenant)
    if row.dead is not None:
        parts.append(encode_dead(row.dead))
    return b"".join(parts)


def encode_dead(dead: Dead) -> bytes:
    """Return the bytes that say why a message died."""
    head = _DEAD.pack(dead.source, dead.retry_count, dead.failed_ns, len(dead.failure))
    return head + dead.failure


def decode_dead(data: bytes, at: int) -> tuple[Dead, int]:
    """Read what ``encode_dead`` wrote at ``at``; return it and where it ends."""
    source, retry_count, failed_ns, size = _DEAD.unpack_from(data, at)
    end = at + _DEAD.size + size
    return Dead(source, retry_count, failed_ns, data[at + _DEAD.size : end]), end


def read_row(reader: SectionReader, head: tuple[int, int, int]) -> Row:
    """Read the rest of a row from a snapshot section; its first three fields have been read."""
    message_id, since_ns, meta = head
    state = meta & STATE_MASK
    reader.expect(state < STATES and not meta & ~_META_KNOWN, f"a bad message {message_id}")
    due_ns = reader.number(U64) if state != READY else 0
    token = reader.number(U64) if state == LEASED else 0
    expires_ns = reader.number(U64) if meta & HAS_EXPIRES else 0
    body = reader.number(U64) if meta & HAS_BODY else 0
    group = _read_key(reader) if meta & HAS_GROUP else b""
    tenant = _read_key(reader) if meta & HAS_TENANT else b""
    dead = None
    if meta & HAS_DEAD:
        source, retry_count, failed_ns, size = reader.fields(_DEAD)
        reader.expect(size <= FAILURE_SIZE_MAX, "a failure that is too long")
        dead = Dead(source, retry_count, failed_ns, reader.take(size))
    row = Row(
        message_id,
        since_ns,
        state,
        meta >> PRIORITY_SHIFT & PRIORITY_MASK,
        meta >> DELIVERIES_SHIFT,
        due_ns,
        token,
        expires_ns,
        body,
        group,
        tenant,
        dead,
    )
    reader.expect(meta_of(row) == meta, f"fields of message {message_id} that are not there")
    reader.expect(state == READY or due_ns, f"message {message_id} is due at no time")
    reader.expect(state != LEASED or token, f"message {message_id} is leased to nobody")
    return row


def _read_key(reader: SectionReader) -> bytes:
    key = reader.sized(U8)
    reader.expect(1 <= len(key) <= MESSAGE_KEY_SIZE_MAX, "a bad group or tenant")
    return key


assert U16.size + 18 == _DEAD.size
