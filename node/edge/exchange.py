"""One call on a connection, from its headers to its trailers.

An exchange collects the request, asks the gate (node/edge/gate.py), has the call carried out by the
``serve`` of its method, and puts the outcome on the wire: an answer, messages, or a status with a
reason. Invariants:

* What the gate let in leaves it once, when the call's code has ended, whatever ended it.
* A call whose client reset it or went is cancelled, and so is one whose client's deadline passed.
  Nothing is sent for it afterwards; the core ignores what comes too late.
* A unary call that waits for nothing, or for its shard alone, needs no task: its coroutine is
  stepped by hand, first in the very read that brought it, then in the call that ends what it waits
  for (node/replica/direct_future.py). Only the rest of one that waits for something else becomes a
  task. Until then it has no current task, which ``own_task`` (node/edge/waits.py) is for. Each call
  has a context of its own (``contextvars``) from its first step on.
* Messages of a stream leave one by one: ``send`` tells whether there is room for the next.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from onelog.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    OnelogError,
    OutcomeUnknown,
)
from onelog.node.context import Kind, Method
from onelog.node.public_errors import error_of_exception, to_rpc_status, too_large
from onelog.node.replica.direct_future import DirectFuture
from onelog.v1 import common_pb2
from onelog.wire.grpc import OK, Metadata, Status
from onelog.wire.grpc import Call as WireCall

if TYPE_CHECKING:
    from onelog.node.edge.port import Connection

# Whose call a node forwards. Nodes share a connection among clients; limits of a client count the
# calls under this name, within the connection that they came on. With TLS only nodes are believed.
CLIENT_KEY = "onelog-client"
CLIENT_NAME_SIZE_MAX = 64
# The answer of a call whose metadata has this key says what the call has cost.
COST_KEY = "onelog-cost"
# How long a client may read nothing of what it is sent: a stream is dropped, a connection closed.
STALL_S = 30.0
# Messages that a stream takes before others have a turn: a thousand that arrive together, and can
# be answered without waiting, would otherwise stop the loop.
MESSAGES_PER_TURN = 16


def name_client(connection: "Connection", metadata: Metadata) -> str:
    """Return the name under which a call counts: its connection, and the client behind that."""
    if connection.is_node:
        for key, value in metadata:
            if key == CLIENT_KEY and type(value) is str:
                return f"{connection.client} for {value[:CLIENT_NAME_SIZE_MAX]}"
    return connection.client


class Exchange:
    """See the module's text. Made when the headers of a call are there."""

    __slots__ = (
        "_awaited", "_code", "_context", "_has_begun", "_is_counted", "_messages", "_request",
        "_sent", "_serving", "_size", "_started_s", "_task", "arrival_s", "client", "connection",
        "cost", "deadline_s", "method", "wire",
    )  # fmt: skip

    def __init__(self, connection: "Connection", wire: WireCall, method: Method) -> None:
        self.wire = wire
        self.method = method
        # When the client gives up, and until when its request has to be there; of the loop's clock.
        self.deadline_s: float | None = None
        if wire.timeout_s is not None:
            self.deadline_s = connection.loop.time() + wire.timeout_s
        self.arrival_s: float | None = None
        self.connection = connection
        self.client = name_client(connection, wire.metadata)
        self._request: bytes | None = None
        self._messages: Messages | None = None
        self._size = 0
        self._has_begun = False
        self._is_counted = False
        self._code: int | None = None  # of the status, once it is decided
        self.cost: common_pb2.Cost | None = None  # that a refusal shows, if it was asked for
        self._started_s = 0.0
        # Of a unary call: its steps, and what the next one waits for unless a task makes it.
        self._serving: Coroutine[Any, Any, None] | None = None
        self._context: Context | None = None
        self._awaited: DirectFuture[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._sent: asyncio.Future[None] | None = None

    # What the connection says

    def begin(self) -> None:
        """Begin a call whose requests are a stream; others begin with their request."""
        if self.method.kind is Kind.BOTH:
            self._messages = Messages(self.connection, self.wire, self.method)
            self._carry_out(0)

    def receive(self, data: bytes, *, is_last: bool) -> None:
        """Take a message of the client."""
        if self._messages is not None:
            self._messages.add(data)
            if is_last:
                self._messages.end()
        elif self._request is not None:
            self._refuse_malformed("a second request came")
        else:
            self._request = data
            if is_last:
                self._request_is_whole()

    def refuse_size(self, size: int) -> None:
        """End a call of which a message is larger than any may be."""
        self.cut(too_large(size, self.connection.gate.message_bytes_max))

    def end_request(self) -> None:
        """The client sends no more."""
        if self._messages is not None:
            self._messages.end()
        elif self._request is None:
            self._refuse_malformed("the call ended without a request")
        elif not self._has_begun:
            self._request_is_whole()

    def start(self) -> None:
        """Carry a call out whose request is there; the connection may have held it."""
        assert self._request is not None
        self._carry_out(len(self._request))

    def await_request(self) -> None:
        """Count a call whose request did not come with its headers, or refuse it."""
        if self._has_begun or self._code is not None:
            return
        gate, connection = self.connection.gate, self.connection
        try:
            gate.await_request(self)
        except OnelogError as error:
            self.fail(error)
        else:
            self.arrival_s = connection.loop.time() + gate.arrival_s

    def cancel(self) -> None:
        """End a call whose client reset it or is gone."""
        self._stop(Cancelled.code)

    def look(self, now_s: float) -> None:
        """End a call whose time is over; called now and then."""
        if self.arrival_s is not None and now_s >= self.arrival_s:
            message = f"its headers came, and no request in {self.connection.gate.arrival_s:g} s"
            self.fail(DeadlineExceeded(message, reason="EXPIRED"))
        elif self.deadline_s is not None and now_s >= self.deadline_s:
            self.cut(DeadlineExceeded("the deadline of the call passed"))

    def cut(self, error: OnelogError) -> None:
        """End a call with a status, whatever it is doing."""
        self._finish(error)
        self._stop(error.code)

    def may_send(self) -> None:
        """Continue a stream whose last message has left."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    # What carries the call out sees

    @property
    def is_over(self) -> bool:
        """Whether the outcome is decided: the client went, or the call was cut."""
        return self._code is not None

    @property
    def awaited(self) -> "asyncio.Future[Any] | None":
        """What the call waits for, if anything."""
        return self._awaited if self._task is None else self._task

    @property
    def size(self) -> int:
        """The bytes of the request."""
        return self._size

    def time_remaining(self) -> float | None:
        """Return how long the client waits; None if it did not say."""
        if self.deadline_s is None:
            return None
        return max(0.0, self.deadline_s - self.connection.loop.time())

    def send(self, message: bytes) -> bool:
        """Send a message of a stream; tell whether it has left."""
        if self._code is None:
            self.connection.send(self.wire, message)
        return not self.wire.unsent_bytes

    async def sent(self) -> None:
        """Wait until what was sent has left."""
        while self.wire.unsent_bytes:
            self._sent = self.connection.loop.create_future()
            try:
                await self._sent
            finally:
                self._sent = None

    def fail(self, error: Exception) -> None:
        """End a call that was not begun, or whose code has ended.

        Its status is that of the error, unless the outcome is decided.
        """
        self._finish(error_of_exception(error))
        self._end()

    # Carrying out

    def _refuse_malformed(self, message: str) -> None:
        self.cut(InvalidArgument(message, reason="REQUEST_MALFORMED"))

    def _request_is_whole(self) -> None:
        self._has_begun = True
        self._stop_awaiting()
        if not self.connection.holds(self):
            self.start()

    def _carry_out(self, size: int) -> None:
        self._has_begun, self._size = True, size
        gate, method = self.connection.gate, self.method
        request: Any = self._messages
        try:
            gate.enter(self)
            self._is_counted = True
            self._started_s = time.perf_counter()
            if request is None:
                data = self._request
                assert data is not None
                self._request = b""
                request = method.decode(data)
        except Exception as error:  # noqa: BLE001 - the root of a call
            self.fail(error)
            return
        if method.kind is not Kind.UNARY:
            self._begin_stream(request)
            return
        self._context = copy_context()
        self._serving = self._serve_unary(request)
        self._step()

    def _step(self) -> None:
        """Continue a unary call until it waits for something."""
        context, serving = self._context, self._serving
        assert context is not None
        assert serving is not None
        self._awaited = None
        try:
            awaited = context.run(serving.send, None)
        except (StopIteration, asyncio.CancelledError):
            return
        if type(awaited) is DirectFuture:
            awaited.proceed = self._step
            self._awaited = awaited
        else:
            self._task = self.connection.loop.create_task(
                _Rest(serving, awaited), name=self.method.path, context=context
            )

    async def _serve_unary(self, request: Any) -> None:
        try:
            data = await self.method.serve(self, request, self._size)
        except asyncio.CancelledError:
            self.fail(_cancelled_here())
            raise
        except Exception as error:  # noqa: BLE001 - the root of a call
            self.fail(error)
        else:
            assert data is not None
            if self._code is None:
                if self.connection.respond(self.wire, data):
                    self._code = 0
                else:  # not a refusal: of a write the client would think that it was not done
                    self._finish(OutcomeUnknown("the answers before this one were not read"))
            self._end()

    def _begin_stream(self, request: Any) -> None:
        if self._messages is None:
            self.connection.release(self.wire, self._size)
        task = self.connection.loop.create_task(self._serve_stream(request), name=self.method.path)
        self._task = task
        # One that is cancelled before its first step runs none of its code.
        task.add_done_callback(self._end)

    async def _serve_stream(self, request: Any) -> None:
        try:
            await self.method.serve(self, request, self._size)
        except asyncio.CancelledError:
            self._finish(_cancelled_here())
            raise
        except Exception as error:  # noqa: BLE001 - the root of a call
            self._finish(error_of_exception(error))
        else:
            if self._code is None:
                self._code = 0
                self.connection.finish(self.wire, OK)

    def _finish(self, error: OnelogError) -> None:
        """Put the status of an error on the wire, unless the outcome is decided."""
        if self._code is not None:
            return
        self._code = error.code
        self.connection.gate.refuse(error.reason)
        status = to_rpc_status(error, self._cost_of_refusal())
        details = status.SerializeToString()
        self.connection.finish(self.wire, Status(error.code, status.message, details))

    def _cost_of_refusal(self) -> common_pb2.Cost | None:
        """Return what the call has cost until now, if it asks; it may have got nowhere."""
        cost = self.cost
        if cost is None and any(key == COST_KEY for key, _ in self.wire.metadata):
            cost = common_pb2.Cost()
        if cost is not None and not (cost.raft_ns or cost.wait_ns) and self._started_s:
            cost.wait_ns = int((time.perf_counter() - self._started_s) * 1e9)
        return cost

    def _stop(self, code: int) -> None:
        """Stop what carries the call out; that ends it."""
        if self._code is None:
            self._code = code
        if self._task is not None:
            self._task.cancel()
        elif self._awaited is not None:
            self._awaited.cancel()
        elif not self._is_counted:
            self._end()

    def _end(self, _task: object = None) -> None:
        """Count the call out, once: its code has ended, or never began."""
        connection, gate = self.connection, self.connection.gate
        connection.exchanges.discard(self)
        connection.held.pop(self, None)
        self.wire.owner = None
        self._task = None
        self._stop_awaiting()
        if self._is_counted:
            self._is_counted = False
            seconds = time.perf_counter() - self._started_s
            gate.leave(self, Cancelled.code if self._code is None else self._code, seconds)

    def _stop_awaiting(self) -> None:
        if self.arrival_s is not None:
            self.arrival_s = None
            self.connection.gate.stop_awaiting(self)


def _cancelled_here() -> Cancelled:
    """Return the error of a call that was cancelled without a decision on its outcome."""
    return Cancelled("the server gave the call up")


class Messages:
    """The requests of a stream as they come; the client may send more as they are taken."""

    __slots__ = (
        "_connection", "_decode", "_is_ended", "_loop", "_taken", "_waiter", "_waiting", "_wire",
    )  # fmt: skip

    def __init__(self, connection: "Connection", wire: WireCall, method: Method) -> None:
        self._connection = connection
        self._wire = wire
        self._decode = method.decode
        self._loop = connection.loop
        self._waiting: deque[bytes] = deque()  # no more than the window of the stream holds
        self._is_ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._taken = 0  # since others had their turn

    def add(self, data: bytes) -> None:
        """Keep a message until it is taken."""
        self._waiting.append(data)
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self._is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> "Messages":
        return self

    async def __anext__(self) -> Any:
        """Return the next request; raises InvalidArgument for bytes that are none."""
        self._taken += 1
        if self._taken > MESSAGES_PER_TURN:
            self._taken = 0
            await asyncio.sleep(0)
        while not self._waiting:
            if self._is_ended:
                raise StopAsyncIteration
            self._taken = 0
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._waiting.popleft()
        self._connection.release(self._wire, len(data))
        return self._decode(data)


class _Rest(Coroutine[Any, Any, None]):
    """What is left of a coroutine whose first steps were made by hand, for a task.

    The task is first given what the last of them awaited, then everything goes to the coroutine:
    also an exception that comes before the task's own first step, which a generator would miss.
    """

    __slots__ = ("_awaited", "_coroutine", "_is_resumed")

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        self._is_resumed = False

    def send(self, value: Any) -> Any:
        """See ``Coroutine``."""
        if self._is_resumed:
            return self._coroutine.send(value)
        self._is_resumed = True
        awaited, self._awaited = self._awaited, None
        return awaited

    def throw(self, *error: Any) -> Any:
        """See ``Coroutine``."""
        self._is_resumed = True
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """See ``Coroutine``."""
        self._coroutine.close()

    def __await__(self) -> Any:
        raise NotImplementedError("only a task runs it")
