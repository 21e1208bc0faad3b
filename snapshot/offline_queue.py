"""What a queue was at an index: depths, totals, settings, and its first messages."""

from dataclasses import asdict
from typing import Any

from onelog.projections.errors import BadPayload
from onelog.projections.queue.message import decode_message
from onelog.projections.queue.results import dead_headers
from onelog.projections.queue.row import DELAYED, LEASED, READY, Row
from onelog.projections.result import Refused
from onelog.snapshot.offline import Rebuilt
from onelog.snapshot.offline_entries import NotKept, bytes_fields, read_entry, unreadable

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
