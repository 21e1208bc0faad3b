"""Rows of queue operations as the project's own decoder gives them, and random commands."""

from random import Random
from typing import Any

from onelog.projections.codec import SessionRef, read_prefix
from onelog.projections.queue.commands import (
    Ack,
    Cancel,
    Command,
    Extend,
    Lease,
    Nack,
    Prioritise,
    Purge,
    QueueConfigure,
    QueueCreate,
    QueueDelete,
    QueuePause,
    QueueResume,
    Redrive,
    RedriveCancel,
    RedriveStep,
    Release,
    ScheduleDelete,
    ScheduleFire,
    decode_command,
    encode_command,
)
from onelog.projections.queue.message import Enqueue, QueueConfig, ScheduleCreate
from onelog.ual.entry import Draft
from tests.spark.columns.rows_of import Row, readable, signed

# The name of each operation, as docs/queue.md has it.
NAMES: dict[type[Command], str] = {
    Enqueue: "enqueue",
    Lease: "lease",
    Ack: "ack",
    Nack: "nack",
    Extend: "extend",
    Release: "release",
    Cancel: "cancel",
    Prioritise: "prioritise",
    Purge: "purge",
    Redrive: "redrive",
    RedriveStep: "redrive_step",
    RedriveCancel: "redrive_cancel",
    ScheduleCreate: "schedule_create",
    ScheduleDelete: "schedule_delete",
    ScheduleFire: "schedule_fire",
    QueueCreate: "queue_create",
    QueueConfigure: "queue_configure",
    QueueDelete: "queue_delete",
    QueuePause: "queue_pause",
    QueueResume: "queue_resume",
}

U64_MAX = (1 << 64) - 1
TTL_MAX = 10**18


def queue_rows(draft: Draft, index: int) -> list[Row]:
    """Return the rows that a payload must become."""
    prefix, reader = read_prefix(draft.payload)
    command = decode_command(draft.entry_type & 0xFF, reader)
    common: Row = {"namespace": prefix.namespace, "operation": NAMES[type(command)]}
    common |= {"index": index, "position": 0}
    row = common | _operands(command, index)
    row = {name: _shown(value) for name, value in row.items() if value is not None}
    match command:
        case Ack(items=items) | Nack(items=items) | Extend(items=items) | Release(items=items):
            return [
                row | {"position": at, "message_id": signed(number), "token": signed(token)}
                for at, (number, token) in enumerate(items)
            ]
        case Cancel(ids=ids) | Prioritise(ids=ids):
            return [
                row | {"position": at, "message_id": signed(each)} for at, each in enumerate(ids)
            ]
        case _:
            return [row]


def _shown(value: object) -> object:
    return signed(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _operands(command: Command, index: int) -> Row:
    if isinstance(command, QueueCreate):
        return {"queue_id": index, "queue": command.name} | _config(command.config)
    row: Row = {"queue_id": command.queue}
    match command:
        case Enqueue() | ScheduleCreate():
            row |= _message(command, index)
        case Lease():
            row |= {"limit": command.count, "visibility_ns": command.visibility_ns}
            row |= {"consumer": command.consumer or None}
        case Nack():
            row |= {"delay_ns": command.delay_ns, "failure": readable(command.failure)}
        case Extend():
            row |= {"visibility_ns": command.visibility_ns}
        case Prioritise():
            row |= {"priority": command.priority}
        case Purge(_, from_id, below_id, before_ns, limit, leased_too):
            row |= {"from_id": from_id, "below_id": below_id, "before_ns": before_ns}
            row |= {"limit": limit, "leased_too": leased_too}
        case Redrive():
            same = ("first_id", "last_id", "failed_from_ns", "failed_until_ns", "limit")
            row |= {name: getattr(command, name) for name in (*same, "rate_per_s")}
            row |= {"target_queue_id": command.target, "redrive_id": index}
            row |= {"failure": readable(command.failure)}
        case RedriveStep():
            row |= {"redrive_id": command.redrive, "cursor": command.cursor}
        case RedriveCancel():
            row |= {"redrive_id": command.redrive}
        case ScheduleDelete():
            row |= {"schedule_id": command.schedule}
        case ScheduleFire():
            row |= {"schedule_id": command.schedule, "fire_ns": command.fire_ns}
            row |= {"message_id": index}
        case QueueConfigure():
            row |= _config(command.config)
    if hasattr(command, "strict"):
        row["strict"] = command.strict
    return row


def _message(command: Enqueue | ScheduleCreate, index: int) -> Row:
    row: Row = {
        "priority": command.priority,
        "ttl_ns": command.ttl_ns,
        "group": command.group or None,
        "tenant": command.tenant or None,
        "headers": [(readable(name), value) for name, value in command.headers],
        "body": command.body,
    }
    if isinstance(command, ScheduleCreate):
        return row | {"schedule_id": index, "cron": readable(command.cron)}
    row |= {"delay_ns": command.delay_ns, "at_ns": command.at_ns, "message_id": index}
    return row | {"dedup_id": command.dedup or None}


def _config(config: QueueConfig) -> Row:
    return {
        "max_deliveries": config.max_deliveries,
        "dead_queue_id": config.dead_queue,
        "visibility_ns": config.visibility_ns,
        "ageing_ns": config.ageing_ns,
        "ttl_ns": config.ttl_ns,
        "dedup_window_ns": config.dedup_window_ns,
        "dedup_max": config.dedup_max,
        "messages_max": config.messages_max,
        "backoff_ns": list(config.backoff_ns),
        "tenant_weights": list(config.tenant_weights),
    }


class QueueDraws:
    """Random commands of every kind, with every option, whether or not they make sense."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def draft(self) -> Draft:
        """Return the next entry, of some namespace, with or without a session."""
        rng = self._rng
        session = SessionRef(*(self._number() for _ in range(3))) if rng.random() < 0.3 else None
        return encode_command(self.command(), rng.choice(("default", "", "é", "other")), session)

    def command(self) -> Command:
        """Return a command of any kind."""
        number = self._number
        command: Command
        queue = self._rng.choice((7, 8, number()))
        kind: Any = self._rng.choice(tuple(NAMES))
        if kind in {Ack, Nack, Extend, Release, Cancel, Prioritise}:
            return self._settle(kind, queue)
        match kind.__name__:
            case "Enqueue":
                return self._enqueue(queue)
            case "ScheduleCreate":
                cron = self._bytes(255)
                return ScheduleCreate(queue, cron, self._bytes(40), *self._message())
            case "Lease":
                consumer = self._rng.choice([b"", self._bytes(128) or b"c"])
                count, visibility_ns = self._rng.randint(1, 1_000), self._rng.randrange(10**14)
                return Lease(queue, count, visibility_ns, consumer)
            case "Purge":
                limit = self._rng.randint(1, 10_000)
                numbers = number(), number(), number()
                return Purge(queue, *numbers, limit, leased_too=self._rng.random() < 0.5)
            case "Redrive":
                rate, failure = self._rng.randrange(1 << 32), self._bytes(128)
                return Redrive(queue, *(number() for _ in range(6)), rate, failure)  # type: ignore[call-arg, arg-type]
            case "RedriveStep" | "ScheduleFire":
                command = kind(queue, number(), number())
            case "RedriveCancel" | "ScheduleDelete":
                command = kind(queue, number())
            case "QueueCreate":
                return QueueCreate(self._rng.choice(("jobs", "ö", "m" * 128)), self._config())
            case "QueueConfigure":
                return QueueConfigure(queue, self._config())
            case _:
                command = kind(queue)
        return command

    def _settle(self, kind: Any, queue: int) -> Command:
        rng = self._rng
        count = rng.choice((1, 1, 2, 3, 7))
        items = tuple((self._number(), self._number()) for _ in range(count))
        ids = tuple(item[0] for item in items)
        strict = rng.random() < 0.5
        if kind is Nack:
            delay_ns = rng.choice((None, 0, rng.randrange(TTL_MAX)))
            return Nack(queue, items, delay_ns, self._bytes(256), strict)
        if kind is Extend:
            return Extend(queue, items, rng.randrange(10**14), strict)
        if kind is Prioritise:
            return Prioritise(queue, ids, rng.randint(0, 15), strict)
        command: Command = kind(queue, ids if kind is Cancel else items, strict)
        return command

    def _enqueue(self, queue: int) -> Enqueue:
        priority, ttl_ns, group, tenant, headers = self._message()
        when = self._rng.random()
        return Enqueue(
            queue,
            self._bytes(40) if when < 0.9 else bytes(3_000),  # the larger one is compressed
            priority,
            self._rng.randrange(TTL_MAX) if when < 0.3 else None,
            self._number() if when > 0.8 else None,
            ttl_ns,
            self._bytes(128),
            group,
            tenant,
            headers,
        )

    def _message(self) -> tuple[int, int | None, bytes, bytes, tuple[tuple[bytes, bytes], ...]]:
        rng = self._rng
        ttl_ns = rng.choice((None, 1, rng.randint(1, TTL_MAX)))
        names = (b"h", b"type", "ä".encode(), b"\xff", b"n" * 128)
        count = rng.choice((0, 0, 1, 2, 3, 64 if rng.random() < 0.05 else 4))
        headers = tuple((rng.choice(names), self._bytes(20)) for _ in range(count))
        return rng.randint(0, 15), ttl_ns, self._bytes(128), self._bytes(128), headers

    def _config(self) -> QueueConfig:
        rng = self._rng
        return QueueConfig(
            rng.randrange(1 << 16),
            self._number(),
            rng.randint(1, 10**14),
            rng.randrange(TTL_MAX),
            rng.randrange(TTL_MAX),
            rng.randrange(TTL_MAX),
            rng.randrange(1_000_001),
            self._number(),
            tuple(rng.randrange(TTL_MAX) for _ in range(rng.choice((0, 0, 1, 3, 16)))),
        )

    def _number(self) -> int:
        return self._rng.choice((0, 1, U64_MAX, self._rng.randrange(1 << 20)))

    def _bytes(self, size_max: int) -> bytes:
        rng = self._rng
        if rng.random() < 0.6:
            return b"text"[: rng.randint(0, 4)]
        return rng.randbytes(rng.choice((1, 3, size_max)))
