"""Connections between peers by themselves: frames in pieces, bounds, who is no peer, and floods."""

import asyncio
import errno
import socket
import struct
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog.cluster.transport import connection as listening
from onelog.cluster.transport import connection as module
from onelog.cluster.transport.connection import (
    CONNECTIONS_MAX,
    FRAMES_AHEAD_MAX,
    OPENINGS_MAX,
    READ_AHEAD_BYTES_MAX,
    READS_PER_TURN,
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

    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self.connections: list[Connection] = []
        self.purposes: list[Purpose] = []
        self.go = asyncio.Event()
        self._listener = Listener("127.0.0.1:0", None, self._answer, connections_max)

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


def test_callers_that_say_nothing_are_bounded_and_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For each one too many, the one that has said nothing for the longest time is closed."""
    monkeypatch.setattr(listening, "OPENING_S_MAX", 3 * WAIT_S)

    async def test() -> None:
        async with Port() as port:
            acceptor = port._listener.acceptor
            first = await connect(port.address, Purpose.EXCHANGE)
            flood = [await raw(port) for _ in range(2 * OPENINGS_MAX)]
            await until(lambda: acceptor.count == 1 + OPENINGS_MAX)
            for reader, _ in flood[:OPENINGS_MAX]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            later = await connect(port.address, Purpose.EXCHANGE)
            await first.write(b"still here")
            assert await port.connections[0].read() == b"still here"
            assert acceptor.refused["unproven"] == OPENINGS_MAX + 1
            for _, writer in flood:
                writer.close()
            await until(lambda: acceptor.count == 2)
            port.go.set()
            for each in (first, later):
                await each.close()
            await until(lambda: acceptor.count == 0)

    run(test())


def test_connections_are_limited_in_all_and_of_one_address() -> None:
    async def test() -> None:
        async with Port(connections_max=4) as port:
            acceptor = port._listener.acceptor
            held = [await connect(port.address, Purpose.EXCHANGE) for _ in range(2)]
            with pytest.raises(LinkEnded):
                await connect(port.address, Purpose.EXCHANGE)
            assert acceptor.refused == {"address": 1}
            host, number = split_address(port.address)
            others = [
                await asyncio.open_connection(host, number, local_addr=(f"127.0.0.{last}", 0))
                for last in (2, 3, 4)
            ]
            await until(lambda: acceptor.refused == {"address": 1, "limit": 1})
            assert acceptor.count == 4
            for _, writer in others:
                writer.close()
            await until(lambda: acceptor.count == 2)
            port.go.set()
            for each in held:
                await each.close()

    run(test())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_process_without_descriptors_accepts_later(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It neither spins nor closes its port."""

    async def test() -> None:
        async with Port() as port:
            accept, attempts = socket.socket.accept, 0

            def fail(listener: socket.socket) -> Any:
                nonlocal attempts
                attempts += 1
                if attempts <= 2:
                    raise OSError(number, "no descriptors")
                return accept(listener)

            first = await connect(port.address, Purpose.EXCHANGE)
            monkeypatch.setattr(socket.socket, "accept", fail)
            second = await connect(port.address, Purpose.EXCHANGE)
            third = await connect(port.address, Purpose.EXCHANGE)
            assert port._listener.acceptor.refused == {"descriptors": 2}
            port.go.set()
            for each in (first, second, third):
                await each.close()

    run(test())


def test_no_connection_is_lost_when_a_port_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was accepted in the turn in which the port stops is closed, not forgotten."""
    accepted: list[socket.socket] = []

    async def test() -> None:
        async with Port() as port:
            loop, accept = asyncio.get_running_loop(), socket.socket.accept
            stopping: list[asyncio.Task[None]] = []

            def stop_now(listener: socket.socket) -> Any:
                found = accept(listener)
                accepted.append(found[0])
                stopping.append(loop.create_task(port._listener.acceptor.stop()))
                return found

            monkeypatch.setattr(socket.socket, "accept", stop_now)
            with socket.create_connection(split_address(port.address)):
                await until(lambda: stopping)
                await asyncio.gather(*stopping)
                port.go.set()

    run(test())
    assert [each.fileno() for each in accepted] == [-1]


def test_the_loop_turns_while_a_peer_sends_without_a_pause() -> None:
    """Frames that came in one read are not handed out in one turn."""

    async def test() -> None:
        async with Port() as port:
            turns, loop = 0, asyncio.get_running_loop()

            def turn() -> None:
                nonlocal turns
                turns += 1
                loop.call_soon(turn)

            _, writer = await raw(port)
            wanted = 100 * READS_PER_TURN
            writer.write(framed(OPENING) + framed(b"") * wanted)
            await until(lambda: port.connections)
            await until(lambda: len(port.connections[0]._frames) == FRAMES_AHEAD_MAX - 1)
            turn()
            for _ in range(wanted):
                assert await port.connections[0].read() == b""
            assert turns >= wanted // READS_PER_TURN - 1
            port.go.set()
            writer.close()

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


def test_a_listener_that_stops_at_any_moment_leaves_no_socket_open() -> None:
    """Also one that was accepted and whose connection has not begun to be made."""

    async def test() -> None:
        for turns in range(30):
            listener = Listener("127.0.0.1:0", None, _refuse)
            await listener.start()
            with socket.create_connection(("127.0.0.1", listener.port)) as caller:
                caller.setblocking(False)
                while not listener.acceptor.count:  # noqa: ASYNC110 - what is seen sets no event
                    await asyncio.sleep(0)
                for _ in range(turns // 10):
                    await asyncio.sleep(0)
                await listener.stop()
                assert not listener.acceptor.count
                async with asyncio.timeout(WAIT_S):
                    with suppress(ConnectionResetError):
                        assert not await asyncio.get_running_loop().sock_recv(caller, 1)

    run(test())


async def _refuse(_purpose: Purpose, _connection: Connection) -> None:
    raise AssertionError("nobody has said anything")


def test_a_port_that_is_taken_is_an_error() -> None:
    async def test() -> None:
        async with Port() as port:
            with pytest.raises(OSError, match="in use"):
                await Listener(port.address, None, port._answer).start()

    run(test())


def test_hosts_of_ipv6_are_in_brackets() -> None:
    assert split_address("[::1]:7401") == ("::1", 7401)
    assert split_address("localhost:1") == ("localhost", 1)
