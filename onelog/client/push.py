"""Messages that a server pushes: ``AsyncQueue.consume`` behind the iteration.

They are read in the background, also while the caller works on one of them. So the client notices
at once when the leader dies, and is back at the next one in time: a leader keeps the messages of a
consumer that does not come back for a limited time only. What was read and not yet taken waits in
memory; the server sends no more than ``credit`` messages that are not settled.

Each iteration has a random id, and tells with each new stream which token it has received last.
What the server had leased for it after that was lost on the way; the server releases it, and keeps
the rest.
"""

import asyncio
import secrets
from collections import deque
from contextlib import aclosing
from typing import Any, Self

from onelog.client.calls import Calls
from onelog.client.topology import Topology
from onelog.v1 import queue_pb2

ID_SIZE = 16


class Pushed:
    """An iterator over messages that a server pushes. Use it in ``async with``."""

    def __init__(
        self,
        calls: Calls,
        topology: Topology,
        shard: int,
        request: queue_pb2.ConsumeRequest,
        timeout_s: float,
    ) -> None:
        request.consumer_id = secrets.token_bytes(ID_SIZE)
        self._request = request
        self._answers = calls.stream(
            "Queue/Consume",
            lambda: request,
            timeout_s=timeout_s,
            route=lambda: topology.find_endpoint(shard),
            shard=shard,
        )
        self._messages: deque[queue_pb2.Message] = deque()
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(self._read(), name="onelog consume")
        self._reading.add_done_callback(lambda _task: self._changed.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> queue_pb2.Message:
        assert self._reading is not None, "used outside of its block"
        while not self._messages:
            if self._reading.done():
                self._reading.result()  # raises why it ended
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._messages.popleft()

    async def _read(self) -> None:
        async with aclosing(self._answers) as answers:
            answer: Any
            async for answer in answers:
                if answer.messages:  # all have one token, which rises
                    self._request.received_token = answer.messages[0].token
                    self._messages += answer.messages
                    self._changed.set()
