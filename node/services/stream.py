"""The Stream service: calls that read the log or wait.

The other calls are one write or one read each (node/services/stream_operations.py).

A stream is in one shard with all of its partitions, so only ``ListStreams`` goes over several.
Names are unique over shards: a page token is the last name of the page before.
"""

from collections.abc import AsyncIterator
from typing import Any

from onelog.node.edge.calls import Call
from onelog.node.edge.messages import (
    fill_record,
    found,
    offset_at_time,
    origins,
    parse_filter,
    read_page,
)
from onelog.node.edge.operation import run_write
from onelog.node.edge.pages import list_by_name
from onelog.node.edge.shards import (
    Edge,
    View,
    fill_log_read,
    invalid,
    parse_namespace,
    read_options,
)
from onelog.node.public_errors import error_of_bounds
from onelog.node.services import stream_operations as op
from onelog.node.services.stream_groups import Fetches, parse_wait_s
from onelog.node.services.stream_operations import check_stream, fill_stream, parse_limit
from onelog.node.services.stream_tail import Tails
from onelog.node.services.stream_trims import Trims
from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.shard_state import Projections
from onelog.projections.stream.limits import READ_RECORDS_MAX, STREAM_NAME_SIZE_MAX
from onelog.projections.stream.reads import PageRead
from onelog.ual.log import Log
from onelog.v1 import common_pb2, stream_pb2

READ_DEFAULT = 1_000
ANSWER_S = 0.1  # a long poll that finds nothing ends this long before the call's deadline
_PRESENT = common_pb2.ReadOptions()


class StreamService:
    """What ``stream_operations.OPERATIONS`` lacks of ``stream.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._fetches = Fetches(edge)
        self._tails = Tails(edge)
        self._trims = Trims(edge)

    def tail(
        self, request: stream_pb2.TailRequest, call: Call
    ) -> AsyncIterator[stream_pb2.TailResponse]:
        """Send records as they are appended."""
        return self._tails.tail(request, call)

    async def list_streams(
        self, request: stream_pb2.ListStreamsRequest, call: Call
    ) -> stream_pb2.ListStreamsResponse:
        """List streams by name, a page of them."""

        def look(view: View, namespace: str, after: str, limit: int, answer: Any) -> bool:
            reads, prefix = view.projections.stream, request.prefix
            names = found(reads.list_streams(namespace, prefix=prefix, after=after, limit=limit))
            for name in names:
                fill_stream(answer.streams.add(), namespace, found(reads.describe(namespace, name)))
            return len(names) == limit and bool(
                reads.list_streams(namespace, prefix=prefix, after=names[-1], limit=1)
            )

        listed: stream_pb2.ListStreamsResponse = await list_by_name(
            self._edge,
            request,
            call,
            look,
            items="streams",
            name="stream",
            name_size_max=STREAM_NAME_SIZE_MAX,
            name_invalid=Reason.STREAM_NAME_INVALID,
        )
        return listed

    # Reading

    async def read_records(
        self, request: stream_pb2.ReadRecordsRequest, call: Call
    ) -> stream_pb2.ReadRecordsResponse:
        """Read a page of records; wait for the first, if that is wanted."""
        edge, clock = self._edge, self._edge.context.clock
        namespace, name = parse_namespace(request.namespace), check_stream(request.stream)
        limit = parse_limit(request.limit, READ_DEFAULT, READ_RECORDS_MAX)
        wanted, wait_s = parse_filter(request.filter), parse_wait_s(request.wait_ms)
        if request.from_offset and request.from_ns:
            raise invalid("START_INVALID", "both from_offset and from_ns are given; begin at one")
        shard = edge.find_shard(name.encode())
        view = await edge.read(shard, read_options(request), call)
        driver, past, offset = edge.replica(shard), view.held, request.from_offset
        # The past brings nothing new.
        until_s = 0.0 if past else min(clock.now_s() + wait_s, call.deadline_s - ANSWER_S)
        if request.from_ns:
            offset = await offset_at_time(edge, driver, namespace, name, request.from_ns, past)

        def decide(projections: Projections, log: Log) -> PageRead:
            stream = found(projections.stream.find(namespace, name))
            if request.partition >= len(stream.partitions):
                most = len(stream.partitions) - 1
                reason = Reason.PARTITION_UNKNOWN
                raise error_of_bounds(reason, "partition", request.partition, most, 0)
            partition = stream.partitions[request.partition]
            start = offset or partition.first_offset
            return projections.stream.page_read(log, [(partition, 0)], start, wanted)

        def has_more() -> bool:
            stream = (past or driver.shard).projections.stream.find(namespace, name)
            if isinstance(stream, Refused) or request.partition >= len(stream.partitions):
                return True  # the next look says what is wrong
            return stream.partitions[request.partition].last_offset >= offset

        visit_count, lowest = 0, U64_MAX
        while True:
            page = await read_page(edge, driver, decide, call.deadline_s, limit, past=past)
            offset = page.next_offset
            visit_count += page.visit_count
            lowest = min(page.first_visited or U64_MAX, lowest, *origins(page.items))
            if page.items:
                break
            if not await edge.waits(shard).until(has_more, until_s - clock.now_s()):
                break
        answer = stream_pb2.ReadRecordsResponse(next_offset=offset)
        view.header(answer.header)
        if view.with_cost and visit_count:
            fill_log_read(answer.header.cost, driver.shard.log, visit_count, lowest)
        answer.header.applied_index = max(view.applied_index, offset - 1 if page.items else 0)
        add = answer.records.add
        for item in page.items:
            fill_record(add(), item)
        return answer

    # Trims

    async def trim(self, request: stream_pb2.TrimRequest, call: Call) -> stream_pb2.TrimResponse:
        """Remove records from the start of partitions."""
        return await self._trims.trim(request, call)

    # Groups

    async def create_group(
        self, request: stream_pb2.CreateGroupRequest, call: Call
    ) -> stream_pb2.CreateGroupResponse:
        """Create a consumer group; a time is turned into the offset that it means."""
        if request.from_ns:
            if request.HasField("from_offset"):
                raise invalid(
                    "START_INVALID", "both from_offset and from_ns are given; begin at one"
                )
            request.from_offset = await self._offset_at(request, request.from_ns, call)
            request.from_ns = 0
        return await run_write(self._edge, op.CREATE_GROUP, request, call)

    async def fetch_records(
        self, request: stream_pb2.FetchRecordsRequest, call: Call
    ) -> stream_pb2.FetchRecordsResponse:
        """Fetch the next records for a member."""
        return await self._fetches.fetch(request, call)

    async def claim_records(
        self, request: stream_pb2.ClaimRecordsRequest, call: Call
    ) -> stream_pb2.ClaimRecordsResponse:
        """Take over records of others."""
        return await self._fetches.claim(request, call)

    async def seek_group(
        self, request: stream_pb2.SeekGroupRequest, call: Call
    ) -> stream_pb2.SeekGroupResponse:
        """Move the cursors of a group; a time is turned into the offset that it means."""
        if request.WhichOneof("target") == "time_ns":
            request.offset = await self._offset_at(request, request.time_ns, call)
        return await run_write(self._edge, op.SEEK_GROUP, request, call)

    async def _offset_at(self, request: Any, timestamp_ns: int, call: Call) -> int:
        """Return the offset that a time means, as the leader of the stream's shard knows it."""
        name = check_stream(request.stream)
        shard = self._edge.find_shard(name.encode())
        await self._edge.read(shard, _PRESENT, call)
        driver, namespace = self._edge.leading(shard), parse_namespace(request.namespace)
        return await offset_at_time(self._edge, driver, namespace, name, timestamp_ns)
