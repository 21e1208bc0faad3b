"""Short words for what tests do with queues through the API."""

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from onelog.node.edge.shards import get_edge
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import Node, run, single


def on_a_node(directory: Path, test: Callable[["Jobs"], Awaitable[None]], **changes: Any) -> None:
    """Run a test with a queue ``jobs`` on a node of its own."""

    async def main() -> None:
        async with single(directory, shards=1, **changes) as node:
            jobs = Jobs(node)
            await jobs.create()
            await test(jobs)

    run(main())


class Jobs:
    """One queue of a node, by the stub of its proto."""

    def __init__(self, node: Node, name: str = "jobs") -> None:
        self.node = node
        self.name = name
        self.stub = node.queue

    @property
    def last_index(self) -> int:
        shard = get_edge(self.node.context).find_shard(self.name.encode())
        return self.node.context.drivers[shard].shard.log.last_index

    def other(self, name: str) -> "Jobs":
        return Jobs(self.node, name)

    async def create(self, **config: Any) -> int:
        request = q.CreateQueueRequest(queue=self.name, config=q.QueueConfig(**config))
        return int((await self.stub.CreateQueue(request)).queue_id)

    async def send(self, *bodies: bytes, **fields: Any) -> list[int]:
        messages = [q.NewMessage(body=body, **fields) for body in bodies]
        request = q.EnqueueRequest(queue=self.name, messages=messages)
        answer = await self.stub.Enqueue(request)
        return [result.message_id for result in answer.results]

    async def lease(self, count: int = 1, **fields: Any) -> list[q.Message]:
        answer = await self.stub.Lease(q.LeaseRequest(queue=self.name, count=count, **fields))
        return list(answer.messages)

    async def bodies(self, count: int = 1000, **fields: Any) -> list[bytes]:
        return [message.body for message in await self.lease(count, **fields)]

    def leased(self, messages: Iterable[q.Message]) -> dict[str, Any]:
        items = [q.Leased(message_id=each.message_id, token=each.token) for each in messages]
        return {"queue": self.name, "messages": items}

    async def ack(self, messages: Iterable[q.Message], **fields: Any) -> list[str]:
        answer = await self.stub.Ack(q.AckRequest(**self.leased(messages), **fields))
        return [result.reason for result in answer.results]

    async def nack(self, messages: Iterable[q.Message], **fields: Any) -> list[bool]:
        answer = await self.stub.Nack(q.NackRequest(**self.leased(messages), **fields))
        return [result.dead for result in answer.results]

    async def info(self) -> q.QueueInfo:
        answer: q.GetQueueResponse
        answer = await self.stub.GetQueue(q.GetQueueRequest(queue=self.name))
        return answer.queue

    async def peek(self, **fields: Any) -> list[q.Message]:
        return list((await self.stub.Peek(q.PeekRequest(queue=self.name, **fields))).messages)


def headers(message: q.Message) -> dict[str, bytes]:
    return {header.name: header.value for header in message.headers}
