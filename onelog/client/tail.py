"""Tails: records of one or several streams as they are appended, each once, in order.

Records of a shard arrive in the order of its log, and a record's offset is its index there. So the
position of a tail is one offset per shard: the server's cursor, advanced by each record that the
user takes.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.client.connection import Connection
from onelog.client.options import Scope
from onelog.client.pages import Pages
from onelog.client.validation import refuse_unsendable
from onelog.client.values import Record, RecordFilter, to_record
from onelog.errors import InvalidArgument
from onelog.v1 import common_pb2, stream_pb2

_VERSION = b"\x01"


@refuse_unsendable
class AsyncTail(Pages[Record]):
    """An iterator over records. Ends when it is closed, or at the end of ``with``.

    After each record ``cursor`` is where another tail can continue. A record with a ``gap`` stands
    for records that were deleted; a tail that resumes right after it may see the gap again.
    """

    def __init__(
        self,
        connection: Connection,
        scope: Scope,
        starts: Sequence[stream_pb2.TailStart],
        only: RecordFilter | None,
        cursor: bytes | None,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._scope = scope
        self._cursor = common_pb2.Cursor() if cursor is None else _parse_cursor(cursor)
        self._request = stream_pb2.TailRequest(namespace=scope.namespace, streams=starts)
        if only is not None:
            only.fill(self._request.filter)
        self._shards: Mapping[str, int] = {}

    @property
    def cursor(self) -> bytes:
        """Where to continue after the last record: pass it to another tail."""
        data: bytes = self._cursor.SerializeToString()
        return _VERSION + data

    def _take(self) -> Record:
        """Take the next record of the page; IndexError if there is none."""
        record = self._page.popleft()
        shard = self._shards[record.stream]
        for position in self._cursor.positions:
            if position.shard == shard:
                position.index = max(position.index, record.offset)
        return to_record(record, Record)

    async def _run(self) -> AsyncGenerator[None, None]:
        """Yield when the tail has begun, then after each page."""
        connection, names = self._connection, self._request.streams
        await connection.ready(self._scope.timeout_s)
        shards = {
            each.stream: connection.topology.find_shard(each.stream.encode()) for each in names
        }
        shard = next(iter(shards.values())) if len(set(shards.values())) == 1 else None
        self._shards = shards

        def request() -> stream_pb2.TailRequest:
            self._request.cursor.CopyFrom(self._cursor)
            return self._request

        def route() -> str:
            topology = connection.topology
            return topology.any_endpoint() if shard is None else topology.find_endpoint(shard)

        answers = connection.calls.stream(
            "Stream/Tail", request, timeout_s=self._scope.timeout_s, route=route, shard=shard
        )
        has_begun = False
        async with aclosing(answers):
            async for answer in answers:
                if not has_begun:
                    has_begun = True
                    self._begin(answer, shards)
                    yield
                self._page.extend(answer.records)
                yield
                self._move(answer.cursor)

    def _begin(self, answer: stream_pb2.TailResponse, shards: Mapping[str, int]) -> None:
        """Set the position to before the first answer's records: none was taken yet."""
        if self._cursor.positions:
            return
        self._move(answer.cursor)
        positions = {each.shard: each for each in self._cursor.positions}
        for record in reversed(answer.records):
            first = record.gap.first_offset if record.HasField("gap") else record.offset
            positions[shards[record.stream]].index = first - 1

    def _move(self, cursor: common_pb2.Cursor) -> None:
        """Advance to a cursor of the server: everything up to it was taken."""
        if cursor.positions:
            self._cursor.CopyFrom(cursor)


def _parse_cursor(token: bytes) -> common_pb2.Cursor:
    cursor = common_pb2.Cursor()
    try:
        cursor.MergeFromString(token[1:])
    except DecodeError:
        token = b""
    if token[:1] != _VERSION:
        raise InvalidArgument("this is no cursor of a tail", reason="CURSOR_INVALID")
    return cursor
