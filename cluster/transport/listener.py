"""The port where other processes of a cluster call, before and after a handshake.

A caller says what it wants (cluster/transport/connection.py) within a time; then ``answer`` has it,
and the connection is closed when that returns. Callers that have said nothing yet are limited in
number: who floods the port keeps newcomers out for a while, but not the peers that are connected.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from onelog.cluster.transport.connection import Connection, Purpose, split_address
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.wire_errors import WireError

# Callers that have not said yet what they want.
OPENINGS_MAX = 64
OPENING_S_MAX = 2.0

Answer = Callable[[Purpose, Connection], Awaitable[None]]

_log = logging.getLogger("onelog.cluster.listener")


class Listener:
    """See the module's text."""

    def __init__(self, address: str, tls: ssl.SSLContext | None, answer: Answer) -> None:
        self.port = 0
        self._address = address
        self._tls = tls
        self._answer = answer
        self._openings = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; ``OSError`` if that is not possible."""
        host, port = split_address(self._address)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._accept),
            host,
            port,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else OPENING_S_MAX,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End all connections and close the port."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, connection: Connection) -> None:
        if self._openings >= OPENINGS_MAX or self._server is None:
            _log.warning("turned %s away: %d callers are waiting", connection.peer, self._openings)
            connection.abort()
            return
        self._openings += 1
        task = asyncio.ensure_future(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: Connection) -> None:
        try:
            purpose = await self._opened(connection)
            if purpose is not None:
                await self._answer(purpose, connection)
        except (LinkEnded, WireError) as error:
            _log.info("a caller at %s: %s", connection.peer, error)
        except Exception:  # noqa: BLE001
            # Whatever a caller does ends its connection, never the process.
            _log.exception("while a caller at %s was answered", connection.peer)
        finally:
            await connection.close()

    async def _opened(self, connection: Connection) -> Purpose | None:
        """Return what a caller wants; None if it does not say so in time."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(OPENING_S_MAX):
                    return await connection.opened()
            _log.info("a caller at %s says nothing", connection.peer)
            return None
        finally:
            self._openings -= 1
