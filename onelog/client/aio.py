"""The async client: ``from onelog import AsyncClient``."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from onelog.client.connection import Connection
from onelog.client.kv import AsyncKV
from onelog.client.options import DEFAULT_ENDPOINT, ClientOptions, Durability, Scope


class AsyncClient:
    """A database, from a program with an event loop.

    It belongs to the loop in which it is first used, and connects then. Views made with
    ``namespace`` and ``scoped`` share its connections; closing one closes all. A client does not
    survive ``fork``: make one in each process.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        options: ClientOptions | None = None,
        **settings: Any,
    ) -> None:
        """Endpoints are ``host:port``, one or several; ``settings`` are those of ClientOptions."""
        found = ClientOptions(**settings) if options is None else replace(options, **settings)
        listed = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        if not listed:
            raise ValueError("a client needs an endpoint")
        self._attach(Connection(listed, found), Scope(timeout_s=found.timeout_s))

    def _attach(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope
        self._kv = AsyncKV(connection, scope)

    @property
    def kv(self) -> AsyncKV:
        """Keys."""
        return self._kv

    def namespace(self, name: str) -> Self:
        """Return a view of another namespace."""
        return self._view(replace(self._scope, namespace=name))

    def scoped(
        self, *, timeout_s: float | None = None, durability: Durability | None = None
    ) -> Self:
        """Return a view whose calls have another timeout, or answer writes earlier."""
        scope = self._scope
        if timeout_s is not None:
            scope = replace(scope, timeout_s=timeout_s)
        if durability is not None:
            scope = replace(scope, durability=durability)
        return self._view(scope)

    async def connect(self) -> None:
        """Connect now instead of with the first call."""
        await self._connection.ready(self._scope.timeout_s)

    async def close(self) -> None:
        """Close all connections; calls under way fail with CLIENT_CLOSED."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _view(self, scope: Scope) -> Self:
        view = object.__new__(type(self))
        view._attach(self._connection, scope)
        return view
