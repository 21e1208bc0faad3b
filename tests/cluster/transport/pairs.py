"""Two or more real transports on loopback, inside one loop."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from onelog.cluster.raft.messages import Message
from onelog.cluster.transport.connection import Listener, Purpose, connect
from onelog.cluster.transport.handshake import Identity
from onelog.cluster.transport.peers import PeerTransport, TransportConfig
from onelog.cluster.transport.wire import Refused, decode_first

WAIT_S = 120.0
SMALL = UUID(int=1)  # dials
LARGE = UUID(int=2)  # answers
CLUSTER = UUID(int=100)
FAST = TransportConfig(backoff_s_min=0.01, backoff_s_max=0.05, refused_s=0.05, handshake_s_max=1.0)
BASE = Identity(CLUSTER, SMALL, shards=4, partitions=256, incarnation=1)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Run the loop until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.002)


@dataclass
class Endpoint:
    """A transport, its port and what it was given."""

    transport: PeerTransport
    listener: Listener
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
    server_tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Endpoint]:
    got: list[tuple[UUID, int, Message]] = []

    def deliver(sender: UUID, messages: list[tuple[int, Message]]) -> None:
        got.extend((sender, shard, message) for shard, message in messages)

    transport = PeerTransport(who, deliver, config=config, tls=client_tls)
    listener = Listener(address, server_tls, transport.answer)
    await listener.start()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(transport.run())
            yield Endpoint(transport, listener, f"localhost:{listener.port}", got)
            transport.stop()
    finally:
        await listener.stop()


async def heard(address: str, *frames: bytes, purpose: Purpose = Purpose.EXCHANGE) -> Refused:
    """Send frames by hand; return how the other side refused them."""
    connection = await connect(address, purpose)
    try:
        for frame in frames:
            await connection.write(frame)
        while (data := await connection.read()) is not None:
            answer = decode_first(data)
            if isinstance(answer, Refused):
                return answer
    finally:
        await connection.close()
    raise AssertionError("the stream ended without a refusal")


def introduce(*endpoints: Endpoint) -> None:
    """Tell all endpoints of all others."""
    for each in endpoints:
        others = {other.node_id: other.address for other in endpoints if other is not each}
        each.transport.set_peers(others)


async def connected(*endpoints: Endpoint) -> None:
    introduce(*endpoints)
    await until(
        lambda: all(
            status.is_connected for each in endpoints for status in each.transport.status().values()
        )
    )
