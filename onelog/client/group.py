"""Consumer groups: ``client.stream("events").group("billing")``.

A group has a committed offset in each partition, and members that share the work. ``join`` returns
a consumer: an iterator over records, which are pending until they are acknowledged. Its heartbeat
runs in the background. When partitions move to another member, the next fetch adapts.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Self

from onelog.client.connection import Connection
from onelog.client.options import Scope
from onelog.client.validation import refuse_unsendable
from onelog.client.values import (
    GroupConfig,
    GroupInfo,
    Read,
    Record,
    milliseconds,
    to_group_info,
    to_record,
)
from onelog.errors import ConditionFailed, InvalidArgument, OnelogError
from onelog.v1 import pipeline_pb2, stream_pb2

HEARTBEATS = 3  # in the length of one session: one may be lost


@refuse_unsendable
class AsyncGroup:
    """One consumer group of a stream, by its name."""

    def __init__(self, connection: Connection, scope: Scope, stream: str, name: str) -> None:
        self._connection = connection
        self._scope = scope
        self._stream = stream
        self._name = name

    async def create(
        self,
        *,
        from_offset: int | None = None,
        from_ns: int = 0,
        config: GroupConfig | None = None,
    ) -> None:
        """Create the group; it begins at an offset or a time, else with new records."""
        request = stream_pb2.CreateGroupRequest(from_ns=from_ns)
        if from_offset is not None:
            request.from_offset = from_offset
        (config or GroupConfig()).put(request.config)
        await self._change("Stream/CreateGroup", request)

    async def configure(self, config: GroupConfig) -> None:
        """Replace the settings."""
        request = stream_pb2.ConfigureGroupRequest()
        config.put(request.config)
        await self._change("Stream/ConfigureGroup", request)

    async def delete(self) -> None:
        """Delete the group."""
        await self._change("Stream/DeleteGroup", stream_pb2.DeleteGroupRequest())

    async def info(self, *, read: Read | None = None) -> GroupInfo:
        """Return the group's settings, members, offsets and pending records."""
        request = self._named(stream_pb2.GetGroupRequest())
        if read is not None:
            read.put(request.options)
        answer = await self._connection.call_read(
            "Stream/GetGroup",
            request,
            self._scope.timeout_s,
            name=self._stream.encode(),
            is_stale=read is not None and read.stale,
        )
        return to_group_info(answer)

    async def seek(
        self, *, offset: int | None = None, time_ns: int | None = None, partition: int | None = None
    ) -> None:
        """Move the group's offset, back or forward, to an offset or a time."""
        if (offset is None) == (time_ns is None):
            raise InvalidArgument("seek to an offset or to a time", reason="TARGET_INVALID")
        request = stream_pb2.SeekGroupRequest()
        if offset is not None:
            request.offset = offset
        if time_ns is not None:
            request.time_ns = time_ns
        if partition is not None:
            request.partition = partition
        await self._change("Stream/SeekGroup", request)

    async def join(self, *, session_s: float = 30.0, limit: int = 100) -> "AsyncConsumer":
        """Join the group and return a consumer, which fetches ``limit`` records at a time.

        A member that sends no heartbeat for ``session_s`` is removed, and its partitions move.
        """
        request = stream_pb2.JoinGroupRequest(session_ms=milliseconds(session_s))
        answer = await self._change("Stream/JoinGroup", request)
        return AsyncConsumer(self, answer, session_s, limit)

    async def rejoin(
        self, member_id: int, *, session_s: float = 30.0, limit: int = 100
    ) -> "AsyncConsumer":
        """Continue as a member that joined before, also in another process; NotFound if it is gone.

        ``session_s`` must be what the member joined with.
        """
        request = stream_pb2.HeartbeatGroupRequest(member_id=member_id)
        alive = await self._change("Stream/HeartbeatGroup", request)
        joined = stream_pb2.JoinGroupResponse(
            member_id=member_id, generation=alive.generation, partitions=alive.partitions
        )
        return AsyncConsumer(self, joined, session_s, limit)

    async def commit(self, records: Record | Iterable[Record]) -> None:
        """Set the group's offsets to after these records, in a group without members."""
        await self._commit(records, 0, (await self.info()).generation)

    async def _commit(
        self, records: Record | Iterable[Record], member_id: int, generation: int
    ) -> None:
        request = stream_pb2.CommitOffsetsRequest(member_id=member_id, generation=generation)
        newest: dict[int, int] = {}
        for record in _present(records):
            newest[record.partition] = max(record.offset, newest.get(record.partition, 0))
        for partition, offset in newest.items():
            request.places.add(partition=partition, offset=offset + 1)
        await self._operate("commit_offsets", request)

    def _named(self, request: Any) -> Any:
        request.namespace = self._scope.namespace
        request.stream = self._stream
        request.group = self._name
        return request

    async def _change(self, path: str, request: Any, poll_s: float = 0.0) -> Any:
        return await self._connection.call_write(
            path,
            self._named(request),
            self._scope.timeout_s,
            name=self._stream.encode(),
            poll_s=poll_s,
        )

    async def _operate(self, kind: str, request: Any) -> Any:
        self._named(request)

        def build(operation: pipeline_pb2.Operation) -> None:
            getattr(operation, kind).CopyFrom(request)

        return await self._connection.write(
            self._stream.encode(),
            request.ByteSize(),
            self._scope.timeout_s,
            build,
            lambda result: getattr(result, kind),
        )


@refuse_unsendable
class AsyncConsumer:
    """A member of a consumer group: an iterator over its records. ``close`` leaves the group."""

    def __init__(
        self, group: AsyncGroup, joined: stream_pb2.JoinGroupResponse, session_s: float, limit: int
    ) -> None:
        self._group = group
        self._member_id = joined.member_id
        self._generation = joined.generation
        self._partitions = tuple(joined.partitions)
        self._session_s = session_s
        self._limit = limit
        self._fetched: list[Record] = []
        self._heart: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def member_id(self) -> int:
        """The member's id in the group."""
        return self._member_id

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that belong to the member now."""
        return self._partitions

    async def fetch(self, *, wait_s: float = 0.0, limit: int | None = None) -> list[Record]:
        """Return the next records; wait up to ``wait_s`` for the first. May return none.

        Records whose delivery failed, or whose member is gone, come first.
        """
        self._beat_in_background()
        request = stream_pb2.FetchRecordsRequest(
            member_id=self._member_id,
            generation=self._generation,
            limit=limit or self._limit,
            wait_ms=milliseconds(wait_s),
        )
        try:
            answer = await self._group._change("Stream/FetchRecords", request, poll_s=wait_s)
        except ConditionFailed:
            # Partitions have moved: the heartbeat says which ones the next fetch may use.
            await self._beat()
            return []
        return [to_record(each) for each in answer.records]

    async def ack(self, records: Record | Iterable[Record]) -> int:
        """Acknowledge records; return how many were pending with this member."""
        request = stream_pb2.AckRecordsRequest(member_id=self._member_id)
        _fill_places(request.places, records)
        count: int = (await self._group._operate("ack_records", request)).acked_count
        return count

    async def nack(
        self, records: Record | Iterable[Record], *, delay_s: float = 0.0, reason: str = ""
    ) -> int:
        """Record failed deliveries: retry after a delay, or move to the dead-letter stream."""
        request = stream_pb2.NackRecordsRequest(
            member_id=self._member_id, delay_ms=milliseconds(delay_s), reason=reason
        )
        _fill_places(request.places, records)
        count: int = (await self._group._change("Stream/NackRecords", request)).nacked_count
        return count

    async def claim(self, idle_s: float, *, limit: int = 100) -> list[Record]:
        """Take over records that have been pending with another member for ``idle_s``."""
        request = stream_pb2.ClaimRecordsRequest(
            member_id=self._member_id,
            generation=self._generation,
            idle_ms=milliseconds(idle_s),
            limit=limit,
        )
        answer = await self._group._change("Stream/ClaimRecords", request)
        return [to_record(each) for each in answer.records]

    async def commit(self, records: Record | Iterable[Record]) -> None:
        """Set the group's offsets to after these records, for groups without a pending list."""
        await self._group._commit(records, self._member_id, self._generation)

    async def close(self) -> None:
        """Leave the group; other members may claim its pending records."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        request = stream_pb2.LeaveGroupRequest(member_id=self._member_id)
        await self._group._change("Stream/LeaveGroup", request)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while not self._fetched:
            if self._is_closed:
                raise StopAsyncIteration
            self._fetched = (await self.fetch(wait_s=min(10.0, self._session_s)))[::-1]
        return self._fetched.pop()

    async def __aenter__(self) -> Self:
        self._beat_in_background()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _beat_in_background(self) -> None:
        if self._heart is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._heart = loop.create_task(self._beat_on(), name="onelog heartbeat")

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self._session_s / HEARTBEATS)
            try:
                await self._beat()
            except OnelogError:
                continue  # the next fetch or ack raises what is wrong

    async def _beat(self) -> None:
        request = stream_pb2.HeartbeatGroupRequest(member_id=self._member_id)
        answer = await self._group._change("Stream/HeartbeatGroup", request)
        self._generation = answer.generation
        self._partitions = tuple(answer.partitions)


def _fill_places(places: Any, records: Record | Iterable[Record]) -> None:
    for record in _present(records):
        places.add(partition=record.partition, offset=record.offset)


def _present(records: Record | Iterable[Record]) -> list[Record]:
    """Return the records without gaps, of which nothing is pending."""
    given = [records] if isinstance(records, Record) else records
    return [record for record in given if record.gap is None]
