"""Load on NATS JetStream by nats-py; everything has three replicas.

All callers share one connection to the node that leads the stream, or the consumer. In five turns
it was faster than any other: puts of 64 callers 5,600 a second, over a follower 4,600, over a
connection to each node 4,800, over four to the leader 4,700; of 256 8,300 against 6,600, 6,600
and 6,900. Messages are published by ``publish_async``: 26,600 a second, by ``publish`` 18,000. So
are keys, as the very message that ``KeyValue.put`` sends by ``publish``: 6,300 instead of 5,300
from 64 callers in seven turns, 9,600 instead of 7,600 from 256.

Pullers: two or four on one connection took 15,200 to 18,500 messages a second in two runs, one
14,300, eight 13,000; separate connections changed nothing. An ack is a message without an
answer, so it confirms less than an ack of onelog. Waiting for each (``ack_sync``) halves the rate.
The stream keeps acked messages, which is the default; a work queue, which is closer to a queue of
onelog, was a third slower.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import nats
import uvloop
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

from bench.peers_load import CREDIT, KEYS, LEASED, VALUE, Ask, Step, fill, serve

REPLICAS = 3
LEADER_S = 20.0
POLL_S = 0.05
FETCH_S = 5.0
# More than all pullers can have: it is not what should end.
UNACKED_MAX = 100_000
# Messages that are enqueued before: more than the callers take.
STOCK_PER_S = 200_000
BUCKET, EVENTS, JOBS, PULLERS = "bucket", "events", "jobs", "pullers"


class Nats:
    """The operations of the rows, by a connection to the leader at the start."""

    def __init__(self, endpoints: dict[str, str], stack: AsyncExitStack) -> None:
        self._endpoints = endpoints
        self._stack = stack
        self._connections: dict[str, JetStreamContext] = {}
        self._numbers = itertools.count()

    async def connection(self, node: str) -> JetStreamContext:
        if node not in self._connections:
            client = await nats.connect(f"nats://{self._endpoints[node]}", allow_reconnect=False)
            self._stack.push_async_callback(client.close)
            self._connections[node] = client.jetstream()
        return self._connections[node]

    async def any(self) -> JetStreamContext:
        return await self.connection(next(iter(self._endpoints)))

    async def create(self) -> None:
        """Make a bucket, two streams and a consumer."""
        any_node = await self.any()
        await any_node.create_key_value(bucket=BUCKET, replicas=REPLICAS, storage=StorageType.FILE)
        for name in (EVENTS, JOBS):
            await any_node.add_stream(
                name=name, subjects=[name], num_replicas=REPLICAS, storage=StorageType.FILE
            )
        pullers = ConsumerConfig(
            durable_name=PULLERS, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=UNACKED_MAX
        )
        await any_node.add_consumer(JOBS, pullers)

    async def leader(self, stream: str, consumer: str | None = None) -> JetStreamContext:
        """Return the connection to its leader, once there is one."""
        any_node = await self.any()
        async with asyncio.timeout(LEADER_S):
            while True:
                if consumer is None:
                    cluster = (await any_node.stream_info(stream)).cluster
                else:
                    cluster = (await any_node.consumer_info(stream, consumer)).cluster
                if cluster is not None and cluster.leader:
                    return await self.connection(cluster.leader)
                await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def put(self, _ask: Ask) -> AsyncIterator[Step]:
        leader, numbers = await self.leader(f"KV_{BUCKET}"), self._numbers

        async def step(_caller: int) -> int:
            key = f"$KV.{BUCKET}.key-{next(numbers) % KEYS:012d}"
            await (await leader.publish_async(key, VALUE))
            return 1

        yield step

    @asynccontextmanager
    async def publish(self, _ask: Ask, stream: str = EVENTS) -> AsyncIterator[Step]:
        leader = await self.leader(stream)

        async def step(_caller: int) -> int:
            await (await leader.publish_async(stream, VALUE))
            return 1

        yield step

    @asynccontextmanager
    async def pull(self, ask: Ask) -> AsyncIterator[Step]:
        """Each caller takes many messages at a time and acks each."""
        leader = await self.leader(JOBS, PULLERS)
        there = (await leader.consumer_info(JOBS, PULLERS)).num_pending
        async with self.publish(ask, JOBS) as publish:
            await fill(publish, CREDIT, ask.stock(STOCK_PER_S) - (there or 0))
        pullers = [
            await leader.pull_subscribe(JOBS, durable=PULLERS, stream=JOBS)
            for _ in range(ask.callers)
        ]

        async def step(caller: int) -> int:
            messages = await pullers[caller].fetch(LEASED, timeout=FETCH_S)
            for message in messages:
                await message.ack()
            return len(messages)

        yield step
        for puller in pullers:
            await puller.unsubscribe()


async def main(endpoints: dict[str, str]) -> None:
    async with AsyncExitStack() as stack:
        system = Nats(endpoints, stack)
        await system.create()
        await serve({"put": system.put, "publish": system.publish, "pull and ack": system.pull})


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
