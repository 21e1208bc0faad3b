"""Reads of streams in one step, by the same plans that the server makes and runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onelog.projections.result import Refused
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.groups import Group, split_place
from onelog.projections.stream.limits import READ_RECORDS_MAX
from onelog.projections.stream.reads import (
    Page,
    Record,
    RecordLog,
    StreamReads,
    open_record,
)
from onelog.projections.stream.state import StreamState
from tests.projections.world import NAMESPACE


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A record that was delivered and not acknowledged; ``member`` 0: nobody holds it."""

    partition: int
    offset: int
    member: int
    since_ns: int
    deliveries: int
    ready_ns: int
    reason: bytes
    dead: bool


def find_stream(streams: StreamReads, name: str) -> StreamState:
    found = streams.find(NAMESPACE, name)
    assert not isinstance(found, Refused), found
    return found


def find_group(
    streams: StreamReads, name: str, group: str, namespace: str = NAMESPACE
) -> tuple[StreamState, Group]:
    found = streams.find_group(namespace, name, group)
    assert not isinstance(found, Refused), found
    return found


def read_page(
    streams: StreamReads,
    log: RecordLog,
    name: str,
    partition: int = 0,
    offset: int | None = None,
    *,
    limit: int = READ_RECORDS_MAX,
    wanted: RecordFilter = EVERYTHING,
) -> Page:
    """Return records of one partition from ``offset`` on (None: the first kept one)."""
    chosen = find_stream(streams, name).partitions[partition]
    start = chosen.first_offset if offset is None else offset
    return streams.page_read(log, [(chosen, 0)], start, wanted).run(log, limit)


def read_streams(
    streams: StreamReads,
    log: RecordLog,
    names: Sequence[str],
    offset: int,
    limit: int = READ_RECORDS_MAX,
) -> Page:
    """Return records of all partitions of some streams, in the order of the log."""
    chosen = [(each, 0) for name in names for each in find_stream(streams, name).partitions]
    return streams.page_read(log, chosen, offset).run(log, limit)


def read_undelivered(
    streams: StreamReads, log: RecordLog, name: str, group: str, partition: int, limit: int
) -> Page:
    """Return the records that a delivery to a member of the group would hold."""
    stream, state = find_group(streams, name, group)
    chosen = stream.partitions[partition]
    start = state.cursors.rows[partition]
    page = streams.page_read(log, [(chosen, 0)], start).run(log, limit)
    return replace(page, next_offset=min(page.next_offset, chosen.end_offset))


def read_pending(
    streams: StreamReads, log: RecordLog, name: str, partition: int, offset: int
) -> Record:
    """Return a pending record of a group, trimmed or not."""
    return open_record(log, log.read(offset), find_stream(streams, name).id, partition)


def list_pending(
    streams: StreamReads, name: str, group: str, namespace: str = NAMESPACE
) -> tuple[PendingRecord, ...]:
    """Return the pending records of a group, in order."""
    _, state = find_group(streams, name, group, namespace)
    rows = state.pending.rows.items()
    return tuple(PendingRecord(*split_place(place), *pending) for place, pending in rows)
