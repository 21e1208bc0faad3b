"""Calls to one endpoint: gRPC over one HTTP/2 connection, for the client and for forwarding nodes.

The protocol is ``onelog.wire``; here are the socket, the clock and who waits for what. A connection
is made with the first call and again when it is needed, with a backoff after a failure. A server
that goes away (GOAWAY) keeps the calls that it has, and the next one gets another connection. A
call beyond what the server takes at a time waits for its turn, in order.

Invariants:

* A call is in ``Channel._waiting`` until it is sent, and there is nothing of it anywhere after its
  end. It ends exactly once: by its status, its deadline, its caller, or with the connection.
* ``RpcError.is_unprocessed`` is set only if the server has not processed the call: it was never
  sent, or the server says so. Without it, what was asked for may have been done.
* No call has a task of its own. What is sent in one iteration of the loop is one write.

A channel belongs to the loop in which it is first used, and to the process: not to a forked one.
"""

import asyncio
import socket
import ssl
import tempfile
from asyncio import AbstractEventLoop, CancelledError, Future, Task, Transport
from collections import deque
from contextvars import Context
from errno import ECONNREFUSED
from math import ceil
from typing import cast

from onelog.errors import Unavailable
from onelog.wire.grpc import (
    CANCELLED,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    Call,
    CallEnded,
    CallWritable,
    ClientConnection,
    Event,
    GoingAway,
    MessageReceived,
    Metadata,
    Status,
    WireLimits,
)
from onelog.wire.http2 import PEER_PORT_ANSWER

DEADLINE_EXCEEDED = 4

MESSAGE_BYTES_MAX = 16 << 20
# Calls that wait for a connection, or for the server to take more of them at a time.
WAITING_CALLS_MAX = 100_000

# A server that is gone without a word is noticed after both of these: silence while something is
# under way, then no answer to a ping. That answer may have to stand behind a large message on a
# slow line.
KEEPALIVE_S = 10.0
KEEPALIVE_TIMEOUT_S = 20.0
TICK_S = 1.0
# A connection that nobody uses is closed after this long.
IDLE_S = 300.0

# From the first packet to the server's settings.
CONNECT_S = 20.0
RECONNECT_S_MIN, RECONNECT_S_MAX = 0.05, 1.0
# For the farewell of a connection, with TLS above all.
CLOSE_S = 1.0


# Why there is no connection: nobody answers, or closes the connection without a word; no address is
# known for the host; or who answers does not speak our protocol, speaks TLS or does not, or one
# side does not accept the certificate of the other.
NOT_CONNECTED = "NOT_CONNECTED"
CONNECTION_CLOSED = "CONNECTION_CLOSED"
HOST_UNKNOWN = "HOST_UNKNOWN"
NOT_ONELOG = "NOT_ONELOG"
TLS_MISMATCH = "TLS_MISMATCH"
CERTIFICATE_REFUSED = "CERTIFICATE_REFUSED"
# A wrong endpoint or setting: another attempt ends the same way.
MISTAKES = frozenset((HOST_UNKNOWN, NOT_ONELOG, TLS_MISMATCH, CERTIFICATE_REFUSED))
UNREACHED = MISTAKES | {NOT_CONNECTED, CONNECTION_CLOSED}

# How answers of others begin: an alert of TLS, an answer of HTTP/1; and the type of the frame that
# ours begin with (SETTINGS), at its place.
_TLS_ALERT = b"\x15\x03"
_HTTP_1 = b"HTTP/1"
_FRAME_TYPE_AT, _SETTINGS = 3, 4


class RpcError(Exception):
    """A call that failed; ``onelog.status.error_of`` says what that means."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.code = status.code
        self.message = status.message
        self.details = status.details  # a serialized google.rpc.Status
        self.metadata = status.metadata
        self.is_unprocessed = status.is_unprocessed

    def __str__(self) -> str:
        return f"status {self.code}: {self.message}"


class Exchange:
    """One call: it waits for its turn, is on one connection then, and ends once.

    What its messages and its end mean is said by subclasses: ``received``, ``writable``, ``over``.
    """

    __slots__ = (
        "_call", "_channel", "_deadline_s", "_link", "_metadata", "_path", "_request", "_timer",
        "is_over",
    )  # fmt: skip

    def __init__(
        self,
        channel: "Channel",
        path: str,
        metadata: Metadata,
        *,
        request: bytes | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Make a call, which ``begin`` sends; ``request``: the only message of this side."""
        self._channel = channel
        self._path = path
        self._metadata = metadata
        self._request = request
        self._link: _Link | None = None
        self._call: Call | None = None
        self._deadline_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_over = False
        if timeout_s is not None:
            loop = channel.loop
            self._deadline_s = loop.time() + timeout_s
            self._timer = loop.call_later(timeout_s, self._expire)

    # For those who make it

    def begin(self) -> None:
        """Send it, or queue it."""
        request = self._request
        if request is not None and len(request) > self._channel.limits.message_bytes_max:
            self._refuse_size(len(request))
        else:
            self._channel.begin(self)

    @property
    def can_send(self) -> bool:
        """Whether a message would leave at once; if not, ``writable`` says when."""
        call = self._call
        return call is not None and not self.is_over and not call.unsent_bytes

    def send(self, message: bytes) -> None:
        """Send a message of a stream; ``flush`` puts those of a moment on their way."""
        if len(message) > self._channel.limits.message_bytes_max:
            self._refuse_size(len(message))
            return
        assert self._link is not None and self._call is not None, "not yet begun"  # noqa: PT018
        self._link.wire.send(self._call, message)

    def flush(self) -> None:
        """Write what was sent."""
        if self._link is not None:
            self._link.flush()

    def release(self, size: int) -> None:
        """Acknowledge a message of this size: it was taken, and the server may send more."""
        if self._link is not None and self._call is not None and not self.is_over:
            self._link.wire.release(self._call, size)
            if self._link.wire.has_output:
                self._link.flush_soon()

    def cancel(self) -> None:
        """Give the call up: its stream is reset, and nothing comes any more."""
        self._leave(Status(CANCELLED, "the caller gave up"))

    # For subclasses

    def received(self, data: bytes) -> None:
        """A message has come."""
        raise NotImplementedError

    def writable(self) -> None:
        """It can send: it was begun, or what waited has left."""

    def over(self, status: Status) -> None:
        """The call has ended."""
        raise NotImplementedError

    # For the channel

    def start(self, link: "_Link") -> None:
        """Begin on a connection that takes one more call."""
        timeout_s = None
        if self._deadline_s is not None:
            timeout_s = _rounded(self._deadline_s - self._channel.loop.time())
        wire = link.wire
        try:
            call = wire.start(self._path, self._metadata, timeout_s)
        except ValueError as error:  # metadata that no header can hold
            self.end(Status(INVALID_ARGUMENT, str(error), is_unprocessed=True))
            return
        call.owner = self
        self._link, self._call = link, call
        link.began()
        if self._request is not None:
            wire.send(call, self._request, is_last=True)
            self._request = None
        else:
            self.writable()

    def end(self, status: Status) -> None:
        """End it, if that has not happened yet."""
        if not self.is_over:
            self.is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self.over(status)

    def _leave(self, status: Status) -> None:
        """End it from this side."""
        if self.is_over:
            return
        if self._call is None:
            self._channel.forget(self)
        else:
            assert self._link is not None
            self._link.wire.cancel(self._call)
            self._link.settle()
        self.end(status)

    def _expire(self) -> None:
        self._leave(
            Status(DEADLINE_EXCEEDED, "no answer in time", is_unprocessed=self._call is None)
        )

    def _refuse_size(self, size: int) -> None:
        limit = self._channel.limits.message_bytes_max
        text = f"a message of {size} bytes was not sent, limit {limit}"
        self._leave(Status(RESOURCE_EXHAUSTED, text, is_unprocessed=self._call is None))


class _Unary(Exchange):
    """A call with one answer, which is a future."""

    __slots__ = ("_answer", "future")

    def __init__(
        self, channel: "Channel", path: str, metadata: Metadata, request: bytes, timeout_s: float
    ) -> None:
        super().__init__(channel, path, metadata, request=request, timeout_s=timeout_s)
        self.future: Future[bytes] = channel.loop.create_future()
        self._answer: bytes | None = None

    def received(self, data: bytes) -> None:
        """Keep the answer until the status is there."""
        if self._answer is not None:
            self._leave(Status(INTERNAL, "two answers to one request"))
        self._answer = data

    def over(self, status: Status) -> None:
        """Wake who waits."""
        if self.future.done():
            return  # cancelled
        if status.code:
            self.future.set_exception(RpcError(status))
        elif self._answer is None:
            self.future.set_exception(RpcError(Status(INTERNAL, "a success without an answer")))
        else:
            self.future.set_result(self._answer)


class Stream(Exchange):
    """The answers to one request, as an iterator.

    What is not taken from it is not acknowledged, so the server stops when its window is full.
    """

    __slots__ = ("_messages", "_status", "_waiter")

    def __init__(
        self, channel: "Channel", path: str, metadata: Metadata, *, request: bytes
    ) -> None:
        super().__init__(channel, path, metadata, request=request)
        self._messages: deque[bytes] = deque()
        self._status: Status | None = None
        self._waiter: Future[None] | None = None

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> bytes:
        while not self._messages:
            status = self._status
            if status is not None:
                if status.code:
                    raise RpcError(status)
                raise StopAsyncIteration
            assert self._waiter is None, "a stream has one reader"
            self._waiter = self._channel.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._messages.popleft()
        self.release(len(data))
        return data

    def received(self, data: bytes) -> None:
        """Keep a message until it is taken; there are few, or the window would be used."""
        self._messages.append(data)
        self._wake()

    def over(self, status: Status) -> None:
        """End the iteration after the messages that have arrived."""
        self._status = status
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Channel:
    """See the module's text."""

    loop: AbstractEventLoop

    def __init__(
        self,
        endpoint: str,
        tls: ssl.SSLContext | None = None,
        *,
        server_name: str | None = None,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        keepalive_s: float = KEEPALIVE_S,
        keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S,
    ) -> None:
        """Name an endpoint, ``host:port``; ``server_name``: what its certificate says instead."""
        self.endpoint = endpoint
        self.limits = WireLimits(message_bytes_max=message_bytes_max)
        self.keepalive_s = keepalive_s
        self.keepalive_timeout_s = keepalive_timeout_s
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._server_name = server_name
        self._link: _Link | None = None  # that takes calls
        self._links: set[_Link] = set()  # and those that end
        self._waiting: dict[Exchange, None] = {}  # in order
        self._attempt: Task[None] | None = None
        self._attempted: Future[None] | None = None
        self._failure = ""
        self._failure_reason = NOT_CONNECTED
        self._backoff_s = 0.0
        self._retry_s = float("-inf")  # no attempt before this, of the loop's clock
        self._is_closed = False

    @property
    def is_ready(self) -> bool:
        """Whether there is a connection."""
        return self._link is not None

    async def ready(self, timeout_s: float) -> None:
        """Wait until there is a connection; raises Unavailable, and nothing was sent then."""
        if self._link is not None:
            return
        if self._connect():
            assert self._attempted is not None
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.shield(self._attempted)
            except TimeoutError:
                text = f"no connection to {self.endpoint}: no answer in {timeout_s:g} s"
                if any(link.is_connected for link in self._links):
                    text += ", though somebody listens there"
                raise Unavailable(text, reason=NOT_CONNECTED) from None
        if self._link is None:
            raise Unavailable(self._no_connection(), reason=self._failure_reason)

    async def unary(
        self, path: str, request: bytes, timeout_s: float, metadata: Metadata = ()
    ) -> bytes:
        """Return the answer to a request; raises ``RpcError``."""
        self._use()
        call = _Unary(self, path, metadata, request, timeout_s)
        call.begin()
        try:
            return await call.future
        except CancelledError:
            # A task that is cancelled before it has waited for the future leaves it open, and its
            # error would be logged as one that was never retrieved.
            call.future.cancel()
            call.cancel()
            raise

    def stream(self, path: str, request: bytes, metadata: Metadata = ()) -> Stream:
        """Ask for the answers to a request; ``cancel`` it when no more are wanted."""
        self._use()
        call = Stream(self, path, metadata, request=request)
        call.begin()
        return call

    async def close(self) -> None:
        """Close all connections; calls under way fail."""
        self._is_closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
            self._failure = "the channel is closed"
            self._attempt_ended()  # it may not have begun
        self._fail_waiting("the channel is closed")
        links = tuple(self._links)
        for link in links:
            link.close("the channel is closed")
        lost = [link.lost for link in links]
        if lost:
            await asyncio.wait(lost, timeout=CLOSE_S)
            for link in links:
                link.abort()
            await asyncio.wait(lost)

    # For the calls

    def begin(self, call: Exchange) -> None:
        """Send a call, or queue it."""
        link = self._link
        if link is not None and not self._waiting and link.wire.can_start:
            call.start(link)
        elif len(self._waiting) >= WAITING_CALLS_MAX:
            text = f"{len(self._waiting)} calls wait already"
            call.end(Status(UNAVAILABLE, text, is_unprocessed=True))
        else:
            self._waiting[call] = None
            if link is None and not self._connect():
                self._fail_waiting(self._no_connection())

    def forget(self, call: Exchange) -> None:
        """Remove a call from the queue."""
        self._waiting.pop(call, None)

    def _use(self) -> None:
        if not hasattr(self, "loop"):
            self.loop = asyncio.get_running_loop()

    # For the connections

    def start_waiting(self) -> None:
        """Send what waits, as far as the server takes it."""
        while self._waiting and self._link is not None and self._link.wire.can_start:
            call = next(iter(self._waiting))
            del self._waiting[call]
            call.start(self._link)

    def answered(self) -> None:
        """A server has answered a call: there is no reason to wait before the next connection."""
        self._backoff_s = 0.0

    def guess_why_closed(self) -> str:
        """Return what is probably wrong if a server closes a connection without a word."""
        if self._tls is not None:
            return "it may want a certificate of this client"
        return "it may be a port for other nodes, or want TLS"

    def retire(self, link: "_Link") -> None:
        """Begin no more calls on a connection."""
        if self._link is link:
            self._link = None

    def lost(self, link: "_Link", why: str) -> None:
        """A connection is gone, and so are its calls."""
        self.retire(link)
        self._links.discard(link)
        if link.is_ready and not link.has_answered and not link.is_unused:
            self._failed(why)  # or a server that says welcome and farewell would be called at once
        if self._waiting and self._link is None and not self._connect():
            self._fail_waiting(self._no_connection())

    # Connecting

    def _connect(self) -> bool:
        """Begin to connect, unless that is under way; False if it is too early after a failure."""
        self._use()
        if self._attempt is not None:
            return True
        if self._is_closed:
            self._failure = "the channel is closed"
            return False
        if self.loop.time() < self._retry_s:
            return False
        self._failure, self._failure_reason = "", NOT_CONNECTED
        self._attempted = self.loop.create_future()
        # In a context of its own, not the caller's: all calls share the connection.
        name = f"onelog {self.endpoint}"
        self._attempt = self.loop.create_task(self._try(), name=name, context=Context())
        return True

    async def _try(self) -> None:
        failure, reason = "", NOT_CONNECTED
        link = _Link(self, "http" if self._tls is None else "https")
        self._links.add(link)
        try:
            async with asyncio.timeout(CONNECT_S):
                host, port = _parse(self.endpoint)
                name = None if self._tls is None else self._server_name or host
                await self.loop.create_connection(
                    lambda: link, host, port, ssl=self._tls, server_hostname=name
                )
                await link.ready
                if link.lost.done() or link.wire.is_draining:
                    raise ConnectionError("the server goes away")
        except (OSError, ValueError) as error:
            failure, reason = _explain(error)
            reason = link.problem or reason
        except CancelledError:
            failure = "the channel is closed"
            raise
        finally:
            if failure:
                link.abort()
                self._links.discard(link)
                self._failed(failure, reason)
            else:
                self._link = link
                link.idle()
            self._attempt_ended()
        self.start_waiting()

    def _attempt_ended(self) -> None:
        self._attempt = None
        if self._attempted is not None and not self._attempted.done():
            self._attempted.set_result(None)

    def _failed(self, why: str, reason: str = NOT_CONNECTED) -> None:
        self._failure, self._failure_reason = why, reason
        self._backoff_s = min(max(2 * self._backoff_s, RECONNECT_S_MIN), RECONNECT_S_MAX)
        self._retry_s = self.loop.time() + self._backoff_s
        self._fail_waiting(self._no_connection())

    def _no_connection(self) -> str:
        return f"no connection to {self.endpoint}: {self._failure}"

    def _fail_waiting(self, why: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.end(Status(UNAVAILABLE, why, is_unprocessed=True))


class _Link(asyncio.Protocol):
    """One connection: the wire and its socket."""

    def __init__(self, channel: Channel, scheme: str) -> None:
        self._channel = channel
        self._loop = channel.loop
        self.wire = ClientConnection(channel.limits, channel.endpoint, scheme)
        self._transport: Transport | None = None
        self._is_flushing = False
        self._heard_s = 0.0
        self._has_heard = False  # anything at all
        self._pinged_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_idle = True
        self.is_unused = False  # and closed for that
        self.problem = ""  # the reason, if it is not a server of ours that answered
        self.has_answered = False
        self.ready: Future[None] = self._loop.create_future()
        self.lost: Future[None] = self._loop.create_future()
        self._end_text = ""

    @property
    def is_connected(self) -> bool:
        """Whether the connection was accepted."""
        return self._transport is not None

    @property
    def is_ready(self) -> bool:
        """Whether the server has said how it wants to be spoken to."""
        return self.ready.done() and not self.ready.cancelled() and not self.ready.exception()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce ourselves."""
        self._transport = cast(Transport, transport)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and secured.selected_alpn_protocol() != "h2":
            self.problem = NOT_ONELOG
            self.close("it speaks TLS and no HTTP/2 (ALPN); it may be a port for other nodes")
            return
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Pass the messages of one read to their calls."""
        if not self._has_heard:
            self._has_heard = True
            if not self._is_ours(data):
                return
        self._heard_s = self._loop.time()
        self._pinged_s = None
        events = self.wire.receive(data)
        if not self.has_answered and any(map(_is_answer, events)) and not self.wire.is_closed:
            self.has_answered = True
            self._channel.answered()
        self._handle(events)
        # What has to be written now is the receipt of the server's settings: they come first.
        if not self.ready.done() and self.wire.has_output and not self.wire.is_closed:
            self.ready.set_result(None)
        if self.wire.is_closed:
            self.flush()
            self.close(self._end_text or "the server broke the protocol")
            return
        self.settle()

    def _is_ours(self, first: bytes) -> bool:
        """Return whether the first bytes of an answer are those of our protocol."""
        if first.startswith(PEER_PORT_ANSWER):
            self.problem = NOT_ONELOG
            why = "it is a port for other nodes, not the port of its API"
        elif first.startswith(_HTTP_1):
            self.problem = NOT_ONELOG
            why = "it speaks HTTP/1; it may be the HTTP port of a server, not the port of its API"
        elif first.startswith(_TLS_ALERT):
            self.problem, why = TLS_MISMATCH, "it speaks TLS, and this client does not"
        elif len(first) > _FRAME_TYPE_AT and first[_FRAME_TYPE_AT] != _SETTINGS:
            self.problem, why = NOT_ONELOG, "what answers there is not a server of onelog"
        else:
            return True
        self.close(why)
        return False

    def pause_writing(self) -> None:
        """Keep back what is sent: the socket takes no more."""
        self.wire.hold()

    def resume_writing(self) -> None:
        """Send what was kept back."""
        self.wire.resume()
        self._handle(self.wire.take_events())
        self.flush_soon()

    def connection_lost(self, error: Exception | None) -> None:
        """End all calls."""
        if self._timer is not None:
            self._timer.cancel()
        why = self._end_text or (str(error) if error else "the server closed the connection")
        if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
            self.problem, why = CERTIFICATE_REFUSED, f"it wants a certificate of this client: {why}"
        elif not self._has_heard and not self._end_text:
            self.problem = CONNECTION_CLOSED
            if error is None:
                why += f" at once; {self._channel.guess_why_closed()}"
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
            self.ready.exception()  # seen, should nobody wait any more
        self._channel.retire(self)
        self._handle(self.wire.lose(why))
        self.lost.set_result(None)
        self._channel.lost(self, why)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is MessageReceived:
                event.call.owner.received(event.data)
            elif type(event) is CallEnded:
                event.call.owner.end(event.status)
            elif type(event) is CallWritable:
                event.call.owner.writable()
            elif type(event) is GoingAway:
                self._channel.retire(self)

    # For calls

    def began(self) -> None:
        """Take note of a call that was begun."""
        self.flush_soon()
        if self._is_idle:
            self._is_idle = False
            self._heard_s = self._loop.time()
            self._schedule(TICK_S)
        if self.wire.is_draining:  # it has used its last number
            self._channel.retire(self)

    def settle(self) -> None:
        """Start a call that waits in place of one that has ended, and close what is over."""
        self._channel.start_waiting()
        if self.wire.has_output:
            self.flush_soon()
        if self.wire.is_draining and not self.wire.call_count:
            self.close("the server goes away")

    def flush_soon(self) -> None:
        """Write at the end of this iteration, with all that is sent until then."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        self.flush()

    def flush(self) -> None:
        """Write what there is."""
        transport = self._transport
        if self.wire.has_output and transport is not None and not transport.is_closing():
            transport.write(self.wire.take_output())

    # Life and end

    def _schedule(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._tick)

    def idle(self) -> None:
        """Close the connection after a while, unless a call begins."""
        self._is_idle = True
        self._schedule(IDLE_S)

    def _tick(self) -> None:
        """Look after a connection on which something is under way, and close an idle one."""
        self.wire.tick()
        channel, now_s = self._channel, self._loop.time()
        if not self.wire.call_count:
            if self._is_idle:
                self.is_unused = True
                self.close("nobody has used it for long")
            else:
                self.idle()
            return
        if self._pinged_s is None:
            if now_s - self._heard_s >= channel.keepalive_s:
                self._pinged_s = now_s
                self.wire.ping()
                self.flush_soon()
        elif now_s - self._pinged_s >= channel.keepalive_timeout_s:
            self._end_text = "the server did not answer a ping"
            self.abort()
            return
        self._schedule(min(TICK_S, channel.keepalive_s / 4, channel.keepalive_timeout_s / 4))

    def close(self, why: str) -> None:
        """Close the socket; calls under way end now."""
        self._end_text = self._end_text or why
        self._channel.retire(self)
        if not self.wire.is_closed:
            self._handle(self.wire.lose(why))
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drop the socket, whatever waits to be written."""
        self._channel.retire(self)
        if self._transport is not None:
            self._transport.abort()


def _explain(error: Exception) -> tuple[str, str]:
    """Return why no connection could be made, as a sentence and as a reason."""
    match error:
        case TimeoutError():
            return f"no answer in {CONNECT_S:g} s", NOT_CONNECTED
        case socket.gaierror(errno=socket.EAI_AGAIN):
            return f"the address of this host cannot be found out ({error.strerror})", NOT_CONNECTED
        case socket.gaierror():
            return f"no address is known for this host ({error.strerror})", HOST_UNKNOWN
        case OSError() if f"[Errno {ECONNREFUSED}]" in str(error):  # of one address or several
            return "nobody listens there", NOT_CONNECTED
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted: {error.verify_message}", CERTIFICATE_REFUSED
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE"):
            return "it does not speak TLS, and this client does", TLS_MISMATCH
        case _:
            return str(error) or type(error).__name__, NOT_CONNECTED


def _is_answer(event: Event) -> bool:
    """Return whether a server that answers this has processed the call."""
    if type(event) is CallEnded:
        return not event.status.is_unprocessed
    return type(event) is MessageReceived


def _parse(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint; an IPv6 address is in brackets."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{endpoint!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _rounded(timeout_s: float) -> float:
    """Return a timeout with two digits, rounded up: alike ones have one block of headers.

    Servers keep blocks that they have seen. A deadline that comes a little late over there does
    no harm: it is enforced here.
    """
    milliseconds = max(1, ceil(timeout_s * 1000))
    unit: int = 10 ** max(0, len(str(milliseconds)) - 2)
    return ceil(milliseconds / unit) * unit / 1000


def client_tls(ca: bytes | None, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext:
    """Return how to trust a server and to be trusted, of PEM bytes; raises OSError or ValueError.

    Without ``ca`` the system's authorities are trusted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # An authority may be given without the one that has signed it.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    if ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    if certificate is not None:
        # The library reads it from a file only; nobody else can, and it is gone at once.
        with tempfile.NamedTemporaryFile(prefix="onelog-") as file:
            file.write((key or b"") + b"\n" + certificate)
            file.flush()
            context.load_cert_chain(file.name)
    return context
