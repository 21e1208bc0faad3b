"""Accepting connections on a port, with a limit on everything that a stranger can use up.

Each connection is a descriptor, and a process without descriptors cannot write its log. So all
ports of a process accept here, and count from ``accept`` on, before any TLS:

* ``connections_max`` in all. A port may make room by closing one of its own; otherwise the new one
  is closed.
* ``per_address_max`` of one address, so that one host cannot take a whole port. An IPv6 host
  usually has a network of 64 bits for itself, so that counts as one address.
* ``unproven_max`` that have not said yet what they want. Beyond that the oldest of them is closed:
  an honest caller speaks at once, and those that say nothing must not keep it out.

One connection is accepted in each turn of the loop: a flood of callers does not hold up those who
are connected. A process that may open no more files (EMFILE, ENFILE) leaves callers in the
system's queue and tries again after ``ACCEPT_PAUSE_S``.
"""

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from onelog.ual.files import OUT_OF_DESCRIPTORS

# Connections that wait to be accepted; the system may allow fewer.
BACKLOG = 1024
ACCEPT_PAUSE_S = 0.1
READ_BYTES = 64 << 10
# Lines about callers: after a burst, one in this time. A burst shows each of some nodes that are
# refused, one by one; a flood does not fill the disk.
LINE_S = 1.0
LINES_AT_ONCE = 32
IPV6_NETWORK_BITS = 64
# The first byte of a caller that speaks TLS, and the answer to one that does not: a fatal alert,
# without which it would see a connection that ends for no reason.
TLS_HANDSHAKE = b"\x16"
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"  # protocol_version


class Guest(Protocol):
    """A connection of a port, which is an ``asyncio.Protocol``.

    It calls ``Acceptor.leave`` when its connection is lost.
    """

    @property
    def is_made(self) -> bool:
        """Whether ``connection_made`` was called, and so ``connection_lost`` will be."""

    def abort(self) -> None:
        """Close at once."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""


AnyGuest = TypeVar("AnyGuest", bound=Guest)


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    """See the module's text."""

    connections_max: int
    per_address_max: int
    unproven_max: int
    handshake_s_max: float  # of TLS


class RareLog:
    """Logs lines about callers: ``burst`` at once, one in ``LINE_S``, and how many it left out."""

    def __init__(self, log: logging.Logger, burst: int = 1) -> None:
        self._log = log
        self._burst = burst
        self._credit = float(burst)
        self._credited_s = time.monotonic()
        self._unlogged = 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, or count it."""
        self.say(logging.WARNING, text, *arguments)

    def say(self, level: int, text: str, *arguments: object) -> None:
        """Log a line, or count it."""
        now_s = time.monotonic()
        earned = (now_s - self._credited_s) / LINE_S
        self._credit, self._credited_s = min(self._burst, self._credit + earned), now_s
        if self._credit < 1:
            self._unlogged += 1
            return
        self._credit -= 1
        more = f" ({self._unlogged} more before)" if self._unlogged else ""
        self._unlogged = 0
        self._log.log(level, text + more, *arguments)


class Acceptor(Generic[AnyGuest]):
    """One port; see the module's text. Everything happens on its loop."""

    def __init__(
        self,
        host: str,
        port: int,
        limits: AcceptLimits,
        make: Callable[[], AnyGuest],
        log: RareLog,
        tls: ssl.SSLContext | None = None,
        make_room: Callable[[], bool] | None = None,
    ) -> None:
        """``make_room`` closes a connection of a full port, if there is one to spare."""
        self.port = port
        self.limits = limits
        self.refused: Counter[str] = Counter()  # by reason
        self._host = host
        self._make = make
        self._log = log
        self._tls = tls
        self._make_room = make_room or _make_no_room
        self._guests: dict[AnyGuest, str] = {}  # with their addresses
        self._unproven: dict[AnyGuest, None] = {}  # oldest first
        self._of_address: Counter[str] = Counter()
        self._sockets: list[socket.socket] = []
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}  # after failures to accept
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting: dict[AnyGuest, asyncio.Task[None]] = {}

    @property
    def count(self) -> int:
        """How many connections there are, and those that are still becoming one."""
        return len(self._guests)

    async def bind(self) -> int:
        """Take the port and return it; callers wait until ``start``. ``OSError`` if it is taken."""
        found = await asyncio.get_running_loop().getaddrinfo(
            self._host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, at in dict.fromkeys(found):
                self._bind(family, (at[0], self.port, *at[2:]))
                self.port = self._sockets[0].getsockname()[1]  # the same for every address
        except OSError:
            self._close_sockets()
            raise
        return self.port

    def _bind(self, family: int, at: tuple[Any, ...]) -> None:
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setblocking(False)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found.bind(at)
            found.listen(BACKLOG)  # or somebody else could take the port until ``start``
        except OSError as error:
            found.close()
            # A name may stand for an address of a kind that this machine does not have.
            if error.errno != errno.EADDRNOTAVAIL or not self._sockets:
                raise
        else:
            self._sockets.append(found)

    def start(self) -> None:
        """Accept connections."""
        for each in self._sockets:
            self._listen(each)

    async def stop(self) -> None:
        """Accept nothing more, end what is still becoming a connection, and close the port."""
        for each in self._sockets:
            asyncio.get_running_loop().remove_reader(each)
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_sockets()
        # Otherwise this and the port would refer to each other, and never leave memory.
        self._make, self._make_room = _make_none, _make_no_room

    def prove(self, guest: AnyGuest) -> None:
        """Count a connection as one that has said what it wants."""
        self._unproven.pop(guest, None)

    def leave(self, guest: AnyGuest) -> None:
        """Count a connection out; again does nothing."""
        self._unproven.pop(guest, None)
        address = self._guests.pop(guest, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    # Inside

    def _accept(self, listener: socket.socket) -> None:
        """Accept a connection that waits, if there is one.

        Not the loop's own servers: those count nothing before TLS has come about. And not the
        loop's ``sock_accept``: one that is cancelled loses the connection that it just accepted.
        """
        try:
            accepted, address = listener.accept()
        except (BlockingIOError, InterruptedError):  # the caller went, or another took it
            return
        except OSError as error:  # no descriptors, or one that went at once
            if error.errno in OUT_OF_DESCRIPTORS:
                self.refused["descriptors"] += 1
            self._log.warn("no connection could be accepted: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            self._pauses[listener] = loop.call_later(ACCEPT_PAUSE_S, self._listen, listener)
            return
        accepted.setblocking(False)
        self._admit(accepted, _name_host(address))

    def _listen(self, listener: socket.socket) -> None:
        self._pauses.pop(listener, None)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _admit(self, accepted: socket.socket, address: str) -> None:
        limits = self.limits
        if len(self._guests) >= limits.connections_max:
            if not self._make_room():
                self._refuse(accepted, "limit", f"{limits.connections_max} connections are open")
                return
            self.refused["replaced"] += 1
        if self._of_address[address] >= limits.per_address_max:
            self._refuse(accepted, "address", f"{address} has {limits.per_address_max} connections")
            return
        guest = self._make()
        self._guests[guest] = address
        self._of_address[address] += 1
        self._unproven[guest] = None
        if len(self._unproven) > limits.unproven_max:
            self._evict(next(iter(self._unproven)))
        task = self._connecting[guest] = self._begin(self._connect(guest, accepted))
        # Not the end of the task's own code: if it is cancelled before it begins, that never runs.
        task.add_done_callback(partial(self._connected, guest, accepted))

    def _connected(
        self, guest: AnyGuest, accepted: socket.socket, _task: "asyncio.Task[None]"
    ) -> None:
        self._connecting.pop(guest, None)
        if not guest.is_made:
            accepted.close()
            self.leave(guest)

    def _refuse(self, accepted: socket.socket, reason: str, text: str) -> None:
        accepted.close()
        self.refused[reason] += 1
        self._log.warn("port %d: %s, which is the limit", self.port, text)

    def _evict(self, guest: AnyGuest) -> None:
        self.refused["unproven"] += 1
        limit = self.limits.unproven_max
        self._log.warn("port %d: more than %d callers say nothing", self.port, limit)
        self._unproven.pop(guest)
        if guest.is_made:
            guest.abort()
        else:
            self._connecting[guest].cancel()

    async def _connect(self, guest: AnyGuest, accepted: socket.socket) -> None:
        """Make a connection of a socket, with TLS if there is any."""
        loop, protocol = asyncio.get_running_loop(), cast(asyncio.BaseProtocol, guest)
        try:
            with suppress(OSError):  # it has gone already
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None and not await self._speaks_tls(accepted):
                self._log.warn("port %d: a caller does not speak TLS", self.port)
                return
            await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self.limits.handshake_s_max,
            )
        except OSError as error:  # ssl's own are of this kind, too
            self._log.warn("port %d: a caller could not connect: %s", self.port, error)
        except asyncio.CancelledError:
            # uvloop closes the socket of one that was just made, and does not say so.
            if guest.is_made:
                guest.connection_lost(None)
            raise

    async def _speaks_tls(self, accepted: socket.socket) -> bool:
        """Return whether a caller begins with TLS; answer one that does not."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(accepted, readable.set)
        try:
            async with asyncio.timeout(self.limits.handshake_s_max):
                await readable.wait()
        finally:
            loop.remove_reader(accepted)
        first = accepted.recv(1, socket.MSG_PEEK)
        if first and first != TLS_HANDSHAKE:
            accepted.recv(READ_BYTES)  # or closing would reset, and the answer might get lost
            accepted.send(TLS_ALERT)
        return first == TLS_HANDSHAKE

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="accept")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _close_sockets(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()


def _make_none() -> Any:
    raise AssertionError("the port is closed")


def _make_no_room() -> bool:
    return False


def _name_host(address: tuple[Any, ...]) -> str:
    """Return which host a caller is, for counting."""
    try:
        found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_NETWORK_BITS), strict=False))


class Turns:
    """Lets callers pass one by one, in order: each in a turn of the loop of its own.

    With ``per_s``, at most that many each second, evenly spread. A process that answers a flood as
    fast as it can uses a whole core, and the system then makes it wait for that core like any busy
    program: for milliseconds, with everything else that it serves.
    """

    def __init__(self, per_s: float | None = None) -> None:
        self._pause_s = 0.0 if per_s is None else 1 / per_s
        self._next_s = float("-inf")
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._is_due = False

    def enter(self) -> asyncio.Future[bool]:
        """Return what becomes true in this caller's turn; cancel it, or set it, to leave."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(mine)
        if not self._is_due:
            self._is_due = True
            self._schedule(loop)
        return mine

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        wait_s = self._next_s - loop.time()
        if wait_s > 0:
            loop.call_later(wait_s, self._pass, loop)
        else:
            loop.call_soon(self._pass, loop)

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._waiting[0].done():  # who has left
            self._waiting.popleft()
        self._is_due = bool(self._waiting)
        if self._is_due:
            self._waiting.popleft().set_result(True)
            self._next_s = loop.time() + self._pause_s
            self._schedule(loop)
