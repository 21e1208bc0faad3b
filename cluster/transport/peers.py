"""The streams between this process and its peers: dialling, answering, refusing.

One stream for each pair of processes carries all shards in both directions. The node with the
smaller id dials and the other answers: one handshake, one session number and one place that knows
whether a pair is connected. If each side dialled its own direction, a half-open pair could elect
leaders that it cannot hear, and every fault would have to be handled twice. The price is that a
restarted node may have to wait for the other's next attempt, which comes after at most
``backoff_s_max``.

The bytes of snapshots and segments have a second stream, on a connection of its own: on a shared
one, megabytes in flight would delay each heartbeat. It is made and guarded like the first one. A
pair is connected if the first stream is; without the second, chunks are dropped, and the peer
requests them again.

* No message is sent or accepted before both sides have accepted each other's hello. The side that
  first sees a difference refuses with a reason, and both report it; nothing that an unknown process
  sends reaches Raft.
* With TLS a peer's certificate must name the node whose id its hello has, as the membership names
  it (cluster/transport/certificate.py). So a hello's name, id and endpoints are those of the holder
  of the node's key. Without TLS, which is for loopback, they are believed.
* Each attempt to dial has a new session number. A newer stream of a pair ends the older one, and
  what the older one still delivers is dropped.
* Messages to a peer that is not connected are dropped and counted: Raft repairs loss, and what
  waited through a disconnection is out of date.
* Whatever a peer or the network does ends a stream, never the process. Dialling continues for ever,
  with growing, random, bounded pauses.
"""

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from onelog.cluster.raft.messages import Chunk, Message
from onelog.cluster.transport.accepting import LINES_AT_ONCE, RareLog
from onelog.cluster.transport.certificate import Certificate, check_certificate
from onelog.cluster.transport.connection import Connection, Purpose, connect
from onelog.cluster.transport.handshake import Identity, check_caller, check_hello, dials
from onelog.cluster.transport.link import Link, LinkEnded, PeerRefused, Stream, Traffic
from onelog.cluster.transport.outbox import OutboxLimits
from onelog.cluster.transport.wire import (
    Hello,
    Reason,
    Refused,
    WireError,
    decode_first,
    encode_hello,
    encode_refusal,
)

Deliver = Callable[[UUID, list[tuple[int, Message]]], None]

_log = logging.getLogger("onelog.cluster.transport")

HANDSHAKES_MAX = 64  # callers without a hello yet
REFUSALS_KEPT = 64


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """Times and limits of the streams."""

    # The pause after a broken stream, doubled each time; a random half of it is left out.
    backoff_s_min: float = 0.05
    backoff_s_max: float = 0.5
    # The pause after a refusal: an operator has to change something first.
    refused_s: float = 2.0
    # Connecting and both hellos.
    handshake_s_max: float = 2.0
    outbox: OutboxLimits = field(default_factory=OutboxLimits)


@dataclass(slots=True)
class PeerStatus:
    """The status of the streams of one peer; counters only grow."""

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
    """A caller that was refused."""

    address: str
    reason: Reason
    detail: str


@dataclass(slots=True)
class _Lane:
    """One of the two streams to a peer."""

    purpose: Purpose
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
    exchange: _Lane = field(default_factory=lambda: _Lane(Purpose.EXCHANGE))
    ship: _Lane = field(default_factory=lambda: _Lane(Purpose.SHIP))

    @property
    def lanes(self) -> tuple[_Lane, _Lane]:
        return self.exchange, self.ship

    def lane(self, purpose: Purpose) -> _Lane:
        return self.ship if purpose is Purpose.SHIP else self.exchange


class PeerTransport:
    """All streams of this process. Everything happens on one loop."""

    def __init__(
        self,
        identity: Identity,
        deliver: Deliver,
        *,
        config: TransportConfig | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls``: the context for outgoing connections."""
        self.identity = identity
        self.refusals: deque[CallerRefused] = deque(maxlen=REFUSALS_KEPT)
        self.refused_callers = 0
        self._config = config or TransportConfig()
        self._tls = tls
        self._deliver = deliver
        self._peers: dict[UUID, _Peer] = {}
        self._names: Mapping[UUID, str] = {}  # of the peers, as far as the membership has them
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._handshakes = 0
        self._callers = RareLog(_log, LINES_AT_ONCE)
        self._sessions = 0  # streams that this process has tried to open

    # What the node calls

    def set_peers(
        self, addresses: Mapping[UUID, str], names: Mapping[UUID, str] | None = None
    ) -> None:
        """Set the peers, their addresses and their names; the streams of others end."""
        self._names = names or {}
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
            peer.status.name = self._names.get(node_id, "")
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
        """Return the live status of each peer."""
        return {node_id: peer.status for node_id, peer in self._peers.items()}

    async def run(self) -> None:
        """Dial the peers that this node has to dial, until ``stop``."""
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
                    self._dial_forever(peer, lane), name=f"dial {peer.node_id} {lane.purpose}"
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
            # Random pauses spread the attempts of many nodes.
            jitter = random.uniform(0.5, 1.0)  # noqa: S311
            await asyncio.sleep(jitter * (config.refused_s if refused else pause_s))
            pause_s = min(2 * pause_s, config.backoff_s_max)

    async def _dial(self, peer: _Peer, lane: _Lane) -> None:
        """Open one stream and run it until it ends; always raises."""
        peer.status.attempts += lane is peer.exchange
        # Counted per process: a peer that was removed and added again remembers the last one.
        self._sessions += 1
        session = self._sessions
        async with asyncio.timeout(self._config.handshake_s_max):
            connection = await connect(peer.status.address, lane.purpose, self._tls)
        try:
            try:
                self._check_dialled(peer, connection.certificate)
                async with asyncio.timeout(self._config.handshake_s_max):
                    await connection.write(encode_hello(self.identity.hello(peer.node_id, session)))
                    first = _first(await connection.read())
                self._check_identity(first, connection.certificate)
                protocol = self._check_answer(peer, first, session)
            except WireError as error:
                await connection.write(encode_refusal(session, error.reason, error.detail))
                raise
            await self._carry(peer, lane, session, protocol, connection)
        except WireError:
            await connection.finish()  # so that the other side reads why
            raise
        finally:
            await connection.close()

    def _check_answer(self, peer: _Peer, hello: Hello, session: int) -> int:
        protocol = check_hello(self.identity, hello, (peer.node_id,))
        if hello.session != session:
            raise WireError(
                Reason.STALE_SESSION, f"session {hello.session} in the answer to {session}"
            )
        peer.status.name, peer.status.endpoints = hello.node_name, hello.endpoints
        return protocol

    # Answering

    async def answer(self, purpose: Purpose, connection: Connection) -> None:
        """Handle a connection that another process has opened; the caller closes it."""
        if self._handshakes >= HANDSHAKES_MAX:
            self._callers.warn("turned %s away: too many handshakes are under way", connection.peer)
            return
        self._handshakes += 1
        hello = None
        try:
            async with asyncio.timeout(self._config.handshake_s_max):
                hello = _first(await connection.read())
            # First: a process that is not a node of this cluster learns nothing about it.
            self._check_identity(hello, connection.certificate)
            peer, lane, protocol = self._check_caller(purpose, hello)
            await connection.write(encode_hello(self.identity.hello(peer.node_id, hello.session)))
        except TimeoutError:
            detail = f"no hello within {self._config.handshake_s_max} s"
            error = WireError(Reason.HANDSHAKE_TIMEOUT, detail)
            await self._turn_away(purpose, connection, hello, error)
            return
        except WireError as error:
            await self._turn_away(purpose, connection, hello, error)
            return
        except LinkEnded as error:
            self._callers.say(logging.INFO, "a caller at %s left: %s", connection.peer, error)
            return
        finally:
            self._handshakes -= 1
        lane.last_hello = hello
        peer.status.name, peer.status.endpoints = hello.node_name, hello.endpoints
        try:
            await self._carry(peer, lane, hello.session, protocol, connection)
        except WireError:
            await connection.finish()  # so that the other side reads why; it is reported
        except LinkEnded:
            return  # reported

    def _check_caller(self, purpose: Purpose, hello: Hello) -> tuple[_Peer, _Lane, int]:
        protocol = check_hello(self.identity, hello, self._peers)
        peer = self._peers[hello.node_id]
        lane = peer.lane(purpose)
        check_caller(self.identity, hello, lane.last_hello)
        return peer, lane, protocol

    async def _turn_away(
        self, purpose: Purpose, connection: Connection, hello: Hello | None, error: WireError
    ) -> None:
        """Send a caller the reason of its refusal, and record it."""
        self.refused_callers += 1
        refusal = CallerRefused(connection.peer, error.reason, error.detail)
        self.refusals.append(refusal)
        shown = (
            "" if connection.certificate is None else f" (certificate: {connection.certificate})"
        )
        self._callers.warn("refused a caller at %s: %s%s", refusal.address, error, shown)
        peer = None if hello is None else self._peers.get(hello.node_id)
        # A forged hello says nothing about the peer whose id it has.
        if peer is not None and error.reason is not Reason.CERTIFICATE_MISMATCH:
            self._report(peer, peer.lane(purpose), error)
        try:
            session = 0 if hello is None else hello.session
            await connection.write(encode_refusal(session, error.reason, error.detail))
        except LinkEnded:
            self._callers.say(logging.INFO, "the caller left before it got the refusal")
            return
        await connection.finish()

    # Both

    def find_name(self, node_id: UUID) -> str:
        """Return the name that a peer must prove; empty for one that has not been named yet.

        A member that was added without a name has the one that it proved first.
        """
        return self._names.get(node_id) or self._peers[node_id].status.name

    def _check_dialled(self, peer: _Peer, certificate: Certificate | None) -> None:
        """Refuse the process at a peer's address if its certificate is another's."""
        name = self.find_name(peer.node_id)
        if name:
            check_certificate(certificate, self.identity.cluster_name, name)

    def _check_identity(self, hello: Hello, certificate: Certificate | None) -> None:
        """Refuse a peer whose certificate does not name the node of its id."""
        check_certificate(certificate, self.identity.cluster_name, hello.node_name)
        if certificate is None or hello.node_id not in self._peers:
            return  # one that is not a peer is refused as that
        name = self.find_name(hello.node_id)
        taken = {self.identity.node_name, *map(self.find_name, self._peers)}
        if name != hello.node_name if name else hello.node_name in taken:
            raise WireError(
                Reason.CERTIFICATE_MISMATCH,
                f"the certificate is that of {hello.node_name}, which is not {hello.node_id} in "
                "this cluster",
            )

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
        """Record and log why a stream ended; a repeated reason is logged once."""
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
    """Return the hello of the other side; raise ``PeerRefused`` for a refusal."""
    if frame is None:
        raise LinkEnded("the stream ended before a hello")
    first = decode_first(frame)
    if isinstance(first, Refused):
        raise PeerRefused(first)
    return first
