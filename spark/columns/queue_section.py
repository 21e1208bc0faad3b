"""The queue section of a snapshot as tables: ``queue`` (messages) and ``queues``.

As in ``kv_section``, one pass in Python finds where each message starts, and array operations do
the rest. Queues are few and are read one by one.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.fields import Fields, Spans
from onelog.spark.columns.section_bytes import (
    U8,
    U32,
    U64,
    SectionBytes,
    end_of_records,
    optional_numbers,
    refuse,
    rows_batch,
)

QUEUE_SCHEMA = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("queue", pa.string(), nullable=False),
        pa.field("message_id", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("priority", pa.int32(), nullable=False),
        pa.field("since_ns", pa.int64(), nullable=False),
        pa.field("due_ns", pa.int64()),
        pa.field("token", pa.int64()),
        pa.field("deliveries", pa.int32(), nullable=False),
        pa.field("expires_ns", pa.int64()),
        pa.field("group", pa.binary()),
        pa.field("tenant", pa.binary()),
        pa.field("body_index", pa.int64(), nullable=False),  # the entry that holds the body
        pa.field("dead_queue_id", pa.int64()),  # where it died
        pa.field("dead_deliveries", pa.int32()),
        pa.field("failed_ns", pa.int64()),
        pa.field("failure", pa.string()),
    ]
)

_TOTALS = (
    "enqueued", "redriven", "arrived", "acked", "expired", "dead", "cancelled", "purged", "moved",
    "duplicates", "dedup_dropped", "missed",
)  # fmt: skip
_SETTINGS = (
    "max_deliveries", "dead_queue_id", "visibility_ns", "ageing_ns", "ttl_ns", "dedup_window_ns",
    "dedup_max", "messages_max",
)  # fmt: skip
_STATES = ("ready", "delayed", "leased")
_COUNTS = (*_STATES, "dedup_ids", "schedules", "redrives")

TENANT_WEIGHTS = pa.map_(pa.binary(), pa.int32())
QUEUES_SCHEMA = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("queue", pa.string(), nullable=False),
        pa.field("paused", pa.bool_(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in _SETTINGS),
        pa.field("backoff_ns", pa.list_(pa.int64()), nullable=False),
        pa.field("tenant_weights", TENANT_WEIGHTS, nullable=False),
        pa.field("last_tenant", pa.binary()),  # the one that was served last
        pa.field("turn_count", pa.int64(), nullable=False),  # messages of its turn so far
        *(pa.field(name, pa.int64(), nullable=False) for name in (*_COUNTS, *_TOTALS)),
    ]
)
QUEUES_BATCH_ROWS = 4_096
_VERSION = 2  # version 1 has neither weights of tenants nor a turn

_CONFIG = struct.Struct("<HQQQQQIQ")
_TOTALS_LAYOUT = struct.Struct(f"<{len(_TOTALS)}Q")
_SCHEDULE_SIZE, _REDRIVE_SIZE = 25, 96
_DELAYED, _LEASED = 1, 2
_HAS_EXPIRES, _HAS_BODY, _HAS_GROUP, _HAS_TENANT, _HAS_DEAD = 0x100, 0x200, 0x400, 0x800, 0x1000
_HAS_BYTES = _HAS_GROUP | _HAS_TENANT | _HAS_DEAD  # fields of variable size
_KNOWN = 0xFFFF_1F3F
_PLAIN_SIZE, _DEAD_SIZE = 20, 20
MESSAGE_BYTES_MAX = 20 + 4 * 8 + 2 * 256 + _DEAD_SIZE + 65_535
DEDUP_BYTES_MAX = 17 + 255
_META = struct.Struct("<16xI")
_U16 = struct.Struct("<H")


def _fixed_size(meta: int) -> int:
    """Return the total size of a message's fixed-size fields."""
    state = meta & 3
    count = (state != 0) + (state == _LEASED) + (meta >> 8 & 1) + (meta >> 9 & 1)
    return _PLAIN_SIZE + 8 * count


_FIXED_SIZES = [_fixed_size(meta) for meta in range(0x2000)]


class _Queue(NamedTuple):
    """A queue without its messages, as values of the columns."""

    head: dict[str, Any]
    message_count: int


def queue_rows(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a section, in the order of queues and messages."""
    section = SectionBytes(chunks, _VERSION)
    for queue in _queues(section):
        for data, starts, end in section.records(queue.message_count, _find_messages):
            yield _messages(queue.head, Fields(data, starts, np.append(starts[1:], end)))
    section.finish()


def queue_info_rows(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the queues of a section, in the order of ids."""
    section = SectionBytes(chunks, _VERSION)
    rows: list[dict[str, Any]] = []
    for queue in _queues(section):
        counts = np.zeros(len(_STATES), np.int64)
        for data, starts, end in section.records(queue.message_count, _find_messages):
            states = Fields(data, starts + 16, np.append(starts[1:], end)).u8() & np.uint8(3)
            refuse((states >= len(_STATES)).any(), "a message in no state")
            counts += np.bincount(states, minlength=len(_STATES))
        rows.append(queue.head | dict(zip(_STATES, counts.tolist(), strict=True)))
        if len(rows) == QUEUES_BATCH_ROWS:
            yield rows_batch(rows, QUEUES_SCHEMA)
            rows = []
    section.finish()
    if rows:
        yield rows_batch(rows, QUEUES_SCHEMA)


def _queues(section: SectionBytes) -> Iterator[_Queue]:
    """Yield queues; the caller must read the messages of each before it asks for the next."""
    for _ in range(section.number(U32)):
        head: dict[str, Any] = {"queue_id": section.number(U64)}
        head |= {"namespace": section.text(U8), "queue": section.text(U8)}
        head |= zip(_SETTINGS, section.fields(_CONFIG), strict=True)
        head["backoff_ns"] = [section.number(U64) for _ in range(section.number(U8))]
        paused = section.number(U8)
        refuse(paused > 1, "a queue that is neither paused nor not")
        head["paused"] = bool(paused)
        head["last_tenant"] = section.sized(U8) or None
        head |= zip(_TOTALS, section.fields(_TOTALS_LAYOUT), strict=True)
        has_weights = section.version >= _VERSION
        weights = range(section.number(U8) if has_weights else 0)
        head["tenant_weights"] = [(section.sized(U8), section.number(_U16)) for _ in weights]
        head["turn_count"] = section.number(_U16) if has_weights else 0
        head["dedup_ids"] = section.number(U32)
        for _ in section.records(head["dedup_ids"], _find_dedup_ids):
            pass
        head["schedules"] = section.number(U32)
        for _ in range(head["schedules"]):
            section.take(_SCHEDULE_SIZE)
            for _ in range(3):  # cron, group, tenant
                section.sized(U8)
        head["redrives"] = section.number(U32)
        for _ in range(head["redrives"]):
            section.take(_REDRIVE_SIZE)
            section.sized(U8)
        yield _Queue(head, section.number(U64))


def _find_dedup_ids(data: bytes, at: int, count: int, starts: list[int]) -> tuple[int, int]:
    """Find dedup ids; see ``FindRecords``."""
    found = starts.append
    is_cut = False
    try:
        for _ in range(count):
            found(at)
            at += 17 + data[at]
    except IndexError:
        is_cut = True
    return end_of_records(starts, at, len(data), is_cut=is_cut, record_bytes_max=DEDUP_BYTES_MAX)


def _find_messages(data: bytes, at: int, count: int, starts: list[int]) -> tuple[int, int]:
    """Find messages; see ``FindRecords``."""
    read_meta, found, sizes = _META.unpack_from, starts.append, _FIXED_SIZES
    is_cut = False
    try:
        for _ in range(count):
            found(at)
            (meta,) = read_meta(data, at)
            at += sizes[meta & 0x1FFF]
            if meta & _HAS_BYTES:
                at = _skip_bytes(data, at, meta)
    except (IndexError, struct.error):
        is_cut = True
    return end_of_records(starts, at, len(data), is_cut=is_cut, record_bytes_max=MESSAGE_BYTES_MAX)


def _skip_bytes(data: bytes, at: int, meta: int) -> int:
    """Return where a message ends; its fixed-size fields end at ``at``."""
    if meta & _HAS_GROUP:
        at += 1 + data[at]
    if meta & _HAS_TENANT:
        at += 1 + data[at]
    if meta & _HAS_DEAD:
        (size,) = _U16.unpack_from(data, at + _DEAD_SIZE - 2)
        at += _DEAD_SIZE + size
    return at


def _messages(queue: dict[str, Any], fields: Fields) -> pa.RecordBatch:
    """Read the messages of a piece."""
    data, count = fields.data, len(fields)
    message_id, since_ns, meta = fields.u64(), fields.u64(), fields.u32()
    state = meta & np.uint32(3)
    refuse((state > _LEASED).any() or (meta & ~np.uint32(_KNOWN)).any(), "a bad message")

    def has(flag: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (meta & np.uint32(flag)) != 0
        return found

    waits, leased = state != 0, state == _LEASED
    due_ns, token = _u64(fields, waits), _u64(fields, leased)
    expires_ns, body = _u64(fields, has(_HAS_EXPIRES)), _u64(fields, has(_HAS_BODY))
    group, tenant = _bytes8(fields, has(_HAS_GROUP)), _bytes8(fields, has(_HAS_TENANT))
    dead = has(_HAS_DEAD)
    columns = [
        arrays.constant(queue["namespace"], count, pa.string()),
        arrays.constant(queue["queue_id"], count, pa.int64()),
        arrays.constant(queue["queue"], count, pa.string()),
        arrays.numbers(message_id),
        arrays.named(state, _STATES),
        arrays.numbers(meta >> np.uint32(2) & np.uint32(15), pa.int32()),
        arrays.numbers(since_ns),
        optional_numbers(due_ns, waits),
        optional_numbers(token, leased),
        arrays.numbers(meta >> np.uint32(16), pa.int32()),
        optional_numbers(expires_ns, has(_HAS_EXPIRES)),
        _bytes(data, group, has(_HAS_GROUP)),
        _bytes(data, tenant, has(_HAS_TENANT)),
        arrays.numbers(np.where(has(_HAS_BODY), body, message_id)),
        *_deaths(fields, dead),
    ]
    fields.finish()
    return pa.RecordBatch.from_arrays(columns, schema=QUEUE_SCHEMA)


def _deaths(fields: Fields, dead: NDArray[np.bool_]) -> list[pa.Array]:
    """Read where, when and why messages died."""
    if not dead.any():
        kinds = (pa.int64(), pa.int32(), pa.int64(), pa.string())
        return [pa.nulls(len(fields), kind) for kind in kinds]
    queue_id, deliveries, failed_ns = fields.u64(dead), fields.u16(dead), fields.u64(dead)
    return [
        arrays.numbers(queue_id, valid=dead),
        arrays.numbers(deliveries, pa.int32(), dead),
        arrays.numbers(failed_ns, valid=dead),
        arrays.text(fields.data, fields.bytes16(dead), valid=dead),
    ]


def _u64(fields: Fields, where: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Read a number where there is one; cheap if no message has it, which is usual."""
    return fields.u64(where) if where.any() else np.zeros(len(fields), np.uint64)


def _bytes8(fields: Fields, where: NDArray[np.bool_]) -> Spans:
    return fields.bytes8(where) if where.any() else Spans(fields.at, fields.at)


def _bytes(data: NDArray[np.uint8], spans: Spans, valid: NDArray[np.bool_]) -> pa.Array:
    if not valid.any():
        return pa.nulls(len(valid), pa.binary())
    return arrays.binary(data, spans, valid=valid)
