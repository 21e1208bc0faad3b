"""Whether this process serves, for gRPC's own health checks (``grpc.health.v1``).

A service that this process has is SERVING or NOT_SERVING, as the server sets it; the empty name
stands for the whole. Another name is NOT_FOUND, and to a watcher SERVICE_UNKNOWN, since it may
still come. A watcher is sent what holds now, then each change; of changes in quick succession, the
last.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]

from onelog.errors import NotFound
from onelog.node.context import Service
from onelog.node.edge.calls import Call, Calls

_STATUS = health_pb2.HealthCheckResponse


class Health:
    """The states of the services of one process."""

    def __init__(self) -> None:
        self._states: dict[str, int] = {}
        self._watchers: set[asyncio.Event] = set()

    def service(self, calls: Calls) -> Service:
        """Return the service of gRPC."""
        return calls.service(health_pb2.DESCRIPTOR.services_by_name["Health"], self, is_open=True)

    def set(self, name: str, *, is_serving: bool) -> None:
        """Set whether a service is SERVING."""
        self._states[name] = _STATUS.SERVING if is_serving else _STATUS.NOT_SERVING
        for watcher in self._watchers:
            watcher.set()

    async def check(self, request: Any, _call: Call) -> Any:
        """Return the state of one service."""
        state = self._states.get(request.service)
        if state is None:
            raise NotFound(f"there is no service {request.service!r}", reason="SERVICE_UNKNOWN")
        return _STATUS(status=state)

    async def list(self, _request: Any, _call: Call) -> Any:
        """Return the states of all services."""
        answer = health_pb2.HealthListResponse()
        for name, state in self._states.items():
            answer.statuses[name].status = state
        return answer

    async def watch(self, request: Any, _call: Call) -> AsyncIterator[Any]:
        """Send the state of one service, and each change of it."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        sent: int | None = None
        try:
            while True:
                changed.clear()
                state = self._states.get(request.service, _STATUS.SERVICE_UNKNOWN)
                if state != sent:
                    sent = state
                    yield _STATUS(status=state)
                else:
                    await changed.wait()
        finally:
            self._watchers.discard(changed)
