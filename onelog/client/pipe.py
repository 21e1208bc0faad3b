"""The one Pipeline.Execute stream to an endpoint: batches go in, answers come back by their number.

Batches that wait at the same time, of several shards, go in one message of gRPC: one costs both
sides about as much as ten operations. ``flush`` sends them; where the server takes no more, the
rest waits.

The stream is opened when there is something to send, and again after it broke. A batch handed to
``send`` comes back exactly once, through its lane's ``answered`` or ``failed``, unless it is taken
back first. Batches that were not written when the stream broke did not reach the server
(``is_written``); of the others nobody knows.
"""

import asyncio
from collections import deque
from contextvars import Context
from typing import Protocol

from onelog.channel import Channel, Exchange, RpcError
from onelog.client.batch import Batch
from onelog.client.channels import METHODS
from onelog.client.options import ClientOptions
from onelog.errors import OnelogError, ResourceExhausted, TooLarge, Unavailable
from onelog.status import error_of
from onelog.v1 import pipeline_pb2
from onelog.wire.grpc import Metadata, Status

_EXECUTE = METHODS["Pipeline/Execute"]
# Noted with the error of a stream that an answer was too large for.
ANSWER_TOO_LARGE = "an answer was too large for a message"


# What goes in one message; a single batch may be larger. A server begins with the first of
# two large ones while the second is on its way.
MESSAGE_BATCHES_MAX = 64
MESSAGE_BYTES_MAX = 64 << 10


class Owner(Protocol):
    """Who hands batches to a pipe, and gets them back."""

    def answered(self, batch: Batch, response: pipeline_pb2.ExecuteResponse) -> None:
        """The server has answered."""

    def failed(self, batch: Batch, error: OnelogError) -> None:
        """The stream broke, or could not be opened."""


class _Execute(Exchange):
    """The stream, as long as it lasts."""

    __slots__ = ("_pipe",)

    def __init__(self, pipe: "Pipe", channel: Channel, metadata: Metadata) -> None:
        self._pipe = pipe
        super().__init__(channel, _EXECUTE.path, metadata)

    def received(self, data: bytes) -> None:
        """Hand answers to their owners."""
        self.release(len(data))
        self._pipe.received(data)

    def writable(self) -> None:
        """Send what waits."""
        self._pipe.flush()

    def over(self, status: Status) -> None:
        """Hand everything back."""
        self._pipe.ended(self, status)


class Pipe:
    """See the module's text."""

    def __init__(self, channel: Channel, metadata: Metadata, options: ClientOptions) -> None:
        self._channel = channel
        self._metadata = metadata
        self._options = options
        self._queue: deque[int] = deque()
        self._batches: dict[int, tuple[Batch, Owner]] = {}
        self._last_id = 0
        self._call: _Execute | None = None
        self._opening: asyncio.Task[None] | None = None

    def send(self, batch: Batch, owner: Owner) -> None:
        """Send a batch after those before it, with the next ``flush``."""
        self._last_id += 1
        batch.request.request_id = self._last_id
        batch.is_written = False
        self._batches[self._last_id] = batch, owner
        self._queue.append(self._last_id)

    def take_back(self, batch: Batch) -> None:
        """Forget a batch: its answer, if one comes, is for nobody."""
        self._batches.pop(batch.request.request_id, None)

    def flush(self) -> None:
        """Send what waits, as far as the server takes it."""
        if not self._queue:
            return
        call = self._call
        if call is None:
            self._open_soon()
            return
        while call.can_send and (message := self._next_message()) is not None:
            call.send(message.SerializeToString())
        call.flush()

    async def close(self) -> None:
        """End the stream; what is under way fails."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._end()
        self._break(Unavailable("the client is closed", reason="CLIENT_CLOSED"))

    def _end(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    # What the stream says

    def received(self, data: bytes) -> None:
        """Answers have come."""
        try:
            response = _EXECUTE.parse(data)
        except OnelogError as error:
            self._end()
            self._break(error)
            return
        self._answer(response)
        for each in response.more:
            self._answer(each)

    def ended(self, call: _Execute, status: Status) -> None:
        """The stream is over; the status says why, OK is a server that stops."""
        if self._call is call:  # else we have ended it
            self._call = None
            error: OnelogError = Unavailable("the stream has ended")
            self._break(_of_all(error_of(RpcError(status)) if status.code else error))

    def _open_soon(self) -> None:
        if self._channel.is_ready:
            self._open()
        elif self._opening is None:
            loop = asyncio.get_running_loop()
            # Of no caller's costs or trace: it is everybody's.
            name = f"onelog {self._channel.endpoint}"
            self._opening = loop.create_task(self._connect(), name=name, context=Context())

    async def _connect(self) -> None:
        error: OnelogError | None = None
        try:
            await self._channel.ready(self._options.connect_timeout_s)
        except OnelogError as failure:
            error = failure
        finally:
            self._opening = None
        if error is None:
            self._open()
        else:
            self._break(error)

    def _open(self) -> None:
        self._call = _Execute(self, self._channel, self._metadata)
        self._call.begin()

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

    A message beyond the limit ends the stream of everybody. Whose it was and what the
    others have done nobody says: to all it is a connection that broke, with ``TOO_LARGE`` noted.
    """
    is_of_transport = not error.metadata and not error.retry_after_s
    if isinstance(error, ResourceExhausted | TooLarge) and is_of_transport:
        broken = Unavailable(f"the stream broke: {error.message}")
        broken.add_note(ANSWER_TOO_LARGE)
        return broken
    return error
