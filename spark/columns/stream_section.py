"""The stream section of a snapshot as tables: ``streams`` and ``groups``.

The section has no records, so it is small: a few numbers for each partition of a stream and of a
consumer group, which are read one by one. Only pending records and producers can be many; each is
skipped in one step. ``committed`` and the counts are not stored but computed (docs/streams.md).
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from onelog.spark.columns.section_bytes import U8, U16, U32, U64, SectionBytes, refuse, rows_batch

STREAMS_SCHEMA = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("stream_id", pa.int64(), nullable=False),
        pa.field("partition_count", pa.int32(), nullable=False),
        pa.field("age_ns", pa.int64(), nullable=False),  # of the retention; 0: no limit
        pa.field("size_max", pa.int64(), nullable=False),
        pa.field("count_max", pa.int64(), nullable=False),
        pa.field("past_groups", pa.bool_(), nullable=False),
        pa.field("key_hash", pa.string(), nullable=False),  # how keys select partitions
        pa.field("producers", pa.int64(), nullable=False),
        pa.field("dead_letters", pa.int64(), nullable=False),
        pa.field("groups", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),  # what is below it was trimmed
        pa.field("last_offset", pa.int64()),  # null: there was no record yet
        pa.field("end_offset", pa.int64(), nullable=False),  # no record has had it yet
        pa.field("last_ns", pa.int64()),
        pa.field("records", pa.int64(), nullable=False),  # ever
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("records_kept", pa.int64(), nullable=False),  # at most
        pa.field("bytes_kept", pa.int64(), nullable=False),
    ]
)
GROUPS_SCHEMA = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("stream_id", pa.int64(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("group_id", pa.int64(), nullable=False),
        pa.field("generation", pa.int64(), nullable=False),
        pa.field("shared", pa.bool_(), nullable=False),
        pa.field("max_deliveries", pa.int32(), nullable=False),
        pa.field("dead_letter", pa.string()),  # the stream that takes dead letters
        pa.field("filtered", pa.bool_(), nullable=False),  # members get some records only
        pa.field("members", pa.int32(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("owner", pa.int64()),  # the member that has the partition
        pa.field("owner_deadline_ns", pa.int64()),
        pa.field("delivered", pa.int64(), nullable=False),
        pa.field("committed", pa.int64(), nullable=False),
        pa.field("lag", pa.int64(), nullable=False),  # offsets from committed to the end
        pa.field("pending", pa.int64(), nullable=False),
        pa.field("pending_dead", pa.int64(), nullable=False),  # of these, wait to be moved
    ]
)
BATCH_ROWS = 4_096

_VERSION = 2  # version 1 has neither filters of groups nor hashes of keys
_KEY_HASHES = ("crc32c", "mixed")
_SHARED, _FILTERED = 0x01, 0x02
_RETENTION = struct.Struct("<QQQB")
_PARTITION = struct.Struct("<QQQQQBB")
_TRIM_SIZE, _MARK_SIZE, _DEAD_SIZE = 17, 32, 16
_MARK = struct.Struct("<4Q")
_PRODUCER = struct.Struct("<QHQB")
_GROUP = struct.Struct("<QQBH")
_MEMBER = struct.Struct("<QQQ")
_PENDING = struct.Struct("<QQQHQB")
_PARTITION_SHIFT = 56
_OFFSET_MASK = (1 << _PARTITION_SHIFT) - 1

Row = dict[str, Any]


def stream_rows(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each partition of each stream."""
    rows = (row for partitions, _ in _streams(chunks) for row in partitions)
    return _batches(rows, STREAMS_SCHEMA)


def group_rows(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each partition of each consumer group."""
    rows = (row for _, groups in _streams(chunks) for row in groups)
    return _batches(rows, GROUPS_SCHEMA)


def _batches(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    part: list[Row] = []
    for row in rows:
        part.append(row)
        if len(part) == BATCH_ROWS:
            yield rows_batch(part, schema)
            part = []
    if part:
        yield rows_batch(part, schema)


def _streams(chunks: Iterable[bytes]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield the rows of partitions and of groups, stream by stream."""
    section = SectionBytes(chunks, _VERSION)
    for _ in range(section.number(U16)):
        namespace = section.text(U8)
        for _ in range(section.number(U32)):
            yield _stream(section, namespace)
    section.finish()


def _stream(section: SectionBytes, namespace: str) -> tuple[list[Row], list[Row]]:
    stream_id = section.number(U64)
    names = {"namespace": namespace, "stream": section.text(U8), "stream_id": stream_id}
    partition_count = section.number(U16)
    age_ns, size_max, count_max, options = section.fields(_RETENTION)
    refuse(options > 1, "an unknown option of a retention")
    key_hash = section.number(U8) if section.version >= _VERSION else 0
    refuse(key_hash >= len(_KEY_HASHES), "an unknown hash of keys")
    partitions = [_partition(section, number) for number in range(partition_count)]
    producers = section.number(U32)
    for _ in range(producers):
        *_, offsets = section.fields(_PRODUCER)
        section.take(8 * offsets)
    dead_letters = section.number(U32)
    for _ in range(dead_letters):
        section.take(_DEAD_SIZE)
    ends = [row["end_offset"] for row in partitions]
    groups = [_group(section, names, ends) for _ in range(section.number(U32))]
    of_stream = names | {
        "partition_count": partition_count,
        "age_ns": age_ns,
        "size_max": size_max,
        "count_max": count_max,
        "past_groups": bool(options),
        "key_hash": _KEY_HASHES[key_hash],
        "producers": producers,
        "dead_letters": dead_letters,
        "groups": len(groups),
    }
    return [of_stream | row for row in partitions], [row for group in groups for row in group]


def _partition(section: SectionBytes, number: int) -> Row:
    first, last, last_ns, count, size, trims, marks = section.fields(_PARTITION)
    section.take(_TRIM_SIZE * trims)
    records_kept = bytes_kept = 0
    if marks:
        # The first mark counts what was before it. What follows is kept, or slightly less.
        _, _, count_before, size_before = section.fields(_MARK)
        records_kept, bytes_kept = count - count_before, size - size_before
        section.take(_MARK_SIZE * (marks - 1))
    return {
        "partition": number,
        "first_offset": first,
        "last_offset": last or None,
        "end_offset": max(last + 1, first),
        "last_ns": last_ns if last else None,
        "records": count,
        "bytes": size,
        "records_kept": records_kept,
        "bytes_kept": bytes_kept,
    }


def _group(section: SectionBytes, names: Row, ends: list[int]) -> list[Row]:
    name = section.text(U8)
    group_id, generation, options, max_deliveries = section.fields(_GROUP)
    refuse(options > _SHARED | _FILTERED, "an unknown option of a group")
    dead_letter = section.text(U8)
    if options & _FILTERED:
        section.sized(U16)
    count = len(ends)
    numbers = section.fields(struct.Struct(f"<{2 * count}Q"))
    owners, delivered = numbers[:count], numbers[count:]
    deadlines = {}
    for _ in range(section.number(U16)):
        member, _, deadline_ns = section.fields(_MEMBER)
        deadlines[member] = deadline_ns
    pending, dead, committed = [0] * count, [0] * count, list(delivered)
    for _ in range(section.number(U16)):
        place, *_, is_dead = section.fields(_PENDING)
        section.sized(U8)
        partition, offset = place >> _PARTITION_SHIFT, place & _OFFSET_MASK
        refuse(partition >= count or is_dead > 1, "a pending record of no partition")
        pending[partition] += 1
        dead[partition] += is_dead
        committed[partition] = min(committed[partition], offset)
    of_group = names | {
        "group": name,
        "group_id": group_id,
        "generation": generation,
        "shared": bool(options & _SHARED),
        "max_deliveries": max_deliveries,
        "dead_letter": dead_letter or None,
        "filtered": bool(options & _FILTERED),
        "members": len(deadlines),
    }
    return [
        of_group
        | {
            "partition": number,
            "owner": owners[number] or None,
            "owner_deadline_ns": deadlines.get(owners[number]),
            "delivered": delivered[number],
            "committed": committed[number],
            "lag": ends[number] - committed[number],
            "pending": pending[number],
            "pending_dead": dead[number],
        }
        for number in range(count)
    ]
