"""Queues on three nodes while leaders change: nothing is lost, what is settled stays so."""

import asyncio
from collections import Counter
from pathlib import Path

from onelog import AsyncClient
from onelog.errors import LeaseLost, NotFound
from onelog.v1 import admin_pb2 as admin
from onelog.v1 import queue_pb2 as q
from tests.services.nodes import Node, cluster, eventually, run, until
from tests.services.queues import Jobs

MESSAGES = 300
CONSUMERS = 3


async def hand_over(nodes: list[Node]) -> Node:
    """Let another node lead; return it."""
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
