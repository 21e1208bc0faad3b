"""The Stream service: one line for what is a write or a look, and what reads the log or waits.

A stream is in one shard with all of its partitions, so only ``ListStreams`` goes over several.
Names are unique over shards: a page token is the name behind which a page goes on.
"""

from collections.abc import AsyncIterator
from typing import Any

from onelog.node.edge.calls import Call
from onelog.node.edge.messages import (
    filter_of,
    found,
    offset_at_time,
    origins,
    put_record,
    read_page,
)
from onelog.node.edge.operation import RequestT, ResponseT, Write, run_read, run_write
from onelog.node.edge.pages import list_by_name
from onelog.node.edge.shards import (
    Edge,
    View,
    invalid,
    namespace_of,
    put_log_read,
    read_options,
)
from onelog.node.public_errors import error_of_reason
from onelog.node.services import stream_operations as op
from onelog.node.services.stream_groups import Fetches, wait_s_of
from onelog.node.services.stream_operations import (
    GET_GROUP,
    GET_STREAM,
    check_stream,
    limit_of,
    put_stream,
)
from onelog.node.services.stream_tail import Tails
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.shard_state import Projections
from onelog.projections.stream.limits import READ_RECORDS_MAX, STREAM_NAME_SIZE_MAX
from onelog.projections.stream.reads import PageRead
from onelog.ual.log import Log
from onelog.v1 import common_pb2, stream_pb2

READ_DEFAULT = 1_000
ANSWER_S = 0.1  # a long poll that finds nothing ends so long before the call's deadline
_PRESENT = common_pb2.ReadOptions()


class StreamService:
    """See ``stream.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._fetches = Fetches(edge)
        self._tails = Tails(edge)

    async def create_stream(
        self, request: stream_pb2.CreateStreamRequest, call: Call
    ) -> stream_pb2.CreateStreamResponse:
        """Create a stream."""
        return await self._write(op.CREATE_STREAM, request, call)

    async def configure_stream(
        self, request: stream_pb2.ConfigureStreamRequest, call: Call
    ) -> stream_pb2.ConfigureStreamResponse:
        """Replace the retention of a stream."""
        return await self._write(op.CONFIGURE_STREAM, request, call)

    async def delete_stream(
        self, request: stream_pb2.DeleteStreamRequest, call: Call
    ) -> stream_pb2.DeleteStreamResponse:
        """Delete a stream."""
        return await self._write(op.DELETE_STREAM, request, call)

    async def get_stream(
        self, request: stream_pb2.GetStreamRequest, call: Call
    ) -> stream_pb2.GetStreamResponse:
        """Show a stream."""
        return await run_read(self._edge, GET_STREAM, request, call)

    async def append_records(
        self, request: stream_pb2.AppendRecordsRequest, call: Call
    ) -> stream_pb2.AppendRecordsResponse:
        """Append records."""
        return await self._write(op.APPEND_RECORDS, request, call)

    async def trim(self, request: stream_pb2.TrimRequest, call: Call) -> stream_pb2.TrimResponse:
        """Remove records from the start."""
        return await self._write(op.TRIM, request, call)

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
                put_stream(answer.streams.add(), namespace, found(reads.describe(namespace, name)))
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
        namespace, name = namespace_of(request.namespace), check_stream(request.stream)
        limit = limit_of(request.limit, READ_DEFAULT, READ_RECORDS_MAX)
        wanted, wait_s = filter_of(request.filter), wait_s_of(request.wait_ms)
        if request.from_offset and request.from_ns:
            raise invalid("START_INVALID", "begin at an offset or at a time")
        shard = edge.shard_of(name.encode())
        view = await edge.read(shard, read_options(request), call)
        driver, past, offset = edge.replica(shard), view.held, request.from_offset
        # The past brings nothing new.
        until_s = 0.0 if past else min(clock.now_s() + wait_s, call.deadline_s - ANSWER_S)
        if request.from_ns:
            offset = await offset_at_time(edge, driver, namespace, name, request.from_ns, past)

        def decide(projections: Projections, log: Log) -> PageRead:
            stream = found(projections.stream.find(namespace, name))
            if request.partition >= len(stream.partitions):
                raise error_of_reason(Reason.PARTITION_UNKNOWN, request.partition)
            partition = stream.partitions[request.partition]
            start = offset or partition.first_offset
            return projections.stream.page_read(log, [(partition, 0)], start, wanted)

        def has_more() -> bool:
            stream = (past or driver.shard).projections.stream.find(namespace, name)
            if isinstance(stream, Refused) or request.partition >= len(stream.partitions):
                return True  # the next look says what is wrong
            return stream.partitions[request.partition].last_offset >= offset

        while True:
            page = await read_page(edge, driver, decide, limit, past=past)
            offset = page.next_offset
            if page.items:
                break
            if not await edge.waits(shard).until(has_more, until_s - clock.now_s()):
                break
        answer = stream_pb2.ReadRecordsResponse(next_offset=offset)
        view.header(answer.header)
        if view.with_cost and page.first_visited is not None:
            lowest = min(page.first_visited, *origins(page.items))
            put_log_read(answer.header.cost, driver.shard.log, page.visit_count, lowest)
        answer.header.applied_index = max(view.applied_index, offset - 1 if page.items else 0)
        add = answer.records.add
        for item in page.items:
            put_record(add(), item)
        return answer

    # Groups

    async def create_group(
        self, request: stream_pb2.CreateGroupRequest, call: Call
    ) -> stream_pb2.CreateGroupResponse:
        """Create a consumer group; a time is turned into the offset that it means."""
        if request.from_ns:
            if request.HasField("from_offset"):
                raise invalid("START_INVALID", "begin at an offset or at a time")
            request.from_offset = await self._offset_at(request, request.from_ns, call)
            request.from_ns = 0
        return await self._write(op.CREATE_GROUP, request, call)

    async def configure_group(
        self, request: stream_pb2.ConfigureGroupRequest, call: Call
    ) -> stream_pb2.ConfigureGroupResponse:
        """Replace the settings of a group."""
        return await self._write(op.CONFIGURE_GROUP, request, call)

    async def delete_group(
        self, request: stream_pb2.DeleteGroupRequest, call: Call
    ) -> stream_pb2.DeleteGroupResponse:
        """Delete a group."""
        return await self._write(op.DELETE_GROUP, request, call)

    async def get_group(
        self, request: stream_pb2.GetGroupRequest, call: Call
    ) -> stream_pb2.GetGroupResponse:
        """Show a group."""
        return await run_read(self._edge, GET_GROUP, request, call)

    async def join_group(
        self, request: stream_pb2.JoinGroupRequest, call: Call
    ) -> stream_pb2.JoinGroupResponse:
        """Become a member of a group."""
        return await self._write(op.JOIN_GROUP, request, call)

    async def leave_group(
        self, request: stream_pb2.LeaveGroupRequest, call: Call
    ) -> stream_pb2.LeaveGroupResponse:
        """Leave a group."""
        return await self._write(op.LEAVE_GROUP, request, call)

    async def heartbeat_group(
        self, request: stream_pb2.HeartbeatGroupRequest, call: Call
    ) -> stream_pb2.HeartbeatGroupResponse:
        """Stay a member of a group."""
        return await self._write(op.HEARTBEAT_GROUP, request, call)

    async def fetch_records(
        self, request: stream_pb2.FetchRecordsRequest, call: Call
    ) -> stream_pb2.FetchRecordsResponse:
        """Fetch the next records for a member."""
        return await self._fetches.fetch(request, call)

    async def ack_records(
        self, request: stream_pb2.AckRecordsRequest, call: Call
    ) -> stream_pb2.AckRecordsResponse:
        """Take records as done."""
        return await self._write(op.ACK_RECORDS, request, call)

    async def nack_records(
        self, request: stream_pb2.NackRecordsRequest, call: Call
    ) -> stream_pb2.NackRecordsResponse:
        """Take records back that failed."""
        return await self._write(op.NACK_RECORDS, request, call)

    async def claim_records(
        self, request: stream_pb2.ClaimRecordsRequest, call: Call
    ) -> stream_pb2.ClaimRecordsResponse:
        """Take over records of others."""
        return await self._fetches.claim(request, call)

    async def commit_offsets(
        self, request: stream_pb2.CommitOffsetsRequest, call: Call
    ) -> stream_pb2.CommitOffsetsResponse:
        """Set the cursors of a group."""
        return await self._write(op.COMMIT_OFFSETS, request, call)

    async def seek_group(
        self, request: stream_pb2.SeekGroupRequest, call: Call
    ) -> stream_pb2.SeekGroupResponse:
        """Move the cursors of a group; a time is turned into the offset that it means."""
        if request.WhichOneof("target") == "time_ns":
            request.offset = await self._offset_at(request, request.time_ns, call)
        return await self._write(op.SEEK_GROUP, request, call)

    async def _write(
        self, write: Write[RequestT, ResponseT], request: RequestT, call: Call
    ) -> ResponseT:
        return await run_write(self._edge, write, request, call)

    async def _offset_at(self, request: Any, timestamp_ns: int, call: Call) -> int:
        """Return the offset that a time means, as the leader of the stream's shard knows it."""
        name = check_stream(request.stream)
        shard = self._edge.shard_of(name.encode())
        await self._edge.read(shard, _PRESENT, call)
        driver, namespace = self._edge.leading(shard), namespace_of(request.namespace)
        return await offset_at_time(self._edge, driver, namespace, name, timestamp_ns)
