"""The HTTP port for programs that watch this node: uvicorn's protocol and a Starlette app.

Requests are parsed by httptools and answered by Starlette, inside the node's own loop. uvicorn's
server is left out, since a node has its own signals, log and shutdown; and so that this port
accepts connections like the others (cluster/transport/accepting.py). What a caller can use up:

* connections: at the limit the one that was answered longest ago is closed. So slow connections
  cannot keep a probe out, however many there are;
* time: a request is received and answered within ``request_s_max``, and a connection without a
  request is closed after ``keep_alive_s_max``;
* bytes: a head has at most ``header_bytes_max``, and a request has no body;
* the loop: ``PART_BYTES`` of a connection are parsed in a turn, and no more of it while a request
  is being answered. Requests are answered one in a turn, connection by connection, and at most
  ``probes_per_s`` and ``pages_per_s`` of all connections together. So a caller that sends as many
  as fit waits for its own answers, and delays no call of a client. Probes do not wait for other
  requests.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import httptools
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from onelog.cluster.transport.accepting import AcceptLimits, Acceptor, RareLog, Turns

_log = logging.getLogger("onelog.node.http")
# It warns of every bad request; errors are those of a page.
logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
# What is parsed in one turn: a request of a probe or of Prometheus, or a few dozen short ones.
PART_BYTES = 1 << 10
VERSIONS = ("1.0", "1.1")

Page = Callable[[], Awaitable[Response]]


def respond(status: HTTPStatus, body: bytes, content_type: str = TEXT) -> Response:
    """Return an answer that nobody keeps."""
    headers = {"content-type": content_type, "cache-control": "no-store"}
    return Response(body, status.value, headers)


def respond_json(status: HTTPStatus, value: object) -> Response:
    """Return a value as JSON, for people and programs."""
    return respond(status, json.dumps(value, indent=2).encode() + b"\n", JSON)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What callers may use up; see the module's text."""

    connections_max: int = 64
    request_s_max: float = 10.0
    header_bytes_max: int = 16 << 10
    keep_alive_s_max: int = 75
    probes_per_s: float = 200.0
    pages_per_s: float = 50.0


class HttpServer:
    """Answers on one port. Everything happens on one loop."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        probes: Mapping[str, Page],
        limits: HttpLimits | None = None,
    ) -> None:
        """``probes`` are pages that do not wait behind requests for others."""
        self.limits = limits or HttpLimits()
        self.state = ServerState()
        most = self.limits.connections_max
        accept_limits = AcceptLimits(most, most, most, self.limits.request_s_max)
        self.acceptor = Acceptor(
            host, port, accept_limits, lambda: HttpConnection(self), RareLog(_log),
            make_room=self._close_oldest,
        )  # fmt: skip
        self._pages = dict(pages) | dict(probes)
        self._probes = frozenset(probes)
        self._probe_turns = Turns(self.limits.probes_per_s)
        self._page_turns = Turns(self.limits.pages_per_s)
        self.config = UvicornConfig(
            _make_app(self._pages),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=self.limits.keep_alive_s_max,
        )
        self._connections: dict[HttpConnection, None] = {}  # answered longest ago first

    async def start(self) -> int:
        """Listen; return the port. ``OSError`` if that is not possible."""
        found = await self.acceptor.bind()
        self.acceptor.start()
        return found

    async def stop(self) -> None:
        """Close the port and every connection."""
        await self.acceptor.stop()
        for each in tuple(self._connections):
            each.abort()
        for task in self.state.tasks:
            task.cancel()
        await asyncio.gather(*self.state.tasks, return_exceptions=True)
        self._pages.clear()  # or the app, which refers to itself, would keep the node

    # What connections say

    def turns(self, path: str) -> Turns:
        """Return where a request waits for its turn, also one for a page that does not exist."""
        return self._probe_turns if path in self._probes else self._page_turns

    def touch(self, connection: "HttpConnection") -> None:
        """Count a connection as new, or as one that was just answered."""
        self._connections.pop(connection, None)
        self._connections[connection] = None

    def leave(self, connection: "HttpConnection") -> None:
        """Count a connection out."""
        self._connections.pop(connection, None)
        self.acceptor.leave(connection)

    def _close_oldest(self) -> bool:
        if not self._connections:
            return False
        oldest = next(iter(self._connections))
        self.leave(oldest)
        oldest.abort()
        return True


def _make_app(pages: Mapping[str, Page]) -> Starlette:
    app = Starlette(routes=[Route(path, _answer_with(pages, path)) for path in pages])
    app.router.redirect_slashes = False
    return app


def _answer_with(pages: Mapping[str, Page], path: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        return await pages[path]()

    return answer


class HttpConnection(HttpToolsProtocol):
    """uvicorn's connection, with limits on what is parsed in a turn, on heads and on time."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.config, server.state, {})
        self.access_log = False
        self.is_made = False
        self._server = server
        self._unparsed = bytearray()
        self._head_bytes = 0  # of a request whose head is not complete
        self._problem = HTTPStatus.BAD_REQUEST
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._cycles: list[RequestResponseCycle] = []  # of requests that are not answered yet
        self._turn: asyncio.Future[bool] | None = None  # of the first of them
        self._pages, self.app = self.app, self._answer_in_turn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        self.is_made = True
        super().connection_made(transport)
        self._server.touch(self)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._disconnect()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_timer()
        self._unparsed.clear()
        self._server.leave(self)

    def abort(self) -> None:
        """Close at once."""
        self._disconnect()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes; what is more than one turn's waits for the next."""
        self._unset_keepalive_if_required()
        if self._timer is None:
            self._start_timer()
        self._unparsed += data
        if not self._is_due:
            self._take_turn()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuse a request with a body: where the next request begins would depend on it."""
        super().on_header(name, value)
        name = name.lower()
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0"):
            self._problem = HTTPStatus.REQUEST_ENTITY_TOO_LARGE

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._head_bytes = 0
        has_body = self._problem is HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        if has_body or self.parser.get_http_version() not in VERSIONS:
            raise ValueError("not a request of ours")  # ends the parser's turn
        super().on_headers_complete()
        self._cycles.append(self.cycle)

    def on_response_complete(self) -> None:
        """Go on with what was received meanwhile."""
        super().on_response_complete()
        self._cycles = [each for each in self._cycles if not each.response_complete]
        self._stop_timer()
        if self.transport.is_closing():
            return
        self._server.touch(self)
        if self._unparsed or self._is_answering:
            self._unset_keepalive_if_required()
            self._start_timer()
        self._continue()

    # Inside

    async def _answer_in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request when it is its turn, as uvicorn's application."""
        self._turn = self._server.turns(scope["path"]).enter()
        if await self._turn:
            await self._pages(scope, receive, send)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _take_turn(self) -> None:
        self._is_due = False
        if self.transport.is_closing():
            return
        if not self._is_answering:
            part = bytes(self._unparsed[:PART_BYTES])
            del self._unparsed[:PART_BYTES]
            self._parse(part)
        self._continue()

    def _parse(self, part: bytes) -> None:
        self._head_bytes += len(part)
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # it is answered, and nothing else is
            self._unparsed.clear()
        except httptools.HttpParserError:
            self._refuse(self._problem)
        else:
            if self._head_bytes > self._server.limits.header_bytes_max:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _continue(self) -> None:
        """Read on, or parse more in the next turn, or wait for the answer."""
        if self.transport.is_closing():
            return
        if not self._unparsed:
            self.flow.resume_reading()
            return
        self.flow.pause_reading()
        if not self._is_due and not self._is_answering:
            self._is_due = True
            self.loop.call_soon(self._take_turn)

    def _refuse(self, status: HTTPStatus) -> None:
        """Say why a request is not answered, unless another is, and close."""
        if not self._is_answering:
            body = f"{status.value} {status.phrase}\n".encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {TEXT}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self._disconnect()
        self.transport.close()

    def _disconnect(self) -> None:
        """Stop all answers; uvicorn itself knows only the last request."""
        for each in self._cycles:
            each.disconnected = True
            each.message_event.set()
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(False)
        self._cycles.clear()
        self.pipeline.clear()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._server.limits.request_s_max, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
