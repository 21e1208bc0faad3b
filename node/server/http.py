"""A small HTTP/1.1 server for machines that watch this one: GET and HEAD of a few paths.

No framework: three pages need none, and each would bring more than it saves. Everything is bounded:
the connections, the head of a request, the time that one may take, and a request has no body.
Whatever a caller sends ends in an answer or a closed connection, never in an error of the node.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

_log = logging.getLogger("onelog.node.http")

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Response:
    """What a page answers."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT

    @classmethod
    def of_json(cls, status: HTTPStatus, value: object) -> "Response":
        """Return a value as JSON."""
        return cls(status, json.dumps(value, indent=2).encode() + b"\n", JSON)

    @classmethod
    def of_status(cls, status: HTTPStatus) -> "Response":
        """Return a status and its words."""
        return cls(status, f"{status.value} {status.phrase}\n".encode())


Page = Callable[[], Response]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What callers may do."""

    connections_max: int = 64
    request_s_max: float = 10.0
    header_bytes_max: int = 16 << 10


class HttpServer:
    """Answers on one port. Everything happens on one loop."""

    def __init__(self, pages: Mapping[str, Page], limits: HttpLimits | None = None) -> None:
        self.refused = 0
        self._pages = pages
        self._limits = limits or HttpLimits()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(
            self._connect, host, port, limit=self._limits.header_bytes_max
        )
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """Close the port and every connection."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) >= 2 * self._limits.connections_max:
                self.refused += 1
                return
            is_too_many = len(self._connections) >= self._limits.connections_max
            self._connections.add(task)
            if is_too_many:
                self.refused += 1
                await self._turn_away(reader, writer)
                return
            while await self._answer(reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.CancelledError):
            return  # gone, too slow, or the node stops
        except Exception:  # noqa: BLE001 - the root of a connection; a page that fails is ours
            _log.exception("an HTTP request failed")
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(OSError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    async def _turn_away(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say that there are too many, after the request: unread bytes would cut the answer off."""
        async with asyncio.timeout(self._limits.request_s_max):
            await reader.read(self._limits.header_bytes_max)
            busy = Response.of_status(HTTPStatus.SERVICE_UNAVAILABLE)
            _write(writer, busy, with_body=True, keep=False)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; tell whether the connection stays open."""
        async with asyncio.timeout(self._limits.request_s_max):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                _write(writer, Response.of_status(status), with_body=True, keep=False)
                await writer.drain()
                return False
            except asyncio.IncompleteReadError:
                return False
            response, with_body, keep = self._respond(head)
            _write(writer, response, with_body=with_body, keep=keep)
            await writer.drain()
            return keep

    def _respond(self, head: bytes) -> tuple[Response, bool, bool]:
        """Return the answer to a request, whether it has a body, and whether to go on."""
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
            return Response.of_status(HTTPStatus.BAD_REQUEST), True, False
        method, target, version = parts
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, colon, value in (line.partition(":") for line in lines)
            if colon
        }
        # Where the next request begins would depend on the body; none of ours has one.
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return Response.of_status(HTTPStatus.REQUEST_ENTITY_TOO_LARGE), True, False
        wish = headers.get("connection", "")
        keep = wish != "close" if version == "HTTP/1.1" else wish == "keep-alive"
        if method not in ("GET", "HEAD"):
            return Response.of_status(HTTPStatus.METHOD_NOT_ALLOWED), True, False
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return Response.of_status(HTTPStatus.NOT_FOUND), method == "GET", keep
        return page(), method == "GET", keep


def _write(
    writer: asyncio.StreamWriter, response: Response, *, with_body: bool, keep: bool
) -> None:
    status = response.status
    allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        f"Cache-Control: no-store\r\n{allow}"
        f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    writer.write(head.encode("latin-1") + (response.body if with_body else b""))
