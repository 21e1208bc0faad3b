"""Messages that were pushed by a leader that died: who has them, and when others get them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onelog.channel import Channel, RpcError, Stream
from onelog.client.client import AsyncClient
from onelog.client.values import Message, to_message
from onelog.errors import LeaseLost
from onelog.v1 import queue_pb2
from tests.system.leaders import Leaders, leaders_of
from tests.system.nodes import ServeProcess, nodes
from tests.system.processes import until

TEST_S = 120.0
WAIT_S = 60.0
VISIBILITY_S = 3000.0  # longer than any test
CREDIT = 10
CONSUME = "/onelog.v1.Queue/Consume"
ONE_SHARD = {"shards": "1", "partitions": "4"}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, TEST_S))


@asynccontextmanager
async def cluster(
    directory: Path, **flags: str
) -> AsyncIterator[tuple[list[ServeProcess], Leaders, AsyncClient]]:
    with nodes(directory, "n1", "n2", "n3", **ONE_SHARD, **flags) as made:
        processes = [each.start() for each in made.values()]
        for each in processes:
            await asyncio.to_thread(each.until_ready)
        endpoints = [each.flags["listen"] for each in processes]
        async with leaders_of(processes) as leaders, AsyncClient(endpoints, timeout_s=30) as client:
            await client.queue("jobs").create()
            yield processes, leaders, client


async def fill(client: AsyncClient, count: int) -> set[bytes]:
    bodies = {b"%d" % number for number in range(count)}
    await client.queue("jobs").enqueue_many(sorted(bodies))
    return bodies


async def has_leased(client: AsyncClient, count: int) -> bool:
    return (await client.queue("jobs").info()).leased == count


async def kill_leader(leaders: Leaders) -> ServeProcess:
    """Kill the leader; return who leads now."""
    killed = await leaders.of(0)
    killed.process.kill()
    return (await leaders.of(0, above_term=killed.term, but=killed.process)).process


class Consumer:
    """A client by the proto alone, which takes an answer when the test says so."""

    def __init__(self, consumer_id: bytes) -> None:
        self.request = queue_pb2.ConsumeRequest(
            queue="jobs",
            credit=CREDIT,
            visibility_ms=int(VISIBILITY_S * 1000),
            consumer_id=consumer_id,
        )
        self._channel: Channel | None = None
        self._stream: Stream | None = None

    async def begin(self, process: ServeProcess) -> None:
        """Begin a stream; tries again while the node does not lead yet."""
        await self.end()
        async with asyncio.timeout(WAIT_S):
            while True:
                self._channel = Channel(process.flags["listen"])
                self._stream = self._channel.stream(CONSUME, self.request.SerializeToString())
                try:
                    assert not (await self.take())
                except RpcError:
                    await self._channel.close()
                    await asyncio.sleep(0.05)
                else:
                    return

    async def take(self) -> list[queue_pb2.Message]:
        """Take the next answer."""
        assert self._stream is not None
        answer = queue_pb2.ConsumeResponse.FromString(await anext(self._stream))
        return list(answer.messages)

    async def take_until(self, count: int) -> list[queue_pb2.Message]:
        """Take answers until there are as many messages."""
        messages = await self.take()
        while len(messages) < count:
            messages += await self.take()
        return messages

    async def end(self) -> None:
        if self._channel is not None:
            await self._channel.close()


def test_what_a_dead_leader_had_pushed_in_vain_comes_again_as_if_never_sent(
    tmp_path: Path,
) -> None:
    """The client says what it has received: that stays leased, and all else is released."""

    async def test() -> None:
        async with cluster(tmp_path) as (_, leaders, client):
            queue = client.queue("jobs")
            await fill(client, 30)
            consumer = Consumer(b"c1")
            await consumer.begin((await leaders.of(0)).process)
            received = await consumer.take_until(CREDIT)
            assert len(received) == CREDIT
            # Settling some makes room: others are pushed, which this client never takes.
            for each in received[:4]:
                await queue.ack(to_message(each, Message))
            held = {each.message_id for each in received[4:]}

            await until(lambda: has_leased(client, CREDIT))
            successor = await kill_leader(leaders)
            consumer.request.received_token = received[-1].token
            await consumer.begin(successor)
            again = await consumer.take_until(4)
            assert {each.delivery_count for each in again} == {1}
            assert not held & {each.message_id for each in again}
            # Beside the ten nothing is leased: what is held counts for the credit.
            assert (await queue.info()).leased == CREDIT
            others = await queue.lease(100, visibility_s=VISIBILITY_S)
            assert len(others) == 30 - 4 - CREDIT
            assert not held & {each.message_id for each in others}
            # What was received is settled with the token of the dead leader's lease.
            for each in received[4:]:
                await queue.ack(to_message(each, Message))
            await consumer.end()

    run(test())


def test_what_a_client_held_that_died_with_its_leader_is_released_after_a_while(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, limits_consumer_return_s_max="1") as (_, leaders, client):
            queue = client.queue("jobs")
            bodies = await fill(client, CREDIT)
            consumer = Consumer(b"c1")
            await consumer.begin((await leaders.of(0)).process)
            received = await consumer.take_until(CREDIT)
            successor = await kill_leader(leaders)
            await consumer.end()
            found: list[Message] = []
            async with asyncio.timeout(WAIT_S):
                while len(found) < CREDIT:
                    found += await queue.lease(CREDIT, visibility_s=VISIBILITY_S, wait_s=5.0)
            assert {each.body for each in found} == bodies
            assert {each.delivery_count for each in found} == {1}
            # Should it live all the same: it is told, and takes nothing from the others.
            consumer.request.received_token = received[-1].token
            await consumer.begin(successor)
            with pytest.raises(LeaseLost):
                await queue.ack(to_message(received[0], Message))
            assert (await queue.info()).leased == CREDIT
            await consumer.end()

    run(test())


def test_a_client_sees_each_message_once_while_leaders_die(tmp_path: Path) -> None:
    """It works slowly and holds some all the time; nothing comes twice, nothing waits."""

    async def test() -> None:
        async with cluster(tmp_path) as (processes, leaders, client):
            queue = client.queue("jobs")
            bodies = await fill(client, 60)
            seen: Counter[bytes] = Counter()
            deliveries: Counter[int] = Counter()
            pushed = queue.consume(credit=CREDIT, visibility_s=VISIBILITY_S)
            holding: list[Message] = []
            async with asyncio.timeout(TEST_S):
                async for message in pushed:
                    seen[message.body] += 1
                    deliveries[message.delivery_count] += 1
                    holding.append(message)
                    if len(seen) in (15, 40) and seen.total() == len(seen):
                        await kill_leader(leaders)
                        for each in processes:
                            if not each.is_running:
                                each.kill()
                                each.start()
                                await asyncio.to_thread(each.until_ready)
                    if len(holding) >= CREDIT // 2 or len(seen) > len(bodies) - CREDIT:
                        for each_held in holding:
                            await queue.ack(each_held)
                        holding.clear()
                    if len(seen) == len(bodies):
                        break
            await pushed.aclose()  # type: ignore[attr-defined]
            assert set(seen) == bodies
            assert set(seen.values()) == {1}, seen
            assert set(deliveries) == {1}, deliveries
            info = await queue.info()
            assert (info.ready, info.leased, info.acked) == (0, 0, len(bodies))

    run(test())
