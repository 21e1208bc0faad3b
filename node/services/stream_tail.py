"""Tails: records of one or several streams as they are appended, each once, in the log's order.

A tail is a watcher of streams (node/watch/watch.py has the whole): live it is handed records as
they are applied, in one process parsed once for all tails; behind it reads the log's stream tables,
a page at a time, with the gaps of what was trimmed in band. Where it is, is one index for each
shard: all records of its streams up to there were sent. That is all that a client needs to resume
elsewhere.

Where several streams of a tail begin at different places, what lies between is left out; and what
"only what is new" means is decided once, when the tail begins, and kept in its cursor until the
cursor has passed it. A stream that is deleted ends its tails.
"""

from collections.abc import AsyncIterator, Sequence, Set
from functools import partial
from typing import Any

from onelog.node.edge.calls import LEADER_WAIT_S, Call
from onelog.node.edge.messages import fill_record, found, offset_at_time, parse_filter, read_page
from onelog.node.edge.shards import Edge, invalid, parse_namespace
from onelog.node.edge.waits import Wake
from onelog.node.public_errors import error_of_bounds, error_of_reason
from onelog.node.services.stream_operations import check_stream, parse_partition
from onelog.node.watch.events import DELETED, StreamEvent
from onelog.node.watch.feeds import (
    PAGE_BYTES_MAX,
    PAGE_EVENTS_MAX,
    Feed,
    Page,
    Source,
    Wanted,
    get_source,
)
from onelog.node.watch.present import get_present
from onelog.node.watch.watch import (
    INDEX_MAX,
    PROGRESS_DEFAULT_MS,
    Follower,
    fill_part,
    places,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.shard_state import Projections
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.limits import PARTITION_ANY
from onelog.projections.stream.partition import Partition
from onelog.projections.stream.reads import PageRead, Record, estimate_size
from onelog.ual.entry import OWNER_STREAM
from onelog.ual.log import Log
from onelog.v1 import common_pb2, stream_pb2

STREAMS_MAX = 1_000  # that one tail names
PARTITIONS_MAX = 4_096  # that it reads in one shard: catching up costs a step for each
GAP_SIZE = 100  # bytes of one in a message, at most
TAIL_METHOD = "/onelog.v1.Stream/Tail"

Starts = dict[str, dict[int, int]]
"""By stream and partition (or PARTITION_ANY) the first offset that is wanted."""


class RecordPage(Page):
    """A message to a tail."""

    def __init__(self) -> None:
        message = stream_pb2.TailResponse()
        super().__init__(message, message.records)

    def add(self, _shard: int, event: StreamEvent) -> None:
        """See ``Page``."""
        if event.kind == DELETED:
            raise error_of_reason(Reason.STREAM_UNKNOWN)
        self.items.append(event.message())
        self.size += event.size

    @staticmethod
    def get_items(message: stream_pb2.TailResponse) -> Any:
        """See ``Page``."""
        return message.records


class Records:
    """Which records a tail wants in one shard."""

    is_exact = True
    owners = frozenset((OWNER_STREAM,))

    def __init__(self, namespace: str, starts: Starts, wanted: RecordFilter) -> None:
        self.namespace = namespace
        self.exact: Set[Wanted] = {(namespace, OWNER_STREAM, name.encode()) for name in starts}
        self.wanted = wanted
        self._starts = starts
        self._by_name = {name.encode(): parts for name, parts in starts.items()}

    def fits(self, event: StreamEvent) -> bool:
        """Tell whether an event is a record that is wanted, or the end of its stream."""
        record = event.record
        if record is None:
            return event.kind == DELETED
        starts = self._by_name[event.name]
        first = starts.get(record.partition, starts.get(PARTITION_ANY))
        if first is None or record.offset < first:
            return False
        return event.is_letter or self.wanted is EVERYTHING or self.wanted.wants(record)

    def begin(self, projections: Projections) -> None:
        """Replace start 0 by the first record that is kept: nothing before it counts as lost."""
        for partition, first in self.partitions(projections):
            if not first:
                stream = projections.stream.find_by_id(partition.stream_id)
                assert stream is not None
                self._starts[stream.name][partition.number] = partition.first_offset

    def partitions(self, projections: Projections) -> list[tuple[Partition, int]]:
        """Return the partitions that are read, each from an offset on."""
        chosen: list[tuple[Partition, int]] = []
        for name, starts in self._starts.items():
            stream = found(projections.stream.find(self.namespace, name))
            for number in starts:
                if number != PARTITION_ANY and number >= len(stream.partitions):
                    most = len(stream.partitions) - 1
                    reason = Reason.PARTITION_UNKNOWN
                    raise error_of_bounds(reason, f"the partition of {name!r}", number, most, 0)
            for partition in stream.partitions:
                first = starts.get(partition.number, starts.get(PARTITION_ANY))
                if first is not None:
                    chosen.append((partition, first))
        if len(chosen) > PARTITIONS_MAX:
            what = "the number of partitions"
            raise error_of_bounds(Reason.LIMIT_INVALID, what, len(chosen), PARTITIONS_MAX)
        return chosen


class RecordFeed(Feed):
    """One tail in one shard."""

    __slots__ = ("_new_after", "_records")

    def __init__(
        self, source: Source, records: Records, cursor: int, new_after: int, wake: Wake
    ) -> None:
        super().__init__(source, records, cursor, 0, wake)
        self._records = records
        self._new_after = new_after

    def position(self, cursor: common_pb2.Cursor) -> None:
        """See ``Feed``."""
        super().position(cursor)
        target = cursor.positions[-1]
        if target.index < self._new_after:
            target.new_after = self._new_after

    def take(self, events: list[Any]) -> None:
        """See ``Feed``; what a dead letter leads to is in the log."""
        (event,) = events  # a record is an entry
        if event.is_letter:
            self.fall_behind()
        else:
            super().take(events)

    async def read_on(self, page: Page) -> None:
        """See ``Feed``."""
        offset, source, records = self._cursor + 1, self._source, self._records
        names: dict[int, str] = {}

        def decide(projections: Projections, log: Log) -> PageRead:
            chosen = records.partitions(projections)
            find = projections.stream.find_by_id
            for partition, _ in chosen:
                stream = find(partition.stream_id)
                assert stream is not None
                names[stream.id] = stream.name
            return projections.stream.page_read(log, chosen, offset, records.wanted)

        room = PAGE_EVENTS_MAX - len(page.items), PAGE_BYTES_MAX - page.size
        read = await read_page(source.edge, source.driver, decide, 0.0, *room)
        if read.unreadable and self.await_repair(read.unreadable):
            read = read.before_damage()
        add = page.items.add
        for item in read.items:
            name = names[item.stream_id]
            fill_record(add(), item, name)
            page.size += len(name) + (estimate_size(item) if isinstance(item, Record) else GAP_SIZE)
        self._cursor = max(self._cursor, read.next_offset - 1)


class Tails:
    """The tails of one process."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def tail(
        self, request: stream_pb2.TailRequest, call: Call
    ) -> AsyncIterator[stream_pb2.TailResponse]:
        """Return records, from where each stream is to begin or from a cursor on, for ever."""
        begin = partial(self._begin, request, call)
        return Follower(self._edge, begin, RecordPage, PROGRESS_DEFAULT_MS / 1000)

    async def _begin(self, request: stream_pb2.TailRequest, call: Call, follower: Follower) -> None:
        edge, namespace = self._edge, parse_namespace(request.namespace)
        wanted = parse_filter(request.filter)
        by_shard = self._by_shard(request.streams)
        positions = {edge.check_shard(each.shard): each for each in request.cursor.positions}
        local, remote = await places(edge, sorted(by_shard), positions, call)
        for shard in local:
            feed = await self._feed(
                shard, namespace, by_shard[shard], wanted, positions.get(shard), follower.wake, call
            )
            follower.parts.append(feed)
        parts = {
            endpoint: (_make_part(request, by_shard, theirs), theirs)
            for endpoint, theirs in remote.items()
        }
        await follower.follow_others(TAIL_METHOD, stream_pb2.TailResponse, parts, call)

    def _by_shard(
        self, streams: Sequence[stream_pb2.TailStart]
    ) -> dict[int, list[stream_pb2.TailStart]]:
        if not 0 < len(streams) <= STREAMS_MAX:
            what = "the number of streams"
            raise error_of_bounds(Reason.LIMIT_INVALID, what, len(streams), STREAMS_MAX)
        by_shard: dict[int, list[stream_pb2.TailStart]] = {}
        for each in streams:
            parse_partition(each)
            if each.HasField("from_offset") and each.from_ns:
                raise invalid(
                    "START_INVALID", "both from_offset and from_ns are given; begin at one"
                )
            if each.from_offset >= INDEX_MAX:
                raise invalid(
                    "START_INVALID",
                    f"from_offset is {each.from_offset}; the highest offset is {INDEX_MAX - 1}",
                )
            shard = self._edge.find_shard(check_stream(each.stream).encode())
            by_shard.setdefault(shard, []).append(each)
        return by_shard

    async def _feed(
        self,
        shard: int,
        namespace: str,
        streams: Sequence[stream_pb2.TailStart],
        wanted: RecordFilter,
        position: common_pb2.Position | None,
        wake: Wake,
        call: Call,
    ) -> RecordFeed:
        """Return the part of a tail in a shard, begun; everything is found wrong before."""
        source = get_source(self._edge, shard)
        await self._wait_for(source, namespace, streams)
        if position is not None:
            new_after = position.new_after
        elif all(each.from_ns or each.HasField("from_offset") for each in streams):
            new_after = source.applied_index
        else:
            new_after = await get_present(self._edge, shard).find(call)
        starts: Starts = {}
        for each in streams:
            if each.from_ns:
                first = await offset_at_time(
                    self._edge, source.driver, namespace, each.stream, each.from_ns
                )
            else:
                first = each.from_offset if each.HasField("from_offset") else new_after + 1
            starts.setdefault(each.stream, {})[parse_partition(each)] = first
        records = Records(namespace, starts, wanted)
        projections = source.driver.shard.projections
        if position is not None:
            records.partitions(projections)
            cursor = position.index
        else:
            records.begin(projections)
            cursor = min(first for _, first in records.partitions(projections)) - 1
        feed = RecordFeed(source, records, cursor, new_after, wake)
        source.add(feed)
        return feed

    async def _wait_for(
        self, source: Source, namespace: str, streams: Sequence[stream_pb2.TailStart]
    ) -> None:
        """Give a replica that does not lead a moment to hear of streams that are new."""
        shard = source.driver.shard

        def is_known() -> bool:
            find = shard.projections.stream.find
            return not any(isinstance(find(namespace, each.stream), Refused) for each in streams)

        wait_s = 0.0 if shard.member.has_applied_noop else LEADER_WAIT_S
        await self._edge.waits(source.number).until(is_known, wait_s)


def _make_part(
    request: stream_pb2.TailRequest,
    by_shard: dict[int, list[stream_pb2.TailStart]],
    shards: Sequence[int],
) -> bytes:
    part = stream_pb2.TailRequest(namespace=request.namespace, filter=request.filter)
    for shard in shards:
        part.streams.extend(by_shard[shard])
    fill_part(part.cursor, request.cursor, shards)
    data: bytes = part.SerializeToString()
    return data
