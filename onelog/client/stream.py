"""Streams: ``client.stream("events")``.

A record's offset is its index in the log of the stream's shard: offsets rise, but are not
contiguous. Readers keep their own offsets, or share them in a consumer group (``group``).
"""

from asyncio import Future
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from onelog.client.batch import APPEND, SINGLE, VALUE_SIZE_MAX, Single, gather_results
from onelog.client.connection import Connection
from onelog.client.group import AsyncGroup
from onelog.client.lanes import WriteLane
from onelog.client.options import Scope
from onelog.client.tables import Rows
from onelog.client.tail import AsyncTail
from onelog.client.times import Time, to_nanoseconds
from onelog.client.validation import (
    UNSENDABLE,
    checks_itself,
    explain_element,
    refuse,
    refuse_unsendable,
    refuse_zero,
)
from onelog.client.values import (
    ASYNC,
    Appended,
    NewRecord,
    Producer,
    Read,
    Record,
    RecordFilter,
    Retention,
    StreamInfo,
    TrimmedPartition,
    Value,
    positive_ms,
    to_appended,
    to_bytes,
    to_record,
    to_stream_info,
    to_trimmed,
)
from onelog.errors import AlreadyExists, InvalidArgument
from onelog.v1 import pipeline_pb2, stream_pb2

PAGE_RECORDS = 1_000  # of one answer, as the server has it by itself


@refuse_unsendable
class AsyncStream:
    """One stream, by its name. ``create`` it before other calls."""

    def __init__(self, connection: Connection, scope: Scope, name: str) -> None:
        self._connection = connection
        self._scope = scope
        self._name = name
        self._route = name.encode()
        self._timeout_s = scope.timeout_s
        self._is_early = scope.is_early
        self._target = scope.namespace, name, self._is_early
        self._lane: WriteLane | None = None

    def __repr__(self) -> str:
        return f"AsyncStream({self._name!r})"

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._name

    # The stream itself

    async def create(
        self,
        *,
        partitions: int = 1,
        retention: Retention | None = None,
        exist_ok: bool = False,
    ) -> int:
        """Create the stream and return its id; AlreadyExists if there is one.

        With ``exist_ok`` return the id of an existing one, and leave its settings as they are.
        """
        refuse_zero("partitions", partitions)
        request = self._named(stream_pb2.CreateStreamRequest(partition_count=partitions))
        (retention or Retention()).fill(request.retention)
        try:
            stream_id: int = (await self._change("Stream/CreateStream", request)).stream_id
        except AlreadyExists:
            if not exist_ok:
                raise
            stream_id = (await self.info()).stream_id
        return stream_id

    async def configure(self, retention: Retention) -> None:
        """Replace the retention of the stream."""
        request = self._named(stream_pb2.ConfigureStreamRequest())
        retention.fill(request.retention)
        await self._change("Stream/ConfigureStream", request)

    async def delete(self) -> None:
        """Delete the stream with its records and groups."""
        await self._change("Stream/DeleteStream", self._named(stream_pb2.DeleteStreamRequest()))

    async def info(self, *, read: Read | None = None) -> StreamInfo:
        """Return the stream's settings and state."""
        answer = await self._look("Stream/GetStream", stream_pb2.GetStreamRequest(), read)
        return to_stream_info(answer.stream)

    # Writing

    @checks_itself
    async def append(
        self,
        value: Value,
        *,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        tag: str = "",
        partition: int | None = None,
        producer: Producer | None = None,
    ) -> Appended:
        """Append a record and return its offset and partition; see ``NewRecord`` for the arguments.

        The client's own retries are always exact. ``producer`` makes appends exact also across
        restarts of a program that counts what it sends.
        """
        record: NewRecord | None = None
        if not self._connection.is_clear:
            await self._connection.ready(self._timeout_s)
        try:
            if key is not None or headers or tag != "" or partition is not None:
                record = NewRecord(value, key, headers or {}, tag, partition)
            appended: Appended = await self._append(value, record, producer)
        except UNSENDABLE as error:
            refuse(error, AsyncStream.append, locals())
            raise
        return appended

    async def append_many(
        self, records: Iterable[NewRecord | Value], *, producer: Producer | None = None
    ) -> Rows[Appended]:
        """Append many records in order, each by itself.

        All are tried; if some fail, the first error is raised, with a note of how many failed.
        With a ``producer`` the records have its sequence and those after it.
        """
        answers: list[Future[Any]] = []
        for number, each in enumerate(records):
            if not self._connection.is_clear:
                await self._connection.ready(self._timeout_s)
            record = each if isinstance(each, NewRecord) else None
            source = None if producer is None else producer.after(number)
            try:
                value = b"" if isinstance(each, NewRecord) else each
                answers.append(self._append(value, record, source))
            except UNSENDABLE as error:
                wrong = explain_element(error, AsyncStream.append_many, "records", number, each)
                answers.append(self._connection.make_failed(wrong))
        return await gather_results(answers, "records")

    async def trim(
        self,
        *,
        below_offset: int | None = None,
        age_s: float | None = None,
        keep_size: int | None = None,
        keep_count: int | None = None,
        partition: int | None = None,
        past_groups: bool = False,
    ) -> tuple[TrimmedPartition, ...]:
        """Delete records from the start up to one bound, by default not past any consumer group.

        Returns what is left of each partition, and which group ended the trim early, if one did.
        """
        request = self._named(stream_pb2.TrimRequest(past_groups=past_groups))
        bounds = {
            "below_offset": below_offset,
            "age_ms": None if age_s is None else positive_ms(age_s),
            "keep_size": keep_size,
            "keep_count": keep_count,
        }
        given = {name: value for name, value in bounds.items() if value is not None}
        if len(given) != 1:
            what = "a trim has one bound: below_offset, age_s, keep_size or keep_count"
            raise InvalidArgument(f"{what}; {len(given)} are given", reason="BOUND_INVALID")
        for name, value in given.items():
            setattr(request, name, value)
        if partition is not None:
            request.partition = partition
        return to_trimmed(await self._change("Stream/Trim", request))

    # Reading

    async def read(
        self,
        *,
        from_offset: int = 0,
        from_ns: Time = 0,
        to_offset: int | None = None,
        limit: int = 0,
        partition: int = 0,
        only: RecordFilter | None = None,
        read: Read | None = None,
    ) -> AsyncIterator[Record]:
        """Yield the records of a partition that exist now, page by page.

        From an offset or a time, up to and including ``to_offset``, at most ``limit`` (0: all). A
        record with a ``gap`` stands for records that were deleted.
        """
        request = stream_pb2.ReadRecordsRequest(
            partition=partition,
            from_offset=from_offset,
            from_ns=to_nanoseconds(from_ns, "from_ns"),
        )
        if only is not None:
            only.fill(request.filter)
        end: int | None = to_offset
        left = limit
        while True:
            if limit:
                request.limit = min(left, PAGE_RECORDS)
            answer = await self._look("Stream/ReadRecords", request, read)
            if end is None:
                end = answer.header.applied_index
            for record in answer.records:
                if record.offset > end:
                    return
                yield to_record(record, Record)
                left -= 1
                if not left:
                    return
            is_over = not answer.next_offset or answer.next_offset > end
            if is_over or answer.next_offset == request.from_offset:
                return
            request.from_offset, request.from_ns = answer.next_offset, 0

    def tail(
        self,
        *,
        from_offset: int | None = None,
        from_ns: Time = 0,
        partition: int | None = None,
        only: RecordFilter | None = None,
        cursor: bytes | None = None,
    ) -> AsyncTail:
        """Return an endless iterator: records from an offset or a time on, then new ones.

        With neither it has only new records. With ``cursor`` it continues an earlier tail.
        """
        start = stream_pb2.TailStart(stream=self._name, from_ns=to_nanoseconds(from_ns, "from_ns"))
        if from_offset is not None:
            start.from_offset = from_offset
        if partition is not None:
            start.partition = partition
        return AsyncTail(self._connection, self._scope, [start], only, cursor)

    def group(self, name: str) -> AsyncGroup:
        """Return the consumer group with this name; makes no call to the server."""
        return AsyncGroup(self._connection, self._scope, self._name, name)

    # Parts

    def _named(self, request: Any) -> Any:
        request.namespace = self._scope.namespace
        request.stream = self._name
        return request

    async def _change(self, path: str, request: Any) -> Any:
        return await self._connection.call_write(path, request, self._timeout_s, name=self._route)

    async def _look(self, path: str, request: Any, read: Read | None) -> Any:
        self._named(request)
        if read is not None:
            read.fill(request.options)
        is_stale = read is not None and read.stale
        return await self._connection.call_read(
            path, request, self._timeout_s, name=self._route, is_stale=is_stale
        )

    def _append(
        self, value: Value, record: NewRecord | None = None, producer: Producer | None = None
    ) -> Future[Any]:
        """Send one record; ``record`` is given if it has more than a value."""
        is_early, lane = self._is_early, self._lane
        if lane is None:
            connection = self._connection
            find = connection.early_lane if is_early else connection.write_lane
            lane = self._lane = find(self._route)
            assert lane is not None
        if record is None:
            value = to_bytes(value)
            if producer is None and len(value) <= VALUE_SIZE_MAX:
                size = len(self._route) + len(value)
                return lane.call(APPEND, self._target, value, size, self._timeout_s)
            record = NewRecord(value)
        request = self._named(stream_pb2.AppendRecordsRequest())
        if producer is not None:
            producer.fill(request.producer)
        if is_early and producer is not None:
            self._scope.need_result("a record of a producer")
            lane = self._connection.write_lane(self._route)
            assert lane is not None
        elif is_early:
            request.options.durability = ASYNC
        record.fill(request.records.add())
        size = len(self._route) + len(record.value) + len(record.key or b"")
        single = Single(
            lambda operation: operation.append_records.CopyFrom(request), _read_appended
        )
        return lane.call(SINGLE, None, single, size, self._timeout_s)


def _read_appended(result: pipeline_pb2.OperationResult) -> Appended:
    return to_appended(result.append_records.results[0])
