"""The queue section of a snapshot: written in one order, checked when it is read.

Queues by id; of each its head, dedup ids (oldest first), schedules and redrives by id, messages by
id. Hashes, heaps and the lists of ready messages are not saved: loading rebuilds them.
docs/queue.md has the table.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from onelog.projections.codec import U8, U16, U32, U64, SectionReader, encode_sized
from onelog.projections.queue.cron import BadCron, parse_cron
from onelog.projections.queue.limits import (
    CRON_SIZE_MAX,
    MESSAGE_KEY_SIZE_MAX,
    PRIORITY_MAX,
    QUEUE_NAME_SIZE_MAX,
    QUEUES_MAX,
    REDRIVES_MAX,
    SCHEDULES_MAX,
    TENANT_WEIGHT_MAX,
)
from onelog.projections.queue.message import QueueConfig, read_settings, read_weights
from onelog.projections.queue.store import (
    INCOMING,
    OUTGOING,
    REDRIVE,
    SCHEDULE,
    TOTALS,
    QueueState,
    RunningRedrive,
    Schedule,
)
from onelog.projections.queue.table import (
    PLAIN,
    PLAIN_META,
    STATE_MASK,
    UNUSUAL,
    encode_row,
    read_row,
)
from onelog.ual.entry import OWNER_QUEUE

SECTION_VERSION = 2
SECTION_VERSION_WITHOUT_WEIGHTS = 1  # of tenants, nor a turn

_PAIR = struct.Struct("<QQ")

OpenQueue = Callable[[int, str, str, QueueConfig], QueueState | None]
"""Create a queue (id, namespace, name, configuration); None if there is no such namespace."""


def dump_parts(queues: Mapping[int, QueueState]) -> Iterator[bytes]:
    """Yield the section."""
    yield U8.pack(SECTION_VERSION) + U32.pack(len(queues))
    for queue_id in sorted(queues):
        yield from _dump_queue(queues[queue_id])


def _dump_queue(queue: QueueState) -> Iterator[bytes]:
    yield queue.encode_head() + queue.encode_shares()
    yield U32.pack(len(queue.dedup))
    for dedup, message_id, time_ns in queue.dedup.entries():
        yield encode_sized(U8, dedup) + _PAIR.pack(message_id, time_ns)
    yield U32.pack(len(queue.schedules))
    for key in sorted(queue.schedules):
        yield queue.schedules[key].encode()
    yield U32.pack(len(queue.redrives))
    for key in sorted(queue.redrives):
        yield queue.redrives[key].encode()
    yield U64.pack(queue.live_count)
    table = queue.table
    for block in table.blocks:
        parts = []
        for at, meta in enumerate(block.meta):
            if meta & (STATE_MASK | UNUSUAL):
                parts.append(encode_row(table.read(block, at)))
            else:
                parts.append(PLAIN.pack(block.ids[at], block.since[at], meta))
        yield b"".join(parts)


def load_section(chunks: Iterable[bytes], open_queue: OpenQueue) -> None:
    """Read a section, creating each queue with ``open_queue``."""
    reader = SectionReader(OWNER_QUEUE, chunks)
    version = reader.number(U8)
    is_known = SECTION_VERSION_WITHOUT_WEIGHTS <= version <= SECTION_VERSION
    reader.expect(is_known, f"section version {version}")
    count = reader.number(U32)
    reader.expect(count <= QUEUES_MAX, f"{count} queues")
    previous = -1
    opened: dict[int, QueueState] = {}
    for _ in range(count):
        queue_id = reader.number(U64)
        reader.expect(previous < queue_id, "queues out of order")
        previous = queue_id
        opened[queue_id] = _load_queue(reader, queue_id, open_queue, version)
    reader.finish()
    for queue in opened.values():
        target = opened.get(queue.config.dead_queue)
        reader.expect(
            not queue.config.dead_queue
            or (target is not None and target.namespace == queue.namespace),
            f"the dead letters of queue {queue.id} go nowhere",
        )


def _load_queue(
    reader: SectionReader, queue_id: int, open_queue: OpenQueue, version: int
) -> QueueState:
    namespace, name = reader.text(U8), reader.text(U8)
    reader.expect(1 <= len(name.encode()) <= QUEUE_NAME_SIZE_MAX, f"queue {name!r}")
    config = read_settings(reader)
    reader.expect(config.invalid() is None, f"settings of queue {name!r}")
    queue = open_queue(queue_id, namespace, name, config)
    if queue is None:
        raise reader.corrupt(f"queue {name!r} in namespace {namespace!r} cannot be")
    is_paused = reader.number(U8)
    reader.expect(is_paused <= 1, f"queue {name!r} is paused {is_paused} times")
    queue.is_paused = bool(is_paused)
    queue.last_tenant = reader.sized(U8)
    queue.totals = list(reader.fields(TOTALS))
    if version > SECTION_VERSION_WITHOUT_WEIGHTS:
        _load_shares(reader, queue)
    for _ in range(reader.number(U32)):
        dedup = _read_key(reader)
        message_id, time_ns = reader.fields(_PAIR)
        reader.expect(queue.dedup.find(dedup, 0, 1 << 64) is None, f"dedup id {dedup!r} twice")
        queue.dedup.add(dedup, message_id, time_ns)
    _load_chores(reader, queue)
    _load_messages(reader, queue)
    incoming = sum(queue.totals[total] for total in INCOMING)
    outgoing = sum(queue.totals[total] for total in OUTGOING)
    reader.expect(incoming == outgoing + queue.live_count, f"the sums of queue {name!r}")
    return queue


def _load_shares(reader: SectionReader, queue: QueueState) -> None:
    """Read the weights of tenants, and the turn of the one that was served last."""
    weights = read_weights(reader)
    if weights is None:
        raise reader.corrupt(f"weights of queue {queue.name!r} out of order")
    queue.config = replace(queue.config, tenant_weights=weights)
    reader.expect(queue.config.invalid() is None, f"weights of queue {queue.name!r}")
    queue.turn_count = reader.number(U16)
    is_possible = queue.turn_count < TENANT_WEIGHT_MAX and (weights or not queue.turn_count)
    reader.expect(is_possible, f"a turn of {queue.turn_count} in queue {queue.name!r}")


def _load_messages(reader: SectionReader, queue: QueueState) -> None:
    """Read messages. Plain ones, the majority, skip the steps that only others need."""
    fields = reader.fields
    previous = -1
    for _ in range(reader.number(U64)):
        head = message_id, since_ns, meta = fields(PLAIN)
        reader.expect(previous < message_id, "messages out of order")
        previous = message_id
        if meta & ~PLAIN_META:
            queue.insert(read_row(reader, head))
        else:
            queue.append(message_id, since_ns, meta)


def _load_chores(reader: SectionReader, queue: QueueState) -> None:
    count = reader.number(U32)
    reader.expect(count <= SCHEDULES_MAX, f"{count} schedules")
    for _ in range(count):
        schedule_id, priority, ttl_ns, next_ns = reader.fields(SCHEDULE)
        text = reader.sized(U8)
        group, tenant = (_read_key(reader, size_min=0) for _ in range(2))
        reader.expect(priority <= PRIORITY_MAX and len(text) <= CRON_SIZE_MAX, "a bad schedule")
        reader.expect(schedule_id not in queue.schedules, f"schedule {schedule_id} twice")
        try:
            cron = parse_cron(text)
        except BadCron as error:
            raise reader.corrupt(str(error)) from error
        schedule = Schedule(schedule_id, text, cron, priority, ttl_ns, group, tenant, next_ns)
        queue.put(queue.schedules, schedule_id, schedule)
    count = reader.number(U32)
    reader.expect(count <= REDRIVES_MAX, f"{count} redrives")
    for _ in range(count):
        fields: list[Any] = [*reader.fields(REDRIVE), _read_key(reader, size_min=0)]
        redrive = RunningRedrive(*fields)
        reader.expect(redrive.id not in queue.redrives, f"redrive {redrive.id} twice")
        queue.put(queue.redrives, redrive.id, redrive)


def _read_key(reader: SectionReader, size_min: int = 1) -> bytes:
    key = reader.sized(U8)
    reader.expect(size_min <= len(key) <= MESSAGE_KEY_SIZE_MAX, "a bad key")
    return key
