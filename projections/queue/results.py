"""What leases, acknowledgements and purges answer, as bytes (``Applied.value``) and as values.

Sessions keep results, so they have bytes; docs/queue.md has the tables.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from onelog.projections.errors import BadResult
from onelog.projections.queue.row import (
    DELIVERIES_SHIFT,
    HAS_DEAD,
    Dead,
    Row,
    decode_dead,
    encode_dead,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied

LEASE_HEAD = struct.Struct("<QQH")  # token, deadline_ns, count
LEASE_ROW = struct.Struct("<QQI")  # id, body_index, deliveries << 16 | flags
_CURSOR = struct.Struct("<Q")

ACKED = Applied(1)  # what an ack of one message gets, shared as it is so common


class LeasedMessage(NamedTuple):
    """A message that a lease got; ``body_index`` is the entry that holds body and headers.

    A tuple: a frozen dataclass takes 1.3 instead of 0.5 µs to make, and a lease has many.
    """

    id: int
    body_index: int
    deliveries: int
    dead: Dead | None = None

    def dead_headers(self) -> dict[str, str]:
        """Return the headers that tell how a message died; none for one that did not."""
        return {} if self.dead is None else dead_headers(self.id, self.dead)


@dataclass(frozen=True, slots=True)
class Leased:
    """What a lease got: all messages have one token and one deadline."""

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


def encode_leased(token: int, deadline_ns: int, rows: list[Row]) -> bytes:
    """Return the bytes of what a lease got; the rows are as leased."""
    parts = [LEASE_HEAD.pack(token, deadline_ns, len(rows))]
    for row in rows:
        flags = HAS_DEAD if row.dead is not None else 0
        parts.append(
            LEASE_ROW.pack(row.id, row.body_index, row.deliveries << DELIVERIES_SHIFT | flags)
        )
        if row.dead is not None:
            parts.append(encode_dead(row.dead))
    return b"".join(parts)


def decode_leased(result: Applied) -> Leased:
    """Return what a lease got; raise ``BadResult`` for what is no such result."""
    if result.value is None:
        return Leased(0, 0, ())
    data = result.value
    try:
        token, deadline_ns, count = LEASE_HEAD.unpack_from(data)
        at = LEASE_HEAD.size
        if len(data) == at + count * LEASE_ROW.size:
            rows = list(LEASE_ROW.iter_unpack(memoryview(data)[at:]))
            if not any(row[2] & HAS_DEAD for row in rows):  # most of all: none has died before
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
    """Return where to go on with a purge, or which redrive goes on by itself."""
    return _CURSOR.pack(message_id)


def decode_cursor(result: Applied) -> int | None:
    """Return where to go on, None if all is done."""
    if result.value is None:
        return None
    if len(result.value) != _CURSOR.size:
        raise BadResult(f"{len(result.value)} bytes are no cursor")
    (message_id,) = _CURSOR.unpack(result.value)
    return int(message_id)
