"""What leased and peeked messages carry, from memory and disk, and calls that any node takes."""

from pathlib import Path

from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import Node, cluster, run, single
from tests.node.services.queues import Jobs, headers, on_a_node


def test_bodies_come_from_the_disk_when_memory_has_forgotten_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            jobs = Jobs(node)
            await jobs.create()
            await jobs.send(b"first", headers=[q.Header(name="h", value=b"v")])
        async with single(tmp_path, shards=1) as node:
            jobs = Jobs(node)
            ring = node.context.drivers[0].shard.log.ring
            assert ring.first_index > 3
            (peeked,) = await jobs.peek()
            (message,) = await jobs.lease()
            assert peeked.body == message.body == b"first"
            assert headers(message) == {"h": b"v"}

    run(test())


def test_answers_hold_no_more_than_a_message_can(tmp_path: Path) -> None:
    """What a lease got beyond that is given back at once, and a peek ends earlier."""

    async def test(jobs: Jobs) -> None:
        size = 3 << 20
        for number in range(4):
            await jobs.send(bytes([number]) * size)
        peeked = await jobs.stub.Peek(q.PeekRequest(queue="jobs"))
        assert len(peeked.messages) == 2
        assert peeked.next_id > peeked.messages[-1].message_id
        (first, second) = await jobs.lease(10)
        assert (first.body[:1], second.body[:1]) == (b"\0", b"\1")
        (third, fourth) = await jobs.lease(10)
        assert (third.body[:1], third.delivery_count, fourth.body[:1]) == (b"\2", 1, b"\3")

    on_a_node(tmp_path, test)


def test_any_node_takes_any_call(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            for node in nodes:
                await _use(node, f"queue of {node.server.config.node.name}")

    async def _use(node: Node, name: str) -> None:
        jobs = Jobs(node, name)
        await jobs.create()
        await jobs.send(b"1", b"2")
        messages = await jobs.lease(5)
        assert [each.body for each in messages] == [b"1", b"2"]
        assert await jobs.ack(messages) == ["", ""]
        assert (await jobs.info()).acked_count == 2

    run(test())
