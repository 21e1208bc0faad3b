"""The HTTP port: what it answers, what it lets nobody do, and that it shares the loop."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import pytest
from starlette.responses import Response

from onelog.node.metrics import SAMPLES_PER_TURN, Metrics
from onelog.node.server.http import PART_BYTES, HttpLimits, HttpServer, respond, respond_json

LIMITS = HttpLimits(
    connections_max=2, request_s_max=0.3, header_bytes_max=4 * PART_BYTES, keep_alive_s_max=1
)
LONG = b"x" * (5 * PART_BYTES)
WAIT_S = 60.0


async def broken() -> Response:
    raise RuntimeError("a page that fails")


async def healthz() -> Response:
    return respond(HTTPStatus.OK, b"ok\n")


async def ready() -> Response:
    return respond_json(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False})


@asynccontextmanager
async def serving(limits: HttpLimits = LIMITS) -> AsyncIterator[int]:
    probes = {"/healthz": healthz, "/ready": ready}
    server = HttpServer("127.0.0.1", 0, {"/broken": broken}, probes, limits)
    port = await server.start()
    try:
        yield port
    finally:
        await server.stop()


async def exchange(port: int, request: bytes) -> bytes:
    """Send bytes and return everything until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def ask(request: bytes) -> tuple[int, bytes]:
    """Return the status and the body of the answer to one request."""

    async def main() -> bytes:
        async with serving() as port:
            return await exchange(port, request)

    answer = asyncio.run(main())
    if not answer:
        return 0, b""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head or request.startswith(b"HEAD")
    return int(head.split()[1]), body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def test_pages_are_answered_with_their_status_and_body() -> None:
    assert ask(get("/healthz")) == (200, b"ok\n")
    assert ask(get("/healthz?verbose=1")) == (200, b"ok\n")
    assert ask(get("/ready")) == (503, b'{\n  "ready": false\n}\n')
    assert ask(get("/nothing"))[0] == 404
    assert ask(get("/healthz/"))[0] == 404
    assert ask(b"HEAD /healthz HTTP/1.1\r\nConnection: close\r\n\r\n") == (200, b"")
    assert ask(b"GET /healthz HTTP/1.0\r\n\r\n") == (200, b"ok\n")


def test_an_upgrade_that_nobody_knows_is_ignored() -> None:
    request = b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert ask(request) == (200, b"ok\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET healthz HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xff\x00\x00\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nX: " + LONG + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nX: " + LONG, 431),
    ],
)
def test_what_is_not_a_request_for_a_page_is_refused(request_: bytes, status: int) -> None:
    assert ask(request_)[0] == status


def test_a_connection_carries_many_requests() -> None:
    async def main() -> None:
        async with serving(HttpLimits()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            # More than one turn parses, and cut anywhere.
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n" * 150)
            for _ in range(150):
                async with asyncio.timeout(WAIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert b"connection: close" not in head
                    assert await reader.readexactly(3) == b"ok\n"
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\n\r\nGET /he"])
def test_somebody_who_says_no_more_is_cut_off(said: bytes) -> None:
    async def main() -> None:
        async with serving() as port:
            found = await exchange(port, said)
            assert found.count(b"ok\n") == said.count(b"\r\n\r\n")

    asyncio.run(main())


def test_a_connection_without_a_request_is_closed_after_a_while() -> None:
    async def main() -> None:
        async with serving() as port:
            assert (await exchange(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"ok\n")

    asyncio.run(main())


def test_a_full_port_closes_the_connection_that_was_answered_longest_ago() -> None:
    """Or slow ones would keep a probe out, which has to tell how this node is."""

    async def main() -> None:
        async with serving(HttpLimits(connections_max=2)) as port:
            slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in slow:
                writer.write(b"GET /heal")
            for _ in range(3):
                assert (await exchange(port, get("/healthz"))).endswith(b"ok\n")
            async with asyncio.timeout(WAIT_S):
                closed = [asyncio.create_task(reader.read()) for reader, _ in slow]
                await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED)
            for task in closed:
                task.cancel()
            await asyncio.gather(*closed, return_exceptions=True)
            for _, writer in slow:
                writer.close()

    asyncio.run(main())


def test_a_page_that_fails_is_an_answer_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving() as port:
            assert (await exchange(port, get("/broken"))).startswith(b"HTTP/1.1 500")
            assert (await exchange(port, get("/healthz"))).endswith(b"ok\n")

    asyncio.run(main())
    assert "a page that fails" in caplog.text


def test_stopping_ends_connections_that_are_open() -> None:
    async def main() -> None:
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(WAIT_S):
                await reader.readuntil(b"ok\n")
        async with asyncio.timeout(WAIT_S):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()

    asyncio.run(main())


def test_the_loop_turns_between_the_requests_of_a_connection() -> None:
    """Many requests in one read are as many turns: others are served in between."""

    async def main() -> None:
        async with serving(HttpLimits()) as port:
            turns, loop = 0, asyncio.get_running_loop()

            def turn() -> None:
                nonlocal turns
                turns += 1
                loop.call_soon(turn)

            turn()
            wanted = 100
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n" * wanted)
            async with asyncio.timeout(WAIT_S):
                for _ in range(wanted):
                    await reader.readuntil(b"ok\n")
            assert turns >= wanted
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/healthz", "/nothing"])
def test_pipelined_requests_are_answered_seldom_and_in_turn(path: str) -> None:
    """Whoever sends as many as fit waits for its own answers, and does not take a core."""
    per_s, connections, wanted = 100.0, 3, 20
    limits = HttpLimits(probes_per_s=per_s, pages_per_s=per_s)

    async def main() -> None:
        async with serving(limits) as port:
            loop = asyncio.get_running_loop()
            begin_s = loop.time()
            opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
            for _, writer in opened:
                writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode() * wanted)
            async with asyncio.timeout(WAIT_S):
                for reader, _ in opened:
                    for _ in range(wanted):
                        await reader.readuntil(b"\r\n\r\n")
            assert connections * wanted <= 1 + 1.1 * per_s * (loop.time() - begin_s)
            for _, writer in opened:
                writer.close()

    asyncio.run(main())


def test_a_probe_does_not_wait_for_pages_that_wait_for_their_turn() -> None:
    async def main() -> None:
        async with serving(HttpLimits(pages_per_s=0.001)) as port:
            assert (await exchange(port, get("/nothing"))).startswith(b"HTTP/1.1 404")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/nothing") * 10)
            for _ in range(3):
                assert (await exchange(port, get("/healthz"))).endswith(b"ok\n")
            waiting = asyncio.create_task(reader.read())
            await asyncio.sleep(0)
            assert not waiting.done()
            writer.close()
            assert await waiting == b""

    asyncio.run(main())


def test_the_page_of_metrics_is_whole_however_it_is_sliced() -> None:
    """Each family has its help once, before all of its values; the page is made once a second."""

    async def main() -> None:
        metrics = Metrics()
        for number in range(SAMPLES_PER_TURN):
            metrics.rpcs.observe("service", f"method{number}", 0, 0.01)
        first, second = await asyncio.gather(metrics.page(), metrics.page())
        assert first is second
        lines = first.decode().splitlines()
        helps = [line for line in lines if line.startswith("# TYPE")]
        assert len(helps) == len(set(helps))
        name = re.compile(r"onelog_rpc_seconds_bucket\{")
        assert sum(map(bool, map(name.match, lines))) == SAMPLES_PER_TURN * 17
        begin = lines.index("# TYPE onelog_rpc_seconds histogram")
        assert all(
            line.startswith("onelog_rpc_seconds")
            for line in lines[begin + 1 : begin + 1 + SAMPLES_PER_TURN * 19]
        )
        assert b"process_open_fds" in first
        assert await metrics.page() is first

    asyncio.run(main())
