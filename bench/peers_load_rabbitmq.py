"""Load on quorum queues of RabbitMQ by pika.

pika's connection for asyncio, because it makes RabbitMQ fastest by far: in four turns 12,000
confirmed messages a second from 1,024 callers, where aiormq had 2,400 (3,000 with four channels)
and aio-pika, which is built on it, 1,900 (2,500). A message is 33 µs of this process with pika and
190 with aiormq, and RabbitMQ itself takes a quarter of the CPU for messages that arrive together.

Callers share one connection to the node that leads the queue, with some channels: in five turns
11,500 a second with four channels, 10,200 with one, 8,300 over four connections, 7,600 over one to
each node, 8,900 over a follower. An ack is a frame without an answer, so it confirms less than an
ack of onelog.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pika
import uvloop
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from bench.peers_load import CREDIT, LEASED, VALUE, Ask, Step, fill, serve

CHANNELS = 4
# Of a consumer: 22,000 messages a second in six turns, 19,500 with 1,024 and 20,500 with 2,048; no
# more with several consumers.
PREFETCH = 4096
# Messages that are enqueued before: more than the callers take.
STOCK_PER_S = 150_000
PUBLISHED, CONSUMED = "published", "consumed"
# The queue is led by the node that it is declared at.
QUORUM = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
KEPT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent.value)


async def called_back(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function that takes a callback, and return the callback's argument."""
    answer = asyncio.get_running_loop().create_future()
    call(*arguments, callback=answer.set_result, **named)
    return await answer


async def connect(address: str) -> AsyncioConnection:
    loop = asyncio.get_running_loop()
    opened = loop.create_future()
    host, port = address.rsplit(":", 1)
    AsyncioConnection(
        pika.ConnectionParameters(host=host, port=int(port)),
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _connection, error: opened.set_exception(error),
        custom_ioloop=loop,
    )
    return await opened


async def open_channel(connection: AsyncioConnection) -> Channel:
    opened = asyncio.get_running_loop().create_future()
    connection.channel(on_open_callback=opened.set_result)
    return await opened


async def close(channel: Channel) -> None:
    closed = asyncio.get_running_loop().create_future()
    channel.add_on_close_callback(lambda *_: closed.set_result(None))
    channel.close()
    await closed


class Publisher:
    """A channel, and who waits for which confirm."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._last = 0
        self._confirmed = 0  # all up to this one are

    async def confirm(self) -> None:
        """Have messages confirmed from now on."""
        await called_back(self._channel.confirm_delivery, self._on_confirm)

    def publish(self, queue: str) -> asyncio.Future[None]:
        self._last += 1
        waiting = self._waiting[self._last] = self._loop.create_future()
        self._channel.basic_publish("", queue, VALUE, KEPT)
        return waiting

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        assert isinstance(method, pika.spec.Basic.Ack), method
        tag: int = method.delivery_tag
        if not method.multiple:
            self._waiting.pop(tag).set_result(None)
            return
        for each in range(self._confirmed + 1, tag + 1):
            # Some may have been confirmed alone.
            if (waiting := self._waiting.pop(each, None)) is not None:
                waiting.set_result(None)
        self._confirmed = tag


class Consumer:
    """Ack each message as it arrives; callers wait for some more."""

    def __init__(self) -> None:
        self._settled = 0
        self._counted = 0
        self._more: asyncio.Future[None] | None = None

    def on_message(self, channel: Channel, method: Any, _properties: Any, _body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        self._settled += 1
        more = self._more
        if more is not None and self._settled >= self._counted + LEASED and not more.done():
            more.set_result(None)

    async def step(self, _caller: int) -> int:
        if self._settled < self._counted + LEASED:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        count, self._counted = self._settled - self._counted, self._settled
        return count


class RabbitMQ:
    """What rows do."""

    def __init__(self, connection: AsyncioConnection) -> None:
        self._connection = connection
        self._publishers: list[Publisher] = []

    async def create(self) -> None:
        """Make two queues, and channels to publish by."""
        self._control = await open_channel(self._connection)
        for name in (PUBLISHED, CONSUMED):
            await called_back(self._control.queue_declare, name, durable=True, arguments=QUORUM)
        for _ in range(CHANNELS):
            publisher = Publisher(await open_channel(self._connection))
            await publisher.confirm()
            self._publishers.append(publisher)

    @asynccontextmanager
    async def publish(self, _ask: Ask, queue: str = PUBLISHED) -> AsyncIterator[Step]:
        publishers = self._publishers

        async def step(caller: int) -> int:
            await publishers[caller % CHANNELS].publish(queue)
            return 1

        yield step
        if queue == PUBLISHED:
            await called_back(self._control.queue_purge, queue)

    @asynccontextmanager
    async def consume(self, ask: Ask) -> AsyncIterator[Step]:
        """Messages are pushed to one consumer, which acks each alone; one caller counts."""
        found = await called_back(self._control.queue_declare, CONSUMED, passive=True)
        async with self.publish(ask, CONSUMED) as publish:
            await fill(publish, CREDIT, ask.stock(STOCK_PER_S) - found.method.message_count)
        channel = await open_channel(self._connection)
        await called_back(channel.basic_qos, prefetch_count=PREFETCH)
        consumer = Consumer()
        channel.basic_consume(CONSUMED, consumer.on_message)
        yield consumer.step
        await close(channel)


async def main(endpoints: dict[str, str]) -> None:
    rabbitmq = RabbitMQ(await connect(next(iter(endpoints.values()))))
    await rabbitmq.create()
    await serve({"publish": rabbitmq.publish, "consume and ack": rabbitmq.consume})


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
