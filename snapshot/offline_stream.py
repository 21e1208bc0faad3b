"""What a stream was at an index: partitions, offsets, consumer groups, and its last records.

Which entries are records of a stream is not in the state. Sealed files have tables of it; for what
was not sealed when a snapshot was made the snapshot has notes; and what follows is noted by the
replay that led to the state (``Rebuilt.records``). Together they tell about every entry.
"""

from dataclasses import asdict
from typing import Any

from onelog.projections.errors import BadPayload
from onelog.projections.result import Refused
from onelog.projections.stream.reads import PartitionDescription, StreamDescription
from onelog.projections.stream.record import Append, DeadLetter, decode_record
from onelog.snapshot.offline import Rebuilt
from onelog.snapshot.offline_entries import NotKept, bytes_fields, read_entry, unreadable


def ask_stream(rebuilt: Rebuilt, namespace: str, name: str, limit: int) -> dict[str, Any] | None:
    """Return all about a stream, and its last ``limit`` records; None: it did not exist."""
    found = rebuilt.projections.stream.describe(namespace, name)
    if isinstance(found, Refused):
        return None
    fields: dict[str, Any] = {
        "id": found.stream_id,
        "retention": asdict(found.retention),
        "partitions": [
            {
                "partition": each.partition,
                "first_offset": each.first_offset,
                "end_offset": each.end_offset,
                "records_appended": each.record_count,
                "records_kept_at_most": each.record_count_kept,
                "bytes_kept_at_most": each.size_kept,
            }
            for each in found.partitions
        ],
        "producers": found.producer_count,
        "dead_letters": found.dead_letter_count,
        "groups": [_group_fields(rebuilt, namespace, name, group) for group in found.groups],
    }
    if limit:
        fields["records"] = _last_records(rebuilt, found, limit)
    return fields


def _group_fields(rebuilt: Rebuilt, namespace: str, stream: str, group: str) -> dict[str, Any]:
    found = rebuilt.projections.stream.describe_group(namespace, stream, group)
    assert not isinstance(found, Refused), found
    places = zip(found.owners, found.committed, found.delivered, found.lags, strict=True)
    return {
        "name": found.name,
        "generation": found.generation,
        "config": asdict(found.config),
        "members": [{"id": member, "deadline_ns": until} for member, until in found.members],
        "cursors": [
            {
                "partition": number,
                "member": owner or None,
                "committed": committed,
                "delivered": delivered,
                "lag": lag,
            }
            for number, (owner, committed, delivered, lag) in enumerate(places)
        ],
        "pending": found.pending_count,
        "dead": found.dead_count,
    }


def _last_records(rebuilt: Rebuilt, stream: StreamDescription, limit: int) -> list[dict[str, Any]]:
    places = [
        (offset, each.partition)
        for each in stream.partitions
        for offset in _last_offsets(rebuilt, each, limit)
    ]
    places.sort()
    return [_record_fields(rebuilt, *place) for place in places[-limit:]]


def _last_offsets(rebuilt: Rebuilt, partition: PartitionDescription, limit: int) -> list[int]:
    """Return the offsets of the last records of a partition that anything tells about."""
    first = partition.first_offset
    found = {each for each in rebuilt.records.of(partition.partition_id) if each >= first}
    source = rebuilt.source
    for file in reversed(source.parts):
        if len(found) >= limit or file.segment is None or file.segment.last_index < first:
            break
        # What is behind the snapshot that the replay began with was noted by the replay.
        last = min(file.segment.last_index, rebuilt.base_index)
        start = max(file.first_index, first)
        if start <= last:
            entries = source.entries(start, last, stream_id=partition.partition_id)
            found.update(entry.index for entry in entries)
    return sorted(found)[-limit:]


def _record_fields(rebuilt: Rebuilt, offset: int, partition: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": offset, "partition": partition}
    try:
        entry = read_entry(rebuilt.source, offset)
        fields["timestamp_ns"] = entry.timestamp_ns
        record = decode_record(entry)
        if isinstance(record, DeadLetter):
            fields["dead_letter"] = _letter_fields(record)
            record = decode_record(read_entry(rebuilt.source, record.origin))
    except (NotKept, BadPayload) as error:
        return fields | unreadable(error)
    assert isinstance(record, Append), f"a dead letter leads to an append: {offset}"
    if record.key is not None:
        fields |= bytes_fields("key", record.key)
    fields["headers"] = [{"name": name} | bytes_fields("value", v) for name, v in record.headers]
    fields["tag"] = record.tag
    return fields | {"value_size": len(record.value)} | bytes_fields("value", record.value)


def _letter_fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        "group": letter.group,
        "origin": letter.origin,
        "deliveries": letter.deliveries,
        "failed_ns": letter.failed_ns,
    } | bytes_fields("reason", letter.reason)
