"""Thousands of Watch streams in one process that hardly costs anything: frames without a library.

What a client of the library takes for a thousand events is more than what the server takes, and
both share the cores. So these connections know just enough of HTTP/2: requests of literal headers,
settings and pings that are acknowledged, windows that never close, and messages by their length.
A stream or connection that ends is an error, raised to the waiting callers.
"""

import asyncio
import struct
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from onelog.v1 import log_pb2, pipeline_pb2

# As in the onelog client: a server takes 1,024 on one connection by default.
STREAMS_PER_CONNECTION = 100
# A burst of calls beyond some thousands is refused by a server of the grpc library (CANCELLED).
STREAMS_AT_ONCE = 1_000
WAIT_S = 120.0
# Nothing but what is measured should happen.
PROGRESS_MS = 3_600_000
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
INITIAL_WINDOW_SIZE = 0x4
WINDOW_BYTES = (1 << 31) - 1
WINDOW_DEFAULT_BYTES = 65_535
FRAME_HEAD_BYTES = 9
PREFIX_BYTES = 5


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(authority: str) -> bytes:
    """Return the header block of the call, each field a literal that enters no table."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/onelog.v1.Pipeline/Watch",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b""
    for name, value in fields.items():
        assert max(len(name), len(value)) < 127, "a longer one has a longer length"
        block += bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()
    return block


def request() -> bytes:
    """Return the message of a watch of all keys, after its prefix."""
    filters = [pipeline_pb2.WatchFilter(owner=log_pb2.OWNER_KV)]
    watch = pipeline_pb2.WatchRequest(filters=filters, progress_ms=PROGRESS_MS)
    message: bytes = watch.SerializeToString()
    return b"\0" + struct.pack(">I", len(message)) + message


class WatchConnection(asyncio.Protocol):
    """Some streams on one connection; passes each message to ``on_message``."""

    def __init__(
        self,
        authority: str,
        on_message: Callable[[pipeline_pb2.WatchResponse], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._on_message = on_message
        self._on_failure = on_failure
        self._block = headers(authority)
        self._transport: Any = None
        self._received = b""
        self._messages: defaultdict[int, bytes] = defaultdict(bytes)
        self._is_closing = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        window = struct.pack(">HI", INITIAL_WINDOW_SIZE, WINDOW_BYTES)
        more = struct.pack(">I", WINDOW_BYTES - WINDOW_DEFAULT_BYTES)
        transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(SETTINGS, 0, 0, window)
            + frame(WINDOW_UPDATE, 0, 0, more)
        )

    def open(self, count: int) -> None:
        """Begin streams, once."""
        message = request()
        self._transport.write(
            b"".join(
                frame(HEADERS, END_HEADERS, stream, self._block)
                + frame(DATA, END_STREAM, stream, message)
                for stream in range(1, 2 * count, 2)
            )
        )

    def close(self) -> None:
        self._is_closing = True
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._on_failure(f"a connection was lost: {error}")

    def data_received(self, data: bytes) -> None:
        received, at = self._received + data, 0
        while len(received) - at >= FRAME_HEAD_BYTES:
            payload_at = at + FRAME_HEAD_BYTES
            end = payload_at + int.from_bytes(received[at : at + 3], "big")
            if end > len(received):
                break
            kind, flags, stream = struct.unpack_from(">BBI", received, at + 3)
            self._frame(kind, flags, stream, received[payload_at:end])
            at = end
        self._received = received[at:]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            data = self._messages.pop(stream, b"") + payload
            while len(data) >= PREFIX_BYTES:
                end = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")
                if end > len(data):
                    break
                self._on_message(pipeline_pb2.WatchResponse.FromString(data[PREFIX_BYTES:end]))
                data = data[end:]
            if data:
                self._messages[stream] = data
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._transport.write(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
            self._on_failure(f"a watch was ended by a frame of type {kind}: {payload!r}")


class WatchStreams:
    """All streams, and how many of them have begun or received the event of a put."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connections: list[WatchConnection] = []
        self._left = 0
        self._are_events_wanted = False
        self._reached: asyncio.Future[None] | None = None
        self._failure: str | None = None
        self.count = 0

    async def open(self, count: int) -> None:
        """Open ``count`` more, in steps; return when each has sent its first message."""
        while count > 0:
            some = min(count, STREAMS_AT_ONCE)
            await self._open_some(some)
            count -= some

    async def _open_some(self, count: int) -> None:
        host, port = self._address.rsplit(":", 1)
        self._expect(count, events=False)
        for at in range(0, count, STREAMS_PER_CONNECTION):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: WatchConnection(self._address, self._on_message, self._on_failure),
                host,
                int(port),
            )
            connection.open(min(STREAMS_PER_CONNECTION, count - at))
            self._connections.append(connection)
        self.count += count
        await self.all_received()

    def expect_event(self) -> None:
        """Expect one event on each stream from now on."""
        self._expect(self.count, events=True)

    async def all_received(self) -> None:
        """Wait until every stream has received what it expects."""
        assert self._reached is not None, "nothing is expected"
        async with asyncio.timeout(WAIT_S):
            await self._reached

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _expect(self, count: int, *, events: bool) -> None:
        self._left, self._are_events_wanted = count, events
        self._reached = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            self._on_failure(self._failure)

    def _on_message(self, message: pipeline_pb2.WatchResponse) -> None:
        if bool(message.events) != self._are_events_wanted:
            self._on_failure(f"a watch received an unexpected message: {message}")
            return
        self._left -= 1
        if self._left == 0 and self._reached is not None and not self._reached.done():
            self._reached.set_result(None)

    def _on_failure(self, why: str) -> None:
        self._failure = why
        if self._reached is not None and not self._reached.done():
            self._reached.set_exception(ConnectionError(why))
