"""Bulk reads of the log and of snapshots: ``client.log``. Answers are the protobuf messages.

Frames and snapshots are stored bytes: docs/formats.md describes a frame, docs/snapshots.md the file
of a snapshot. The reader must verify their checksums.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from functools import partial

from onelog.client.connection import Connection
from onelog.client.options import Scope, parse_endpoint, to_route
from onelog.client.validation import refuse_unsendable
from onelog.errors import DataLoss, FailedPrecondition, Internal, OnelogError, OutOfRange
from onelog.v1 import log_pb2


@refuse_unsendable
class AsyncLog:
    """The log of a shard: its description, its entries as they are stored, its snapshots."""

    def __init__(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope

    async def describe(self, shard: int) -> log_pb2.DescribeLogResponse:
        """Describe a shard's log; ``cut_index`` covers all writes acknowledged before."""
        connection = self._connection
        await connection.ready(self._scope.timeout_s)
        connection.topology.find_endpoint(shard)  # refuses a shard that does not exist
        answer: log_pb2.DescribeLogResponse = await connection.calls.unary(
            "Log/DescribeLog",
            log_pb2.DescribeLogRequest(shard=shard),
            timeout_s=self._scope.timeout_s,
            shard=shard,
            is_repeatable=True,
        )
        return answer

    async def frames(
        self,
        shard: int,
        first_index: int,
        last_index: int,
        *,
        owners: Iterable[log_pb2.Owner] = (),
        bytes_per_second_max: int = 0,
        endpoint: str | None = None,
    ) -> AsyncIterator[log_pb2.LogFrame]:
        """Yield the entries of a range as they are stored, in order and without gaps.

        If a replica fails, lags, or does not keep the range, another one continues after the last
        frame. The call fails if none has sent anything for the timeout. With ``endpoint`` only that
        node is asked.
        """
        request = log_pb2.ReadLogFramesRequest(
            shard=shard,
            first_index=first_index,
            last_index=last_index,
            owners=owners,
            bytes_per_second_max=bytes_per_second_max,
        )
        connection = self._connection
        await connection.ready(self._scope.timeout_s)
        connection.topology.find_endpoint(shard)  # refuses a shard that does not exist
        route = _Route(connection, shard, endpoint)
        while True:
            answers = connection.calls.stream(
                "Log/ReadLogFrames",
                lambda: request,
                timeout_s=self._scope.timeout_s,
                route=route,
                shard=shard,
            )
            try:
                async with aclosing(answers):
                    async for frame in answers:
                        if frame.first_index != request.first_index:
                            raise Internal(
                                f"a frame of {frame.first_index} instead of {request.first_index}"
                            )
                        yield frame
                        request.first_index = frame.last_index + 1
                if request.first_index <= last_index:
                    raise Internal(f"the frames end before {request.first_index}")
            except (OutOfRange, DataLoss) as error:
                if not route.may_ask_another(error):
                    raise
            else:
                return

    async def snapshot(
        self, shard: int, index: int = 0, *, endpoint: str | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the file of a snapshot in chunks; ``index`` 0 is the newest one.

        It is read from the shard's leader, or from ``endpoint``: each node keeps its own snapshots.
        A read that is interrupted has to start over (SNAPSHOT_INTERRUPTED).
        """
        request = log_pb2.ReadSnapshotRequest(shard=shard, index=index)
        connection = self._connection
        await connection.ready(self._scope.timeout_s)
        taken = size = 0

        def begin() -> log_pb2.ReadSnapshotRequest:
            if taken:
                raise _interrupted(taken, size)
            return request

        answers = connection.calls.stream(
            "Log/ReadSnapshot",
            begin,
            timeout_s=self._scope.timeout_s,
            route=to_route(endpoint) or partial(connection.topology.find_endpoint, shard),
            shard=shard,
        )
        async with aclosing(answers):
            async for chunk in answers:
                taken += len(chunk.data)
                size = chunk.size
                yield chunk.data
        if taken != size:
            raise _interrupted(taken, size)


def _interrupted(taken: int, size: int) -> FailedPrecondition:
    return FailedPrecondition(
        f"the snapshot broke off at {taken} of {size} bytes; read it from the beginning",
        reason="SNAPSHOT_INTERRUPTED",
    )


class _Route:
    """Chooses the replica to ask next: in turn, except those that lack a part of the range."""

    def __init__(self, connection: Connection, shard: int, endpoint: str | None) -> None:
        self._topology = connection.topology
        self._shard = shard
        self._endpoint = None if endpoint is None else parse_endpoint(endpoint)
        self._refused: set[str] = set()
        self._asked = ""

    def __call__(self) -> str:
        """Return the endpoint to ask now."""
        self._asked = self._endpoint or self._topology.find_replica(self._shard)
        for _ in self._topology.replicas[self._shard]:
            if self._asked not in self._refused:
                break
            self._asked = self._topology.find_replica(self._shard)
        return self._asked

    def may_ask_another(self, error: OnelogError) -> bool:
        """Return whether there is a replica left to ask for what the last one lacks."""
        if self._endpoint or not (isinstance(error, DataLoss) or error.reason == "COMPACTED"):
            return False
        self._refused.add(self._asked)
        return bool(set(self._topology.replicas[self._shard]) - self._refused)
