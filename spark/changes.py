"""Views of what entries changed: ``kv_changes`` and ``queue_events``, with values before and after.

Only applying an entry shows what it changed. So a task replays: it loads the newest snapshot below
its range, or starts with the empty state at entry 1, applies the entries up to the range, and then
records what each entry changes (``snapshot/changes.py``). A snapshot inside a range starts another
task.

A range can begin only where a state is known: right behind a kept snapshot, or at entry 1 if the
log still has it. Anything earlier is refused as no longer kept.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from onelog.errors import OutOfRange
from onelog.snapshot.changes import KeyChange, QueueEvent, key_changes, queue_events
from onelog.spark.columns import arrays
from onelog.spark.columns.block import BLOCK_BYTES_MAX, Block
from onelog.spark.columns.view import BATCH_ROWS_MAX, ENTRY_FIELDS, Output, View, operation_names
from onelog.spark.faults import REASON_DROPPED
from onelog.spark.options import ReadOptions
from onelog.spark.origin import Cut, Origin, Range, ShardCut
from onelog.spark.past import KeptState, find_starts, open_start
from onelog.spark.table import find_ranges, open_origin

_ENTRY = [each for each in ENTRY_FIELDS if each.name != "term"]
_STATES = ("ready", "delayed", "leased")

KV_CHANGES_SCHEMA = pa.schema(
    [
        *_ENTRY,
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("key_text", pa.string()),
        pa.field("change", pa.string(), nullable=False),  # put, delete, expire, touch
        pa.field("value", pa.binary()),  # null: deleted
        pa.field("version", pa.int64()),
        pa.field("expires_ns", pa.int64()),
        pa.field("lease", pa.int64()),
        pa.field("previous_value", pa.binary()),  # null: the key did not exist
        pa.field("previous_version", pa.int64()),
    ]
)
QUEUE_EVENTS_SCHEMA = pa.schema(
    [
        *_ENTRY,
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("queue", pa.string(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("message_id", pa.int64()),  # null: an event of the queue itself
        pa.field("state", pa.string()),  # null: the message is not in this queue any more
        pa.field("priority", pa.int32()),
        pa.field("deliveries", pa.int32()),
        pa.field("since_ns", pa.int64()),
        pa.field("due_ns", pa.int64()),
        pa.field("previous_state", pa.string()),  # null: it was not in this queue
        pa.field("previous_priority", pa.int32()),
        pa.field("previous_deliveries", pa.int32()),
        pa.field("previous_since_ns", pa.int64()),
    ]
)


def _refuse_entries(_block: Block, _output: Output) -> None:
    raise AssertionError("an entry does not hold what it changed")


CHANGE_VIEWS: dict[str, View] = {
    name: View(name, schema, None, None, _refuse_entries, is_replayed=True)
    for name, schema in (("kv_changes", KV_CHANGES_SCHEMA), ("queue_events", QUEUE_EVENTS_SCHEMA))
}


@dataclass(frozen=True, slots=True)
class ChangesPart:
    """What one task replays: the entries of a shard from first to last, both included.

    ``end_index`` is the end of the last entry's group: a transaction takes effect at its end.
    """

    shard: int
    first_index: int
    last_index: int
    end_index: int


@dataclass(frozen=True)
class ChangesTable:
    """A loaded table of changes: its origin, its cut, and the parts that tasks read."""

    options: ReadOptions
    origin: Origin
    cut: Cut
    parts: tuple[ChangesPart, ...]

    def batches(self, part: ChangesPart) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a part, with all columns of the view."""
        yield from read_changes(self.options, self.origin, part)


def load_changes_table(read: ReadOptions) -> ChangesTable:
    """Take the cut, check the options against it, and plan the tasks."""
    origin = open_origin(read)
    cut = cut_changes(origin, read.shards)
    parts = plan_changes(origin, cut, find_ranges(read, origin, cut))
    return ChangesTable(read, origin, cut, tuple(parts))


def cut_changes(origin: Origin, shards: Sequence[int] | None) -> Cut:
    """Return the cut; each shard begins at the first entry whose changes can be computed."""
    cut = origin.cut(shards)
    begun = (_begin(part, find_starts(origin, part.shard)) for part in cut.shards)
    return replace(cut, shards=tuple(begun))


def _begin(part: ShardCut, starts: Sequence[KeptState]) -> ShardCut:
    if not starts:
        raise OutOfRange(
            f"no snapshot that can be read leads to entry {part.first_index} of shard "
            f"{part.shard}, where the log begins; what its entries changed cannot be computed",
            reason=REASON_DROPPED,
            metadata={"shard": str(part.shard), "first_index": str(part.first_index)},
        )
    first = starts[0]
    if not first.index:
        return part
    # An entry behind the snapshot may have its time, but so may one before it: exclude that time.
    return replace(part, first_index=first.index + 1, first_timestamp_ns=first.timestamp_ns + 1)


def plan_changes(origin: Origin, cut: Cut, ranges: Iterable[Range]) -> list[ChangesPart]:
    """Return the parts of some ranges: one each, and one more for each snapshot inside."""
    ends = {part.shard: part.last_index for part in cut.shards}
    found: list[ChangesPart] = []
    for each in ranges:
        if each.last_index < each.first_index:
            continue
        end = each.last_index
        if end < ends[each.shard]:
            end = origin.group_end(each.shard, each.last_index, ends[each.shard])
        inside = [
            start.index
            for start in find_starts(origin, each.shard)
            if each.first_index <= start.index < each.last_index
        ]
        firsts = [each.first_index, *(index + 1 for index in inside)]
        lasts = [*((index, index) for index in inside), (each.last_index, end)]
        for first, (last, end_index) in zip(firsts, lasts, strict=True):
            found.append(ChangesPart(each.shard, first, last, end_index))
    return found


def read_changes(read: ReadOptions, origin: Origin, part: ChangesPart) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a part that the options select."""
    with open_start(origin, part.shard, part.first_index - 1) as (past, entries):
        if read.view.name == "kv_changes":
            keys = _wanted(read, part, key_changes(past, entries, part.end_index))
            yield from _batches(part.shard, _wanted_keys(read, keys), _key_size, _key_columns)
        else:
            events = _wanted(read, part, queue_events(past, entries, part.end_index))
            wanted = _wanted_queues(read, events)
            yield from _batches(part.shard, wanted, _event_size, _event_columns)


def _wanted(read: ReadOptions, part: ChangesPart, rows: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows within the part, the times and the namespaces; stop behind the last time."""
    first, last = part.first_index, part.last_index
    from_ns, to_ns = read.from_time_ns, read.to_time_ns
    names = None
    if read.namespaces is not None:
        names = {name.decode() for name in read.namespaces}
    for row in rows:
        if row.timestamp_ns > to_ns or row.index > last:
            return
        if row.index < first or row.timestamp_ns < from_ns:
            continue
        if names is None or row.namespace in names:
            yield row


def _wanted_keys(read: ReadOptions, rows: Iterator[KeyChange]) -> Iterator[KeyChange]:
    prefix = read.key_prefix
    return rows if prefix is None else (row for row in rows if row.key.startswith(prefix))


def _wanted_queues(read: ReadOptions, rows: Iterator[QueueEvent]) -> Iterator[QueueEvent]:
    queues = read.queues
    return rows if queues is None else (row for row in rows if row.queue in queues)


def _batches(
    shard: int,
    rows: Iterator[Any],
    size_of: Callable[[Any], int],
    columns_of: Callable[[list[Any]], dict[str, pa.Array]],
) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches, bounded in rows and in bytes."""
    names = KV_CHANGES_SCHEMA if columns_of is _key_columns else QUEUE_EVENTS_SCHEMA
    part: list[Any] = []
    size = 0
    for row in rows:
        part.append(row)
        size += size_of(row)
        if len(part) == BATCH_ROWS_MAX or size >= BLOCK_BYTES_MAX:
            yield _batch(shard, part, columns_of(part), names)
            part, size = [], 0
    if part:
        yield _batch(shard, part, columns_of(part), names)


def _batch(
    shard: int, rows: list[Any], columns: dict[str, pa.Array], schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch: the columns that both views share, and the view's own."""
    index, position, time_ns, kind, transaction = (
        np.array(each, np.int64) for each in zip(*(row[:5] for row in rows), strict=True)
    )
    found = {
        "shard": arrays.constant(shard, len(rows), pa.int32()),
        "index": arrays.numbers(index),
        "position": arrays.numbers(position, pa.int32()),
        "timestamp": arrays.timestamps(time_ns),
        "timestamp_ns": arrays.numbers(time_ns),
        "operation": operation_names(kind.astype(np.uint16)),
        "transaction": arrays.numbers(transaction, valid=transaction != 0),
        **columns,
    }
    return pa.RecordBatch.from_arrays([found[each.name] for each in schema], schema=schema)


def _key_size(row: KeyChange) -> int:
    return len(row.key) + len(row.value or b"") + len(row.previous_value or b"")


def _key_columns(rows: list[KeyChange]) -> dict[str, pa.Array]:
    names = KeyChange._fields[5:]
    columns = dict(zip(names, zip(*(row[5:] for row in rows), strict=True), strict=True))
    found = {name: pa.array(columns[name], KV_CHANGES_SCHEMA.field(name).type) for name in names}
    return found | {"key_text": arrays.to_text(found["key"])}


def _event_size(row: QueueEvent) -> int:
    return len(row.queue)


def _event_columns(rows: list[QueueEvent]) -> dict[str, pa.Array]:
    names = QueueEvent._fields[5:]
    columns = dict(zip(names, zip(*(row[5:] for row in rows), strict=True), strict=True))
    found = {}
    for name in names:
        kind = QUEUE_EVENTS_SCHEMA.field(name).type
        if name.endswith("state"):
            found[name] = pa.array(_STATES).take(pa.array(columns[name], pa.int64()))
        else:
            found[name] = pa.array(columns[name], kind)
    return found
