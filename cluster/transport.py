"""The streams between this process and its peers: who calls whom, how often, and what is refused.

One stream for each pair of processes carries all shards in both directions. The node with the
smaller id dials and the other answers: one handshake, one session number and one place where a
pair is connected or not. Were each side to dial its own direction, a half-open pair could elect
leaders that it cannot hear, and every fault would have to be handled twice. The price is that a
restarted node may have to wait for the other's next attempt, which comes after at most
``backoff_s_max``.

The bytes of snapshots and segments have a second stream, on a connection of its own: megabytes that
the network has taken but not delivered would stand before each heartbeat. It is made and guarded
like the first one. Whether a pair is connected is a matter of the first alone; without the second,
chunks are dropped, and whoever asked for one asks again.

* No message is sent or believed before both sides have accepted each other's hello. A difference
  is refused with a reason, by whoever sees it first, and both sides report it; nothing a stranger
  sends reaches Raft.
* Each attempt to dial has a new session number. A newer stream of a pair ends the older one, and
  what that one still brings is dropped.
* Messages to a peer that is not connected are dropped and counted: Raft repairs loss, and what
  waited through a disconnection is out of date.
* Whatever a peer or the network does ends a stream, never the process. Dialling goes on for ever,
  with growing, random, bounded pauses.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from cluster.handshake import Identity, check_caller, check_hello, dials
from cluster.link import Link, LinkEnded, PeerRefused, Stream, Traffic
from cluster.messages import Chunk, Message
from cluster.outbox import OutboxLimits
from cluster.stream_ends import AnsweredStream, DialledStream
from cluster.wire import FRAME_SIZE_MAX, Hello, Refused, decode_first, encode_hello, encode_refusal
from cluster.wire_errors import Reason, WireError
from onelog.v1 import peer_pb2

Deliver = Callable[[UUID, list[tuple[int, Message]]], None]

_SERVICE = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
METHODS = _EXCHANGE, _SHIP = "Exchange", "Ship"
_log = logging.getLogger("onelog.cluster.transport")

# A frame above our own limit is refused with a reason; this is where gRPC cuts without one.
RECEIVE_SIZE_MAX = 4 * FRAME_SIZE_MAX
KEEPALIVE_MS = 5_000
KEEPALIVE_TIMEOUT_MS = 5_000
HANDSHAKES_MAX = 64  # callers that have not said who they are yet
REFUSALS_KEPT = 64

_BOTH_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", RECEIVE_SIZE_MAX),
    ("grpc.max_send_message_length", RECEIVE_SIZE_MAX),
    # A host that vanished without a word is noticed after the sum of these two.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # without it, gRPC waits for a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
# For whoever makes the server that the transport is attached to.
SERVER_OPTIONS = (
    *_BOTH_OPTIONS,
    # Or the pings above would count as an attack and end the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # two processes on one port would share the peers between them
)
_CHANNEL_OPTIONS = (
    *_BOTH_OPTIONS,
    # Pauses between attempts are ours. A shared pool would remember gRPC's own from the last one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """Times and limits of the streams."""

    # The pause after a broken stream, doubled each time; a random half of it is left out.
    backoff_s_min: float = 0.05
    backoff_s_max: float = 0.5
    # After a refusal: somebody has to change something first.
    refused_s: float = 2.0
    # Connecting and both hellos.
    handshake_s_max: float = 2.0
    outbox: OutboxLimits = field(default_factory=OutboxLimits)


@dataclass(slots=True)
class PeerStatus:
    """What is known about the streams of one peer; counters only grow."""

    address: str
    traffic: Traffic = field(default_factory=Traffic)
    is_connected: bool = False
    session: int = 0  # of the last stream
    sessions: int = 0  # streams that got through the handshake
    attempts: int = 0
    protocol: int = 0
    last_error: str = ""
    last_reason: str = ""  # the stable word, if it was a refusal by either side
    ship_error: str = ""  # why the last stream for chunks ended, or could not be made
    name: str = ""  # as its last hello says
    endpoints: tuple[str, ...] = ()  # where clients call it, by worker; likewise


@dataclass(frozen=True, slots=True)
class CallerRefused:
    """Somebody called and was not let in."""

    address: str
    reason: Reason
    detail: str


@dataclass(slots=True)
class _Lane:
    """One of the two streams to a peer."""

    method: str
    link: Link | None = None
    last_hello: Hello | None = None  # of the last caller
    task: asyncio.Task[None] | None = None
    sessions: int = 0  # streams that got through the handshake

    def end(self, error: Exception) -> None:
        """End the stream, or the attempts to make one."""
        if self.link is not None:
            self.link.end(error)
        elif self.task is not None:
            self.task.cancel()


@dataclass(slots=True)
class _Peer:
    node_id: UUID
    status: PeerStatus
    exchange: _Lane = field(default_factory=lambda: _Lane(_EXCHANGE))
    ship: _Lane = field(default_factory=lambda: _Lane(_SHIP))

    @property
    def lanes(self) -> tuple[_Lane, _Lane]:
        return self.exchange, self.ship

    def lane(self, method: str) -> _Lane:
        return self.ship if method == _SHIP else self.exchange


class PeerTransport:
    """All streams of this process. Everything happens on one loop."""

    def __init__(
        self,
        identity: Identity,
        deliver: Deliver,
        *,
        config: TransportConfig | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.identity = identity
        self.refusals: deque[CallerRefused] = deque(maxlen=REFUSALS_KEPT)
        self.refused_callers = 0
        self._config = config or TransportConfig()
        self._credentials = credentials
        self._deliver = deliver
        self._peers: dict[UUID, _Peer] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._handshakes = 0
        self._sessions = 0  # streams that this process has tried to open

    # What the node calls

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Return what answers the calls of peers, by method."""
        # Raw bytes: what cannot be parsed is our business, not a status of gRPC's.
        make = grpc.stream_stream_rpc_method_handler
        return {name: make(partial(self._answer, name)) for name in METHODS}

    def attach(self, server: grpc.aio.Server) -> None:
        """Let a server, made with ``SERVER_OPTIONS`` and its own credentials, answer peers."""
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, self.handlers()),)
        )

    def set_peers(self, addresses: Mapping[UUID, str]) -> None:
        """Say who the peers are and where; others lose their streams."""
        for node_id in set(self._peers) - set(addresses):
            for lane in self._peers.pop(node_id).lanes:
                lane.end(WireError(Reason.UNKNOWN_NODE, "no longer a peer of this node"))
        for node_id, address in addresses.items():
            assert node_id != self.identity.node_id, "a node is not its own peer"
            known = self._peers.get(node_id)
            if known is not None:
                known.status.address = address
                continue
            self._peers[node_id] = peer = _Peer(node_id, PeerStatus(address))
            self._start(peer)

    def send(self, target: UUID, shard: int, message: Message) -> None:
        """Queue a message for a peer; dropped if it is not connected."""
        peer = self._peers.get(target)
        if peer is None:
            return
        link = peer.ship.link if isinstance(message, Chunk) else peer.exchange.link
        if link is None:
            peer.status.traffic.dropped_unconnected += 1
        else:
            link.send(shard, message)

    def refuse(self, sender: UUID, error: WireError) -> None:
        """End the streams of a peer whose message turned out to be bad after it was delivered."""
        peer = self._peers.get(sender)
        for lane in () if peer is None else peer.lanes:
            if lane.link is not None:
                lane.link.end(error)

    def status(self) -> dict[UUID, PeerStatus]:
        """Return what is known about each peer, live."""
        return {node_id: peer.status for node_id, peer in self._peers.items()}

    async def run(self) -> None:
        """Dial whom this node has to dial, until ``stop``."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for peer in self._peers.values():
                self._start(peer)
            await self._stopping.wait()
            self._group = None
            for lane in [each for peer in self._peers.values() for each in peer.lanes]:
                if lane.task is not None:
                    lane.task.cancel()
                if lane.link is not None:
                    lane.link.end(LinkEnded("this node stops"))

    def stop(self) -> None:
        """End all streams; ``run`` returns."""
        self._stopping.set()

    # Dialling

    def _start(self, peer: _Peer) -> None:
        if self._group is not None and dials(self.identity.node_id, peer.node_id):
            for lane in peer.lanes:
                lane.task = self._group.create_task(
                    self._dial_forever(peer, lane), name=f"dial {peer.node_id} {lane.method}"
                )

    async def _dial_forever(self, peer: _Peer, lane: _Lane) -> None:
        config = self._config
        pause_s = config.backoff_s_min
        while self._peers.get(peer.node_id) is peer:
            sessions, refused = lane.sessions, False
            try:
                await self._dial(peer, lane)
            except (LinkEnded, WireError, TimeoutError) as error:
                self._report(peer, lane, error)
                refused = isinstance(error, WireError | PeerRefused)
            if lane.sessions > sessions:
                pause_s = config.backoff_s_min
            # Chance spreads the attempts of many nodes; it decides nothing.
            jitter = random.uniform(0.5, 1.0)  # noqa: S311
            await asyncio.sleep(jitter * (config.refused_s if refused else pause_s))
            pause_s = min(2 * pause_s, config.backoff_s_max)

    async def _dial(self, peer: _Peer, lane: _Lane) -> None:
        """Make one stream and carry it to its end; always raises."""
        peer.status.attempts += lane is peer.exchange
        # Of the whole process: a peer that was removed and is back remembers the last one.
        self._sessions += 1
        session = self._sessions
        address = peer.status.address
        async with (
            grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
            if self._credentials is None
            else grpc.aio.secure_channel(address, self._credentials, options=_CHANNEL_OPTIONS)
        ) as channel:
            call = channel.stream_stream(f"/{_SERVICE}/{lane.method}")()
            stream = DialledStream(call)
            try:
                async with asyncio.timeout(self._config.handshake_s_max):
                    await stream.write(encode_hello(self.identity.hello(peer.node_id, session)))
                    first = _first(await stream.read())
                    try:
                        protocol = self._check_answer(peer, first, session)
                    except WireError as error:
                        # Let the other side know, and wait until it has read why.
                        await stream.write(encode_refusal(session, error.reason, error.detail))
                        await stream.finish()
                        raise
                await self._carry(peer, lane, session, protocol, stream)
            finally:
                call.cancel()

    def _check_answer(self, peer: _Peer, hello: Hello, session: int) -> int:
        protocol = check_hello(self.identity, hello, (peer.node_id,))
        if hello.session != session:
            raise WireError(
                Reason.STALE_SESSION, f"session {hello.session} in the answer to {session}"
            )
        peer.status.name, peer.status.endpoints = hello.node_name, hello.endpoints
        return protocol

    # Answering

    async def _answer(self, method: str, _requests: Any, context: Any) -> None:
        """Handle a call of a peer; gRPC's entry."""
        stream = AnsweredStream(context)
        if self._handshakes >= HANDSHAKES_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{HANDSHAKES_MAX} handshakes are under way"
            )
        self._handshakes += 1
        hello = None
        try:
            async with asyncio.timeout(self._config.handshake_s_max):
                hello = _first(await stream.read())
            peer, lane, protocol = self._check_caller(method, hello)
            await stream.write(encode_hello(self.identity.hello(peer.node_id, hello.session)))
        except TimeoutError:
            detail = f"no hello within {self._config.handshake_s_max} s"
            error = WireError(Reason.HANDSHAKE_TIMEOUT, detail)
            await self._turn_away(method, stream, context, hello, error)
            return
        except WireError as error:
            await self._turn_away(method, stream, context, hello, error)
            return
        except LinkEnded as error:
            _log.info("a caller at %s left: %s", context.peer(), error)
            return
        finally:
            self._handshakes -= 1
        lane.last_hello = hello
        peer.status.name, peer.status.endpoints = hello.node_name, hello.endpoints
        try:
            await self._carry(peer, lane, hello.session, protocol, stream)
        except WireError as error:
            _set_refused(context, error)
        except LinkEnded:
            return  # reported

    def _check_caller(self, method: str, hello: Hello) -> tuple[_Peer, _Lane, int]:
        protocol = check_hello(self.identity, hello, self._peers)
        peer = self._peers[hello.node_id]
        lane = peer.lane(method)
        check_caller(self.identity, hello, lane.last_hello)
        return peer, lane, protocol

    async def _turn_away(
        self,
        method: str,
        stream: AnsweredStream,
        context: Any,
        hello: Hello | None,
        error: WireError,
    ) -> None:
        """Tell a caller why it is not let in, and remember it."""
        self.refused_callers += 1
        refusal = CallerRefused(context.peer(), error.reason, error.detail)
        self.refusals.append(refusal)
        _log.warning("refused a caller at %s: %s", refusal.address, error)
        peer = None if hello is None else self._peers.get(hello.node_id)
        if peer is not None:
            self._report(peer, peer.lane(method), error)
        _set_refused(context, error)
        try:
            session = 0 if hello is None else hello.session
            await stream.write(encode_refusal(session, error.reason, error.detail))
        except LinkEnded:
            _log.info("it left before it was told")

    # Both

    async def _carry(
        self, peer: _Peer, lane: _Lane, session: int, protocol: int, stream: Stream
    ) -> None:
        """Carry messages over an accepted stream; always raises why it ended."""
        status = peer.status

        def deliver(messages: list[tuple[int, Message]]) -> None:
            if lane is peer.ship and not all(isinstance(each, Chunk) for _, each in messages):
                raise WireError(Reason.UNKNOWN_KIND, "only chunks belong on this stream")
            self._deliver(peer.node_id, messages)

        link = Link(
            session,
            self.identity.shards,
            deliver,
            status.traffic,
            self._config.outbox,
            lambda error: self._report(peer, lane, error),
        )
        if lane.link is not None:
            lane.link.end(LinkEnded("a newer stream took its place"))
        lane.link = link
        lane.sessions += 1
        if lane is peer.exchange:
            status.session, status.protocol, status.sessions = session, protocol, lane.sessions
            status.is_connected = True
            _log.info("connected with %s, session %d", peer.node_id, session)
        try:
            await link.run(stream)
        finally:
            if lane.link is link:
                lane.link = None
                status.is_connected = peer.exchange.link is not None

    def _report(self, peer: _Peer, lane: _Lane, error: Exception) -> None:
        """Remember and log why a stream ended; the same reason again is not logged again."""
        text = str(error) or type(error).__name__
        status = peer.status
        refusal = isinstance(error, WireError | PeerRefused)
        if text not in (status.last_error, status.ship_error):
            level = logging.WARNING if refusal else logging.INFO
            _log.log(level, "peer %s at %s: %s", peer.node_id, status.address, text)
        if lane is peer.ship:
            status.ship_error = text
            return
        status.last_error = text
        status.last_reason = str(getattr(error, "reason", "")) if refusal else ""


def _first(frame: bytes | None) -> Hello:
    """Return the hello of the other side, or raise what it said instead."""
    if frame is None:
        raise LinkEnded("the stream ended before a hello")
    first = decode_first(frame)
    if isinstance(first, Refused):
        raise PeerRefused(first)
    return first


def _set_refused(context: Any, error: WireError) -> None:
    """Put a reason into the status, too: gRPC may show that and lose the last message."""
    context.set_code(grpc.StatusCode.FAILED_PRECONDITION)
    context.set_details(str(error))
