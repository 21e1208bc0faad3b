"""The streams between this process and its peers: who calls whom, how often, and what is refused.

One stream for each pair of processes carries all shards in both directions. The node with the
smaller id dials and the other answers: one handshake, one session number and one place where a
pair is connected or not. Were each side to dial its own direction, a half-open pair could elect
leaders that it cannot hear, and every fault would have to be handled twice. The price is that a
restarted node may have to wait for the other's next attempt, which comes after at most
``backoff_s_max``.

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
from typing import Any
from uuid import UUID

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from cluster.handshake import Identity, check_caller, check_hello, dials
from cluster.link import Link, LinkEnded, PeerRefused, Stream, Traffic
from cluster.messages import Message
from cluster.outbox import OutboxLimits
from cluster.wire import (
    DETAIL_SIZE_MAX,
    FRAME_SIZE_MAX,
    REASON_SIZE_MAX,
    Hello,
    Reason,
    Refused,
    WireError,
    decode_first,
    encode_hello,
    encode_refusal,
    printable,
)
from onelog.v1 import peer_pb2

Deliver = Callable[[UUID, list[tuple[int, Message]]], None]

_SERVICE = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
_METHOD = "Exchange"
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
    name: str = ""  # as its last hello says
    endpoints: tuple[str, ...] = ()  # where clients call it, by worker; likewise


@dataclass(frozen=True, slots=True)
class CallerRefused:
    """Somebody called and was not let in."""

    address: str
    reason: Reason
    detail: str


@dataclass(slots=True)
class _Peer:
    node_id: UUID
    status: PeerStatus
    link: Link | None = None
    last_hello: Hello | None = None  # of the last caller
    task: asyncio.Task[None] | None = None


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

    def handler(self) -> grpc.RpcMethodHandler:
        """Return what answers ``Exchange``."""
        # Raw bytes: what cannot be parsed is our business, not a status of gRPC's.
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def attach(self, server: grpc.aio.Server) -> None:
        """Let a server, made with ``SERVER_OPTIONS`` and its own credentials, answer peers."""
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: self.handler()}),)
        )

    def set_peers(self, addresses: Mapping[UUID, str]) -> None:
        """Say who the peers are and where; others lose their streams."""
        for node_id in set(self._peers) - set(addresses):
            peer = self._peers.pop(node_id)
            if peer.link is not None:
                peer.link.end(WireError(Reason.UNKNOWN_NODE, "no longer a peer of this node"))
            elif peer.task is not None:
                peer.task.cancel()
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
        if peer.link is None:
            peer.status.traffic.dropped_unconnected += 1
        else:
            peer.link.send(shard, message)

    def refuse(self, sender: UUID, error: WireError) -> None:
        """End the stream of a peer whose message turned out to be bad after it was delivered."""
        peer = self._peers.get(sender)
        if peer is not None and peer.link is not None:
            peer.link.end(error)

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
            for peer in self._peers.values():
                if peer.task is not None:
                    peer.task.cancel()
                if peer.link is not None:
                    peer.link.end(LinkEnded("this node stops"))

    def stop(self) -> None:
        """End all streams; ``run`` returns."""
        self._stopping.set()

    # Dialling

    def _start(self, peer: _Peer) -> None:
        if self._group is not None and dials(self.identity.node_id, peer.node_id):
            peer.task = self._group.create_task(
                self._dial_forever(peer), name=f"dial {peer.node_id}"
            )

    async def _dial_forever(self, peer: _Peer) -> None:
        config = self._config
        pause_s = config.backoff_s_min
        while self._peers.get(peer.node_id) is peer:
            sessions, refused = peer.status.sessions, False
            try:
                await self._dial(peer)
            except (LinkEnded, WireError, TimeoutError) as error:
                self._report(peer, error)
                refused = isinstance(error, WireError | PeerRefused)
            if peer.status.sessions > sessions:
                pause_s = config.backoff_s_min
            # Chance spreads the attempts of many nodes; it decides nothing.
            jitter = random.uniform(0.5, 1.0)  # noqa: S311
            await asyncio.sleep(jitter * (config.refused_s if refused else pause_s))
            pause_s = min(2 * pause_s, config.backoff_s_max)

    async def _dial(self, peer: _Peer) -> None:
        """Make one stream and carry it to its end; always raises."""
        peer.status.attempts += 1
        # Of the whole process: a peer that was removed and is back remembers the last one.
        self._sessions += 1
        session = self._sessions
        address = peer.status.address
        async with (
            grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
            if self._credentials is None
            else grpc.aio.secure_channel(address, self._credentials, options=_CHANNEL_OPTIONS)
        ) as channel:
            call = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
            stream = _DialledStream(call)
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
                await self._carry(peer, session, protocol, stream)
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

    async def _answer(self, _requests: Any, context: Any) -> None:
        """Handle a call of ``Exchange``; gRPC's entry."""
        stream = _AnsweredStream(context)
        if self._handshakes >= HANDSHAKES_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{HANDSHAKES_MAX} handshakes are under way"
            )
        self._handshakes += 1
        hello = None
        try:
            async with asyncio.timeout(self._config.handshake_s_max):
                hello = _first(await stream.read())
            peer, protocol = self._check_caller(hello)
            await stream.write(encode_hello(self.identity.hello(peer.node_id, hello.session)))
        except TimeoutError:
            detail = f"no hello within {self._config.handshake_s_max} s"
            await self._turn_away(
                stream, context, hello, WireError(Reason.HANDSHAKE_TIMEOUT, detail)
            )
            return
        except WireError as error:
            await self._turn_away(stream, context, hello, error)
            return
        except LinkEnded as error:
            _log.info("a caller at %s left: %s", context.peer(), error)
            return
        finally:
            self._handshakes -= 1
        peer.last_hello = hello
        peer.status.name, peer.status.endpoints = hello.node_name, hello.endpoints
        try:
            await self._carry(peer, hello.session, protocol, stream)
        except WireError as error:
            _set_refused(context, error)
        except LinkEnded:
            return  # reported

    def _check_caller(self, hello: Hello) -> tuple[_Peer, int]:
        protocol = check_hello(self.identity, hello, self._peers)
        peer = self._peers[hello.node_id]
        check_caller(self.identity, hello, peer.last_hello)
        return peer, protocol

    async def _turn_away(
        self, stream: "_AnsweredStream", context: Any, hello: Hello | None, error: WireError
    ) -> None:
        """Tell a caller why it is not let in, and remember it."""
        self.refused_callers += 1
        refusal = CallerRefused(context.peer(), error.reason, error.detail)
        self.refusals.append(refusal)
        _log.warning("refused a caller at %s: %s", refusal.address, error)
        peer = None if hello is None else self._peers.get(hello.node_id)
        if peer is not None:
            self._report(peer, error)
        _set_refused(context, error)
        try:
            session = 0 if hello is None else hello.session
            await stream.write(encode_refusal(session, error.reason, error.detail))
        except LinkEnded:
            _log.info("it left before it was told")

    # Both

    async def _carry(self, peer: _Peer, session: int, protocol: int, stream: Stream) -> None:
        """Carry messages over an accepted stream; always raises why it ended."""
        status = peer.status
        link = Link(
            session,
            self.identity.shards,
            lambda messages: self._deliver(peer.node_id, messages),
            status.traffic,
            self._config.outbox,
            lambda error: self._report(peer, error),
        )
        if peer.link is not None:
            peer.link.end(LinkEnded("a newer stream took its place"))
        peer.link = link
        status.session, status.protocol = session, protocol
        status.sessions += 1
        status.is_connected = True
        _log.info("connected with %s, session %d", peer.node_id, session)
        try:
            await link.run(stream)
        finally:
            if peer.link is link:
                peer.link = None
                status.is_connected = False

    def _report(self, peer: _Peer, error: Exception) -> None:
        """Remember and log why a stream ended; the same reason again is not logged again."""
        text = str(error) or type(error).__name__
        status = peer.status
        refusal = isinstance(error, WireError | PeerRefused)
        if text != status.last_error:
            level = logging.WARNING if refusal else logging.INFO
            _log.log(level, "peer %s at %s: %s", peer.node_id, status.address, text)
        status.last_error = text
        status.last_reason = str(getattr(error, "reason", "")) if refusal else ""


# What gRPC raises when a stream is no more.
_BROKEN = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class _DialledStream:
    """The end of a stream that opened it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        """See ``Stream.read``."""
        try:
            frame = await self._call.read()
        except _BROKEN as error:
            raise _why(error) from error
        return None if frame is grpc.aio.EOF else frame

    async def write(self, frame: bytes) -> None:
        """See ``Stream.write``."""
        try:
            await self._call.write(frame)
        except _BROKEN as error:
            # A write that met the end of the call does not know why it ended; its status does.
            raise _ended(await self._call.code(), await self._call.details()) from error

    async def finish(self) -> None:
        """Say that nothing follows, and wait until the other side has seen it."""
        try:
            await self._call.done_writing()
            while await self._call.read() is not grpc.aio.EOF:
                pass
        except _BROKEN:
            return


class _AnsweredStream:
    """The end of a stream that answered it."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        """See ``Stream.read``."""
        try:
            frame = await self._context.read()
        except _BROKEN as error:
            raise _why(error) from error
        return None if frame is grpc.aio.EOF else frame

    async def write(self, frame: bytes) -> None:
        """See ``Stream.write``."""
        try:
            await self._context.write(frame)
        except _BROKEN as error:
            raise _why(error) from error


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


def _why(error: Exception) -> LinkEnded:
    """Return what a broken stream means."""
    if isinstance(error, grpc.aio.AioRpcError):
        return _ended(error.code(), error.details())
    return LinkEnded(str(error) or type(error).__name__)


def _ended(code: grpc.StatusCode, details: str | None) -> LinkEnded:
    """Return what the status of a stream means; a refusal has its reason in the details."""
    if code == grpc.StatusCode.FAILED_PRECONDITION:
        reason, _, detail = (details or "").partition(": ")
        return PeerRefused(
            Refused(printable(reason, REASON_SIZE_MAX), printable(detail, DETAIL_SIZE_MAX))
        )
    return LinkEnded(f"{code.name}: {details}")
