"""The small HTTP server: what it answers, and what it lets nobody do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest

from onelog.node.server.http import HttpLimits, HttpServer, Response

LIMITS = HttpLimits(connections_max=2, request_s_max=0.3, header_bytes_max=1024)
WAIT_S = 5.0


def broken() -> Response:
    raise RuntimeError("a page that fails")


PAGES = {
    "/healthz": lambda: Response(HTTPStatus.OK, b"ok\n"),
    "/ready": lambda: Response.of_json(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False}),
    "/broken": broken,
}


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    server = HttpServer(PAGES, LIMITS)
    port = await server.start("127.0.0.1", 0)
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
    assert f"Content-Length: {len(body)}".encode() in head or request.startswith(b"HEAD")
    return int(head.split()[1]), body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def test_pages_are_answered_with_their_status_and_body() -> None:
    assert ask(get("/healthz")) == (200, b"ok\n")
    assert ask(get("/healthz?verbose=1")) == (200, b"ok\n")
    assert ask(get("/ready")) == (503, b'{\n  "ready": false\n}\n')
    assert ask(get("/nothing"))[0] == 404
    assert ask(b"HEAD /healthz HTTP/1.1\r\nConnection: close\r\n\r\n") == (200, b"")
    assert ask(b"GET /healthz HTTP/1.0\r\n\r\n") == (200, b"ok\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET healthz HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xff\x00\x00\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 2000 + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 2000, 431),
    ],
)
def test_what_is_not_a_request_for_a_page_is_refused(request_: bytes, status: int) -> None:
    assert ask(request_)[0] == status


def test_a_connection_carries_many_requests() -> None:
    async def main() -> None:
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n" * 3)
            for _ in range(3):
                async with asyncio.timeout(WAIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert b"keep-alive" in head
                    assert await reader.readexactly(3) == b"ok\n"
            writer.close()

    asyncio.run(main())


def test_somebody_who_says_nothing_is_cut_off() -> None:
    async def main() -> None:
        async with serving() as port:
            assert await exchange(port, b"GET /heal") == b""

    asyncio.run(main())


def test_connections_above_the_limit_are_turned_away_and_the_others_are_served() -> None:
    async def main() -> None:
        async with serving() as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, writer in held:
                writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
                async with asyncio.timeout(WAIT_S):
                    await reader.readuntil(b"ok\n")
            assert (await exchange(port, get("/healthz"))).startswith(b"HTTP/1.1 503")
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            async with asyncio.timeout(WAIT_S):
                while not (await exchange(port, get("/healthz"))).startswith(b"HTTP/1.1 200"):
                    pass

    asyncio.run(main())


def test_a_page_that_fails_ends_its_connection_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving() as port:
            assert await exchange(port, get("/broken")) == b""
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
            assert await reader.read() == b""
        writer.close()

    asyncio.run(main())
