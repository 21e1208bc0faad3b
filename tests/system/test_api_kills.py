"""Three real servers whose leaders are killed under load, seen through the API alone.

Counters are raised in sessions: an increment that was lost or done twice shows in the sum. Watchers
move to another node whenever theirs dies, and must have been told of every version once.
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]

from onelog.errors import DeadlineExceeded, NotLeader, ResourceExhausted, Unavailable
from onelog.status import error_of
from onelog.v1 import common_pb2, kv_pb2, kv_pb2_grpc, pipeline_pb2, pipeline_pb2_grpc
from tests.system.leaders import OPTIONS, Leaders, kill_leader, leaders_of
from tests.system.nodes import nodes

KILLS = int(os.environ.get("KILLS", "3"))
SHARDS = 2
COUNTERS = 4
RETRIED = (DeadlineExceeded, NotLeader, ResourceExhausted, Unavailable)


class Clients:
    """Callers of three servers that never give up."""

    def __init__(self, channels: list[Any]) -> None:
        self.kv = [kv_pb2_grpc.KVStub(each) for each in channels]  # type: ignore[no-untyped-call]
        self.pipeline = [
            pipeline_pb2_grpc.PipelineStub(each)  # type: ignore[no-untyped-call]
            for each in channels
        ]
        self.is_stopping = False
        self.is_done = False  # nothing is counted any more
        self.counted = [0] * COUNTERS
        self.chance = random.Random()

    async def insist(self, calls: list[Any], request: Any) -> Any:
        """Send a request to one node or another until one answers it."""
        while True:
            try:
                return await self.chance.choice(calls)(request, timeout=1.0)
            except grpc.aio.AioRpcError as failed:
                error = error_of(failed)
                assert isinstance(error, RETRIED), error
                await asyncio.sleep(0.02)

    async def count(self, number: int) -> None:
        """Raise a counter again and again, each time once."""
        key = b"{c%d}" % number
        where = await self.insist([each.Get for each in self.kv], kv_pb2.GetRequest(key=key))
        opened = await self.insist(
            [each.OpenSession for each in self.pipeline],
            pipeline_pb2.OpenSessionRequest(shard=where.header.shard),
        )
        sequence = 0
        while not self.is_stopping:
            sequence += 1
            session = common_pb2.Session(
                session_id=opened.session_id, sequence=sequence, first_unacknowledged=sequence
            )
            options = common_pb2.WriteOptions(session=session)
            request = kv_pb2.CountRequest(key=key, add=1, options=options)
            answer = await self.insist([each.Count for each in self.kv], request)
            assert answer.number == sequence, "lost or done twice"
            self.counted[number] = sequence

    async def watch(self, cursor: common_pb2.Cursor) -> dict[bytes, list[int]]:
        """Return the values that were told of each counter, in order."""
        told: dict[bytes, list[int]] = {}
        while True:
            request = pipeline_pb2.WatchRequest(cursor=cursor, progress_ms=200)
            call = self.chance.choice(self.pipeline).Watch(request)
            try:
                while True:
                    async with asyncio.timeout(5):
                        message = await call.read()
                    for event in message.events:
                        told.setdefault(event.key.key, []).append(int(event.key.item.value))
                    cursor = message.cursor
                    if self.is_done and all(
                        told.get(b"{c%d}" % number, [0])[-1] == count
                        for number, count in enumerate(self.counted)
                    ):
                        call.cancel()
                        return told
            except TimeoutError:
                call.cancel()
            except grpc.aio.AioRpcError as failed:
                error = error_of(failed)
                assert isinstance(error, RETRIED), error
                await asyncio.sleep(0.05)


@asynccontextmanager
async def servers(directory: Path) -> AsyncIterator[tuple[Leaders, Clients]]:
    with nodes(directory, "n1", "n2", "n3", shards=str(SHARDS)) as made:
        processes = [each.start() for each in made.values()]
        for each in processes:
            await asyncio.to_thread(each.until_ready)
        channels = [grpc.aio.insecure_channel(each.flags["listen"], OPTIONS) for each in processes]
        try:
            async with leaders_of(processes) as leaders:
                yield leaders, Clients(channels)
        finally:
            for channel in channels:
                await channel.close()


def test_nothing_is_lost_done_twice_or_told_twice_while_servers_are_killed(
    tmp_path: Path,
) -> None:
    seed = random.randrange(10**9)
    sys.stdout.write(f"seed {seed}\n")

    async def test() -> None:
        async with servers(tmp_path) as (leaders, clients):
            clients.chance.seed(seed)
            start = common_pb2.Cursor(
                positions=[common_pb2.Position(shard=shard) for shard in range(SHARDS)]
            )
            counting = [asyncio.create_task(clients.count(each)) for each in range(COUNTERS)]
            watching = [asyncio.create_task(clients.watch(start)) for _ in range(3)]
            for kill in range(KILLS):
                before = sum(clients.counted)
                async with asyncio.timeout(40):
                    while sum(clients.counted) < before + 40:
                        for task in counting:
                            assert not task.done(), task.exception()
                        await asyncio.sleep(0.02)
                killed, successor = await kill_leader(leaders, kill % SHARDS)
                sys.stdout.write(f"killed {killed}, followed by {successor}\n")
            clients.is_stopping = True
            await asyncio.gather(*counting)
            clients.is_done = True
            async with asyncio.timeout(30):
                told = await asyncio.gather(*watching)
            expected = {
                b"{c%d}" % number: list(range(1, count + 1))
                for number, count in enumerate(clients.counted)
            }
            for each in told:
                assert each == expected
            for number, count in enumerate(clients.counted):
                request = kv_pb2.GetRequest(key=b"{c%d}" % number)
                got = await clients.insist([each.Get for each in clients.kv], request)
                assert int(got.item.value) == count

    asyncio.run(asyncio.wait_for(test(), 60 + 60 * KILLS))
