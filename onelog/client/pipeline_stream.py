"""The one Pipeline.Execute stream to an endpoint: batches go in, answers come back by request id.

``flush`` sends the queued batches with one write to the socket; what flow control does not allow
stays queued. Each shard's batch is a message of its own: putting several into one (``more``) saved
nothing measurable.

The stream is opened when there is something to send, and again after it broke. A batch passed to
``send`` ends exactly once, through its lane's ``answered`` or ``failed``, unless it is withdrawn
first. Batches that were not written when the stream broke did not reach the server
(``is_written``); the others may have.
"""

import asyncio
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING

from onelog.channel import Channel, Exchange, RpcError
from onelog.client.batch import Batch
from onelog.client.channels import METHODS
from onelog.client.options import ClientOptions
from onelog.errors import OnelogError, ResourceExhausted, TooLarge, Unavailable
from onelog.status import error_of
from onelog.v1 import pipeline_pb2
from onelog.wire.grpc import Status

if TYPE_CHECKING:
    from onelog.client.lanes import Lane

_EXECUTE = METHODS["Pipeline/Execute"]
# A note on the error of a stream that broke because an answer was too large.
ANSWER_TOO_LARGE = "an answer was too large for a message"


class _Execute(Exchange):
    """One call of Pipeline.Execute, from its opening to its end."""

    __slots__ = ("_pipe",)

    def __init__(self, pipe: "Pipe", channel: Channel) -> None:
        self._pipe = pipe
        super().__init__(channel, _EXECUTE.path, ())

    def received(self, data: bytes) -> None:
        """Pass answers to their lanes."""
        self.release(len(data))
        self._pipe.received(data)

    def writable(self) -> None:
        """Send queued batches: the server accepts more."""
        self._pipe.flush()

    def over(self, status: Status) -> None:
        """Fail everything that is not answered."""
        self._pipe.ended(self, status)


class Pipe:
    """Sends the batches of all lanes to one endpoint, and passes answers to their lanes."""

    def __init__(self, channel: Channel, options: ClientOptions) -> None:
        self._channel = channel
        self._options = options
        self._queue: deque[int] = deque()
        self._batches: dict[int, tuple[Batch, Lane]] = {}
        self._last_id = 0
        self._call: _Execute | None = None
        self._opening: asyncio.Task[None] | None = None

    def send(self, batch: Batch, lane: "Lane") -> None:
        """Queue a batch for the next ``flush``."""
        self._last_id += 1
        batch.request.request_id = self._last_id
        batch.is_written = False
        self._batches[self._last_id] = batch, lane
        self._queue.append(self._last_id)

    def withdraw(self, batch: Batch) -> None:
        """Forget a batch; an answer that comes later is ignored."""
        self._batches.pop(batch.request.request_id, None)

    def flush(self) -> None:
        """Send queued batches, as far as flow control allows."""
        if not self._queue:
            return
        call = self._call
        if call is None:
            self._open_soon()
            return
        while self._queue and call.can_send:
            found = self._batches.get(self._queue.popleft())
            if found is not None:  # else it was withdrawn
                found[0].is_written = True
                call.send(found[0].request.SerializeToString())
        call.flush()

    async def close(self) -> None:
        """End the stream; batches under way fail."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._end()
        self._break(Unavailable("the client is closed", reason="CLIENT_CLOSED"))

    def _end(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    # Called by the stream

    def received(self, data: bytes) -> None:
        """Handle a message with answers."""
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
        """Handle the end of the stream; the status OK means that the server stops."""
        if self._call is call:  # else we ended it ourselves
            self._call = None
            error: OnelogError = Unavailable("the stream has ended")
            self._break(_to_stream_error(error_of(RpcError(status)) if status.code else error))

    def _open_soon(self) -> None:
        if self._channel.is_ready:
            self._open()
        elif self._opening is None:
            loop = asyncio.get_running_loop()
            # An empty context: the connection belongs to no single caller's costs or trace.
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
        self._call = _Execute(self, self._channel)
        self._call.begin()

    def _answer(self, response: pipeline_pb2.ExecuteResponse) -> None:
        found = self._batches.pop(response.request_id, None)
        if found is not None:
            batch, lane = found
            lane.answered(batch, response)

    def _break(self, error: OnelogError) -> None:
        batches, self._batches = self._batches, {}
        self._queue.clear()
        for batch, lane in batches.values():
            lane.failed(batch, error)


def _to_stream_error(error: OnelogError) -> OnelogError:
    """Return the error that the end of a stream means for all batches on it.

    An answer above the size limit ends the stream for all, and it is not known whose it was. So all
    batches see a broken connection, with a note that an answer was too large.
    """
    is_of_transport = not error.metadata and not error.retry_after_s
    if isinstance(error, ResourceExhausted | TooLarge) and is_of_transport:
        broken = Unavailable(f"the stream broke: {error.message}")
        broken.add_note(ANSWER_TOO_LARGE)
        return broken
    return error
