"""A connection between two processes of a cluster: frames over TCP or TLS, with a purpose.

Each frame is its length (four bytes, little-endian) and its bytes. The first frame of the caller is
an *opening*, which says what the connection is for, and the first frame of the other side repeats
it: so a caller can distinguish a foreign port from a peer that stops. What follows depends on the
purpose.

``Listener`` is the port that other processes call. A caller must send its opening within a time
limit; then ``answer`` handles the connection, which is closed when that returns. The numbers of
connections and of callers without an opening are limited (``accepting.py``): a flood of callers
that say nothing keeps neither members nor new callers out.

A reader gets ``READS_PER_TURN`` frames in a turn of the loop, and received bytes become frames as
they are read: a peer that sends without a pause does not keep the loop from others.

Not gRPC: a message of its streams crosses two threads at each end, and three replicas exchange four
to six messages for each group of writes. Measured in turns on three loopback nodes with one shard
(docs/performance/2026-11-17.md): one caller's put 3.67 and 2.71 ms, puts from 64 callers 113 and 88
us of CPU over all processes, linearizable gets from 64 callers 78 and 66 us.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from typing import cast

from onelog.cluster.transport.accepting import (
    LINES_AT_ONCE,
    AcceptLimits,
    Acceptor,
    RareLog,
)
from onelog.cluster.transport.certificate import Certificate, peer_certificate
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.wire import FRAME_SIZE_MAX, Reason, WireError
from onelog.wire.http2 import PEER_PORT_ANSWER

_LENGTH_SIZE = 4
# First bytes of clients of the API, without and with TLS: the answer says that the port is wrong.
_CLIENTS = (b"PRI ", b"\x16\x03")
# Received frames that are not read yet; beyond this, reading from the network pauses.
READ_AHEAD_BYTES_MAX = 4 * FRAME_SIZE_MAX
# Frames that are taken from received bytes at a time; smaller ones stay bytes until these are read.
FRAMES_AHEAD_MAX = 256
# Frames that a reader gets before other tasks have a turn of the loop.
READS_PER_TURN = 16
# How long written bytes may take to leave when a connection ends.
CLOSE_S_MAX = 1.0
# To detect a host that vanished: on an idle connection, and with bytes in flight.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 1, 5
UNACKNOWLEDGED_MS_MAX = 10_000


class Purpose(StrEnum):
    """What a connection is for."""

    EXCHANGE = "exchange"  # Raft's messages
    SHIP = "ship"  # the bytes of snapshots and segments
    INTRODUCE = "introduce"  # questions of nodes that do not belong to a cluster yet
    LEADERS = "leaders"  # questions of the other workers of a node
    MEMBERSHIP = "membership"  # questions of nodes that hear no leader


_OPENINGS = {f"onelog-peer/1 {each}".encode(): each for each in Purpose}
_OPENING_OF = {purpose: opening for opening, purpose in _OPENINGS.items()}


class Connection(asyncio.Protocol):
    """Either end; a ``onelog.cluster.transport.link.Stream``."""

    def __init__(
        self,
        accepted: "Callable[[Connection], None] | None" = None,
        lost: "Callable[[Connection], None]" = lambda _connection: None,
    ) -> None:
        """``accepted`` is called when another process has opened this connection.

        ``lost`` is called when it has ended.
        """
        self._accepted = accepted
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []  # of a frame that is not whole yet
        self._size = 0  # of the parts
        self._needed = _LENGTH_SIZE  # bytes until the next frame is whole, or its size is known
        self._frames: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._reads = 0  # since the reader last waited
        self._is_paused = False
        self._has_ended = False  # nothing more will arrive
        self._bad: WireError | None = None
        self._bad_length = b""  # what was no length of a frame
        self._is_deaf = False  # received bytes are discarded
        self._why: Exception | None = None
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None  # until there is room
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self.is_made = False
        self._transport: asyncio.Transport
        self.peer = "?"  # the address of the other end, for people
        # What the other end has proved of itself; None without TLS.
        self.certificate: Certificate | None = None

    async def read(self) -> bytes | None:
        """Return the next frame; None when the other side has ended the connection."""
        frames = self._frames
        if frames and self._reads >= READS_PER_TURN:
            self._reads = 0
            await asyncio.sleep(0)  # a peer that sends without a pause does not have the loop
        if not frames and self._size >= self._needed:
            self._parse()
        while not frames:
            self._reads = 0
            if self._bad is not None:
                raise self._bad
            if self._has_ended:
                if self._why is not None:
                    raise LinkEnded(f"the connection broke: {self._why}") from self._why
                return None
            self._reading = self._loop.create_future()
            await self._reading
        frame = frames.popleft()
        self._reads += 1
        self._ahead_bytes -= _LENGTH_SIZE + len(frame)
        if (
            self._is_paused
            and self._size < self._needed
            and self._ahead_bytes < READ_AHEAD_BYTES_MAX // 2
        ):
            self._is_paused = False
            self._transport.resume_reading()
        return frame

    async def write(self, frame: bytes) -> None:
        """Send a frame; returns when the next may be sent."""
        if self._transport.is_closing():
            raise LinkEnded("the connection is closed")
        self._transport.write(len(frame).to_bytes(_LENGTH_SIZE, "little") + frame)
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def wait_unless_closed(self, event: asyncio.Future[bool]) -> bool:
        """Wait for an event; give it up and return False when the connection has ended before."""
        await asyncio.wait((event, self._closed), return_when=asyncio.FIRST_COMPLETED)
        if not event.done():
            event.cancel()
        return not event.cancelled()

    async def finish(self) -> None:
        """Wait until the other side has closed, or had the time to read what was written last.

        Closing with unread bytes sends a reset, which discards what the other end has not read.
        """
        self._is_deaf = True
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            with suppress(OSError):  # it has gone meanwhile
                self._transport.write_eof()
        if not self._has_ended:
            await asyncio.wait((self._closed,), timeout=CLOSE_S_MAX)

    async def close(self) -> None:
        """Close when all written bytes have left, or after ``CLOSE_S_MAX``."""
        self._transport.close()
        await asyncio.wait((self._closed,), timeout=CLOSE_S_MAX)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    async def open(self, purpose: Purpose) -> None:
        """As the caller, say what the connection is for, and wait for a peer's answer."""
        opening = _OPENING_OF[purpose]
        await self.write(opening)
        try:
            answer = await self.read()
        except WireError:
            answer = b""
        if answer is None:
            raise LinkEnded("it was closed before an answer; the other node may be starting")
        if answer != opening:
            raise WireError(Reason.NOT_A_PEER_PORT, f"what answers at {self.peer} is no peer")

    async def opened(self) -> Purpose:
        """As the called side, read the purpose and confirm it."""
        try:
            opening = await self.read()
        except WireError:
            if self._bad_length.startswith(_CLIENTS):
                self._transport.write(PEER_PORT_ANSWER)
                await self.finish()
            raise
        if opening is None:
            raise LinkEnded("the caller left")
        purpose = _OPENINGS.get(opening)
        if purpose is None:
            raise WireError(Reason.UNREADABLE, "what comes is not the opening of a peer")
        await self.write(opening)
        return purpose

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")  # uvloop raises once it is closed
        if isinstance(address, tuple):
            self.peer = f"{address[0]}:{address[1]}"
        self.certificate = peer_certificate(transport.get_extra_info("ssl_object"))
        self.is_made = True
        endpoint = transport.get_extra_info("socket")
        if endpoint is not None:
            _watch(endpoint)
        if self._accepted is not None:
            self._accepted(self)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        if self._is_deaf:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        self._parse()
        is_full = self._size >= self._needed or self._ahead_bytes > READ_AHEAD_BYTES_MAX
        if is_full and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def _parse(self) -> None:
        """Take frames from what was received, at most ``FRAMES_AHEAD_MAX``."""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        frames, at, end, needed = self._frames, 0, len(data), _LENGTH_SIZE
        while end - at >= _LENGTH_SIZE:
            size = int.from_bytes(data[at : at + _LENGTH_SIZE], "little")
            if size > FRAME_SIZE_MAX:
                self._bad = WireError(
                    Reason.FRAME_TOO_LARGE, f"{size} bytes, limit {FRAME_SIZE_MAX}"
                )
                self._bad_length = data[at : at + _LENGTH_SIZE]
                self._is_deaf = True
                at, needed = end, _LENGTH_SIZE
                break
            needed = _LENGTH_SIZE + size
            if end - at < needed or len(frames) >= FRAMES_AHEAD_MAX:
                break
            frames.append(data[at + _LENGTH_SIZE : at + needed])
            self._ahead_bytes += needed  # with its length: empty ones count, too
            at, needed = at + needed, _LENGTH_SIZE
        rest = data[at:]
        self._parts, self._size, self._needed = [rest] if rest else [], len(rest), needed

    def eof_received(self) -> bool:
        """See ``asyncio.Protocol``: what is written meanwhile may still leave."""
        self._has_ended = True
        self._wake_reader()
        return self._transport.can_write_eof() and not self._is_deaf

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._has_ended, self._why = True, exc
        self._wake_reader()
        self.resume_writing()
        if not self._closed.done():
            self._closed.set_result(None)
            self._lost(self)

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self._writing = self._loop.create_future()

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        writing, self._writing = self._writing, None
        if writing is not None and not writing.done():
            writing.set_result(None)

    def _wake_reader(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)


async def connect(address: str, purpose: Purpose, tls: ssl.SSLContext | None = None) -> Connection:
    """Call a peer; ``LinkEnded`` if nothing answers, ``WireError`` if it is not a peer.

    The caller limits the time.
    """
    host, port = split_address(address)
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, host, port, ssl=tls
        )
    except ssl.SSLError as error:
        raise LinkEnded(f"no TLS with {address}: {error.reason or error}") from error
    except OSError as error:
        raise LinkEnded(f"cannot connect to {address}: {error.strerror or error}") from error
    try:
        await connection.open(purpose)
    except BaseException:
        await connection.close()
        raise
    return connection


async def ask(
    address: str, purpose: Purpose, question: bytes, tls: ssl.SSLContext | None, timeout_s: float
) -> tuple[bytes, Certificate | None]:
    """Return the answer to one question, and the certificate of the process that gave it."""
    try:
        async with asyncio.timeout(timeout_s):
            connection = await connect(address, purpose, tls)
            try:
                await connection.write(question)
                answer = await connection.read()
            finally:
                await connection.close()
    except TimeoutError as error:
        raise LinkEnded(f"no answer of {address} within {timeout_s:g} s") from error
    if answer is None:
        raise LinkEnded(f"no answer of {address}")
    return answer, connection.certificate


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, where the host of IPv6 is in brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _watch(endpoint: socket.socket) -> None:
    """Send without delay, and detect a vanished host, as far as the system supports it."""
    options = [
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", KEEPALIVE_PROBES),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS_MAX),
    ]
    for level, name, value in options:
        option = getattr(socket, name, None)
        if option is not None:
            endpoint.setsockopt(level, option, value)


# Listener

# Callers that have not sent an opening yet; beyond them the oldest is closed.
OPENINGS_MAX = 64
OPENING_S_MAX = 2.0
# Connections of a port, and of one address. Members need two each; the others ask questions.
CONNECTIONS_MAX = 640
ADDRESS_SHARE = 2

Answer = Callable[[Purpose, Connection], Awaitable[None]]

_log = logging.getLogger("onelog.cluster.listener")


class Listener:
    """The listening port; see the module."""

    def __init__(
        self,
        address: str,
        tls: ssl.SSLContext | None,
        answer: Answer,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        host, port = split_address(address)
        limits = AcceptLimits(
            connections_max, max(1, connections_max // ADDRESS_SHARE), OPENINGS_MAX, OPENING_S_MAX
        )
        self._callers = RareLog(_log, LINES_AT_ONCE)
        self.acceptor = Acceptor(
            host, port, limits, lambda: Connection(self._accept, self._lose), RareLog(_log), tls
        )
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port, once it listens."""
        return self.acceptor.port

    async def start(self) -> None:
        """Listen; ``OSError`` if that is not possible."""
        await self.acceptor.bind()
        self.acceptor.start()

    async def stop(self) -> None:
        """End all connections and close the port."""
        await self.acceptor.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, connection: Connection) -> None:
        task = asyncio.ensure_future(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lose(self, connection: Connection) -> None:
        self.acceptor.leave(connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            purpose = await self._opened(connection)
            if purpose is not None:
                self.acceptor.prove(connection)
                await self._answer(purpose, connection)
        except (LinkEnded, WireError) as error:
            self._callers.say(logging.INFO, "a caller at %s: %s", connection.peer, error)
        except Exception:  # noqa: BLE001
            # Whatever a caller does ends its connection, never the process.
            _log.exception("while a caller at %s was answered", connection.peer)
        finally:
            await connection.close()

    async def _opened(self, connection: Connection) -> Purpose | None:
        """Return a caller's purpose; None if it sends none in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OPENING_S_MAX):
                return await connection.opened()
        self._callers.say(logging.INFO, "a caller at %s says nothing", connection.peer)
        return None
