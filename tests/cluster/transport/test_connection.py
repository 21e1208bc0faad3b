"""Connections between peers by themselves: frames in pieces, bounds, who is no peer, and floods."""

import asyncio
import socket
import struct
from collections.abc import Coroutine
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog.cluster.transport import connection as listening
from onelog.cluster.transport import connection as module
from onelog.cluster.transport.connection import (
    OPENINGS_MAX,
    READ_AHEAD_BYTES_MAX,
    Connection,
    Listener,
    Purpose,
    ask,
    connect,
    split_address,
)
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.wire import FRAME_SIZE_MAX, Reason, WireError
from tests.cluster.transport.pairs import WAIT_S, until

OPENING = b"onelog-peer/1 leaders"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 3 * WAIT_S))


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


class Port:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.purposes: list[Purpose] = []
        self.go = asyncio.Event()
        self._listener = Listener("127.0.0.1:0", None, self._answer)

    async def __aenter__(self) -> "Port":
        await self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.port}"

    async def _answer(self, purpose: Purpose, connection: Connection) -> None:
        self.purposes.append(purpose)
        self.connections.append(connection)
        await self.go.wait()


async def raw(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*split_address(port.address))


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_arrive_whole_however_the_bytes_come(size: int) -> None:
    frames = [b"", b"a", bytes(range(256)) * 10, b"x" * 5, b""]

    async def test() -> None:
        async with Port() as port:
            _, writer = await raw(port)
            data = framed(OPENING, *frames)
            for at in range(0, len(data), size):
                writer.write(data[at : at + size])
                await writer.drain()
                await asyncio.sleep(0)
            await until(lambda: port.connections)
            assert port.purposes == [Purpose.LEADERS]
            got = [await port.connections[0].read() for _ in frames]
            assert got == frames
            writer.close()
            assert await port.connections[0].read() is None
            port.go.set()

    run(test())


def test_the_largest_frame_passes_and_the_next_size_is_refused() -> None:
    async def test() -> None:
        async with Port() as port:
            caller = await connect(port.address, Purpose.EXCHANGE)
            await caller.write(bytes(FRAME_SIZE_MAX))
            await until(lambda: port.connections)
            (called,) = port.connections
            assert await called.read() == bytes(FRAME_SIZE_MAX)
            await caller.write(bytes(FRAME_SIZE_MAX + 1))
            with pytest.raises(WireError) as error:
                await called.read()
            assert error.value.reason is Reason.FRAME_TOO_LARGE
            port.go.set()
            await caller.close()

    run(test())


def test_a_reader_that_is_slow_holds_the_writer_up_and_no_more_than_the_limit() -> None:
    async def test() -> None:
        async with Port() as port:
            caller = await connect(port.address, Purpose.SHIP)
            await until(lambda: port.connections)
            (called,) = port.connections
            sent = 0

            async def flood() -> None:
                nonlocal sent
                while sent < 200:
                    await caller.write(bytes([sent]) * FRAME_SIZE_MAX)
                    sent += 1

            flooding = asyncio.ensure_future(flood())
            await until(lambda: called._is_paused and caller._writing is not None)
            assert sent < 200
            assert called._ahead_bytes <= READ_AHEAD_BYTES_MAX + 2 * FRAME_SIZE_MAX
            got = [await called.read() for _ in range(200)]
            assert [frame[0] for frame in got if frame] == list(range(200))
            await flooding
            port.go.set()
            await caller.close()

    run(test())


def test_what_is_no_peer_is_told_from_one_that_is_away() -> None:
    async def test() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with pytest.raises(WireError) as error:
            await ask(f"127.0.0.1:{port}", Purpose.INTRODUCE, b"?", None, WAIT_S)
        assert error.value.reason is Reason.NOT_A_PEER_PORT
        await server.stop(None)
        with pytest.raises(LinkEnded, match="cannot connect"):
            await ask(f"127.0.0.1:{port}", Purpose.INTRODUCE, b"?", None, WAIT_S)

    run(test())


def test_who_answers_nothing_is_waited_for_no_longer_than_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_S_MAX", 0.05)

    async def test() -> None:
        silent = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(LinkEnded, match=r"within 0\.2 s"):
            await ask(address, Purpose.INTRODUCE, b"?", None, 0.2)
        silent.close()

    run(test())


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", framed(b"onelog-peer/9 exchange")]
)
def test_a_caller_that_does_not_open_is_let_go(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "OPENING_S_MAX", 0.2)

    async def test() -> None:
        async with Port() as port:
            reader, writer = await raw(port)
            writer.write(said)
            assert await reader.read() == b""
            assert port.purposes == []
            writer.close()

    run(test())


def test_a_flood_of_callers_that_say_nothing_is_bounded_and_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "OPENING_S_MAX", 1.0)

    async def test() -> None:
        async with Port() as port:
            first = await connect(port.address, Purpose.EXCHANGE)
            flood = [await raw(port) for _ in range(OPENINGS_MAX)]
            await until(lambda: port._listener._openings == OPENINGS_MAX)
            with pytest.raises(LinkEnded):
                await connect(port.address, Purpose.EXCHANGE)
            await first.write(b"still here")
            assert await port.connections[0].read() == b"still here"
            for reader, writer in flood:
                assert await reader.read() == b""
                writer.close()
            assert port._listener._openings == 0
            later = await connect(port.address, Purpose.EXCHANGE)
            port.go.set()
            for each in (first, later):
                await each.close()

    run(test())


def test_a_listener_that_stops_ends_its_connections() -> None:
    async def test() -> None:
        async with Port() as port:
            caller = await connect(port.address, Purpose.EXCHANGE)
        assert await caller.read() is None
        await caller.close()
        with pytest.raises(LinkEnded):
            await caller.write(b"nobody")

    run(test())


def test_a_port_that_is_taken_is_an_error() -> None:
    async def test() -> None:
        async with Port() as port:
            with pytest.raises(OSError, match="in use"):
                await Listener(port.address, None, port._answer).start()

    run(test())


def test_hosts_of_ipv6_are_in_brackets() -> None:
    assert split_address("[::1]:7401") == ("::1", 7401)
    assert split_address("localhost:1") == ("localhost", 1)
