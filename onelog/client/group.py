"""Consumer groups: ``client.stream("events").group("billing")``.

A group has a committed offset in each partition, and members that share the work. ``join`` returns
a consumer: an iterator over records, which are pending until they are acknowledged. Its heartbeat
runs in the background, and a fetch counts as one. When partitions move to
another member, the next fetch adapts. A member whose session ran out nevertheless (its program was
suspended, say) joins again as a new member. What it held belongs to others then.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self

from onelog.client.connection import Connection
from onelog.client.leased import AsyncFetchedRecord, FetchedRecord, fetched_generation
from onelog.client.options import Scope
from onelog.client.tables import Rows
from onelog.client.times import Time, to_nanoseconds
from onelog.client.validation import refuse_unsendable, refuse_zero
from onelog.client.values import (
    GroupConfig,
    GroupInfo,
    Read,
    Record,
    milliseconds,
    positive_ms,
    to_group_info,
    to_record,
)
from onelog.errors import AlreadyExists, ConditionFailed, InvalidArgument, NotFound, OnelogError
from onelog.v1 import pipeline_pb2, stream_pb2

HEARTBEATS = 3  # in the length of one session: one may be lost
RECORDS_MAX = 1_000  # that the server accepts in one request to settle them
SESSION_S_MIN = 1  # that the server accepts
MEMBER_UNKNOWN = "MEMBER_UNKNOWN"


@refuse_unsendable
class AsyncGroup:
    """One consumer group of a stream, by its name."""

    def __init__(self, connection: Connection, scope: Scope, stream: str, name: str) -> None:
        self._connection = connection
        self._scope = scope
        self._stream = stream
        self._name = name

    def __repr__(self) -> str:
        return f"AsyncGroup({self._name!r} of stream {self._stream!r})"

    async def create(
        self,
        *,
        from_offset: int | None = None,
        from_ns: Time = 0,
        config: GroupConfig | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create the group; it begins at an offset or a time, else with new records.

        With ``exist_ok`` an existing one stays as it is.
        """
        request = stream_pb2.CreateGroupRequest(from_ns=to_nanoseconds(from_ns, "from_ns"))
        if from_offset is not None:
            request.from_offset = from_offset
        (config or GroupConfig()).fill(request.config)
        try:
            await self._change("Stream/CreateGroup", request)
        except AlreadyExists:
            if not exist_ok:
                raise

    async def configure(self, config: GroupConfig) -> None:
        """Replace the settings."""
        request = stream_pb2.ConfigureGroupRequest()
        config.fill(request.config)
        await self._change("Stream/ConfigureGroup", request)

    async def delete(self) -> None:
        """Delete the group."""
        await self._change("Stream/DeleteGroup", stream_pb2.DeleteGroupRequest())

    async def info(self, *, read: Read | None = None) -> GroupInfo:
        """Return the group's settings, members, offsets and pending records."""
        request = self._named(stream_pb2.GetGroupRequest())
        if read is not None:
            read.fill(request.options)
        answer = await self._connection.call_read(
            "Stream/GetGroup",
            request,
            self._scope.timeout_s,
            name=self._stream.encode(),
            is_stale=read is not None and read.stale,
        )
        return to_group_info(answer)

    async def seek(
        self,
        *,
        offset: int | None = None,
        time_ns: Time | None = None,
        partition: int | None = None,
    ) -> None:
        """Move the group's offset, back or forward, to an offset or a time."""
        if (offset is None) == (time_ns is None):
            raise InvalidArgument("seek to an offset or to a time", reason="TARGET_INVALID")
        request = stream_pb2.SeekGroupRequest()
        if offset is not None:
            request.offset = offset
        if time_ns is not None:
            request.time_ns = to_nanoseconds(time_ns, "time_ns")
        if partition is not None:
            request.partition = partition
        await self._change("Stream/SeekGroup", request)

    async def join(self, *, session_s: float = 30.0, limit: int = 100) -> "AsyncConsumer":
        """Join the group and return a consumer, which fetches ``limit`` records at a time.

        A member that sends no heartbeat for ``session_s`` is removed, and its partitions move.
        """
        refuse_zero("limit", limit)
        request = stream_pb2.JoinGroupRequest(session_ms=positive_ms(session_s))
        answer = await self._change("Stream/JoinGroup", request)
        return AsyncConsumer(self, answer, session_s, limit)

    async def rejoin(
        self, member_id: int, *, session_s: float = 30.0, limit: int = 100
    ) -> "AsyncConsumer":
        """Continue as a member that joined before, also in another process; NotFound if it is gone.

        ``session_s`` must be what the member joined with.
        """
        refuse_zero("limit", limit)
        if not session_s >= SESSION_S_MIN:
            what = f"session_s is {session_s}; it must be {SESSION_S_MIN} or more"
            raise InvalidArgument(what, reason="MEMBER_SESSION_INVALID")
        request = stream_pb2.HeartbeatGroupRequest(member_id=member_id)
        alive = await self._change("Stream/HeartbeatGroup", request)
        joined = stream_pb2.JoinGroupResponse(
            member_id=member_id, generation=alive.generation, partitions=alive.partitions
        )
        return AsyncConsumer(self, joined, session_s, limit)

    async def commit(self, records: Record | Iterable[Record]) -> None:
        """Set the group's offsets to after these records, in a group without members."""
        present = present_records(records)
        if present:
            await self._commit(present, 0, (await self.info()).generation)

    async def _commit(self, records: Iterable[Record], member_id: int, generation: int) -> None:
        request = stream_pb2.CommitOffsetsRequest(member_id=member_id, generation=generation)
        fill_offsets(request.places, records)
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
        self._session_s = session_s
        self._limit = limit
        self._page: deque[AsyncFetchedRecord] = deque()  # fetched and not handed out
        thread = group._connection.thread
        self._fetched = AsyncFetchedRecord if thread is None else FetchedRecord
        self._heart: asyncio.Task[None] | None = None
        self._joining = asyncio.Lock()
        self._is_closed = False
        self._enter(joined)

    @property
    def member_id(self) -> int:
        """The member's id in the group; another one after its session ran out."""
        return self._member_id

    @property
    def generation(self) -> int:
        """The generation of the group that the member knows; it rises when partitions move."""
        return self._generation

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that belong to the member now."""
        return self._partitions

    async def fetch(
        self, *, wait_s: float = 0.0, limit: int | None = None
    ) -> Rows[AsyncFetchedRecord]:
        """Return the next records; wait up to ``wait_s`` for the first. May return none.

        Records whose delivery failed, or whose member is gone, come first. A fetch counts as a
        heartbeat. If the session of the member ran out, it joins again.
        """
        if limit is not None:
            refuse_zero("limit", limit)
        self._beat_in_background()

        generation = 0

        def call() -> Awaitable[Any]:
            nonlocal generation
            generation = self._generation
            request = stream_pb2.FetchRecordsRequest(
                member_id=self._member_id,
                generation=generation,
                limit=self._limit if limit is None else limit,
                wait_ms=milliseconds(wait_s),
            )
            return self._group._change("Stream/FetchRecords", request, poll_s=wait_s)

        try:
            answer = await self._as_member(call)
        except ConditionFailed:
            # Partitions have moved: the heartbeat says which ones the next fetch may use.
            await self._beat()
            return Rows()
        return Rows(self._to_fetched(found, generation) for found in answer.records)

    async def ack(self, records: Record | Iterable[Record]) -> int:
        """Acknowledge records and return how many; up to 1,000 at a time, all of them or none.

        FailedPrecondition (RECORD_NOT_PENDING) if one is not pending with this member, as when its
        session ran out meanwhile: then others get it.
        """

        def call(part: list[Record]) -> Awaitable[Any]:
            request = stream_pb2.AckRecordsRequest(member_id=self._member_id)
            fill_places(request.places, part)
            return self._group._operate("ack_records", request)

        count = 0
        for part in _split(present_records(records)):
            count += (await self._as_member(partial(call, part))).acked_count
        return count

    async def nack(
        self, records: Record | Iterable[Record], *, delay_s: float = 0.0, reason: str = ""
    ) -> int:
        """Record failed deliveries: retry after a delay, or move to the dead-letter stream."""

        def call(part: list[Record]) -> Awaitable[Any]:
            request = stream_pb2.NackRecordsRequest(
                member_id=self._member_id, delay_ms=milliseconds(delay_s), reason=reason
            )
            fill_places(request.places, part)
            return self._group._change("Stream/NackRecords", request)

        count = 0
        for part in _split(present_records(records)):
            count += (await self._as_member(partial(call, part))).nacked_count
        return count

    async def claim(self, idle_s: float, *, limit: int = 100) -> Rows[AsyncFetchedRecord]:
        """Take over records that have been pending with another member for ``idle_s``."""

        refuse_zero("limit", limit)
        generation = 0

        def call() -> Awaitable[Any]:
            nonlocal generation
            generation = self._generation
            request = stream_pb2.ClaimRecordsRequest(
                member_id=self._member_id,
                generation=generation,
                idle_ms=milliseconds(idle_s),
                limit=limit,
            )
            return self._group._change("Stream/ClaimRecords", request)

        answer = await self._as_member(call)
        return Rows(self._to_fetched(found, generation) for found in answer.records)

    async def commit(self, records: Record | Iterable[Record]) -> None:
        """Set the group's offsets to after these records, for groups without a pending list.

        ConditionFailed (GENERATION_STALE) if partitions have moved since one of them was fetched,
        or the session ran out. A copy of a record counts as fetched now.
        """
        present = present_records(records)
        if not present:
            return
        generations = (fetched_generation(record, self) for record in present)
        generation = min(each or self._generation for each in generations)

        def call() -> Awaitable[Any]:
            return self._group._commit(present, self._member_id, generation)

        await self._as_member(call)

    async def close(self) -> None:
        """Leave the group; other members may claim its pending records."""
        if self._is_closed:
            return
        self._is_closed = True
        self._page.clear()
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        request = stream_pb2.LeaveGroupRequest(member_id=self._member_id)
        try:
            await self._group._change("Stream/LeaveGroup", request)
        except NotFound as error:
            if error.reason != MEMBER_UNKNOWN:
                raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncFetchedRecord:
        while not self._page:
            await self._turn()
        return self._take()

    # As in ``Pages``: records are fetched in the event loop and taken in any thread.

    async def _turn(self) -> None:
        """Fetch the next records, if there are any in a while."""
        if self._is_closed:
            raise StopAsyncIteration
        self._page.extend(await self.fetch(wait_s=min(10.0, self._session_s)))

    def _take(self) -> AsyncFetchedRecord:
        """Take the next record; IndexError if there is none."""
        return self._page.popleft()

    async def __aenter__(self) -> Self:
        self._beat_in_background()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _to_fetched(self, found: stream_pb2.Record, generation: int) -> Any:
        record = to_record(found, self._fetched)
        record._consumer = self
        record._generation = generation
        return record

    def _enter(self, joined: stream_pb2.JoinGroupResponse) -> None:
        self._member_id = joined.member_id
        self._generation = joined.generation
        self._partitions = tuple(joined.partitions)

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
        def call() -> Awaitable[Any]:
            request = stream_pb2.HeartbeatGroupRequest(member_id=self._member_id)
            return self._group._change("Stream/HeartbeatGroup", request)

        answer = await self._as_member(call)
        self._generation = answer.generation
        self._partitions = tuple(answer.partitions)

    async def _as_member(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call of the member; if its session ran out, join again and make it anew."""
        member_id = self._member_id
        try:
            return await call()
        except NotFound as error:
            if error.reason != MEMBER_UNKNOWN or self._is_closed:
                raise
        async with self._joining:
            if self._member_id == member_id:  # else somebody else was faster
                request = stream_pb2.JoinGroupRequest(session_ms=milliseconds(self._session_s))
                joined = await self._group._change("Stream/JoinGroup", request)
                self._page.clear()  # others get them now
                self._enter(joined)
        return await call()


def fill_places(places: Any, records: Iterable[Record]) -> None:
    """Fill in the places of records."""
    for record in records:
        places.add(partition=record.partition, offset=record.offset)


def fill_offsets(places: Any, records: Iterable[Record]) -> None:
    """Fill in the offsets after the newest of the records, by partition."""
    newest: dict[int, int] = {}
    for record in records:
        newest[record.partition] = max(record.offset, newest.get(record.partition, 0))
    for partition, offset in newest.items():
        places.add(partition=partition, offset=offset + 1)


def present_records(records: Record | Iterable[Record]) -> list[Record]:
    """Return the records without gaps, of which nothing is pending."""
    given = [records] if isinstance(records, Record) else records
    return [record for record in given if record.gap is None]


def _split(records: list[Record]) -> Iterator[list[Record]]:
    """Yield the records in parts that one request may hold."""
    for first in range(0, len(records), RECORDS_MAX):
        yield records[first : first + RECORDS_MAX]
