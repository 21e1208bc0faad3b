"""Questions about one thing in a rebuilt state: a key, a queue, a stream, a series, a measurement.

A question knows where to ask (the shard of its routing key) and how to answer: with plain values,
ready for JSON. A name that does not exist is an answer: ``exists`` is false.

The state does not hold which entries are records of a stream. For sealed entries, the tables of
their files do; for entries that were unsealed when the snapshot was made, the notes of the snapshot
do; and the replay that led to the state notes the rest (``Rebuilt.records``). Together they cover
every entry.
"""

import os
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from onelog.projections.errors import BadPayload
from onelog.projections.queue.message import dead_headers, decode_message
from onelog.projections.queue.table import DELAYED, LEASED, READY, Row
from onelog.projections.result import Refused
from onelog.projections.stream.commands import Append, DeadLetter, decode_record
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.reads import PartitionDescription, StreamDescription
from onelog.projections.timeseries.columns import CorruptBlock
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.names import SeriesName, format_series, parse_series
from onelog.projections.timeseries.projection import describe_measurement
from onelog.projections.timeseries.read import BlockCache, read_column
from onelog.projections.timeseries.store import Measurement, Series
from onelog.projections.timeseries.types import TYPE_NAMES, Progress, Rule
from onelog.snapshot.offline import (
    NotKept,
    Rebuilt,
    bytes_fields,
    find_key_shard,
    read_entry,
    read_key,
    unreadable,
)
from onelog.ual.files import Files

_STATE_NAMES = {READY: "ready", DELAYED: "delayed", LEASED: "leased"}


def ask_queue(rebuilt: Rebuilt, namespace: str, name: str, limit: int) -> dict[str, Any] | None:
    """Return all about a queue, and up to ``limit`` messages; None: it did not exist."""
    queues = rebuilt.projections.queue
    queue_id = queues.find_queue(namespace, name)
    if queue_id is None:
        return None
    info = queues.describe_queue(namespace, queue_id)
    assert not isinstance(info, Refused), info
    stats = info.stats
    fields: dict[str, Any] = {
        "id": info.id,
        "is_paused": info.is_paused,
        "depth": {"ready": stats.ready, "delayed": stats.delayed, "leased": stats.leased},
        "oldest_ready_ns": stats.oldest_ready_ns,
        "oldest_age_ns": stats.oldest_age_ns,
        "totals": stats.totals,
        "groups": stats.groups,
        "tenants": stats.tenants,
        "dedup_ids": stats.dedup_ids,
        "config": asdict(info.config),
        "schedules": [
            {"id": each.id, "next_ns": each.next_ns} | bytes_fields("cron", each.cron_text)
            for each in info.schedules
        ],
        "redrives": [
            {"id": each.id, "target": each.target, "moved": each.moved_count}
            for each in info.redrives
        ],
    }
    if limit:
        peeked = queues.peek(namespace, queue_id, limit=limit)
        assert not isinstance(peeked, Refused), peeked
        fields["messages"] = [_message_fields(rebuilt, row) for row in peeked.messages]
        fields["has_more"] = peeked.next_id is not None
    return fields


def _message_fields(rebuilt: Rebuilt, row: Row) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": row.id,
        "state": _STATE_NAMES[row.state],
        "priority": row.priority,
        "deliveries": row.deliveries,
        "since_ns": row.since_ns,
        "due_ns": row.due_ns or None,
        "token": row.token or None,
        "expires_ns": row.expires_ns or None,
    }
    if row.group:
        fields |= bytes_fields("group", row.group)
    if row.tenant:
        fields |= bytes_fields("tenant", row.tenant)
    if row.dead is not None:
        fields["dead_letter"] = dead_headers(row.id, row.dead)
    try:
        message = decode_message(read_entry(rebuilt.source, row.body_index))
    except (NotKept, BadPayload) as error:
        return fields | unreadable(error)
    fields["headers"] = [
        bytes_fields("name", name) | bytes_fields("value", value) for name, value in message.headers
    ]
    return fields | {"body_size": len(message.body)} | bytes_fields("body", message.body)


# Offline stream


def ask_stream(rebuilt: Rebuilt, namespace: str, name: str, limit: int) -> dict[str, Any] | None:
    """Return all about a stream, and its last ``limit`` records; None: it did not exist."""
    found = rebuilt.projections.stream.describe(namespace, name)
    if isinstance(found, Refused):
        return None
    fields: dict[str, Any] = {
        "id": found.stream_id,
        "retention": asdict(found.retention),
        "key_hash": found.key_hash.name.lower(),
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
        "config": asdict(found.config) | {"filter": _filter_fields(found.config.filter)},
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


def _filter_fields(wanted: RecordFilter) -> dict[str, Any] | None:
    if wanted == EVERYTHING:
        return None
    return bytes_fields("key_prefix", wanted.key_prefix) | {
        "keys": [bytes_fields("key", key) for key in sorted(wanted.keys)],
        "tags": sorted(wanted.tags),
        "headers": [
            {"name": name} | ({} if value is None else bytes_fields("value", value))
            for name, value in wanted.headers
        ],
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
    """Return the offsets of the last known records of a partition."""
    first = partition.first_offset
    found = {each for each in rebuilt.records.of(partition.partition_id) if each >= first}
    source = rebuilt.source
    for file in reversed(source.parts):
        if len(found) >= limit or file.segment is None or file.segment.last_index < first:
            break
        # The replay noted the records after the snapshot that it began with.
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


# Offline series


def parse_series_text(text: bytes) -> SeriesName:
    """Parse the name of a series as a person writes it; raise ``ValueError`` with the rule.

    Without tags the braces may be left out.
    """
    try:
        return parse_series(text if b"{" in text else text + b"{}")
    except BadPayload as error:
        raise ValueError(
            f"{error.reason.message(error.detail)}: write "
            "measurement{tag=value,tag=value}, tags in ascending order, and a backslash before "
            "each of \\ , = { } in a name"
        ) from error


def ask_measurement(
    rebuilt: Rebuilt, namespace: str, name: str, limit: int
) -> dict[str, Any] | None:
    """Return all about a measurement, and its first ``limit`` series; None: it did not exist."""
    measurement = _find_measurement(rebuilt, namespace, name)
    if measurement is None:
        return None
    info = describe_measurement(measurement)
    config = info.config
    fields: dict[str, Any] = {
        "created_index": info.created_index,
        "series_count": info.series_count,
        "fields": [{"name": field, "type": kind} for field, kind in info.fields],
        "tags": [{"name": tag, "values": count} for tag, count in info.tags],
        "rules": [_rule_fields(*each) for each in info.rules],
        "trimmed_ns": info.trimmed_ns,
        "config": asdict(config) | {"policy": config.policy.name.lower()},
    }
    if limit:
        page = rebuilt.projections.series.series(namespace, name, limit=limit)
        assert not isinstance(page, Refused), page
        fields["series"] = [each.name.decode() for each in page.items]
        fields["has_more"] = page.after is not None
    return fields


def ask_series(
    rebuilt: Rebuilt, namespace: str, name: SeriesName, field: str | None
) -> dict[str, Any] | None:
    """Return the points of a series, of one field or of all; None: it did not exist."""
    space = rebuilt.projections.series.spaces.get(namespace)
    series = None if space is None else space.series.get(format_series(name))
    if series is None:
        return None
    names = [each.name for each in series.measurement.fields]
    wanted = names if field is None else [field]
    fields = [_field_fields(rebuilt, series, each) for each in wanted]
    return {
        "id": series.series_id,
        "created_index": series.created_index,
        "tags": dict(series.tags),
        "fields": [each for each in fields if each["exists"] or field is not None],
    }


def _field_fields(rebuilt: Rebuilt, series: Series, name: str) -> dict[str, Any]:
    """Return the points of one field, one per time, in the order of time."""
    measurement = series.measurement
    field_id = measurement.field_ids.get(name)
    column = None if field_id is None else series.columns.get(field_id)
    if column is None:
        return {"name": name, "exists": False}
    fields: dict[str, Any] = {
        "name": name,
        "exists": True,
        "type": TYPE_NAMES[column.field_type],
        "buffered_points": len(column),
        "blocks": len(column.rows()),
    }
    cache = BlockCache(lambda index: read_entry(rebuilt.source, index).plain_payload())
    try:
        times, values = read_column(measurement, column, TIME_NS_MIN, TIME_NS_MAX, cache)
    except (NotKept, CorruptBlock) as error:
        return fields | {"error": str(error)}
    return fields | {
        "point_count": len(times),
        "times_ns": times.tolist(),
        "values": values.tolist(),
    }


def _rule_fields(rule: Rule, progress: Progress) -> dict[str, Any]:
    return {
        "name": rule.name,
        "target": rule.target,
        "window_ns": rule.window_ns,
        "delay_ns": rule.delay_ns,
        "aggregates": [each.name.lower() for each in rule.aggregates],
        "done_ns": None if progress.done_ns == TIME_NS_MIN else progress.done_ns,
        "refused": progress.refused_count,
    }


def _find_measurement(rebuilt: Rebuilt, namespace: str, name: str) -> Measurement | None:
    space = rebuilt.projections.series.spaces.get(namespace)
    return None if space is None else space.measurements.get(name)


# Questions


class Subject(Enum):
    """What a question is about; the value is the name of the option and of the answer."""

    KEY = "key"
    QUEUE = "queue"
    STREAM = "stream"
    SERIES = "series"
    MEASUREMENT = "measurement"


@dataclass(frozen=True, slots=True)
class Question:
    """What was ``name`` in ``namespace``? With ``list_max``, say also what is in it."""

    subject: Subject
    name: str  # as a command line has it: bytes that are no text are surrogates
    namespace: str = "default"
    field: str | None = None  # of a series; None: all
    list_max: int = 0

    def check(self) -> None:
        """Raise ``ValueError`` for an invalid name."""
        if self.subject is Subject.SERIES:
            parse_series_text(os.fsencode(self.name))

    @property
    def routing_name(self) -> bytes:
        """The name that determines which shard to ask."""
        raw = os.fsencode(self.name)
        if self.subject is Subject.SERIES:
            return parse_series_text(raw).measurement.encode()
        return raw

    @property
    def records_kept(self) -> int:
        """How many records a replay must remember for the answer."""
        return self.list_max if self.subject is Subject.STREAM else 0

    def shard(self, files: Files, data_dir: Path) -> int:
        """Return the shard of the name."""
        return find_key_shard(files, data_dir, self.routing_name)


def answer(rebuilt: Rebuilt, question: Question) -> dict[str, Any]:
    """Answer a question from a rebuilt state."""
    namespace, name, limit = question.namespace, question.name, question.list_max
    fields: dict[str, Any] | None
    match question.subject:
        case Subject.KEY:
            return _answer_key(rebuilt, namespace, os.fsencode(name))
        case Subject.QUEUE:
            fields = ask_queue(rebuilt, namespace, name, limit)
        case Subject.STREAM:
            fields = ask_stream(rebuilt, namespace, name, limit)
        case Subject.MEASUREMENT:
            fields = ask_measurement(rebuilt, namespace, name, limit)
        case Subject.SERIES:
            parsed = parse_series_text(os.fsencode(name))
            fields = ask_series(rebuilt, namespace, parsed, question.field)
    head = {"namespace": namespace, "name": name, "exists": fields is not None}
    return head | (fields or {})


def _answer_key(rebuilt: Rebuilt, namespace: str, key: bytes) -> dict[str, Any]:
    found = read_key(rebuilt, namespace, key)
    fields: dict[str, Any] = {"namespace": namespace, "exists": found is not None}
    fields |= bytes_fields("key", key)
    if found is None:
        return fields
    fields |= bytes_fields("value", found.value)
    return fields | {
        "version": found.version,
        "expires_ns": found.expires_ns,
        "lease": found.lease,
    }
