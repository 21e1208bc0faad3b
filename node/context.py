"""What a service of the API is given: the node around it, and nothing of how it was put together.

A service is made once, before the shards have recovered, and called only while the node serves:
``NodeContext.drivers`` is empty at first and complete before the first call gets through, but for
shards whose logs have to be repaired before they start (``repairs``). A service
with a long poll or a stream open watches ``stopping`` and ends it with a status for the client when
that is set; what has not ended after ``shutdown.drain_s`` is cut.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from onelog.node.config.schema import Config
from onelog.node.credentials import Credentials
from onelog.node.membership.topology import LiveTopology
from onelog.node.metrics import Metrics
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.retention import Holding
from onelog.node.replica.shard import NodeClock
from onelog.node.replica.start_repair import StartRepair
from onelog.node.snapshots.past import PastStates
from onelog.node.snapshots.taking import Snapshots
from onelog.node.tracing import Tracer

if TYPE_CHECKING:
    from onelog.cluster.transport.peers import PeerTransport
    from onelog.node.edge.exchange import Exchange
    from onelog.node.edge.shards import Edge
    from onelog.node.membership.balance import LeaderBalance


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
    # Those that start when their logs are repaired, and are in ``drivers`` from then on.
    repairs: Mapping[int, StartRepair] = field(default_factory=dict)
    # Set when no new request is taken any more.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    # The streams to the other nodes, for status and membership; None until there are any.
    transport: "PeerTransport | None" = None
    # An operator's transfer calls its ``hold``, or the leadership would be moved back.
    balance: "LeaderBalance | None" = None
    # The certificates of this process, and their alarms; None: without TLS.
    credentials: Credentials | None = None
    # Writes spans of requests, if the settings want that.
    tracer: Tracer | None = None
    # What services do by themselves while the node serves; an error ends the node.
    chores: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    # What all services share; see ``onelog.node.edge.shards.get_edge``.
    edge: "Edge | None" = None

    async def close(self) -> None:
        """Close what was opened to serve calls."""
        if self.edge is not None:
            await self.edge.close()
        await self.past.close()
        self.snapshots.close()


class Kind(Enum):
    """What a method takes and gives."""

    UNARY = "a request, an answer"
    STREAM = "a request, a stream of answers"
    BOTH = "a stream of requests, a stream of answers"


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """One method of the API, as the port calls it."""

    service: str
    name: str
    kind: Kind
    # Makes a request of its bytes; raises InvalidArgument.
    decode: Callable[[bytes], Any]
    # Carries a call out: given the exchange, the decoded request (of BOTH: the requests as they
    # come) and the size of the request. Returns the bytes of the answer if it is UNARY.
    serve: "Callable[[Exchange, Any, int], Coroutine[Any, Any, bytes | None]]"
    # Answered in every stage of the node and counted apart: health and reflection.
    is_open: bool = False
    path: str = field(init=False)

    def __post_init__(self) -> None:
        """Derive the path once: it is compared with that of every call."""
        object.__setattr__(self, "path", f"/{self.service}/{self.name}")


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service: its full name, for health and reflection, and its methods."""

    name: str
    methods: tuple[Method, ...]


ServiceFactory = Callable[[NodeContext], Service]
