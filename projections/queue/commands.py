"""The operations of queues: commands, their bytes, what they do, and their descriptions.

An operation is a dataclass, the codec of its body, the method of ``QueueWrites`` that executes it,
and its row in ``QUEUE_OPERATIONS`` at the end of this file, from which everything else is derived.
The tables are in docs/queue.md and golden files pin the bytes. Decoding checks everything that does
not depend on the state. A queue is named by its id, the index of its creation: a queue that was
deleted and created again has another id, and a command for the first one is refused.

Enqueue, lease and ack take spans of entries; the other commands are executed one at a time. A
refusal changes nothing. A command that names several messages has a result for each of them. A
command that names a single message, or is ``strict``, is refused as a whole if any part of it
cannot be done; the others do what they can and return a reason per message.

Failures: after a failed delivery (a nack, or a lease that ran out) the message waits for its
backoff. After ``max_deliveries`` failures it moves to the dead-letter queue, in the same apply,
with the reason. It keeps its id: ids are indexes of the log, which are unique, and moving makes no
second message. A dead-letter queue cannot be full, cannot be deleted while it is in use, and does
not expire its messages.

A redrive walks over the dead letters in the order of ids. What one entry may move is bounded; the
leader proposes ``redrive_step`` entries for the rest, at the requested rate.
"""

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from sys import byteorder
from typing import Any, NamedTuple

from onelog.projections.codec import (
    U8,
    U16,
    U64,
    Ranges,
    Reader,
    encode_prefix,
    encode_ranges,
    encode_sized,
    parse_namespace,
    read_prefix,
    read_ranges,
)
from onelog.projections.errors import BadPayload
from onelog.projections.limits import U64_MAX
from onelog.projections.projection import Commands, Operation, Position
from onelog.projections.queue.changes import Kind, Note, QueueChanges
from onelog.projections.queue.cron import BadCron, parse_cron
from onelog.projections.queue.deadlines import Wakeups
from onelog.projections.queue.limits import (
    CRON_DAYS_MAX,
    DELAY_NS_MAX,
    FAILURE_SIZE_MAX,
    GROUPS_MAX,
    ITEMS_MAX,
    LEASED_MAX,
    MESSAGE_KEY_SIZE_MAX,
    MESSAGE_SIZE_MAX,
    PRIORITY_MAX,
    PURGE_MESSAGES_MAX,
    PURGE_VISITS_MAX,
    QUEUE_NAME_SIZE_MAX,
    QUEUES_MAX,
    REDRIVE_STEP_MAX,
    REDRIVE_STEPS_PER_S,
    REDRIVE_VISITS_MAX,
    REDRIVES_MAX,
    SCHEDULES_MAX,
    SECOND_NS,
    TENANTS_MAX,
    VISIBILITY_NS_MAX,
)
from onelog.projections.queue.message import (
    ACKED,
    LEASE_HEAD,
    OPTION_DEDUP,
    Enqueue,
    QueueConfig,
    ScheduleCreate,
    decode_verdicts,
    encode_cursor,
    encode_enqueue,
    encode_schedule,
    encode_verdicts,
    read_config,
    read_enqueue,
    read_schedule,
    scan_enqueue,
)
from onelog.projections.queue.reads import QueueReads
from onelog.projections.queue.store import QueueState, RunningRedrive, Schedule, Total
from onelog.projections.queue.table import (
    DELAYED,
    DELIVERIES_SHIFT,
    DELIVERY,
    DUE,
    HAS_EXPIRES,
    HAS_GROUP,
    HAS_TENANT,
    LEASED,
    PRIORITY_MASK,
    PRIORITY_SHIFT,
    READY,
    STATE_MASK,
    TOKEN,
    UNUSUAL,
    Dead,
    Row,
    Span,
    Table,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused, applied
from onelog.projections.undo import UndoLog
from onelog.ual.entry import OWNER_QUEUE, Entry
from onelog.ual.errors import DataError

TYPE_LEASE = OWNER_QUEUE << 8 | 0x02
TYPE_ACK = OWNER_QUEUE << 8 | 0x03

OPTION_STRICT = 0x01
OPTION_NACK_DELAY = 0x02
OPTION_PURGE_LEASED = 0x01

FAILURE_LEASE_EXPIRED = b"lease expired"

_LEASE = struct.Struct("<QHQ")  # queue, count, visibility
_ITEM = struct.Struct("<QQ")  # id, token
_SETTLE = struct.Struct("<QB")  # queue, options
_PURGE = struct.Struct("<QBQQQI")  # queue, options, from_id, below_id, before_ns, limit
# queue, target, first_id, last_id, failed_from_ns, failed_until_ns, limit, rate_per_s
_REDRIVE = struct.Struct("<QQQQQQQI")
_THREE = struct.Struct("<QQQ")
_unpack_lease = struct.Struct("<HQ").unpack_from  # count, visibility
_LEASE_SIZE = 10
_COUNTED = struct.Struct("<BH")  # options, count
_ONE = _COUNTED.pack(0, 1), _COUNTED.pack(OPTION_STRICT, 1)
_NEVER = b"\xff"  # no payload begins with it
_BODY_AT = 2  # of an enqueue: after options and priority
_OPTIONS_AT = 8  # of an enqueue: after the queue
_TAKEN = DELIVERY | LEASED
_PRIORITY_BITS = PRIORITY_MASK << PRIORITY_SHIFT


Items = tuple[tuple[int, int], ...]
"""Pairs of a message's id and the token of its lease."""

Queues = Mapping[int, QueueState]


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease up to ``count`` messages (visibility 0: the queue's default).

    ``consumer`` names the client that they are pushed to. The state does not keep it: who needs it
    finds this entry by the token of a lease, which is its index. The log has it for as long as
    anything is leased by it: the content of a message is before it, and a log is trimmed at its
    start only.

    ``passed`` are ranges of entries, ascending: messages whose bodies are there are passed over,
    and so are those behind them in their groups. A leader that cannot read them names them.
    """

    queue: int
    count: int = 1
    visibility_ns: int = 0
    consumer: bytes = b""
    passed: Ranges = ()


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge leased messages: they are removed. ``strict``: all of them or none."""

    queue: int
    items: Items
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Nack:
    """Report failed deliveries; without a delay the messages wait for the queue's backoff."""

    queue: int
    items: Items
    delay_ns: int | None = None
    failure: bytes = b""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Extend:
    """Extend leases to ``visibility_ns`` from now (0: the queue's default)."""

    queue: int
    items: Items
    visibility_ns: int = 0
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """End leases as if the messages had not been delivered: no failure is counted."""

    queue: int
    items: Items
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Remove messages that are not leased."""

    queue: int
    ids: tuple[int, ...]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Prioritise:
    """Change the priority of messages; their age stays."""

    queue: int
    ids: tuple[int, ...]
    priority: int
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Purge:
    """Remove messages with an id in range that were due before a time (0: no bound)."""

    queue: int
    from_id: int = 0
    below_id: int = 0
    before_ns: int = 0
    limit: int = PURGE_MESSAGES_MAX
    leased_too: bool = False


@dataclass(frozen=True, slots=True)
class Redrive:
    """Move matching dead letters back to the queue that they came from, or to ``target``."""

    queue: int
    target: int = 0
    first_id: int = 0
    last_id: int = 0  # 0: no bound, as for the others
    failed_from_ns: int = 0
    failed_until_ns: int = 0
    limit: int = 0
    rate_per_s: int = 0
    failure: bytes = b""  # a substring of the failure reason


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """Run the next step of a redrive; proposed by the leader."""

    queue: int
    redrive: int
    cursor: int


@dataclass(frozen=True, slots=True)
class RedriveCancel:
    """Stop a redrive."""

    queue: int
    redrive: int


@dataclass(frozen=True, slots=True)
class ScheduleDelete:
    """Delete a schedule; the messages that it made stay."""

    queue: int
    schedule: int


@dataclass(frozen=True, slots=True)
class ScheduleFire:
    """Fire a schedule that is due; proposed by the leader. Its index is the message's id."""

    queue: int
    schedule: int
    fire_ns: int


@dataclass(frozen=True, slots=True)
class QueueCreate:
    """Create a queue; its id is the index of the entry."""

    name: str
    config: QueueConfig


@dataclass(frozen=True, slots=True)
class QueueConfigure:
    """Replace the configuration of a queue."""

    queue: int
    config: QueueConfig


@dataclass(frozen=True, slots=True)
class QueueDelete:
    """Delete a queue and its messages."""

    queue: int


@dataclass(frozen=True, slots=True)
class QueuePause:
    """Refuse leases until the queue is resumed."""

    queue: int


@dataclass(frozen=True, slots=True)
class QueueResume:
    """Allow leases again."""

    queue: int


Settle = Ack | Nack | Extend | Release
Command = (
    Enqueue
    | Lease
    | Settle
    | Cancel
    | Prioritise
    | Purge
    | Redrive
    | RedriveStep
    | RedriveCancel
    | ScheduleCreate
    | ScheduleDelete
    | ScheduleFire
    | QueueCreate
    | QueueConfigure
    | QueueDelete
    | QueuePause
    | QueueResume
)


def _encode_lease(command: Lease) -> bytes:
    body = _LEASE.pack(command.queue, command.count, command.visibility_ns)
    body += encode_ranges(command.passed)
    if not command.consumer:
        return body
    if not command.passed:
        body += U16.pack(0)
    return body + encode_sized(U8, command.consumer)


def _encode_settle(command: Settle) -> bytes:
    options = OPTION_STRICT if command.strict else 0
    fields = b""
    if isinstance(command, Nack):
        fields = encode_sized(U16, command.failure)
        if command.delay_ns is not None:
            options |= OPTION_NACK_DELAY
            fields = U64.pack(command.delay_ns) + fields
    elif isinstance(command, Extend):
        fields = U64.pack(command.visibility_ns)
    items = b"".join(_ITEM.pack(*item) for item in command.items)
    return _SETTLE.pack(command.queue, options) + fields + U16.pack(len(command.items)) + items


def _encode_ids(ids: tuple[int, ...]) -> bytes:
    return U16.pack(len(ids)) + b"".join(map(U64.pack, ids))


def _encode_cancel(command: Cancel) -> bytes:
    return _SETTLE.pack(command.queue, command.strict) + _encode_ids(command.ids)


def _encode_prioritise(command: Prioritise) -> bytes:
    head = _SETTLE.pack(command.queue, command.strict) + U8.pack(command.priority)
    return head + _encode_ids(command.ids)


def _encode_purge(command: Purge) -> bytes:
    return _PURGE.pack(
        command.queue,
        command.leased_too,
        command.from_id,
        command.below_id,
        command.before_ns,
        command.limit,
    )


def _encode_redrive(command: Redrive) -> bytes:
    return _REDRIVE.pack(
        command.queue,
        command.target,
        command.first_id,
        command.last_id,
        command.failed_from_ns,
        command.failed_until_ns,
        command.limit,
        command.rate_per_s,
    ) + encode_sized(U8, command.failure)


def _encode_create(command: QueueCreate) -> bytes:
    return encode_sized(U8, command.name.encode()) + command.config.encode()


def _encode_queue(command: QueueDelete | QueuePause | QueueResume) -> bytes:
    return U64.pack(command.queue)


def _read_settle(reader: Reader, options_known: int = OPTION_STRICT) -> tuple[int, int]:
    queue, options = reader.fields(_SETTLE)
    if options & ~options_known:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    return queue, options


def _read_items(reader: Reader) -> Items:
    data = reader.take(_read_count(reader) * _ITEM.size)
    return tuple(_ITEM.iter_unpack(data))


def _read_ids(reader: Reader) -> tuple[int, ...]:
    count = _read_count(reader)
    return struct.unpack(f"<{count}Q", reader.take(count * U64.size))


def _read_count(reader: Reader) -> int:
    count = reader.count(ITEMS_MAX)
    if not count:
        raise BadPayload(Reason.LIMIT_INVALID, 0)
    return count


def _read_visibility(visibility_ns: int) -> int:
    if visibility_ns > VISIBILITY_NS_MAX:
        raise BadPayload(Reason.VISIBILITY_INVALID, visibility_ns)
    return visibility_ns


def _read_lease(reader: Reader) -> Lease:
    queue, count, visibility_ns = reader.fields(_LEASE)
    if not 1 <= count <= ITEMS_MAX:
        raise BadPayload(Reason.LIMIT_INVALID, count)
    consumer, passed = _read_lease_tail(reader)
    return Lease(queue, count, _read_visibility(visibility_ns), consumer, passed)


def _find_repeated_lease(body: bytes) -> bytes:
    """Return the lease as a client asked for it, whatever its leader could not read then."""
    return b"lease" + _encode_lease(replace(_read_lease(Reader(body)), passed=()))


def _read_lease_tail(reader: Reader) -> tuple[bytes, Ranges]:
    """Return the consumer of a lease, and what it passes over; either may be missing."""
    if not reader.left:
        return b"", ()
    passed = read_ranges(reader)
    if passed and not reader.left:
        return b"", passed
    consumer = reader.sized(U8)
    if not 1 <= len(consumer) <= MESSAGE_KEY_SIZE_MAX:
        raise BadPayload(Reason.MESSAGE_KEY_INVALID, len(consumer))
    return consumer, passed


def _read_ack(reader: Reader) -> Ack:
    queue, options = _read_settle(reader)
    return Ack(queue, _read_items(reader), bool(options))


def _read_nack(reader: Reader) -> Nack:
    queue, options = _read_settle(reader, OPTION_STRICT | OPTION_NACK_DELAY)
    delay_ns = reader.number(U64) if options & OPTION_NACK_DELAY else None
    if delay_ns is not None and delay_ns > DELAY_NS_MAX:
        raise BadPayload(Reason.DELAY_INVALID, delay_ns)
    failure = reader.sized(U16)
    if len(failure) > FAILURE_SIZE_MAX:
        raise BadPayload(Reason.FAILURE_TOO_LARGE, len(failure))
    return Nack(queue, _read_items(reader), delay_ns, failure, bool(options & OPTION_STRICT))


def _read_extend(reader: Reader) -> Extend:
    queue, options = _read_settle(reader)
    visibility_ns = _read_visibility(reader.number(U64))
    return Extend(queue, _read_items(reader), visibility_ns, bool(options))


def _read_release(reader: Reader) -> Release:
    queue, options = _read_settle(reader)
    return Release(queue, _read_items(reader), bool(options))


def _read_cancel(reader: Reader) -> Cancel:
    queue, options = _read_settle(reader)
    return Cancel(queue, _read_ids(reader), bool(options))


def _read_prioritise(reader: Reader) -> Prioritise:
    queue, options = _read_settle(reader)
    priority = reader.number(U8)
    if priority > PRIORITY_MAX:
        raise BadPayload(Reason.PRIORITY_INVALID, priority)
    return Prioritise(queue, _read_ids(reader), priority, bool(options))


def _read_purge(reader: Reader) -> Purge:
    queue, options, from_id, below_id, before_ns, limit = reader.fields(_PURGE)
    if options & ~OPTION_PURGE_LEASED:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, options)
    if not 1 <= limit <= PURGE_MESSAGES_MAX:
        raise BadPayload(Reason.LIMIT_INVALID, limit)
    return Purge(queue, from_id, below_id, before_ns, limit, bool(options))


def _read_redrive(reader: Reader) -> Redrive:
    numbers = reader.fields(_REDRIVE)
    failure = reader.sized(U8)
    if len(failure) > MESSAGE_KEY_SIZE_MAX:
        raise BadPayload(Reason.FAILURE_TOO_LARGE, len(failure))
    fields: list[Any] = [*numbers, failure]
    return Redrive(*fields)


def _read_create(reader: Reader) -> QueueCreate:
    name = reader.text(U8)
    size = len(name.encode())
    if not 1 <= size <= QUEUE_NAME_SIZE_MAX:
        raise BadPayload(Reason.QUEUE_NAME_INVALID, size)
    return QueueCreate(name, _read_valid_config(reader))


def _read_valid_config(reader: Reader) -> QueueConfig:
    config = read_config(reader)
    invalid = config.invalid()
    if invalid is not None:
        raise BadPayload(Reason.QUEUE_CONFIG_INVALID, invalid.value)
    return config


def _describe(command: Command) -> str:
    """Return the fields of a command that are not default; of long ones only the length."""
    shown = []
    for name in command.__slots__:
        value = getattr(command, name)
        if name in {"body", "items", "ids", "headers"}:
            shown.append(f"{name}[{len(value)}]")
        elif value not in (None, b"", False, ()):
            shown.append(f"{name}={value!r}")
    return " ".join(shown)


class Moment(NamedTuple):
    """Index and log time of the entry that is applied."""

    log_index: int
    now_ns: int


class QueueWrites(QueueReads):
    """Executes commands; methods that take spans of entries have the signature of a handler."""

    def __init__(self, position: Position) -> None:
        super().__init__(position)
        self.changes = QueueChanges()
        self._undo = UndoLog()
        self._wakeups = Wakeups(self._first_due)
        self._by_head: dict[bytes, QueueState] = {}  # by prefix and queue of a payload

    def enqueue(
        self, prefix: bytes, index: int, now_ns: int, payloads: Sequence[bytes]
    ) -> list[Outcome]:
        """Add messages, or find the earlier ones with the same dedup ids."""
        outcomes: list[Outcome] = []
        at = len(prefix) + U64.size
        size_min, size_max = at + _BODY_AT, at + _BODY_AT + MESSAGE_SIZE_MAX
        queue: QueueState | None = None
        head = plain = _NEVER  # the first bytes of payloads for the queue; of those without options
        added = 0
        for message_id, payload in enumerate(payloads, index):
            is_plain = payload.startswith(plain)
            if not is_plain and (queue is None or not payload.startswith(head)):
                if queue is not None and added:
                    queue.count(Total.ENQUEUED, added)
                head, plain, added = payload[:at], _NEVER, 0
                queue = self._by_head.get(head)
                if queue is None:
                    outcomes.append(self._refuse(Enqueue, prefix, payload))
                    continue
                if not queue.config.ttl_ns and not queue.config.messages_max:
                    plain = head + b"\x00"
                    is_plain = payload.startswith(plain)
                append = queue.append
            if (
                is_plain
                and size_min <= len(payload) <= size_max
                and payload[at + 1] <= PRIORITY_MAX
            ):
                append(message_id, now_ns, payload[at + 1] << PRIORITY_SHIFT)
                added += 1
                outcomes.append(APPLIED)
                continue
            assert queue is not None, "an entry is for a queue"
            outcome = self._enqueue_with_options(queue, message_id, now_ns, payload, at)
            added += outcome is APPLIED
            outcomes.append(outcome)
        if queue is not None and added:
            queue.count(Total.ENQUEUED, added)
        return outcomes

    def _enqueue_with_options(
        self, queue: QueueState, message_id: int, now_ns: int, payload: bytes, at: int
    ) -> Outcome:
        try:
            sent = scan_enqueue(payload, at)
        except BadPayload as error:
            return Refused(error.reason, error.detail)
        priority, delay_ns, at_ns, ttl_ns, dedup, group, tenant, _, _ = sent
        config, table, meta, ready_ns = queue.config, queue.table, priority << PRIORITY_SHIFT, 0
        has_dedup = bool(dedup and config.dedup_max)
        if has_dedup:
            first = queue.dedup.find(dedup, now_ns, config.dedup_window_ns)
            if first is not None:
                queue.count(Total.DUPLICATES)
                self.changes.add_nothing(message_id)
                return Applied(first)
        if delay_ns is not None or at_ns is not None:
            ready_ns = now_ns + (delay_ns or 0) if at_ns is None else at_ns
            if ready_ns - now_ns > DELAY_NS_MAX:
                return Refused(Reason.DELAY_INVALID, ready_ns - now_ns)
            if ready_ns > now_ns:
                meta |= DELAYED
            else:
                ready_ns = 0
        if (
            config.messages_max
            or len(table.groups.by_number) >= GROUPS_MAX
            or len(table.tenants.tails) >= TENANTS_MAX
        ):
            full = _lack_of_room(queue, group, tenant)
            if full is not None:
                return full
        if has_dedup:
            queue.dedup.add(dedup, message_id, now_ns)
            dropped = queue.dedup.trim(now_ns, config.dedup_window_ns, config.dedup_max)
            if dropped:
                queue.count(Total.DEDUP_DROPPED, dropped)
        if ttl_ns is None:
            ttl_ns = config.ttl_ns
        if ttl_ns:
            meta |= HAS_EXPIRES
        if group:
            meta |= HAS_GROUP
        if tenant:
            meta |= HAS_TENANT
        if meta & (STATE_MASK | UNUSUAL):
            expires_ns = now_ns + ttl_ns if ttl_ns else 0
            more = ready_ns, 0, expires_ns, 0, group, tenant, None
            queue.append(message_id, ready_ns or now_ns, meta, more)
        else:
            queue.append(message_id, now_ns, meta)
        return APPLIED

    def lease(
        self, prefix: bytes, index: int, now_ns: int, payloads: Sequence[bytes]
    ) -> list[Outcome]:
        """Lease the next messages; their token is the entry's index."""
        outcomes: list[Outcome] = []
        at = len(prefix) + U64.size
        while (done := len(outcomes)) < len(payloads):
            payload, stop = payloads[done], done + 1
            while stop < len(payloads) and payloads[stop] == payload:
                stop += 1
            queue, first = self._by_head.get(payload[:at]), index + done
            passed: Ranges | None = ()
            if len(payload) != at + _LEASE_SIZE:
                passed = _find_passed(payload, at + _LEASE_SIZE)
            if queue is None or passed is None:
                outcomes += [self._refuse(Lease, prefix, payload)] * (stop - done)
                continue
            count, visibility_ns = _unpack_lease(payload, at)
            if not 0 < count <= ITEMS_MAX or visibility_ns > VISIBILITY_NS_MAX:
                outcomes += [self._refuse(Lease, prefix, payload)] * (stop - done)
            elif queue.is_paused:
                outcomes += [Refused(Reason.QUEUE_PAUSED, queue.id)] * (stop - done)
            else:
                deadline_ns = now_ns + (visibility_ns or queue.config.visibility_ns)
                outcomes += self._lease_all(queue, first, stop - done, count, deadline_ns, passed)
        return outcomes

    def _lease_all(
        self,
        queue: QueueState,
        index: int,
        entry_count: int,
        count: int,
        deadline_ns: int,
        passed: Ranges,
    ) -> list[Outcome]:
        """Lease up to ``count`` messages for each of several entries, the first at ``index``."""
        outcomes: list[Outcome] = []
        room = LEASED_MAX - queue.counts[LEASED]
        if count * entry_count > room:
            if room <= 0:
                return [Refused(Reason.QUEUE_LEASES_FULL, LEASED_MAX)] * entry_count
            for token in range(index, index + entry_count):
                room = min(count, LEASED_MAX - queue.counts[LEASED]) or 1
                outcomes += self._lease_all(queue, token, 1, room, deadline_ns, passed)
            return outcomes
        tokens: Sequence[int] = range(index, index + entry_count)
        if entry_count == 1:
            tokens = (index,) if count == 1 else array("Q", (index,)) * count
        elif count > 1:
            tokens = array("Q", [token for token in tokens for _ in range(count)])
        rows = queue.lease(tokens, deadline_ns, passed)
        for at in range(0, entry_count * count, count):
            part = rows if entry_count == 1 else rows[at : at + count]
            if not part:
                outcomes.append(APPLIED)
                continue
            token = tokens[at]
            value = LEASE_HEAD.pack(token, deadline_ns, len(part)) + b"".join(part)
            self.changes.add_lease(token, queue.id, value)
            outcomes.append(applied(len(part), value))
        return outcomes

    def ack(
        self,
        prefix: bytes,
        index: int,
        now_ns: int,  # noqa: ARG002 - of a handler
        payloads: Sequence[bytes],
    ) -> list[Outcome]:
        """Remove leased messages."""
        outcomes: list[Outcome] = []
        items_at = len(prefix) + U64.size + _COUNTED.size
        one_size, entry_count = items_at + _ITEM.size, len(payloads)
        while (at := len(outcomes)) < entry_count:
            payload = payloads[at]
            if len(payload) != one_size or payload[items_at - _COUNTED.size : items_at] not in _ONE:
                outcomes.append(self._ack_several(prefix, index + at, payload))
                continue
            opening, stop = payload[:items_at], at + 1
            while (
                stop < entry_count
                and len(payloads[stop]) == one_size
                and payloads[stop].startswith(opening)
            ):
                stop += 1
            queue = self._by_head.get(opening[: -_COUNTED.size])
            if queue is None:
                outcomes += [self._refuse(Ack, prefix, payload)] * (stop - at)
            elif stop - at == 1:
                outcomes.append(_ack_one(queue, *_ITEM.unpack_from(payload, items_at)))
            else:
                outcomes += _ack_each(queue, [each[items_at:] for each in payloads[at:stop]])
        return outcomes

    def _ack_several(self, prefix: bytes, index: int, payload: bytes) -> Outcome:
        at = len(prefix) + U64.size
        queue = self._by_head.get(payload[:at])
        items_size = len(payload) - at - _COUNTED.size
        if queue is None or items_size <= 0:
            return self._refuse(Ack, prefix, payload)
        options, count = _COUNTED.unpack_from(payload, at)
        if count * _ITEM.size != items_size or options > OPTION_STRICT or count > ITEMS_MAX:
            return self._refuse(Ack, prefix, payload)
        ids, tokens = _split(payload[at + _COUNTED.size :])
        outcome = _settle(queue, ids, tokens, queue.remove, is_strict=bool(options))
        if isinstance(outcome, Applied):
            queue.count(Total.ACKED, outcome.number)
            self._note_part(index, Kind.ACKED, queue, ids, outcome)
        return outcome

    def settle(
        self, queue: QueueState, command: Nack | Extend | Release, moment: Moment
    ) -> Outcome:
        """Execute a nack, extend or release of leased messages."""
        index, now_ns = moment
        ids, tokens = (array("Q", each) for each in zip(*command.items, strict=True))
        dead: set[int] = set()
        match command:
            case Nack(_, _, delay_ns, failure):

                def act(spans: list[Span]) -> None:
                    dead.update(fail(self._queues, queue, spans, failure, now_ns, delay_ns))

            case Extend(_, _, visibility_ns):
                deadline_ns = now_ns + (visibility_ns or queue.config.visibility_ns)

                def act(spans: list[Span]) -> None:
                    for span in spans:
                        queue.change_rows(span, span[0].meta[span[1] : span[2]], deadline_ns)

            case Release():

                def act(spans: list[Span]) -> None:
                    for span in spans:
                        metas = span[0].meta[span[1] : span[2]]
                        queue.change_rows(span, [meta - _TAKEN for meta in metas], 0, 0)

        outcome = _settle(queue, ids, tokens, act, is_strict=command.strict)
        if not isinstance(command, Nack):
            kind = Kind.EXTENDED if isinstance(command, Extend) else Kind.RELEASED
            self._note_part(index, kind, queue, ids, outcome)
        elif isinstance(outcome, Applied):
            for message_id in _done(ids, outcome):
                kind = Kind.DEAD if message_id in dead else Kind.FAILED
                self.changes.add(index, kind, queue.id, [message_id])
        return outcome

    def cancel(self, queue: QueueState, command: Cancel, moment: Moment) -> Outcome:
        """Remove messages by id."""

        def judge(message_id: int) -> Refused | None:
            place = queue.table.find(message_id)
            if place is None:
                return Refused(Reason.MESSAGE_UNKNOWN, message_id)
            block, at = place
            is_leased = block.meta[at] & STATE_MASK == LEASED
            return Refused(Reason.MESSAGE_LEASED, message_id) if is_leased else None

        def act(span: Span) -> None:
            queue.remove([span])
            queue.count(Total.CANCELLED)

        outcome = _each(queue.table, command.ids, judge, act, is_strict=command.strict)
        self._note_part(moment.log_index, Kind.CANCELLED, queue, command.ids, outcome)
        return outcome

    def prioritise(self, queue: QueueState, command: Prioritise, moment: Moment) -> Outcome:
        """Change the priority of messages by id."""
        priority = command.priority << PRIORITY_SHIFT

        def judge(message_id: int) -> Refused | None:
            is_here = queue.table.find(message_id) is not None
            return None if is_here else Refused(Reason.MESSAGE_UNKNOWN, message_id)

        def act(span: Span) -> None:
            block, at, _ = span
            meta = block.meta[at] & ~_PRIORITY_BITS | priority
            if meta != block.meta[at]:
                queue.change_rows(span, [meta], block.value(DUE, at))

        outcome = _each(queue.table, command.ids, judge, act, is_strict=command.strict)
        self._note_part(moment.log_index, Kind.PRIORITISED, queue, command.ids, outcome)
        return outcome

    def purge(self, queue: QueueState, command: Purge, moment: Moment) -> Outcome:
        """Remove messages in the range up to the bound of one entry; return where to continue."""
        below_id = command.below_id or U64_MAX
        before_ns = command.before_ns or U64_MAX
        spans: list[Span] = []
        ids: list[int] = []
        next_id: int | None = None
        for visits, (block, at) in enumerate(queue.table.places(command.from_id)):
            message_id, state = block.ids[at], block.meta[at] & STATE_MASK
            if message_id >= below_id:
                break
            if visits == PURGE_VISITS_MAX or len(ids) == command.limit:
                next_id = message_id
                break
            if block.since[at] < before_ns and (state != LEASED or command.leased_too):
                ids.append(message_id)
                before, first, last = spans[-1] if spans else (None, 0, 0)
                if before is block and last == at and block.meta[first] & STATE_MASK == state:
                    spans[-1] = block, first, at + 1
                else:
                    spans.append((block, at, at + 1))
        if ids:
            queue.remove(spans)
            queue.count(Total.PURGED, len(ids))
            self.changes.add(moment.log_index, Kind.PURGED, queue.id, ids)
        return Applied(len(ids), None if next_id is None else encode_cursor(next_id))

    def create_schedule(
        self, queue: QueueState, command: ScheduleCreate, moment: Moment
    ) -> Outcome:
        """Add a schedule; its id is the index of the entry, which also holds the body."""
        index, now_ns = moment
        if len(queue.schedules) >= SCHEDULES_MAX:
            return Refused(Reason.SCHEDULES_FULL, SCHEDULES_MAX)
        try:
            cron = parse_cron(command.cron)
        except BadCron as error:
            return Refused(Reason.CRON_INVALID, error.field)
        next_ns = cron.next_after(now_ns)
        if next_ns is None:
            return Refused(Reason.CRON_NEVER, CRON_DAYS_MAX)
        ttl_ns = queue.config.ttl_ns if command.ttl_ns is None else command.ttl_ns
        schedule = Schedule(
            index,
            command.cron,
            cron,
            command.priority,
            ttl_ns,
            command.group,
            command.tenant,
            next_ns,
        )
        queue.put(queue.schedules, index, schedule)
        return Applied(index)

    def delete_schedule(
        self, queue: QueueState, command: ScheduleDelete, _moment: Moment
    ) -> Outcome:
        """Delete a schedule."""
        if command.schedule not in queue.schedules:
            return Refused(Reason.SCHEDULE_UNKNOWN, command.schedule)
        queue.put(queue.schedules, command.schedule, None)
        return APPLIED

    def fire(self, queue: QueueState, command: ScheduleFire, moment: Moment) -> Outcome:
        """Add the message of a schedule: one entry, one message, one id.

        Missed times are not caught up: the next one is the first after now. A full queue misses
        the firing; otherwise the leader would propose it again and again.
        """
        index, now_ns = moment
        schedule = queue.schedules.get(command.schedule)
        if schedule is None:
            return Refused(Reason.SCHEDULE_UNKNOWN, command.schedule)
        if schedule.next_ns != command.fire_ns or schedule.next_ns > now_ns:
            return Refused(Reason.SCHEDULE_NOT_DUE, schedule.next_ns)
        next_ns = schedule.cron.next_after(now_ns)
        after = None if next_ns is None else replace(schedule, next_ns=next_ns)
        queue.put(queue.schedules, schedule.id, after)
        group, tenant = schedule.group, schedule.tenant
        if _lack_of_room(queue, group, tenant) is not None:
            queue.count(Total.MISSED)
            self.changes.add(index, Kind.ENQUEUED, queue.id, [])
            return APPLIED
        expires_ns = now_ns + schedule.ttl_ns if schedule.ttl_ns else 0
        queue.insert(
            Row(
                index,
                now_ns,
                READY,
                schedule.priority,
                expires_ns=expires_ns,
                body=schedule.id,
                group=group,
                tenant=tenant,
            )
        )
        queue.count(Total.ENQUEUED)
        self.changes.add(index, Kind.ENQUEUED, queue.id, [index])
        return Applied(index)

    def start_redrive(self, queue: QueueState, command: Redrive, moment: Moment) -> Outcome:
        """Start a redrive and do its first step."""
        index, now_ns = moment
        if command.target:
            target = self._queues.get(command.target)
            if target is None or target.namespace != queue.namespace or target is queue:
                return Refused(Reason.QUEUE_UNKNOWN, command.target)
        if len(queue.redrives) >= REDRIVES_MAX:
            return Refused(Reason.REDRIVES_FULL, REDRIVES_MAX)
        redrive = RunningRedrive(
            index,
            command.target,
            command.last_id or U64_MAX,
            command.failed_from_ns,
            command.failed_until_ns or U64_MAX,
            command.limit,
            command.rate_per_s,
            now_ns,
            command.first_id,
            now_ns,
            0,
            0,
            command.failure,
        )
        queue.put(queue.redrives, index, redrive)
        return self._step(queue, redrive, moment)

    def continue_redrive(self, queue: QueueState, command: RedriveStep, moment: Moment) -> Outcome:
        """Do the next step of a redrive, if it is due and the entry names it."""
        redrive = queue.redrives.get(command.redrive)
        if redrive is None:
            return Refused(Reason.REDRIVE_UNKNOWN, command.redrive)
        if redrive.cursor != command.cursor or redrive.next_ns > moment.now_ns:
            return Refused(Reason.REDRIVE_NOT_DUE, redrive.next_ns)
        return self._step(queue, redrive, moment)

    def cancel_redrive(self, queue: QueueState, command: RedriveCancel, _moment: Moment) -> Outcome:
        """Stop a redrive; messages that were moved stay where they are."""
        if command.redrive not in queue.redrives:
            return Refused(Reason.REDRIVE_UNKNOWN, command.redrive)
        queue.put(queue.redrives, command.redrive, None)
        return APPLIED

    def _step(self, queue: QueueState, redrive: RunningRedrive, moment: Moment) -> Outcome:
        """Move matching messages. The cursor only rises, so a repeated step is recognized."""
        index, now_ns = moment
        count_max, interval_ns = plan_step(redrive.rate_per_s)
        if redrive.left:
            count_max = min(count_max, redrive.left)
        matching: list[tuple[Row, QueueState]] = []
        skipped = visits = 0
        cursor: int | None = None
        for row in queue.table.rows(redrive.cursor):
            if row.id > redrive.last_id:
                break
            if visits == REDRIVE_VISITS_MAX or len(matching) == count_max:
                cursor = row.id
                break
            visits += 1
            if not redrive.matches(row):
                continue
            assert row.dead is not None
            target = self._queues.get(redrive.target or row.dead.source)
            if target is None or target is queue:
                skipped += 1
                continue
            matching.append((row, target))
        for row, target in matching:
            place = queue.table.find(row.id)
            assert place is not None, f"no message {row.id}"
            queue.remove([(*place, place[1] + 1)])
            queue.count(Total.MOVED)
            target.insert(_moved(row, now_ns, row.dead))
            target.count(Total.REDRIVEN)
        # Watches of the source see the messages leave, watches of the target see them arrive.
        moved: dict[int, list[int]] = {queue.id: [row.id for row, _ in matching]}
        for row, target in matching:
            moved.setdefault(target.id, []).append(row.id)
        for queue_id, ids in moved.items():
            self.changes.add(index, Kind.REDRIVEN, queue_id, ids)
        left = redrive.left - len(matching)
        if cursor is None or (redrive.left and not left):
            queue.put(queue.redrives, redrive.id, None)
            return Applied(len(matching))
        after = replace(
            redrive,
            left=left if redrive.left else 0,
            cursor=cursor,
            next_ns=now_ns + interval_ns,
            moved_count=redrive.moved_count + len(matching),
            skipped_count=redrive.skipped_count + skipped,
        )
        queue.put(queue.redrives, redrive.id, after)
        return Applied(len(matching), encode_cursor(redrive.id))

    def create_queue(self, namespace: str, command: QueueCreate, moment: Moment) -> Outcome:
        """Create a queue; its id is the index of the entry."""
        index = moment.log_index
        existing = self._names[namespace].get(command.name)
        if existing is not None:
            return Refused(Reason.QUEUE_EXISTS, existing)
        if len(self._queues) >= QUEUES_MAX:
            return Refused(Reason.QUEUES_FULL, QUEUES_MAX)
        refused = self._refuse_dead_queue(namespace, index, command.config)
        if refused is not None:
            return refused
        queue = self._open(index, namespace, command.name, command.config)
        assert queue is not None, command.name
        self._undo.note(partial(self._remove, queue))
        return Applied(index)

    def configure_queue(
        self, queue: QueueState, command: QueueConfigure, _moment: Moment
    ) -> Outcome:
        """Replace the configuration of a queue."""
        refused = self._refuse_dead_queue(queue.namespace, queue.id, command.config)
        if refused is not None:
            return refused
        queue.change("config", command.config)
        if queue.turn_count and not command.config.tenant_weights:
            queue.change("turn_count", 0)
        return APPLIED

    def delete_queue(self, queue: QueueState, _command: QueueDelete, _moment: Moment) -> Outcome:
        """Delete a queue and its messages."""
        queues = self._queues.values()
        users = [other.id for other in queues if other.config.dead_queue == queue.id]
        if users:
            return Refused(Reason.QUEUE_IN_USE, min(users))
        self._remove(queue)
        self._undo.note(partial(self._insert, queue))
        return APPLIED

    def pause_queue(
        self, queue: QueueState, command: QueuePause | QueueResume, _moment: Moment
    ) -> Outcome:
        """Pause or resume a queue."""
        queue.change("is_paused", isinstance(command, QueuePause))
        return APPLIED

    def _refuse(self, command: type[Command], prefix: bytes, payload: bytes) -> Refused:
        """Return why an entry has no effect: its body is malformed, or its queue does not exist."""
        reader = Reader(payload, len(prefix))
        try:
            asked = decode_command(OPERATIONS[command].number, reader)
        except BadPayload as error:
            return Refused(error.reason, error.detail)
        if parse_namespace(prefix) not in self._names:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        assert not isinstance(asked, QueueCreate), "it names no queue"
        return Refused(Reason.QUEUE_UNKNOWN, asked.queue)

    def _note_part(
        self, index: int, kind: Kind, queue: QueueState, ids: Sequence[int], outcome: Outcome
    ) -> None:
        """Note which messages a command changed, if it could not change all that it names."""
        if isinstance(outcome, Applied) and outcome.value is not None:
            self.changes.add(index, kind, queue.id, _done(ids, outcome))

    def _refuse_dead_queue(
        self, namespace: str, queue_id: int, config: QueueConfig
    ) -> Refused | None:
        """Refuse a dead-letter queue that cannot take messages: a dead letter must not be lost."""
        if not config.dead_queue and not config.max_deliveries:
            return None
        target = self._queues.get(config.dead_queue)
        if target is None or target.namespace != namespace or target.id == queue_id:
            return Refused(Reason.DEAD_QUEUE_INVALID, config.dead_queue)
        return None

    def _first_due(self, queue_id: int) -> int | None:
        return self._queues[queue_id].first_due()

    def _open(
        self, queue_id: int, namespace: str, name: str, config: QueueConfig
    ) -> QueueState | None:
        names = self._names.get(namespace)
        if names is None or name in names:
            return None
        queue = QueueState(queue_id, namespace, name, config, self._undo, self._wakeups.note)
        self._insert(queue)
        return queue

    def _insert(self, queue: QueueState) -> None:
        self._queues[queue.id] = queue
        self._names[queue.namespace][queue.name] = queue.id
        self._by_head[payload_head(queue)] = queue
        first_ns = queue.first_due()
        if first_ns is not None:
            self._wakeups.note(queue.id, first_ns)

    def _remove(self, queue: QueueState) -> None:
        self.changes.queue_removed(queue)
        del self._queues[queue.id]
        del self._names[queue.namespace][queue.name]
        del self._by_head[payload_head(queue)]
        self._wakeups.forget(queue.id)


def payload_head(queue: QueueState) -> bytes:
    """Return the first bytes of payloads for a queue that are in no session."""
    return encode_prefix(queue.namespace) + U64.pack(queue.id)


def _done(ids: Sequence[int], outcome: Applied) -> list[int]:
    """Return the messages for which a command took effect."""
    verdicts = decode_verdicts(outcome, len(ids))
    return [message_id for message_id, verdict in zip(ids, verdicts, strict=True) if not verdict]


def _split(items: bytes) -> tuple["array[int]", "array[int]"]:
    """Split encoded items into ids and tokens."""
    numbers = array("Q", items)
    if byteorder == "big":
        numbers.byteswap()
    return numbers[::2], numbers[1::2]


def _find_passed(payload: bytes, at: int) -> Ranges | None:
    """Return what a lease passes over, from its optional end; None if that is malformed."""
    if len(payload) < at:
        return None
    reader = Reader(payload, at)
    try:
        _, passed = _read_lease_tail(reader)
        reader.finish()
    except BadPayload:
        return None
    return passed


def _ack_one(queue: QueueState, message_id: int, token: int) -> Outcome:
    table = queue.table
    if table.blocks and table.blocks[0].ids[0] == message_id:  # most are acknowledged in order
        block, at = table.blocks[0], 0
    else:
        place = table.find(message_id)
        if place is None:
            return Refused(Reason.MESSAGE_UNKNOWN, message_id)
        block, at = place
    held = block.columns[TOKEN]
    if not token or held is None or held[at] != token:  # a row without a token is not leased
        return Refused(Reason.LEASE_TOKEN_STALE, block.value(TOKEN, at))
    queue.remove([(block, at, at + 1)])
    queue.count(Total.ACKED)
    return ACKED


def _ack_each(queue: QueueState, items: list[bytes]) -> list[Outcome]:
    """Acknowledge messages; each has its own outcome."""
    ids, tokens = _split(b"".join(items))
    if len(set(ids)) < len(ids):  # the second ack of a message must see the first
        return [_ack_one(queue, *each) for each in zip(ids, tokens, strict=True)]
    spans, wrong = _find_leased(queue.table, ids, tokens)
    if spans:
        queue.remove(spans)
        queue.count(Total.ACKED, len(ids) - len(wrong))
    outcomes: list[Outcome] = [ACKED] * len(ids)
    for at, refused in wrong.items():
        outcomes[at] = refused
    return outcomes


def _settle(
    queue: QueueState,
    ids: "array[int]",
    tokens: "array[int]",
    act: Callable[[list[Span]], None],
    *,
    is_strict: bool,
) -> Outcome:
    """Call ``act`` for messages leased with these tokens; for all or none if ``is_strict``."""
    table, count = queue.table, len(ids)
    if len(set(ids)) == count:
        spans, wrong = _find_leased(table, ids, tokens)
        if not wrong:
            act(spans)
            return Applied(count)
        if is_strict or count == 1:
            return next(iter(wrong.values()))
        act(spans)
    else:
        again = next(at for at, each in enumerate(ids) if each in ids[:at])
        if is_strict:
            _, wrong = _find_leased(table, ids[: again + 1], tokens[: again + 1])
            unknown = Refused(Reason.MESSAGE_UNKNOWN, ids[again])
            return next(iter(wrong.values()), unknown)
        # One by one: the second item of a message must see the effect of the first.
        wrong = {}
        for at in range(count):
            spans, refused = _find_leased(table, ids[at : at + 1], tokens[at : at + 1])
            act(spans)
            if refused:
                wrong[at] = refused[0]
    reasons = [wrong[at].reason if at in wrong else None for at in range(count)]
    return Applied(count - len(wrong), encode_verdicts(reasons))


def _find_leased(
    table: Table, ids: "array[int]", tokens: "array[int]"
) -> tuple[list[Span], dict[int, Refused]]:
    """Find the messages that are leased with these tokens.

    Return their spans, and by position why the others are refused.
    """
    spans: list[Span] = []
    wrong: dict[int, Refused] = {}
    at, count = 0, len(ids)
    while at < count:
        span = table.find_span(ids, at)
        if span is None:
            wrong[at] = Refused(Reason.MESSAGE_UNKNOWN, ids[at])
            at += 1
            continue
        block, first, last = span
        given, held = tokens[at : at + last - first], block.columns[TOKEN]
        # A row without a token is not leased.
        if held is not None and held[first:last] == given and all(given):
            spans.append(span)
        else:
            for row, token in enumerate(given, first):
                holder = block.value(TOKEN, row)
                if holder and holder == token:
                    spans.append((block, row, row + 1))
                else:
                    wrong[at + row - first] = Refused(Reason.LEASE_TOKEN_STALE, holder)
        at += last - first
    return spans, wrong


def _each(
    table: Table,
    ids: Sequence[int],
    judge: Callable[[int], Refused | None],
    act: Callable[[Span], None],
    *,
    is_strict: bool,
) -> Outcome:
    """Call ``act`` for each message that ``judge`` does not refuse; for all or none if strict."""
    if is_strict or len(ids) == 1:
        seen: set[int] = set()
        for message_id in ids:
            refused = judge(message_id)
            if refused is not None:
                return refused
            if message_id in seen:
                return Refused(Reason.MESSAGE_UNKNOWN, message_id)
            seen.add(message_id)
    reasons: list[Reason | None] = []
    for message_id in ids:
        refused = judge(message_id)
        if refused is None:
            place = table.find(message_id)
            assert place is not None, f"no message {message_id}"
            act((*place, place[1] + 1))
        reasons.append(None if refused is None else refused.reason)
    return Applied(reasons.count(None), encode_verdicts(reasons))


def _lack_of_room(queue: QueueState, group: bytes, tenant: bytes) -> Refused | None:
    messages_max, table = queue.config.messages_max, queue.table
    if messages_max and queue.live_count >= messages_max:
        return Refused(Reason.QUEUE_FULL, messages_max)
    if group and len(table.groups) >= GROUPS_MAX and group not in table.groups:
        return Refused(Reason.GROUPS_FULL, GROUPS_MAX)
    if tenant and len(table.tenants) >= TENANTS_MAX and tenant not in table.tenants:
        return Refused(Reason.TENANTS_FULL, TENANTS_MAX)
    return None


def fail(
    queues: Queues,
    queue: QueueState,
    spans: list[Span],
    failure: bytes,
    now_ns: int,
    delay_ns: int | None,
) -> list[int]:
    """Record failed deliveries: retry after the backoff, or move to the dead-letter queue.

    Return the ids of the dead letters.
    """
    config, dying = queue.config, list[Span]()
    for block, first, last in spans:
        start = first
        while start < last:
            meta = block.meta[start]
            stop = start + 1
            while stop < last and block.meta[stop] == meta:
                stop += 1
            span, deliveries = (block, start, stop), meta >> DELIVERIES_SHIFT
            start = stop
            if config.max_deliveries and deliveries >= config.max_deliveries:
                dying.append(span)
                continue
            wait_ns = config.backoff_after(deliveries) if delay_ns is None else delay_ns
            after = meta & ~STATE_MASK | (DELAYED if wait_ns else READY)
            queue.change_rows(
                span, [after] * (stop - span[1]), now_ns + wait_ns if wait_ns else 0, 0
            )
    if not dying:
        return []
    target = queues[config.dead_queue]
    rows = queue.take_out(dying)
    queue.count(Total.DEAD, len(rows))
    for row in rows:
        target.insert(_moved(row, now_ns, Dead(queue.id, row.deliveries, now_ns, failure)))
    target.count(Total.ARRIVED, len(rows))
    return [row.id for row in rows]


def _moved(row: Row, now_ns: int, dead: Dead | None) -> Row:
    """Return a row for another queue: at the end, not delivered yet, without a lifetime."""
    return Row(
        row.id,
        now_ns,
        READY,
        row.priority,
        body=row.body,
        group=row.group,
        tenant=row.tenant,
        dead=dead,
    )


def plan_step(rate_per_s: int) -> tuple[int, int]:
    """Return how many messages one step may move, and the delay until the next step."""
    if not rate_per_s:
        return REDRIVE_STEP_MAX, 0
    count = min(REDRIVE_STEP_MAX, max(1, rate_per_s // REDRIVE_STEPS_PER_S))
    return count, -(-count * SECOND_NS // rate_per_s)


def _is_blind_enqueue(body: bytes) -> bool:
    """Return whether a message has no dedup id, which could make it a duplicate."""
    return len(body) > _OPTIONS_AT and not body[_OPTIONS_AT] & OPTION_DEDUP


@dataclass(frozen=True, slots=True)
class QueueOperation(Operation):
    """An operation of queues.

    ``execute`` is a method of ``QueueWrites`` for one command at a time: (queue, command, moment).
    One function describes all commands.
    """

    takes_spans: bool = False  # ``execute`` has the signature of a handler instead
    kind: Kind | None = None  # its event, if it did all that it says; None: only apply knows


# The numbers are in logs: never change or reuse one.
QUEUE_OPERATIONS = (
    QueueOperation(
        0x01,
        Enqueue,
        read_enqueue,
        encode_enqueue,
        QueueWrites.enqueue,
        is_blind=_is_blind_enqueue,
        takes_spans=True,
        kind=Kind.ENQUEUED,
    ),
    QueueOperation(
        0x02,
        Lease,
        _read_lease,
        _encode_lease,
        QueueWrites.lease,
        has_large_result=True,
        takes_spans=True,
        find_repeated=_find_repeated_lease,
    ),
    QueueOperation(
        0x03,
        Ack,
        _read_ack,
        _encode_settle,
        QueueWrites.ack,
        has_large_result=True,
        takes_spans=True,
        kind=Kind.ACKED,
    ),
    QueueOperation(
        0x04, Nack, _read_nack, _encode_settle, QueueWrites.settle, has_large_result=True
    ),
    QueueOperation(
        0x05,
        Extend,
        _read_extend,
        _encode_settle,
        QueueWrites.settle,
        has_large_result=True,
        kind=Kind.EXTENDED,
    ),
    QueueOperation(
        0x06,
        Release,
        _read_release,
        _encode_settle,
        QueueWrites.settle,
        has_large_result=True,
        kind=Kind.RELEASED,
    ),
    QueueOperation(
        0x07,
        Cancel,
        _read_cancel,
        _encode_cancel,
        QueueWrites.cancel,
        has_large_result=True,
        kind=Kind.CANCELLED,
    ),
    QueueOperation(
        0x08,
        Prioritise,
        _read_prioritise,
        _encode_prioritise,
        QueueWrites.prioritise,
        has_large_result=True,
        kind=Kind.PRIORITISED,
    ),
    QueueOperation(0x09, Purge, _read_purge, _encode_purge, QueueWrites.purge),
    QueueOperation(0x0A, Redrive, _read_redrive, _encode_redrive, QueueWrites.start_redrive),
    QueueOperation(
        0x0B,
        RedriveStep,
        lambda reader: RedriveStep(*reader.fields(_THREE)),
        lambda command: _THREE.pack(command.queue, command.redrive, command.cursor),
        QueueWrites.continue_redrive,
    ),
    QueueOperation(
        0x0C,
        RedriveCancel,
        lambda reader: RedriveCancel(*reader.fields(_ITEM)),
        lambda command: _ITEM.pack(command.queue, command.redrive),
        QueueWrites.cancel_redrive,
    ),
    QueueOperation(
        0x0D,
        ScheduleCreate,
        read_schedule,
        encode_schedule,
        QueueWrites.create_schedule,
    ),
    QueueOperation(
        0x0E,
        ScheduleDelete,
        lambda reader: ScheduleDelete(*reader.fields(_ITEM)),
        lambda command: _ITEM.pack(command.queue, command.schedule),
        QueueWrites.delete_schedule,
    ),
    QueueOperation(
        0x0F,
        ScheduleFire,
        lambda reader: ScheduleFire(*reader.fields(_THREE)),
        lambda command: _THREE.pack(command.queue, command.schedule, command.fire_ns),
        QueueWrites.fire,
    ),
    QueueOperation(
        0x10, QueueCreate, _read_create, _encode_create, QueueWrites.create_queue, kind=Kind.CREATED
    ),
    QueueOperation(
        0x11,
        QueueConfigure,
        lambda reader: QueueConfigure(reader.number(U64), _read_valid_config(reader)),
        lambda command: U64.pack(command.queue) + command.config.encode(),
        QueueWrites.configure_queue,
        kind=Kind.CONFIGURED,
    ),
    QueueOperation(
        0x12,
        QueueDelete,
        lambda reader: QueueDelete(reader.number(U64)),
        _encode_queue,
        QueueWrites.delete_queue,
        kind=Kind.DELETED,
    ),
    QueueOperation(
        0x13,
        QueuePause,
        lambda reader: QueuePause(reader.number(U64)),
        _encode_queue,
        QueueWrites.pause_queue,
        kind=Kind.PAUSED,
    ),
    QueueOperation(
        0x14,
        QueueResume,
        lambda reader: QueueResume(reader.number(U64)),
        _encode_queue,
        QueueWrites.pause_queue,
        kind=Kind.RESUMED,
    ),
)
OPERATIONS: dict[type[Command], QueueOperation] = {each.command: each for each in QUEUE_OPERATIONS}


def encode_body(command: Command) -> bytes:
    """Return the body of a command: what follows the prefix."""
    return OPERATIONS[type(command)].encode(command)


_COMMANDS = Commands[Command](OWNER_QUEUE, QUEUE_OPERATIONS, encode_body)
encode_command = _COMMANDS.encode
decode_command = _COMMANDS.decode


def describe_queue_entry(entry: Entry) -> str:
    """Return one readable line about an entry of this owner."""
    try:
        prefix, reader = read_prefix(entry.plain_payload())
        command = decode_command(entry.entry_type & 0xFF, reader)
    except (BadPayload, DataError) as error:
        return f"unreadable: {error}"
    return f"{type(command).__name__} {prefix.namespace}: {_describe(command)}"


def find_consumer(entry: Entry) -> bytes:
    """Return the consumer that a lease names; empty: it names none, or is no lease."""
    if entry.entry_type != TYPE_LEASE:
        return b""
    try:
        _, reader = read_prefix(entry.plain_payload())
        command = decode_command(entry.entry_type & 0xFF, reader)
    except (BadPayload, DataError):
        return b""
    assert isinstance(command, Lease), command
    return command.consumer


def find_notes(changes: QueueChanges, entry: Entry) -> list[Note] | None:
    """Return what an applied queue or expire entry did; None if that is no longer known.

    An entry did what its payload says, unless apply has noted otherwise. The effect of an expiry is
    in the notes only.
    """
    notes = changes.get(entry.index)
    if notes is not None:
        return notes
    is_known = entry.index >= changes.complete_from
    if entry.owner != OWNER_QUEUE:
        return [] if is_known else None
    _, reader = read_prefix(entry.plain_payload())
    command = decode_command(entry.entry_type & 0xFF, reader)
    if not is_known and not is_unconditional(command):
        return None
    note = expected_note(command, entry.index)
    return [] if note is None else [note]


def expected_note(command: Command, index: int) -> Note | None:
    """Return the note of an entry that did all that it says; None: it changed no message."""
    kind = OPERATIONS[type(command)].kind
    if kind is None:
        return None
    if isinstance(command, QueueCreate):
        return Note(kind, index, [])
    ids = [index] if isinstance(command, Enqueue) else named_ids(command)
    return Note(kind, command.queue, ids)


def is_unconditional(command: Command) -> bool:
    """Return whether an applied entry always did exactly what its command says."""
    match command:
        case Enqueue(dedup=dedup):
            return not dedup
        case Ack() | Extend() | Release() | Cancel() | Prioritise():
            return command.strict or len(named_ids(command)) == 1
        case _:
            return OPERATIONS[type(command)].kind is not None


def named_ids(command: Command) -> list[int]:
    """Return the ids that a command names."""
    match command:
        case Ack(_, items) | Nack(_, items) | Extend(_, items) | Release(_, items):
            return [message_id for message_id, _ in items]
        case Cancel(_, ids) | Prioritise(_, ids):
            return list(ids)
        case _:
            return []
