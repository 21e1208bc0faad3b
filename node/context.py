"""What a service of the API is given: the node around it, and nothing of how it was put together.

A service is made once, before the shards have recovered, and called only while the node serves:
``NodeContext.drivers`` is empty at first and complete before the first call gets through. Whoever
has a long poll or a stream open watches ``stopping`` and ends it, with a word for the client, when
that is set; what has not ended after ``shutdown.drain_s`` is cut.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

import grpc.aio  # type: ignore[import-untyped]

from node.as_of import PastStates
from node.config import Config
from node.holds import Holding
from node.metrics import Metrics
from node.shard import NodeClock
from node.shard_driver import ShardDriver
from node.snapshots import Snapshots
from node.topology import LiveTopology
from node.tracing import Tracer

if TYPE_CHECKING:
    from cluster.transport import PeerTransport
    from node.balance import LeaderBalance
    from node.edge import Edge


@dataclass(slots=True, eq=False)
class NodeContext:
    """One process of a node, for its services. Everything happens on its loop."""

    config: Config
    node_id: UUID
    node_name: str
    clock: NodeClock
    metrics: Metrics
    topology: LiveTopology
    snapshots: Snapshots
    past: PastStates
    holding: Holding
    started_s: float  # of the clock
    # The shards of this process by number; not all shards, where there are several workers.
    drivers: dict[int, ShardDriver]
    # Set when no new request is taken any more.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    # The streams to the other nodes, for status and membership; None until there are any.
    transport: "PeerTransport | None" = None
    # Whoever moves a leadership on purpose tells it (``hold``), or it would be moved back.
    balance: "LeaderBalance | None" = None
    # How this node calls other nodes' API endpoints when it forwards; None: without TLS.
    forward_credentials: grpc.ChannelCredentials | None = None
    # Writes spans of requests, if the settings want that.
    tracer: Tracer | None = None
    # What all services share; see ``node.edge.edge_of``.
    edge: "Edge | None" = None

    async def close(self) -> None:
        """Let go of what was opened to serve calls."""
        if self.edge is not None:
            await self.edge.close()
        await self.past.close()
        self.snapshots.close()


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service: its full name, for health and reflection, and how a server gets it."""

    name: str
    add_to: Callable[[grpc.aio.Server], None]


ServiceFactory = Callable[[NodeContext], Service]
