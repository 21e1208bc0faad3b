"""The port that clients call: sockets, TLS and timers around the HTTP/2 core (onelog/wire).

A ``Connection`` feeds the bytes that it reads to the core, and passes the core's events to the
exchanges of its calls (node/edge/exchange.py). Answers are written once per read, and once per turn
of the loop in which more became ready, so answers that are ready together leave together.

Everything that a peer can use up has a named limit:

* connections: in all, of one address, and without a preface (cluster/transport/accepting.py);
* time without a preface, for TLS and HTTP/2 together: ``PREFACE_S``. An idle connection may stay;
* silence: a ping after ``KEEPALIVE_S``, the end ``KEEPALIVE_TIMEOUT_S`` later. What the streams of
  a client that is gone without a word hold, such as the leases of a consumer, is then released;
* memory: what all connections hold, headers and messages on their way in and answers on their way
  out, is at most ``kept_bytes_max``. Beyond that the connection that holds the most is sent away.
  If several clients share it, because another node forwards their calls, only the calls of the
  client that holds the most are reset. The same happens on a shared connection that leaves more
  unread than one may;
* the loop: frames of one connection are handled for a while (``ALONE``, or ``BESIDE_OTHERS`` if
  others have called lately), then everybody else has a turn;
* what it does not read: while the socket takes no more, nothing more is read of the connection and
  no data is taken from the core, which bounds what waits there. ``STALL_S`` without progress ends
  the connection, or the call that has ended and whose last bytes wait for a window. While answers
  of ``ANSWERS_UNREAD_MAX`` wait, no further call of the connection is begun: it is ``held``, in
  order, instead of being carried out in vain.

Bad peers are logged, at most once a second. Stopping: ``drain`` says GOAWAY on every connection;
``stop`` cuts what has not ended by then.
"""

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from onelog.cluster.transport.accepting import AcceptLimits, Acceptor, RareLog
from onelog.cluster.transport.certificate import peer_certificate
from onelog.errors import OnelogError, Unavailable, Unimplemented
from onelog.node.config.schema import Config, LimitSettings
from onelog.node.context import Method, Service
from onelog.node.credentials import ALPN, Credentials
from onelog.node.edge.exchange import STALL_S, Exchange, name_client
from onelog.node.edge.gate import CALLS_IN_ANY_CASE, Gate
from onelog.node.errors import ConfigError
from onelog.node.public_errors import to_rpc_status
from onelog.wire.grpc import (
    Call,
    CallCancelled,
    CallStarted,
    CallWritable,
    ErrorCode,
    Event,
    MessageReceived,
    MessageTooLarge,
    RequestEnded,
    ServerConnection,
    Status,
    WireLimits,
)
from onelog.wire.headers import shown

# The answer to a ping may have to wait behind a large message on a slow line.
KEEPALIVE_S = 10.0
KEEPALIVE_TIMEOUT_S = 20.0
# A connection without calls holds nothing but memory: thousands of them are asked less often.
KEEPALIVE_IDLE_S = 60.0
PREFACE_S = 10.0
PREFACE_BYTES = 24
# How often a connection with calls under way is checked.
LOOK_S = 1.0
# Connections that have not sent a preface, TLS handshakes included; beyond them the oldest ends.
UNPROVEN_MAX = 1024
# The part of all connections that one address may have, unless the settings say how many.
ADDRESS_SHARE = 2
# What may wait in a socket's buffer before its connection is held back, and until when it is.
WRITE_BUFFER_HIGH, WRITE_BUFFER_LOW = 256 << 10, 64 << 10
# How long the frames of one connection are handled before everybody else has a turn, and after how
# many frames the clock is read. A call of somebody else waits for some turns: until it is read, for
# its sync, and for its answer. Short ones cost the connection some 5 % more for each call.
ALONE, BESIDE_OTHERS = (0.003, 32), (0.0005, 8)
# How long after a change from one connection to another all have short turns.
SHARED_S = 1.0
# The loop reads a socket again at once that fills its buffer of 250 KiB, 32 times before others.
LARGE_READ_BYTES = 128 << 10
# Messages of streams are written at the latest when they are this many bytes.
FLUSH_BYTES = 64 << 10
# Answers of one connection that its client has not taken; beyond them its next calls wait.
ANSWERS_UNREAD_MAX = 8 << 20
# Of all calls one connection may have this part under way, and a few in any case. Further ones wait
# in the client.
CONNECTION_SHARE = 2
# Of the bytes of requests that may be under way: as many may arrive, and twice as many leave.
KEPT_FACTOR = 4
# How long calls that were cut have to end, and sockets to close.
CUT_S = 0.2

_log = logging.getLogger("onelog.node.api")


def receive_bytes_max(limits: LimitSettings) -> int:
    """Return how large a message is read.

    More than one may be, so that one of many in a pipeline can be refused alone.
    """
    return limits.message_bytes_max + limits.message_bytes_max // 4


def connection_calls_max(limits: LimitSettings) -> int:
    """Return how many calls one connection may have under way."""
    share = max(CALLS_IN_ANY_CASE, limits.concurrent_rpcs_max // CONNECTION_SHARE)
    return min(limits.streams_max, share)


def kept_bytes_max(limits: LimitSettings) -> int:
    """Return what all connections may hold together."""
    return KEPT_FACTOR * max(limits.in_flight_bytes_max, limits.message_bytes_max)


def accept_limits(limits: LimitSettings, connections_max: int) -> AcceptLimits:
    """Return what callers of this port may use up."""
    return AcceptLimits(
        connections_max,
        limits.connections_per_address_max or max(1, connections_max // ADDRESS_SHARE),
        UNPROVEN_MAX,
        PREFACE_S,
    )


class ApiServer:
    """The port of one process. Everything happens on its loop."""

    def __init__(
        self,
        config: Config,
        worker: int,
        gate: Gate,
        credentials: Credentials,
        connections_max: int = 0,
    ) -> None:
        """``connections_max``: if this process may have fewer files than the settings ask for."""
        limits = config.limits
        self.credentials = credentials
        self.gate = gate
        self.methods: dict[str, Method] = {}
        self.connections: set[Connection] = set()
        gate.connections = self.connections
        self.wire_limits = WireLimits(
            streams_max=connection_calls_max(limits), message_bytes_max=receive_bytes_max(limits)
        )
        self._address = config.listen.api.plus(worker)
        self._bad_peers = RareLog(_log)
        self.acceptor = Acceptor(
            self._address.host,
            self._address.port,
            accept_limits(limits, connections_max or limits.connections_max),
            lambda: Connection(self),
            self._bad_peers,
            credentials.api_server,
        )
        self._kept_bytes = 0  # of all connections
        self._kept_bytes_max = kept_bytes_max(limits)
        self._reader: Connection | None = None  # of which was read last
        self._shared_until_s = 0.0

    async def bind(self) -> int:
        """Take the port and return it; connections wait until ``start``."""
        try:
            return await self.acceptor.bind()
        except OSError as error:
            raise ConfigError(
                f"cannot listen for clients on {self._address}: another process does, or it is "
                "not an address of this machine; change listen.api (--listen)"
            ) from error

    def add(self, service: Service) -> None:
        """Offer a service; before ``start``."""
        self.methods.update((method.path, method) for method in service.methods)

    def start(self) -> None:
        """Accept connections."""
        self.acceptor.start()

    def drain(self) -> None:
        """Ask all clients to go elsewhere with new calls; those under way continue."""
        for each in self.connections:
            each.drain()

    def cut(self, error: OnelogError) -> None:
        """End all calls."""
        for connection in tuple(self.connections):
            connection.cut(error)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, cut what has not ended in ``grace_s``, and close everything."""
        await self.acceptor.stop()
        self.drain()
        await self._ended(grace_s)
        message = "this node is shutting down; call another one"
        self.cut(Unavailable(message, reason="STOPPING", retry_after_s=CUT_S))
        await self._ended(CUT_S)
        for connection in tuple(self.connections):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CUT_S):
                while self.connections:  # noqa: ASYNC110 - a socket sets no event
                    await asyncio.sleep(0.001)
        for connection in tuple(self.connections):
            connection.abort()

    async def _ended(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while awaited := [
            each.awaited
            for connection in self.connections
            for each in connection.exchanges
            if each.awaited is not None
        ]:
            left_s = until_s - loop.time()
            if left_s <= 0:
                break
            await asyncio.wait(awaited, timeout=left_s)

    # What connections say

    def note_reader(self, connection: "Connection") -> None:
        """Remember whose bytes are there."""
        if connection is not self._reader:
            if self._reader is not None:
                self._shared_until_s = connection.loop.time() + SHARED_S
            self._reader = connection

    @property
    def is_shared(self) -> bool:
        """Whether more than one connection has said something lately."""
        reader = self._reader
        return reader is not None and reader.loop.time() < self._shared_until_s

    def count_kept(self, more: int) -> None:
        """Count what a connection holds more than before; send the largest away if need be."""
        self._kept_bytes += more
        if self._kept_bytes > self._kept_bytes_max:
            largest = max(self.connections, key=lambda each: each.kept_bytes)
            if largest.shed():
                return
            self.log_bad_peer(
                "%s is sent away, which holds %d of the %d bytes that all connections may",
                largest.client,
                largest.kept_bytes,
                self._kept_bytes_max,
            )
            largest.send_away("the server is short of memory")

    def log_bad_peer(self, text: str, *arguments: object) -> None:
        """Log what a peer did wrong, at most once a second."""
        self._bad_peers.warn(text, *arguments)


class Connection(asyncio.Protocol):
    """One connection of a client; see the module's text."""

    def __init__(self, server: ApiServer) -> None:
        self.loop = asyncio.get_running_loop()
        self.gate = server.gate
        self.client = ""
        self.is_node = False  # which may forward calls of others
        self.exchanges: set[Exchange] = set()  # of calls that have not ended
        self._server = server
        self._core = ServerConnection(server.wire_limits)
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self.admitted: dict[Exchange, None] = {}  # in order; the gate's, which may cut some
        self.held: dict[Exchange, None] = {}  # in order; see ``holds``
        self._begun: list[Exchange] = []  # in this read
        self._unread: dict[Call, float] = {}  # ended, with bytes that wait for a window: until when
        self._is_flush_due = False
        self._is_paused = False
        self._unflushed = 0
        self.kept_bytes = 0  # of the core and the transport, when it was counted last
        # What the looks go by, in the loop's time.
        self._timer: asyncio.TimerHandle | None = None
        self._is_dozing = False
        self._has_heard = self._is_writing = False
        self._received = 0
        self._made_s = self._heard_s = self._moved_s = 0.0
        self._pinged_s: float | None = None
        self._written = self._moved = 0

    @property
    def is_made(self) -> bool:
        """Whether it has come about, and its end will be noticed."""
        return self._transport is not None

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        found: Any = transport
        self._transport = found
        self.client = "{}:{}".format(*(found.get_extra_info("peername") or ("?", 0)))
        self._server.connections.add(self)
        found.set_write_buffer_limits(WRITE_BUFFER_HIGH, WRITE_BUFFER_LOW)
        self._made_s = self._heard_s = self._moved_s = self.loop.time()
        self._timer = self.loop.call_later(LOOK_S, self._look)
        secured = found.get_extra_info("ssl_object")
        self.is_node = self._server.credentials.is_node(peer_certificate(secured))
        if secured is not None and secured.selected_alpn_protocol() != ALPN:
            # RFC 9113, 3.2: over TLS both sides have to name it.
            self._server.log_bad_peer("%s does not speak HTTP/2", self.client)
            self.abort()
        else:
            self._flush()

    def data_received(self, data: bytes) -> None:
        """Handle the bytes of one read; all answers that are ready then leave in one write."""
        self._has_heard = True
        if self._received < PREFACE_BYTES <= self._received + len(data):
            self._server.acceptor.prove(self)
        self._received += len(data)
        if self._is_dozing:
            self._watch_closely()
        self._server.note_reader(self)
        self._take_turn(data)

    def _take_turn(self, data: bytes) -> None:
        """Handle frames for a while; read nothing more until the rest has had its turn."""
        turn_s, frames = BESIDE_OTHERS if self._server.is_shared else ALONE
        core, until_s = self._core, time.perf_counter() + turn_s
        self._is_flush_due = True
        self._handle(core.receive(data, frames))
        while core.has_more and not self._is_paused and time.perf_counter() < until_s:
            self._handle(core.receive(b"", frames))
        if self._begun:
            for exchange in self._begun:
                exchange.await_request()
            self._begun.clear()
        while self._has_startable and time.perf_counter() < until_s:
            exchange = next(iter(self.held))
            del self.held[exchange]
            exchange.start()
        self._flush()
        assert self._transport is not None
        is_turn_over = self._has_work or len(data) >= LARGE_READ_BYTES
        if is_turn_over and not self._transport.is_closing():
            self._transport.pause_reading()
            self.loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Go on with what was received; then read again."""
        assert self._transport is not None
        if self._is_paused or self._transport.is_closing():
            return
        if self._has_work:
            self._take_turn(b"")
        if not self._has_work and not self._is_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def _has_work(self) -> bool:
        """Whether there is something to do without reading more."""
        return self._core.has_more or self._has_startable

    @property
    def _has_startable(self) -> bool:
        return bool(self.held) and not self._is_paused and not self._leaves_too_much

    @property
    def _leaves_too_much(self) -> bool:
        """Whether the client takes its answers too slowly.

        What streams have sent does not count: their client may call before it reads on.
        """
        if self._core.unsent_bytes <= ANSWERS_UNREAD_MAX:
            return False
        return sum(call.unsent_bytes for call in self._unread) > ANSWERS_UNREAD_MAX

    def pause_writing(self) -> None:
        """The socket takes no more: read nothing, and keep data in the core."""
        self._is_paused = True
        self._core.hold()
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The socket takes more again."""
        self._is_paused = False
        self._core.resume()
        self._handle(self._core.take_events())
        self._flush()
        self.loop.call_soon(self._continue)

    def connection_lost(self, _error: Exception | None) -> None:
        """End the calls of a client that is gone."""
        if self._is_lost:
            return
        self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._server.connections.discard(self)
        self._server.acceptor.leave(self)
        self._count_kept(0)
        self._handle(self._core.lose("the connection is gone"))
        self._unread.clear()

    # Events of calls

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is MessageReceived:
                if event.call.owner is not None:
                    event.call.owner.receive(event.data, is_last=event.is_last)
            elif type(event) is CallStarted:
                if not event.call.is_over:  # reset by what arrived together with it
                    self._begin(event.call)
            elif type(event) is CallCancelled:
                if event.call.owner is not None:
                    event.call.owner.cancel()
            elif type(event) is RequestEnded:
                if event.call.owner is not None:
                    event.call.owner.end_request()
            elif type(event) is CallWritable:
                if event.call.owner is not None:
                    event.call.owner.may_send()
            elif type(event) is MessageTooLarge and event.call.owner is not None:
                event.call.owner.refuse_size(event.size)

    def _begin(self, call: Call) -> None:
        method = self._server.methods.get(call.path)
        if method is None:
            error = Unimplemented(f"there is no method {shown(call.path)}")
            self.gate.refuse(error.reason)
            status = to_rpc_status(error)
            self.finish(call, Status(error.code, status.message, status.SerializeToString()))
            return
        exchange = call.owner = Exchange(self, call, method)
        self.exchanges.add(exchange)
        self._begun.append(exchange)
        exchange.begin()

    # What exchanges ask for

    def holds(self, exchange: Exchange) -> bool:
        """Keep a call back until the client has read what it was sent; tell whether.

        To read nothing more of the client would not do: its windows come the same way.
        """
        if not self.held and not self._leaves_too_much:
            return False
        self.held[exchange] = None
        return True

    def respond(self, call: Call, message: bytes) -> bool:
        """Answer a unary call, unless too many answers wait for the client; tell whether."""
        core, size = self._core, len(message)
        if core.unsent_bytes and core.unsent_bytes + size > core.limits.unsent_bytes_max:
            self.shed()
            if call.is_over or core.unsent_bytes + size > core.limits.unsent_bytes_max:
                return False
        core.respond(call, message)
        self._sent(call, size)
        if call.unsent_bytes:
            self._unread[call] = self.loop.time() + STALL_S
        return True

    def send(self, call: Call, message: bytes) -> None:
        """Send a message of a stream; ``call.unsent_bytes`` tells whether it waits."""
        self._core.send(call, message)
        self._sent(call, len(message))

    def finish(self, call: Call, status: Status) -> None:
        """End a call with a status, behind what was sent."""
        self._core.finish(call, status)
        self._flush_soon()
        if call.unsent_bytes:
            self._unread[call] = self.loop.time() + STALL_S

    def release(self, call: Call, size: int) -> None:
        """Say that a message was taken: the client may send more."""
        self._core.release(call, size)
        self._flush_soon()

    def _sent(self, call: Call, size: int) -> None:
        self._unflushed += size - min(size, call.unsent_bytes)
        if self._unflushed >= FLUSH_BYTES:
            self._flush()  # so that the socket says when it has enough
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what there is, in one piece."""
        self._is_flush_due = False
        self._unflushed = 0
        core, transport = self._core, self._transport
        if transport is None or self._is_lost or transport.is_closing():
            return
        if core.has_output and not self._is_paused:
            data = core.take_output()
            self._written += len(data)
            transport.write(data)
        if core.is_closed:
            self._server.log_bad_peer("%s broke a rule of HTTP/2", self.client)
            self.close()
        elif core.unsent_bytes > core.limits.unsent_bytes_max:
            self.shed()  # or new calls of those who share it would be refused
        self._count_kept(core.kept_bytes + transport.get_write_buffer_size())

    def _count_kept(self, size: int) -> None:
        more, self.kept_bytes = size - self.kept_bytes, size
        if more:
            self._server.count_kept(more)

    # The end

    def drain(self) -> None:
        """Take no new calls."""
        self._core.drain()
        self._flush()

    def cut(self, error: OnelogError) -> None:
        """End all calls."""
        for exchange in tuple(self.exchanges):
            exchange.cut(error)
        self._flush()

    def close(self) -> None:
        """Close the connection when what was written has left."""
        if self._transport is not None:
            self._transport.close()

    def send_away(self, why: str) -> None:
        """End all calls and close the connection; say why, if the client reads at all."""
        self._core.close(ErrorCode.ENHANCE_YOUR_CALM, why)
        assert self._transport is not None
        if self._is_paused:
            self._transport.abort()
        else:
            self._transport.write(self._core.take_output())
            self._transport.close()
        self._handle(self._core.take_events())
        self._count_kept(0)

    def shed(self) -> bool:
        """Reset the calls of the client that holds the most, if clients share the connection.

        Return whether that was done. It is not if most of what the connection holds is of no call:
        then it waits in the socket.
        """
        held: Counter[str] = Counter()
        for call in self._core.streams.values():
            held[name_client(self, call.metadata)] += call.kept_bytes
        assert self._transport is not None
        if held.keys() <= {self.client} or (
            2 * self._transport.get_write_buffer_size() > self.kept_bytes
        ):
            return False
        greediest, size = held.most_common(1)[0]
        for call in tuple(self._core.streams.values()):
            if name_client(self, call.metadata) != greediest:
                continue
            exchange = call.owner
            self._unread.pop(call, None)
            self._core.cancel(call, ErrorCode.ENHANCE_YOUR_CALM)
            if exchange is not None:
                exchange.cancel()
        self._server.log_bad_peer("calls of %s are reset, which hold %d bytes", greediest, size)
        self._flush_soon()
        self._count_kept(self._core.kept_bytes + self._transport.get_write_buffer_size())
        return True

    def abort(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # Time

    def _watch_closely(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._is_dozing = False
        self._timer = self.loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Notice what did not happen; every ``LOOK_S`` while there is something to notice."""
        now_s = self.loop.time()
        problem = self._find_problem(now_s)
        if problem:
            self._server.log_bad_peer("%s: %s", self.client, problem)
            self.abort()
            return
        self._core.tick()
        for exchange in tuple(self.exchanges):
            exchange.look(now_s)
        for call in [each for each, until_s in self._unread.items() if now_s >= until_s]:
            del self._unread[call]
            self._core.cancel(call)
        for call in [each for each in self._unread if not each.unsent_bytes]:
            del self._unread[call]
        if self._has_startable:
            self.loop.call_soon(self._continue)
        self._flush()
        self._is_dozing = not (
            self._has_heard or self.exchanges or self._unread or self._is_writing
        )
        next_s = LOOK_S
        if self._is_dozing and self._received >= PREFACE_BYTES:
            due_s = self._heard_s + KEEPALIVE_IDLE_S
            if self._pinged_s is not None:
                due_s = self._pinged_s + KEEPALIVE_TIMEOUT_S
            next_s = max(due_s - now_s, LOOK_S)
        self._has_heard = False
        self._timer = self.loop.call_later(next_s, self._look)

    def _find_problem(self, now_s: float) -> str:
        """Return why the connection has to end, if it has to; ping a client that is silent."""
        transport = self._transport
        assert transport is not None
        unwritten = transport.get_write_buffer_size()
        self._is_writing = bool(unwritten)
        moved = self._written - unwritten
        if not unwritten or moved > self._moved:
            self._moved, self._moved_s = moved, now_s
        if now_s - self._moved_s >= STALL_S:
            return f"nothing was read for {STALL_S:g} s"
        if self._has_heard or self._is_paused:
            self._heard_s, self._pinged_s = now_s, None
        elif self._received < PREFACE_BYTES and now_s - self._made_s >= PREFACE_S:
            return f"no preface of HTTP/2 in {PREFACE_S:g} s"
        elif self._pinged_s is not None:
            if now_s - self._pinged_s >= KEEPALIVE_TIMEOUT_S:
                return f"no answer to a ping for {KEEPALIVE_TIMEOUT_S:g} s"
        elif now_s - self._heard_s >= (KEEPALIVE_S if self.exchanges else KEEPALIVE_IDLE_S):
            self._core.ping()
            self._pinged_s = now_s
        return ""
