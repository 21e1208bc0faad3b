"""Who serves what, as this process sees it now: for clients, for forwarding, for operators.

Nothing is stored that somebody else knows better. Leaders are asked of the shards here at the
moment of the question; names and endpoints of other nodes come with their last hello. Only what
other workers of this node serve is learned from them (``learn``).

What it says may be out of date by the time it is used: a wrong leader costs a forwarded request
and is no error.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from onelog.ual.directory import Topology


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: ``endpoints`` has the API endpoint of each worker, empty while not known."""

    node_id: UUID
    name: str
    endpoints: tuple[str, ...]
    peer_address: str
    is_connected: bool  # to this process; itself always


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The leader of a shard, its term, and the members of the shard."""

    leader_id: UUID | None
    term: int
    members: tuple[UUID, ...] = ()


class LiveTopology:
    """See the module's text. Safe to ask at any time, also before the shards have recovered."""

    def __init__(self, node: NodeView, worker: int) -> None:
        # Known when the cluster is founded, and so before a service is called.
        self.cluster_id = UUID(int=0)
        self.shards = 0
        self.partitions = 0
        self.workers = len(node.endpoints)
        self.worker = worker
        self.self_id = node.node_id
        self._self = node
        self._peers: Callable[[], Iterable[NodeView]] = lambda: ()
        self._local: Callable[[int], LeaderView | None] = lambda _shard: None
        self._received: dict[int, LeaderView] = {}

    def found(self, cluster_id: UUID, topology: Topology) -> None:
        """Take what is fixed when a cluster is founded."""
        self.cluster_id = cluster_id
        self.shards = topology.shards
        self.partitions = topology.partitions

    def attach(
        self,
        peers: Callable[[], Iterable[NodeView]],
        local: Callable[[int], LeaderView | None],
    ) -> None:
        """Set the sources of the other nodes, and of the leaders of the shards here."""
        self._peers = peers
        self._local = local

    def learn(self, leaders: Mapping[int, LeaderView]) -> None:
        """Take what another worker of this node says of its shards."""
        for shard, view in leaders.items():
            if 0 <= shard < self.shards and not self.is_local(shard):
                known = self._received.get(shard)
                if known is None or view.term >= known.term:
                    self._received[shard] = view

    def find_worker(self, shard: int) -> int:
        """Return which worker of every node serves a shard."""
        return shard % self.workers

    def is_local(self, shard: int) -> bool:
        """Tell whether this process holds a replica of a shard."""
        return self.find_worker(shard) == self.worker

    def nodes(self) -> list[NodeView]:
        """Return all nodes, this one first."""
        return [self._self, *self._peers()]

    def node(self, node_id: UUID) -> NodeView | None:
        """Return a node, if it is known."""
        return next((each for each in self.nodes() if each.node_id == node_id), None)

    def leader(self, shard: int) -> LeaderView:
        """Return who leads a shard; its ``leader_id`` is None while nobody is known to."""
        view = self._local(shard) if self.is_local(shard) else self._received.get(shard)
        return view or LeaderView(None, 0)

    def endpoint(self, shard: int, node_id: UUID) -> str | None:
        """Return where a node serves a shard."""
        node, worker = self.node(node_id), self.find_worker(shard)
        return node.endpoints[worker] if node and worker < len(node.endpoints) else None

    def leader_endpoint(self, shard: int) -> str | None:
        """Return where the leader of a shard serves it."""
        leader_id = self.leader(shard).leader_id
        return None if leader_id is None else self.endpoint(shard, leader_id)

    def endpoints(self, shard: int) -> list[str]:
        """Return where any node serves a shard, this one first."""
        found = (self.endpoint(shard, each.node_id) for each in self.nodes())
        return [each for each in found if each is not None]
