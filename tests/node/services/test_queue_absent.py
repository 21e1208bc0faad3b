"""Consumers that name themselves: what they hold when a leader ends their stream, and for how long.

Every test here is about D12: what was pushed in vain is released, and what was received is kept.
"""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog.node.config.schema import LimitSettings
from onelog.node.edge.shards import Edge
from onelog.node.services import queue as queue_service
from onelog.node.services import queue_absent
from onelog.status import error_of
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import Node, cluster, run, single, until
from tests.node.services.queues import Jobs, on_a_node
from tests.node.services.test_queue_cluster import hand_over
from tests.node.services.test_queue_waiting import Stream

LONG_MS = 3_600_000
SOON = LimitSettings(consumer_return_s_max=0.5)


async def stream(jobs: Jobs, consumer: bytes = b"c", received: int = 0, credit: int = 3) -> Stream:
    """Begin a stream, as soon as the node leads."""
    async with asyncio.timeout(20):
        while True:
            found = Stream(
                jobs.stub,
                consumer_id=consumer,
                received_token=received,
                credit=credit,
                visibility_ms=LONG_MS,
            )
            try:
                return await found.begin()
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)


async def leased(jobs: Jobs) -> int:
    answer = await jobs.stub.GetQueue(q.GetQueueRequest(queue="jobs"))
    return int(answer.queue.leased_count)


async def find_end(found: Stream) -> str:
    """Return the reason with which a stream ends."""
    async with asyncio.timeout(20):
        try:
            while await found.call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error_of(error).reason
    return ""


def test_a_newer_stream_of_a_consumer_takes_over_what_it_has_received(tmp_path: Path) -> None:
    """A connection that broke unnoticed leaves a stream behind: it does not count any more."""

    async def test(jobs: Jobs) -> None:
        await jobs.send(*(b"%d" % number for number in range(6)))
        older = await stream(jobs)
        received = await older.collect(3)
        other = await stream(jobs, b"other")
        assert len(await other.collect(3)) == 3
        newer = await stream(jobs, received=received[0].token)
        assert await find_end(older) == "CONSUMER_REPLACED"
        await jobs.stub.Ack(q.AckRequest(**jobs.leased(received[:2])))
        await jobs.send(b"6", b"7")
        found = await newer.collect(2)
        assert [each.body for each in found] == [b"6", b"7"]
        assert await leased(jobs) == 6
        # When the client goes, all that it holds is released, from whichever stream it has it.
        newer.call.cancel()
        again: list[bytes] = []
        async with asyncio.timeout(20):
            while len(again) < 3:
                again += await jobs.bodies(9, wait_ms=9_000)
        assert again == [received[2].body, b"6", b"7"]
        other.call.cancel()

    on_a_node(tmp_path, test)


def test_what_a_consumer_has_not_received_is_released_before_it_gets_anything_else(
    tmp_path: Path,
) -> None:
    async def test(jobs: Jobs) -> None:
        await jobs.send(*(b"%d" % number for number in range(4)))
        older = await stream(jobs, credit=2)
        first = await older.collect(2)
        await jobs.stub.Ack(q.AckRequest(**jobs.leased(first[:1])))
        await older.collect(3)
        # It says that it has received the first answer only: the third message was lost.
        newer = await stream(jobs, received=first[0].token, credit=3)
        found = await newer.collect(2)
        assert [(each.body, each.delivery_count) for each in found] == [(b"2", 1), (b"3", 1)]
        assert await leased(jobs) == 3
        newer.call.cancel()

    on_a_node(tmp_path, test)


def test_a_consumer_keeps_what_it_has_when_the_leadership_moves(tmp_path: Path) -> None:
    """No leader died: its client is back at the next one, and nothing is delivered twice."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            jobs = Jobs(next(node for node in nodes if node.leads(0)))
            await jobs.create()
            await jobs.send(*(b"%d" % number for number in range(5)))
            older = await stream(jobs)
            received = await older.collect(3)
            target = Jobs(await hand_over(nodes))
            assert await find_end(older) == "NOT_LEADER"
            newer = await stream(target, received=received[0].token, credit=4)
            found = await newer.collect(1)
            assert [each.body for each in found] == [b"3"]
            assert await leased(target) == 4
            settled = await target.stub.Ack(q.AckRequest(**target.leased(received)))
            assert [each.reason for each in settled.results] == [""] * 3
            newer.call.cancel()

    run(test())


def test_a_consumer_that_does_not_come_back_is_gone_after_a_while(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1, limits=SOON) as nodes:
            jobs = Jobs(next(node for node in nodes if node.leads(0)))
            await jobs.create()
            await jobs.send(b"1", b"2", b"3")
            older = await stream(jobs)
            received = await older.collect(3)
            target = Jobs(await hand_over(nodes))
            found: list[q.Message] = []
            async with asyncio.timeout(20):
                while len(found) < 3:
                    found += await target.lease(3, wait_ms=5_000, visibility_ms=LONG_MS)
            assert {each.delivery_count for each in found} == {1}
            assert {each.message_id for each in found} == {each.message_id for each in received}
            # It comes too late, and takes nothing from those who have it now.
            newer = await stream(target, received=received[0].token)
            assert await leased(target) == 3
            settled = await target.stub.Ack(q.AckRequest(**target.leased(received)))
            assert [each.reason for each in settled.results] == ["LEASE_TOKEN_STALE"] * 3
            newer.call.cancel()

    run(test())


def test_a_node_alone_knows_after_a_restart_what_it_had_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a client that named itself, and no more than there is a limit for."""

    async def begin(node: Node) -> None:
        jobs = Jobs(node)
        await jobs.create()
        await jobs.send(*(b"%d" % number for number in range(9)))
        assert len(await jobs.lease(1, visibility_ms=LONG_MS)) == 1
        streams = [await stream(jobs, b"old"), await stream(jobs, b"new")]
        for each in streams:
            await each.collect(3)
        assert await leased(jobs) == 7
        node.server.stop()  # before its clients go
        await node.task

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await begin(node)
        # The newest leases have three messages, with the two that are leased here first perhaps.
        monkeypatch.setattr(queue_absent, "MESSAGES_MAX", 5)
        async with single(tmp_path, shards=1, limits=SOON) as node:
            jobs = Jobs(node)
            found: list[q.Message] = []
            async with asyncio.timeout(20):
                while len(found) < 5:
                    found += await jobs.lease(9, wait_ms=5_000, visibility_ms=LONG_MS)
            assert [each.delivery_count for each in found] == [1] * 5
            # Of the other consumer it does not know: those wait for the end of their leases.
            assert await leased(jobs) == 9

    run(test())


def test_a_stream_that_fails_while_its_leader_leads_is_kept_for_its_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services: list[queue_service.QueueService] = []
    make = queue_service.QueueService.__init__

    def noted(self: queue_service.QueueService, edge: Edge) -> None:
        make(self, edge)
        services.append(self)

    monkeypatch.setattr(queue_service.QueueService, "__init__", noted)

    async def test(jobs: Jobs) -> None:
        await jobs.send(b"1", b"2", b"3", b"4")
        older = await stream(jobs, credit=4)
        received = await older.collect(4)
        consumers = services[0].consumers
        find = consumers._lines.ticket

        def fail(*_: Any, **__: Any) -> Any:
            raise ValueError("an error of the server")

        monkeypatch.setattr(consumers._lines, "ticket", fail)
        await jobs.stub.Ack(q.AckRequest(**jobs.leased(received[:1])))
        assert await find_end(older) == "INTERNAL"
        monkeypatch.setattr(consumers._lines, "ticket", find)
        assert await leased(jobs) == 3
        assert len(consumers.absent) == 1
        newer = await stream(jobs, received=received[0].token)
        assert (await leased(jobs), len(consumers.absent)) == (3, 0)
        newer.call.cancel()
        await until(lambda: len(consumers) == 0)

    on_a_node(tmp_path, test)
