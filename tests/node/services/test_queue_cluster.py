"""Queues on three nodes while leaders change: nothing is lost, what is settled stays so."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import onelog.node.services.queue
from onelog import AsyncClient
from onelog.errors import LeaseLost, NotFound, OutcomeUnknown, Unavailable
from onelog.node.edge.shards import Edge
from onelog.node.replica.driver import own_task
from onelog.v1 import admin_pb2 as admin
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import Node, cluster, eventually, refusal, run, single, until
from tests.node.services.queues import Jobs

MESSAGES = 300
CONSUMERS = 3


async def hand_over(nodes: list[Node]) -> Node:
    """Move the leadership to another node; return that."""
    leader = next(node for node in nodes if node.leads(0))
    target = next(node for node in nodes if node is not leader)
    request = admin.TransferLeadershipRequest(shard=0, node_id=str(target.context.node_id))
    await eventually(lambda: nodes[0].admin.TransferLeadership(request, timeout=5))
    await until(lambda: target.leads(0))
    return target


def test_consumers_go_on_when_leaders_change(tmp_path: Path) -> None:
    """D1: at least once across leader changes; each message is acknowledged once, none is lost."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            endpoints = [node.endpoint for node in nodes]
            acked: Counter[bytes] = Counter()
            async with AsyncClient(endpoints, timeout_s=30) as client:
                queue = client.queue("jobs")
                await queue.create()

                async def consume() -> None:
                    async for message in queue.consume(credit=7, visibility_s=5):
                        try:
                            await queue.ack(message)
                        except (LeaseLost, NotFound):
                            continue  # it was given to somebody else meanwhile
                        acked[message.body] += 1

                consumers = [asyncio.create_task(consume()) for _ in range(CONSUMERS)]
                for number in range(MESSAGES):
                    await queue.enqueue(f"{number}")
                    if number % 100 == 50:
                        await hand_over(nodes)
                await until(lambda: len(acked) == MESSAGES)
                info = await queue.info()
                for each in consumers:
                    each.cancel()
                await asyncio.gather(*consumers, return_exceptions=True)
            assert set(acked.values()) == {1}
            assert (info.enqueued, info.acked) == (MESSAGES, MESSAGES)

    run(test())


def test_a_poll_outlives_its_leader(tmp_path: Path) -> None:
    """D12: whoever waits, on whatever node, has the message that the next leader is sent."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            leader = next(node for node in nodes if node.leads(0))
            await Jobs(leader).create()
            async with AsyncClient([node.endpoint for node in nodes], timeout_s=20) as client:
                polls = [
                    asyncio.create_task(client.queue("jobs").lease(wait_s=20)) for _ in range(3)
                ]
                edge = leader.context.edge
                assert edge is not None
                await until(lambda: len(edge.waits(0)) == 3)
                await hand_over(nodes)
                await client.queue("jobs").enqueue_many(["1", "2", "3"])
                found = [message.body for poll in polls for message in await poll]
                assert sorted(found) == [b"1", b"2", b"3"]
            await until(lambda: not len(edge.waits(0)))

    run(test())


def test_a_stream_that_loses_its_leader_gives_its_messages_back(tmp_path: Path) -> None:
    """D12: they are ready on the next leader long before their leases end."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            leader = next(node for node in nodes if node.leads(0))
            jobs = Jobs(leader)
            await jobs.create()
            await jobs.send(b"1", b"2", b"3")
            call = jobs.stub.Consume(q.ConsumeRequest(queue="jobs", visibility_ms=600_000))
            count = 0
            while count < 3:
                count += len((await call.read()).messages)
            follower = await hand_over(nodes)
            taken = await Jobs(follower).lease(1, wait_ms=9_000)
            assert taken[0].delivery_count == 1

    run(test())


def test_a_purge_keeps_its_bound_and_its_count_when_the_leader_changes_in_its_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D14: what came after its first entry is left alone, without a session too."""
    monkeypatch.setattr(onelog.node.services.queue, "PURGE_MESSAGES_MAX", 2)

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            leader = next(each for each in nodes if each.leads(0))
            jobs = Jobs(leader)
            await jobs.create()
            await jobs.send(b"1", b"2", b"3", b"4", b"5")
            write = Edge.write
            changed = asyncio.Event()

            async def write_and_change(edge: Edge, *arguments: Any) -> Any:
                written = await write(edge, *arguments)
                if not changed.is_set():
                    changed.set()
                    await own_task()  # which waiting with a timeout needs
                    await hand_over(nodes)
                    await jobs.send(b"later")
                return written

            monkeypatch.setattr(Edge, "write", write_and_change)
            purged = await jobs.stub.Purge(q.PurgeRequest(queue="jobs"))
            assert changed.is_set()
            assert purged.purged_count == 5
            assert [each.body for each in await jobs.peek()] == [b"later"]

    run(test())


def test_a_purge_that_stopped_half_way_does_not_say_that_nothing_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told so would make the call again, with another bound."""
    monkeypatch.setattr(onelog.node.services.queue, "PURGE_MESSAGES_MAX", 2)

    async def test() -> None:
        async with single(tmp_path, shards=1) as server:
            jobs = Jobs(server)
            await jobs.create()
            await jobs.send(b"1", b"2", b"3")
            write, count = Edge.write, 0

            async def write_once(edge: Edge, *arguments: Any) -> Any:
                nonlocal count
                count += 1
                if count > 1:
                    raise Unavailable("another leader's entry took its place", retry_after_s=0.1)
                return await write(edge, *arguments)

            monkeypatch.setattr(Edge, "write", write_once)
            error = await refusal(jobs.stub.Purge(q.PurgeRequest(queue="jobs")))
            assert isinstance(error, OutcomeUnknown)

    run(test())
