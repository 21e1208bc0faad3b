"""Two or more real transports on loopback, inside one loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import grpc.aio  # type: ignore[import-untyped]

from cluster.handshake import Identity
from cluster.messages import Message
from cluster.transport import SERVER_OPTIONS, PeerTransport, TransportConfig

WAIT_S = 10.0
SMALL = UUID(int=1)  # dials
LARGE = UUID(int=2)  # answers
CLUSTER = UUID(int=100)
FAST = TransportConfig(backoff_s_min=0.01, backoff_s_max=0.05, refused_s=0.05, handshake_s_max=1.0)
BASE = Identity(CLUSTER, SMALL, shards=4, partitions=256, incarnation=1)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Let the loop run until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.002)


@dataclass
class Endpoint:
    """A transport, its server and what it was given."""

    transport: PeerTransport
    server: Any
    address: str
    got: list[tuple[UUID, int, Message]] = field(default_factory=list)

    @property
    def node_id(self) -> UUID:
        return self.transport.identity.node_id


def identity(node_id: UUID, **change: Any) -> Identity:
    return replace(BASE, node_id=node_id, incarnation=node_id.int, **change)


@asynccontextmanager
async def endpoint(
    who: Identity,
    *,
    address: str = "127.0.0.1:0",
    config: TransportConfig = FAST,
    server_credentials: Any = None,
    channel_credentials: Any = None,
) -> AsyncIterator[Endpoint]:
    got: list[tuple[UUID, int, Message]] = []

    def deliver(sender: UUID, messages: list[tuple[int, Message]]) -> None:
        got.extend((sender, shard, message) for shard, message in messages)

    transport = PeerTransport(who, deliver, config=config, credentials=channel_credentials)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    transport.attach(server)
    if server_credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, server_credentials)
    await server.start()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(transport.run())
            yield Endpoint(transport, server, f"localhost:{port}", got)
            transport.stop()
    finally:
        await server.stop(0)


def connect(*endpoints: Endpoint) -> None:
    """Tell all endpoints of all others."""
    for each in endpoints:
        others = {other.node_id: other.address for other in endpoints if other is not each}
        each.transport.set_peers(others)


async def connected(*endpoints: Endpoint) -> None:
    connect(*endpoints)
    await until(
        lambda: all(
            status.is_connected for each in endpoints for status in each.transport.status().values()
        )
    )
