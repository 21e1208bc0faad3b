"""Servers with a few methods for tests of the channel: grpcio's, and one of ours of a few lines.

All methods are of ``/tests.Echo``: ``Unary`` answers with the request, ``Both`` with each message
of a stream, ``Stream`` with as many messages of as many bytes as the request says, ``Fail`` with a
status and the metadata of the call as trailers, and ``Wait`` with nothing.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from onelog.wire.grpc import (
    Call,
    CallCancelled,
    CallStarted,
    CallWritable,
    Event,
    MessageReceived,
    RequestEnded,
    ServerConnection,
    Status,
    WireLimits,
)

UNARY, BOTH, STREAM = "/tests.Echo/Unary", "/tests.Echo/Both", "/tests.Echo/Stream"
FAIL, WAIT = "/tests.Echo/Fail", "/tests.Echo/Wait"
# A message that needs every kind of encoding, and details as a server of ours sends them.
TEXT, DETAILS = "é is 100 % ok\n", bytes(range(256))
PASSED = ("plain", "raw-bin")


class Wired(asyncio.Protocol):
    """One connection of a client to our own core."""

    def __init__(self, server: "WiredServer") -> None:
        self.server = server
        self.wire = server.make_wire(server.limits)
        self.transport: asyncio.Transport
        self.is_lost = False
        self.reads = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.connections.append(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        for event in self.wire.receive(data):
            self.server.handle(self, event)
        self.flush()
        if self.wire.is_closed:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        for event in self.wire.lose("gone"):
            self.server.handle(self, event)

    def flush(self) -> None:
        if self.wire.has_output:
            self.transport.write(self.wire.take_output())


class WiredServer:
    """What happens on all connections; ``handle`` decides, by default as the module says."""

    def __init__(self, limits: WireLimits, make_wire: Callable[[WireLimits], ServerConnection]):
        self.limits = limits
        self.make_wire = make_wire
        self.handle: Callable[[Wired, Event], None] = self.echo
        self.connections: list[Wired] = []
        self.calls: list[Call] = []
        self.cancelled: list[Call] = []
        self.calls_at_once = 0
        self.sent_bytes = 0

    def echo(self, at: Wired, event: Event) -> None:
        wire = at.wire
        if type(event) is CallStarted:
            self.calls.append(event.call)
            self.calls_at_once = max(self.calls_at_once, wire.call_count)
        elif type(event) is CallCancelled:
            self.cancelled.append(event.call)
        elif type(event) is CallWritable:
            self.send_more(at, event.call)
        elif type(event) is MessageReceived:
            wire.release(event.call, len(event.data))
            self.answer(at, event.call, event.data)
        elif type(event) is RequestEnded and event.call.path == BOTH:
            wire.finish(event.call)

    def answer(self, at: Wired, call: Call, data: bytes) -> None:
        if call.path == UNARY:
            at.wire.respond(call, data)
        elif call.path == BOTH:
            at.wire.send(call, data)
        elif call.path == FAIL:
            passed = tuple(each for each in call.metadata if each[0] in PASSED)
            at.wire.finish(call, Status(9, TEXT, DETAILS, passed))
        elif call.path == STREAM:
            call.owner = messages_of(data)
            self.send_more(at, call)
        elif call.path != WAIT:
            at.wire.finish(call, Status(12, "nobody knows it"))

    def send_more(self, at: Wired, call: Call) -> None:
        if call.owner is None:
            return
        while not call.unsent_bytes:
            message = next(call.owner, None)
            if message is None:
                at.wire.finish(call)
                return
            self.sent_bytes += len(message)
            at.wire.send(call, message)


def messages_of(request: bytes) -> Any:
    """Return the messages that a request for a stream asks for: count and size."""
    count, size = map(int, request.split())
    return (b"%08d" % number + bytes(size - 8) for number in range(count))


@asynccontextmanager
async def wired(
    limits: WireLimits | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    make_wire: Callable[[WireLimits], ServerConnection] = ServerConnection,
    host: str = "127.0.0.1",
) -> AsyncIterator[tuple[str, WiredServer]]:
    """Run a server on our own core, and return its endpoint."""
    server = WiredServer(limits or WireLimits(), make_wire)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Wired(server), host, 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), server
    finally:
        listening.close()
        for each in server.connections:
            each.transport.abort()
        await listening.wait_closed()


@asynccontextmanager
async def foreign(
    credentials: Any = None, options: tuple[tuple[str, Any], ...] = ()
) -> AsyncIterator[str]:
    """Run a server of grpcio, and return its endpoint."""

    async def unary(request: bytes, _context: Any) -> bytes:
        return request

    async def both(messages: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            yield message

    async def stream(request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for message in messages_of(request):
            yield message

    async def fail(_request: bytes, context: Any) -> bytes:
        passed = [each for each in context.invocation_metadata() if each[0] in PASSED]
        details = ("grpc-status-details-bin", DETAILS)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, TEXT, (*passed, details))
        return b""

    async def wait(_request: bytes, _context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1), *options))
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Both": grpc.stream_stream_rpc_method_handler(both),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Wait": grpc.unary_unary_rpc_method_handler(wait),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests.Echo", handlers),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
