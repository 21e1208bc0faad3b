"""The one Pipeline.Execute stream to an endpoint: batches go in, answers come back by their number.

Batches that wait at the same time, of several shards, go in one message of gRPC: one costs both
sides about as much as ten operations.

The stream is opened when there is something to send, and again after it broke. A batch handed to
``send`` comes back exactly once, through its lane's ``answered`` or ``failed``, unless it is taken
back first. Batches that were not written when the stream broke did not reach the server
(``is_written``); of the others nobody knows.
"""

import asyncio
from collections import deque
from contextvars import Context
from typing import Any, Protocol

import grpc.aio  # type: ignore[import-untyped]

from onelog.client.batch import Batch
from onelog.client.channels import Channel
from onelog.client.options import ClientOptions
from onelog.errors import OnelogError, ResourceExhausted, TooLarge, Unavailable
from onelog.status import error_of
from onelog.v1 import pipeline_pb2

# Noted with the error of a stream that an answer was too large for.
ANSWER_TOO_LARGE = "an answer was too large for a message"


# What goes in one message of gRPC; a single batch may be larger. A server begins with the first of
# two large ones while the second is on its way.
MESSAGE_BATCHES_MAX = 64
MESSAGE_BYTES_MAX = 64 << 10


class Owner(Protocol):
    """Who hands batches to a pipe, and gets them back."""

    def answered(self, batch: Batch, response: pipeline_pb2.ExecuteResponse) -> None:
        """The server has answered."""

    def failed(self, batch: Batch, error: OnelogError) -> None:
        """The stream broke, or could not be opened."""


class Pipe:
    """See the module's text."""

    def __init__(self, channel: Channel, options: ClientOptions) -> None:
        self._channel = channel
        self._options = options
        self._queue: deque[int] = deque()
        self._batches: dict[int, tuple[Batch, Owner]] = {}
        self._last_id = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None

    def send(self, batch: Batch, owner: Owner) -> None:
        """Send a batch after those before it."""
        self._last_id += 1
        batch.request.request_id = self._last_id
        batch.is_written = False
        self._batches[self._last_id] = batch, owner
        self._queue.append(self._last_id)
        self._wake.set()
        if self._task is None:
            loop = asyncio.get_running_loop()
            # Of no caller's costs or trace: it is everybody's.
            name = f"onelog {self._channel.endpoint}"
            self._task = loop.create_task(self._run(), name=name, context=Context())

    def take_back(self, batch: Batch) -> None:
        """Forget a batch: its answer, if one comes, is for nobody."""
        self._batches.pop(batch.request.request_id, None)

    async def close(self) -> None:
        """End the stream; what is under way fails."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._break(Unavailable("the client is closed", reason="CLIENT_CLOSED"))

    async def _run(self) -> None:
        """Open the stream, write and read until it breaks, then give everything back."""
        error: OnelogError = Unavailable("the stream has ended")
        writer: asyncio.Task[None] | None = None
        try:
            await self._channel.ready(self._options.connect_timeout_s)
            self._call = call = self._channel.method("Pipeline/Execute")(
                metadata=self._channel.metadata
            )
            loop = asyncio.get_running_loop()
            writer = loop.create_task(self._write(call), name="onelog pipe writer")
            while True:
                response = await call.read()
                if response is grpc.aio.EOF:
                    break
                self._answer(response)
                for each in response.more:
                    self._answer(each)
            # The status says why; OK is a server that stops.
            if await call.code() is not grpc.StatusCode.OK:
                error = await _status_of(call)
        except grpc.aio.AioRpcError as failure:
            error = error_of(failure)
        except OnelogError as failure:
            error = failure
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            if self._call is not None:
                self._call.cancel()
                self._call = None
            self._task = None
        self._break(_of_all(error))

    async def _write(self, call: Any) -> None:
        while True:
            while (message := self._next_message()) is not None:
                try:
                    await call.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the reader learns why
            self._wake.clear()
            await self._wake.wait()

    def _next_message(self) -> pipeline_pb2.ExecuteRequest | None:
        """Return what waits as one message, as far as it fits; None: nothing does."""
        requests: list[pipeline_pb2.ExecuteRequest] = []
        size = 0
        while self._queue and len(requests) < MESSAGE_BATCHES_MAX:
            found = self._batches.get(self._queue[0])
            if found is not None:  # else it was taken back
                batch = found[0]
                size += batch.size
                if requests and size > MESSAGE_BYTES_MAX:
                    break
                batch.is_written = True
                requests.append(batch.request)
            self._queue.popleft()
        if len(requests) < 2:
            return requests[0] if requests else None
        message = pipeline_pb2.ExecuteRequest()
        message.CopyFrom(requests[0])  # which may be sent again, by itself
        message.more.extend(requests[1:])
        return message

    def _answer(self, response: pipeline_pb2.ExecuteResponse) -> None:
        found = self._batches.pop(response.request_id, None)
        if found is not None:
            batch, owner = found
            owner.answered(batch, response)

    def _break(self, error: OnelogError) -> None:
        batches, self._batches = self._batches, {}
        self._queue.clear()
        for batch, owner in batches.values():
            owner.failed(batch, error)


def _of_all(error: OnelogError) -> OnelogError:
    """Return what the end of a stream means for all batches on it.

    A message that is too large for gRPC ends the stream of everybody. Whose it was and what the
    others have done nobody says: to all it is a connection that broke, with ``TOO_LARGE`` noted.
    """
    is_of_grpc = not error.metadata and not error.retry_after_s
    if isinstance(error, ResourceExhausted | TooLarge) and is_of_grpc:
        broken = Unavailable(f"the stream broke: {error.message}")
        broken.add_note(ANSWER_TOO_LARGE)
        return broken
    return error


async def _status_of(call: Any) -> OnelogError:
    failure = grpc.aio.AioRpcError(
        await call.code(),
        await call.initial_metadata(),
        await call.trailing_metadata(),
        await call.details(),
    )
    return error_of(failure)
