"""Tails: records of one or several streams as they are appended, each once, in order."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Self

from onelog.client.connection import Connection
from onelog.client.options import Scope
from onelog.client.resume import ResumePoint
from onelog.client.stream_values import RecordFilter, record_of
from onelog.client.values import Record
from onelog.v1 import stream_pb2


class AsyncTail:
    """An iterator over records. Ends when it is closed, or at the end of ``with``.

    After each record ``cursor`` says where to go on after it.
    """

    def __init__(
        self,
        connection: Connection,
        scope: Scope,
        starts: Sequence[stream_pb2.TailStart],
        only: RecordFilter | None,
        cursor: bytes | None,
    ) -> None:
        self._connection = connection
        self._scope = scope
        self._point = ResumePoint(cursor)
        self._request = stream_pb2.TailRequest(namespace=scope.namespace, streams=starts)
        if only is not None:
            only.put(self._request.filter)
        self._records: AsyncGenerator[Record, None] | None = None

    @property
    def cursor(self) -> bytes:
        """Where to go on after the last record that was taken."""
        return self._point.token()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if self._records is None:
            self._records = self._run()
        return await anext(self._records)

    async def close(self) -> None:
        """End the tail."""
        records, self._records = self._records, None
        if records is not None:
            await records.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self) -> AsyncGenerator[Record, None]:
        connection, point, names = self._connection, self._point, self._request.streams
        await connection.ready(self._scope.timeout_s)
        shards = {each.stream: connection.topology.shard_of(each.stream.encode()) for each in names}
        shard = next(iter(shards.values())) if len(set(shards.values())) == 1 else None
        only_name = names[0].stream if len(names) == 1 else ""

        def request() -> stream_pb2.TailRequest:
            point.reopen(self._request.cursor)
            return self._request

        def route() -> str:
            topology = connection.topology
            return topology.any_endpoint() if shard is None else topology.endpoint_of(shard)

        answers = connection.calls.stream(
            "Stream/Tail", request, timeout_s=self._scope.timeout_s, route=route, shard=shard
        )
        async with aclosing(answers):
            async for answer in answers:
                for record in answer.records:
                    if point.is_new(shards[record.stream or only_name]):
                        yield record_of(record)
                point.arrive(answer.cursor)
