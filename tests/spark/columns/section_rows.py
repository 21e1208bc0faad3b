"""What the tables of a snapshot must show: rows of projections that loaded the same snapshot."""

from collections.abc import Callable, Iterator
from typing import Any

from onelog.projections.kv.reads import History, KeyValue, Page, Range
from onelog.projections.kv.record import EXPIRES, LEASED, TRIMMED, read_versions
from onelog.projections.limits import SCAN_KEYS_MAX
from onelog.projections.queue.reads import Peeked, QueueInfo
from onelog.projections.shard_state import Projections
from onelog.projections.stream.filters import EVERYTHING
from onelog.projections.stream.reads import GroupDescription, StreamDescription
from onelog.projections.timeseries.limits import TIME_NS_MIN
from onelog.projections.timeseries.names import parse_series
from onelog.projections.timeseries.store import Series
from onelog.projections.timeseries.types import TYPE_NAMES, FieldType, bits_to_value
from tests.projections.stream.stream_pages import list_pending

Row = dict[str, Any]


def key_text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def kv(state: Projections) -> Iterator[Row]:
    for namespace in sorted(state.kv.stores):
        page = state.kv.scan(namespace, Range(), limit=SCAN_KEYS_MAX)
        assert isinstance(page, Page)
        assert page.next_key is None
        for item in page.items:
            yield {
                "namespace": namespace,
                "key": item.key,
                "key_text": key_text(item.key),
                "value": item.value,
                "version": item.version,
                "expires_ns": item.expires_ns,
                "lease": item.lease,
            }


def kv_versions(state: Projections) -> Iterator[Row]:
    for namespace in sorted(state.kv.stores):
        store = state.kv.stores[namespace]
        for key in sorted(store.records):
            history = state.kv.history(namespace, key)
            assert isinstance(history, History)
            record = store.record(key)
            assert record is not None
            nodes = list(read_versions(record))
            item = state.kv.get(namespace, key)
            for place, (past, node) in enumerate(zip(history.versions, nodes, strict=True)):
                if not place and isinstance(item, KeyValue):
                    assert (item.expires_ns, item.lease) == (
                        node.expires_ns or None,
                        node.lease or None,
                    )
                yield {
                    "namespace": namespace,
                    "key": key,
                    "key_text": key_text(key),
                    "place": place,
                    "version": past.version,
                    "value": past.value,
                    "tombstone": past.value is None,
                    "expired": past.expired,
                    "expires_ns": node.expires_ns if node.flags & EXPIRES else None,
                    "lease": node.lease if node.flags & LEASED else None,
                    "trimmed": bool(nodes[0].flags & TRIMMED),
                }


def _queues(state: Projections) -> list[QueueInfo]:
    found = []
    for namespace in sorted(state.queue._names):
        listed = state.queue.list_queues(namespace)
        assert isinstance(listed, list)
        for _, queue_id in listed:
            info = state.queue.describe_queue(namespace, queue_id)
            assert isinstance(info, QueueInfo)
            found.append(info)
    return sorted(found, key=lambda info: info.id)


def queue(state: Projections) -> Iterator[Row]:
    for info in _queues(state):
        peeked = state.queue.peek(info.namespace, info.id, limit=1_000)
        assert isinstance(peeked, Peeked)
        assert peeked.next_id is None
        for message in peeked.messages:
            dead = message.dead
            yield {
                "namespace": info.namespace,
                "queue_id": info.id,
                "queue": info.name,
                "message_id": message.id,
                "state": ("ready", "delayed", "leased")[message.state],
                "priority": message.priority,
                "since_ns": message.since_ns,
                "due_ns": message.due_ns or None,
                "token": message.token or None,
                "deliveries": message.deliveries,
                "expires_ns": message.expires_ns or None,
                "group": message.group or None,
                "tenant": message.tenant or None,
                "body_index": message.body_index,
                "dead_queue_id": None if dead is None else dead.source,
                "dead_deliveries": None if dead is None else dead.retry_count,
                "failed_ns": None if dead is None else dead.failed_ns,
                "failure": None if dead is None else dead.failure.decode(),
            }


def queues(state: Projections) -> Iterator[Row]:
    for info in _queues(state):
        config, stats = info.config, info.stats
        found = state.queue.queue_by_id(info.id)
        assert found is not None
        yield {
            "namespace": info.namespace,
            "queue_id": info.id,
            "queue": info.name,
            "paused": info.is_paused,
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
            "last_tenant": found.last_tenant or None,
            "turn_count": found.turn_count,
            "ready": stats.ready,
            "delayed": stats.delayed,
            "leased": stats.leased,
            "dedup_ids": stats.dedup_ids,
            "schedules": len(info.schedules),
            "redrives": len(info.redrives),
            **stats.totals,
        }


def _streams(state: Projections) -> Iterator[tuple[str, StreamDescription]]:
    for namespace in sorted(state.stream._streams.names):
        names = state.stream.list_streams(namespace)
        assert isinstance(names, tuple)
        found = [state.stream.describe(namespace, name) for name in names]
        described = [each for each in found if isinstance(each, StreamDescription)]
        assert len(described) == len(found)
        for each in sorted(described, key=lambda each: each.stream_id):
            yield namespace, each


def streams(state: Projections) -> Iterator[Row]:
    for namespace, stream in _streams(state):
        retention = stream.retention
        partitions = state.stream._streams.names[namespace][stream.name].partitions
        for each, kept in zip(stream.partitions, partitions, strict=True):
            yield {
                "namespace": namespace,
                "stream": stream.name,
                "stream_id": stream.stream_id,
                "partition_count": len(stream.partitions),
                "age_ns": retention.age_ns,
                "size_max": retention.size_max,
                "count_max": retention.count_max,
                "past_groups": retention.past_groups,
                "key_hash": stream.key_hash.name.lower(),
                "producers": stream.producer_count,
                "dead_letters": stream.dead_letter_count,
                "groups": len(stream.groups),
                "partition": each.partition,
                "first_offset": each.first_offset,
                "last_offset": kept.last_offset or None,
                "end_offset": each.end_offset,
                "last_ns": kept.last_ns or None,
                "records": each.record_count,
                "bytes": kept.size,
                "records_kept": each.record_count_kept,
                "bytes_kept": each.size_kept,
            }


def groups(state: Projections) -> Iterator[Row]:
    for namespace, stream in _streams(state):
        for name in stream.groups:
            group = state.stream.describe_group(namespace, stream.name, name)
            assert isinstance(group, GroupDescription)
            pending = list_pending(state.stream, stream.name, name, namespace)
            deadlines = dict(group.members)
            for partition, owner in enumerate(group.owners):
                yield {
                    "namespace": namespace,
                    "stream": stream.name,
                    "stream_id": stream.stream_id,
                    "group": name,
                    "group_id": group.group_id,
                    "generation": group.generation,
                    "shared": group.config.shared,
                    "max_deliveries": group.config.max_deliveries,
                    "dead_letter": group.config.dead_letter or None,
                    "filtered": group.config.filter != EVERYTHING,
                    "members": len(group.members),
                    "partition": partition,
                    "owner": owner or None,
                    "owner_deadline_ns": deadlines.get(owner),
                    "delivered": group.delivered[partition],
                    "committed": group.committed[partition],
                    "lag": group.lags[partition],
                    "pending": group.pending_of_partitions[partition],
                    "pending_dead": sum(
                        each.dead for each in pending if each.partition == partition
                    ),
                }


def _series(state: Projections) -> Iterator[tuple[Row, Series, int]]:
    """Yield what both tables have, the series and the id of the field."""
    for namespace in sorted(state.series.spaces):
        space = state.series.spaces[namespace]
        for measurement in space.in_order():
            for series_id in measurement.index.ids:
                series = measurement.series[int(series_id)]
                name = parse_series(series.name)
                trimmed_ns = measurement.trimmed_ns
                for field_id in sorted(series.columns):
                    field, kind = measurement.fields[field_id]
                    yield (
                        {
                            "namespace": namespace,
                            "measurement": measurement.name,
                            "series_id": series.series_id,
                            "series": series.name.decode(),
                            "tags": list(name.tags),
                            "field_id": field_id,
                            "field": field,
                            "value_type": TYPE_NAMES[kind],
                            "policy": measurement.config.policy.name.lower(),
                            "trimmed_ns": None if trimmed_ns == TIME_NS_MIN else trimmed_ns,
                        },
                        series,
                        field_id,
                    )


def series(state: Projections) -> Iterator[Row]:
    for names, found, field_id in _series(state):
        column = found.columns[field_id]
        blocks = column.rows().tolist()
        yield {
            **names,
            "retention_ns": found.measurement.config.retention_ns,
            "created_index": found.created_index,
            "base": column.base,
            "buffered": len(column),
            "block_points": sum(block[3] for block in blocks),
            "blocks": [
                dict(zip(("index", "first_ns", "last_ns", "points"), block, strict=True))
                for block in blocks
            ],
            "deleted": [each._asdict() for each in column.deleted],
        }


def buffered_points(state: Projections) -> Iterator[Row]:
    for names, found, field_id in _series(state):
        column = found.columns[field_id]
        times, bits = column.buffered()
        for place, (time_ns, raw) in enumerate(zip(times.tolist(), bits.tolist(), strict=True)):
            value = bits_to_value(column.field_type, raw)
            yield {
                **names,
                "arrival": column.base + place,
                "time_ns": time_ns,
                "value": float(value),
                "value_long": value if column.field_type is FieldType.I64 else None,
                "value_bool": value if column.field_type is FieldType.BOOL else None,
            }


EXPECTED: dict[str, Callable[[Projections], Iterator[Row]]] = {
    "kv": kv,
    "kv_versions": kv_versions,
    "queue": queue,
    "queues": queues,
    "streams": streams,
    "groups": groups,
    "series": series,
    "buffered_points": buffered_points,
}
