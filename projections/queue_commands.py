"""Queue commands: what clients and leaders ask of queues, as values and as bytes.

``encode_command`` makes the draft of an entry, ``decode_command`` reads its body; the tables are
in docs/queue.md and golden files pin the bytes. Decoding checks all that can be said without the
state. A queue is named by its id, the index of its creation: one that was deleted and created
again is another one, and whatever was meant for the first is refused.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from projections.errors import BadPayload
from projections.payload import (
    U8,
    U16,
    U64,
    Reader,
    SessionRef,
    encode_prefix,
    encode_sized,
    read_prefix,
)
from projections.queue_config import QueueConfig, read_config
from projections.queue_limits import (
    DELAY_NS_MAX,
    FAILURE_SIZE_MAX,
    ITEMS_MAX,
    MESSAGE_KEY_SIZE_MAX,
    PRIORITY_MAX,
    PURGE_MESSAGES_MAX,
    QUEUE_NAME_SIZE_MAX,
    VISIBILITY_NS_MAX,
)
from projections.queue_message import (
    Enqueue,
    ScheduleCreate,
    encode_enqueue,
    encode_schedule,
    read_enqueue,
    read_schedule,
)
from projections.reasons import Reason
from ual.entry import OWNER_QUEUE, Draft, Entry
from ual.errors import DataError

TYPE_LEASE = OWNER_QUEUE << 8 | 0x02
TYPE_ACK = OWNER_QUEUE << 8 | 0x03

OPTION_STRICT = 0x01
OPTION_NACK_DELAY = 0x02
OPTION_PURGE_LEASED = 0x01

_LEASE = struct.Struct("<QHQ")  # queue, count, visibility
_ITEM = struct.Struct("<QQ")  # id, token
_SETTLE = struct.Struct("<QB")  # queue, options
_PURGE = struct.Struct("<QBQQQI")  # queue, options, from_id, below_id, before_ns, limit
# queue, target, first_id, last_id, failed_from_ns, failed_until_ns, limit, rate_per_s
_REDRIVE = struct.Struct("<QQQQQQQI")
_THREE = struct.Struct("<QQQ")

Items = tuple[tuple[int, int], ...]
"""Pairs of a message's id and the token of its lease."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Take up to ``count`` messages for a while (0 ns: as long as the queue says)."""

    queue: int
    count: int = 1
    visibility_ns: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """Leased messages are done. ``strict``: all of them, or nothing happens."""

    queue: int
    items: Items
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Nack:
    """Leased messages failed; without a delay they wait as the queue's backoff says."""

    queue: int
    items: Items
    delay_ns: int | None = None
    failure: bytes = b""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Extend:
    """Leases are to last for ``visibility_ns`` from now (0: as the queue says)."""

    queue: int
    items: Items
    visibility_ns: int = 0
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Give leased messages back as if they had not been taken: no failure, no delivery."""

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
    """Give messages another priority; their age stays."""

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
    """Move dead letters that match back to where they came from, or to ``target``."""

    queue: int
    target: int = 0
    first_id: int = 0
    last_id: int = 0  # 0: no bound, as for the others
    failed_from_ns: int = 0
    failed_until_ns: int = 0
    limit: int = 0
    rate_per_s: int = 0
    failure: bytes = b""  # found in the failure reason


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """The next part of a running redrive; proposed by the leader."""

    queue: int
    redrive: int
    cursor: int


@dataclass(frozen=True, slots=True)
class RedriveCancel:
    """Stop a redrive where it is."""

    queue: int
    redrive: int


@dataclass(frozen=True, slots=True)
class ScheduleDelete:
    """Stop a schedule; messages that it made stay."""

    queue: int
    schedule: int


@dataclass(frozen=True, slots=True)
class ScheduleFire:
    """A schedule's time has come; proposed by the leader, and its index is the message's id."""

    queue: int
    schedule: int
    fire_ns: int


@dataclass(frozen=True, slots=True)
class QueueCreate:
    """Make a queue; its id is the index of the entry."""

    name: str
    config: QueueConfig


@dataclass(frozen=True, slots=True)
class QueueConfigure:
    """Replace the configuration of a queue."""

    queue: int
    config: QueueConfig


@dataclass(frozen=True, slots=True)
class QueueDelete:
    """Remove a queue and all that is in it."""

    queue: int


@dataclass(frozen=True, slots=True)
class QueuePause:
    """Give no messages until resumed."""

    queue: int


@dataclass(frozen=True, slots=True)
class QueueResume:
    """Give messages again."""

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

OPERATIONS: dict[type[Command], int] = {
    Enqueue: 0x01,
    Lease: 0x02,
    Ack: 0x03,
    Nack: 0x04,
    Extend: 0x05,
    Release: 0x06,
    Cancel: 0x07,
    Prioritise: 0x08,
    Purge: 0x09,
    Redrive: 0x0A,
    RedriveStep: 0x0B,
    RedriveCancel: 0x0C,
    ScheduleCreate: 0x0D,
    ScheduleDelete: 0x0E,
    ScheduleFire: 0x0F,
    QueueCreate: 0x10,
    QueueConfigure: 0x11,
    QueueDelete: 0x12,
    QueuePause: 0x13,
    QueueResume: 0x14,
}


def encode_command(command: Command, namespace: str, session: SessionRef | None = None) -> Draft:
    """Return the draft of the entry that asks for ``command``."""
    operation = OPERATIONS[type(command)]
    payload = encode_prefix(namespace, session) + _encode_body(command)
    return Draft(OWNER_QUEUE << 8 | operation, payload)


def decode_command(operation: int, reader: Reader) -> Command:
    """Read the body of an entry; raise ``BadPayload`` for what is none."""
    decode = _DECODERS.get(operation)
    if decode is None:
        raise BadPayload(Reason.OPERATION_UNKNOWN, operation)
    command = decode(reader)
    reader.finish()
    return command


def describe_queue_entry(entry: Entry) -> str:
    """Return one line that says what an entry of this owner asks for, for people."""
    try:
        prefix, reader = read_prefix(entry.plain_payload())
        command = decode_command(entry.entry_type & 0xFF, reader)
    except (BadPayload, DataError) as error:
        return f"unreadable: {error}"
    shown = []
    for name in command.__slots__:
        value = getattr(command, name)
        if name in {"body", "items", "ids", "headers"}:
            shown.append(f"{name}[{len(value)}]")
        elif value not in (None, b"", False):
            shown.append(f"{name}={value!r}")
    return f"{type(command).__name__} {prefix.namespace}: {' '.join(shown)}"


def _encode_body(command: Command) -> bytes:
    match command:
        case Enqueue():
            return encode_enqueue(command)
        case ScheduleCreate():
            return encode_schedule(command)
        case Lease(queue, count, visibility_ns):
            return _LEASE.pack(queue, count, visibility_ns)
        case Ack() | Nack() | Extend() | Release():
            return _encode_settle(command)
        case Cancel(queue, ids, strict):
            return _SETTLE.pack(queue, strict) + _encode_ids(ids)
        case Prioritise(queue, ids, priority, strict):
            return _SETTLE.pack(queue, strict) + U8.pack(priority) + _encode_ids(ids)
        case Purge(queue, from_id, below_id, before_ns, limit, leased_too):
            return _PURGE.pack(queue, leased_too, from_id, below_id, before_ns, limit)
        case Redrive():
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
        case RedriveStep(queue, number, third) | ScheduleFire(queue, number, third):
            return _THREE.pack(queue, number, third)
        case RedriveCancel(queue, number) | ScheduleDelete(queue, number):
            return _ITEM.pack(queue, number)
        case QueueCreate(name, config):
            return encode_sized(U8, name.encode()) + config.encode()
        case QueueConfigure(queue, config):
            return U64.pack(queue) + config.encode()
        case QueueDelete(queue) | QueuePause(queue) | QueueResume(queue):
            return U64.pack(queue)


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
    return Lease(queue, count, _read_visibility(visibility_ns))


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
        raise BadPayload(Reason.QUEUE_CONFIG_INVALID, invalid)
    return config


_DECODERS: dict[int, Callable[[Reader], Command]] = {
    0x01: read_enqueue,
    0x02: _read_lease,
    0x03: _read_ack,
    0x04: _read_nack,
    0x05: _read_extend,
    0x06: _read_release,
    0x07: _read_cancel,
    0x08: _read_prioritise,
    0x09: _read_purge,
    0x0A: _read_redrive,
    0x0B: lambda reader: RedriveStep(*reader.fields(_THREE)),
    0x0C: lambda reader: RedriveCancel(*reader.fields(_ITEM)),
    0x0D: read_schedule,
    0x0E: lambda reader: ScheduleDelete(*reader.fields(_ITEM)),
    0x0F: lambda reader: ScheduleFire(*reader.fields(_THREE)),
    0x10: _read_create,
    0x11: lambda reader: QueueConfigure(reader.number(U64), _read_valid_config(reader)),
    0x12: lambda reader: QueueDelete(reader.number(U64)),
    0x13: lambda reader: QueuePause(reader.number(U64)),
    0x14: lambda reader: QueueResume(reader.number(U64)),
}

OPERATION_NUMBERS = tuple(_DECODERS)
# Types whose results have a part for each message.
LARGE_RESULTS = frozenset(
    OWNER_QUEUE << 8 | number for number in (0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08)
)
