"""The API port by itself, with services of a test, and a peer that speaks HTTP/2 frame by frame."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from onelog.node.config.schema import Config, LimitSettings, ListenSettings, SecuritySettings
from onelog.node.config.settings import Address
from onelog.node.context import Kind, Method, Service
from onelog.node.credentials import Credentials
from onelog.node.edge.exchange import CLIENT_KEY
from onelog.node.edge.gate import Gate
from onelog.node.edge.port import ApiServer, Connection
from onelog.node.metrics import Metrics
from onelog.node.readiness import Readiness, Stage
from onelog.wire.grpc import (
    Call,
    CallEnded,
    ClientConnection,
    GoingAway,
    MessageReceived,
    Status,
    WireLimits,
)

WAIT_S = 60.0
NAME = "tests.Port"

Serve = Callable[[Any, Any, int], Coroutine[Any, Any, bytes | None]]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * WAIT_S))


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not look():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.002)


class Port:
    """A server of a test."""

    def __init__(self, api: ApiServer, gate: Gate, metrics: Metrics, number: int) -> None:
        self.api = api
        self.gate = gate
        self.metrics = metrics
        self.number = number

    @property
    def connection(self) -> Connection:
        """The only connection."""
        (found,) = self.api.connections
        return found


def unary(name: str, serve: Serve) -> Method:
    return Method(NAME, name, Kind.UNARY, bytes, serve)


def stream(name: str, serve: Serve) -> Method:
    return Method(NAME, name, Kind.STREAM, bytes, serve)


def both(name: str, serve: Serve) -> Method:
    return Method(NAME, name, Kind.BOTH, bytes, serve)


async def echo(_exchange: Any, request: bytes, _size: int) -> bytes:
    return request


@asynccontextmanager
async def port(
    *methods: Method,
    number: int = 0,
    limits: LimitSettings | None = None,
    security: SecuritySettings | None = None,
) -> AsyncIterator[Port]:
    """Serve these methods, and ``Echo``."""
    config = replace(
        Config(),
        listen=ListenSettings(api=Address("127.0.0.1", number)),
        limits=limits or LimitSettings(),
        security=security or SecuritySettings(),
    )
    readiness, metrics = Readiness(time.monotonic), Metrics()
    readiness.stage = Stage.SERVING
    gate = Gate(readiness, metrics, limits=config.limits)
    api = ApiServer(config, 0, gate, Credentials(config.security))
    bound = await api.bind()
    api.add(Service(NAME, (unary("Echo", echo), *methods)))
    api.start()
    try:
        yield Port(api, gate, metrics, bound)
    finally:
        await api.stop(0.0)


class Peer:
    """A client that decides itself what it sends, and when it reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.core = ClientConnection(WireLimits(), "localhost")
        self.reader = reader
        self.writer = writer
        self.messages: dict[int, list[bytes]] = {}
        self.ended: dict[int, Status] = {}
        self.is_going_away = False
        self.is_closed = False

    def begin(
        self, name: str, request: bytes, timeout_s: float | None = None, client: str = ""
    ) -> Call:
        """Put a whole call into the output; ``client``: for whom a node forwards it."""
        metadata = ((CLIENT_KEY, client),) if client else ()
        call = self.core.start(f"/{NAME}/{name}", metadata, timeout_s)
        self.core.send(call, request, is_last=True)
        return call

    def flush(self) -> None:
        """Send what there is in one write."""
        data = self.core.take_output()
        if not self.writer.is_closing():
            self.writer.write(data)

    async def read_until(self, look: Callable[[], object]) -> None:
        """Read until something has come, or the connection has ended."""
        async with asyncio.timeout(WAIT_S):
            while not look() and not self.is_closed:
                data = b""
                with suppress(ConnectionError):
                    data = await self.reader.read(1 << 16)
                self.is_closed = not data
                for event in self.core.receive(data):
                    if isinstance(event, MessageReceived):
                        call = event.call
                        self.messages.setdefault(call.stream_id, []).append(event.data)
                        self.core.release(call, len(event.data))
                    elif isinstance(event, CallEnded):
                        self.ended[event.call.stream_id] = event.status
                    elif isinstance(event, GoingAway):
                        self.is_going_away = True
                self.flush()

    async def outcome(self, call: Call) -> tuple[int, list[bytes]]:
        """Return the code that a call ended with, and its messages."""
        await self.read_until(lambda: call.stream_id in self.ended)
        return self.ended[call.stream_id].code, self.messages.get(call.stream_id, [])


@asynccontextmanager
async def peer(number: int, **how: Any) -> AsyncIterator[Peer]:
    """A connection to a port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", number, **how)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
