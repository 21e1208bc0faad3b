"""The status of a local cluster: its processes, what each node reports, and what has changed.

``Observer`` asks each node twice: ``/ready`` for its stage, and once it serves clients
``Admin.GetStatus`` for its replicas. Nodes are asked concurrently, each for at most ``ASK_S_MAX``,
so that one that hangs does not hide the others. Their answers are from slightly different moments:
a replica may appear a few entries behind although it is not. Every node has a client of its own,
which knows no other endpoint, so that no other node can answer for it. If some nodes do not serve,
one that does is asked for the members: a node that is none was removed, and does not count.

``History`` compares successive statuses: rates, and events. What happens between two of them is not
seen, for example a node that dies and comes back.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http.client import HTTPException
from time import monotonic
from typing import Any, Self

from onelog.cli.cluster.certificates import CA_NAME, Pair
from onelog.cli.cluster.lifecycle import client_pair, ended_as_removed
from onelog.cli.cluster.state import ClusterDirectory, LocalCluster, LocalNode
from onelog.client.client import AsyncClient
from onelog.client.options import Tls
from onelog.errors import OnelogError
from onelog.v1 import admin_pb2

# How long one node may take to answer.
ASK_S_MAX = 1.0
# A node that has no process, that does not listen yet, or that does not answer.
DOWN, STARTING, SILENT = "down", "starting", "silent"
# A node that serves, and one that would if all its shards had leaders.
SERVING, WAITING = "serving", "waiting"
# A node that serves, but for shards whose logs have to be repaired by other nodes first.
REPAIRING = "repairing"
# A node that waits for the others in order to found the cluster.
FORMING = "forming"
# A node that is no member any more, whether it runs or not.
REMOVED = "removed"
_STAGES_WITH_STATUS = ("electing", REPAIRING, SERVING)
_ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of a shard, as its node sees it."""

    shard: int
    role: str
    term: int
    commit_index: int
    applied_index: int
    holds: tuple[admin_pb2.Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node; ``state`` is its stage, or why it is not known."""

    number: int
    endpoint: str
    state: str
    is_ready: bool = False
    pid: int | None = None
    waiting_for: str = ""
    uptime_s: float | None = None
    replicas: tuple[Replica, ...] = ()
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard over all nodes; ``leader`` is None while none of them leads.

    ``elsewhere`` is the leader's endpoint if the leader is a node that this directory does not
    have. ``behind`` is for each node the number of committed entries it has not applied, or None if
    that is not known. ``holds`` are those that the leader reports. Term and indexes are None while
    no node answers.
    """

    shard: int
    leader: int | None
    term: int | None
    commit_index: int | None
    applied_index: int | None
    behind: dict[int, int | None]
    elsewhere: str = ""
    holds: tuple[admin_pb2.Hold, ...] = ()

    @property
    def leader_name(self) -> str | None:
        """The leader's name or endpoint; None while there is no leader."""
        return self.elsewhere or None if self.leader is None else f"node {self.leader}"


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster at one moment; ``at_s`` is a time of the monotonic clock."""

    is_up: bool
    at_s: float
    nodes: tuple[NodeStatus, ...]
    shards: tuple[ShardStatus, ...]

    @property
    def members(self) -> tuple[NodeStatus, ...]:
        """The nodes that were not removed from the cluster."""
        return tuple(node for node in self.nodes if node.state != REMOVED)

    @property
    def is_whole(self) -> bool:
        """Whether every member serves and every shard has a leader."""
        return all(node.is_ready for node in self.members) and all(
            shard.leader_name is not None for shard in self.shards
        )


class Observer:
    """Asks a cluster for its status repeatedly; keeps its connections in between."""

    def __init__(self, directory: ClusterDirectory) -> None:
        self._directory = directory
        self._clients: dict[str, AsyncClient] = {}
        # The applied index of each replica in its last answer, by node and shard.
        self._applied: dict[tuple[int, int], int] = {}

    async def look(self) -> ClusterStatus:
        """Ask all nodes and return the status now."""
        cluster = self._directory.load()
        nodes = tuple(await asyncio.gather(*map(self._node, cluster.nodes)))
        if not all(node.is_ready for node in nodes):
            nodes = await self._find_removed(cluster, nodes)
        shards = self.combine(nodes, cluster.shards)
        if any(shard.leader is None for shard in shards):
            shards = await self._look_elsewhere(nodes, shards)
        return ClusterStatus(cluster.is_up, monotonic(), nodes, shards)

    def combine(self, nodes: Sequence[NodeStatus], shards: int) -> tuple[ShardStatus, ...]:
        """Return the status of the shards from what the nodes reported."""
        for node in nodes:
            for replica in node.replicas:
                self._applied[node.number, replica.shard] = replica.applied_index
        return tuple(self._shard(shard, nodes) for shard in range(shards))

    async def _look_elsewhere(
        self, nodes: Sequence[NodeStatus], shards: tuple[ShardStatus, ...]
    ) -> tuple[ShardStatus, ...]:
        """Find the leaders of shards that no node of this directory leads."""
        ours = {node.endpoint for node in nodes}
        asked = next((node for node in nodes if node.is_ready), None)
        if asked is None:
            return shards
        try:
            answer = await self._client(asked.endpoint).admin.topology()
        except OnelogError:
            return shards  # the node has just ended; the next status shows it
        found = {each.shard: each.leader_endpoint for each in answer.shards}
        elsewhere = {shard: each for shard, each in found.items() if each not in ours}
        return tuple(
            shard
            if shard.leader is not None
            else replace(shard, elsewhere=elsewhere.get(shard.shard, ""))
            for shard in shards
        )

    async def _find_removed(
        self, cluster: LocalCluster, nodes: tuple[NodeStatus, ...]
    ) -> tuple[NodeStatus, ...]:
        """Return the nodes with those as removed that are members of no shard."""
        asked = next((node for node in nodes if node.is_ready), None)
        if asked is None:
            return nodes
        try:
            answer = await self._client(asked.endpoint).admin.members()
        except OnelogError:
            return nodes
        names = {each.node_name for shard in answer.shards for each in shard.members}
        if "" in names:
            return nodes  # the leader does not know every member yet
        return tuple(
            node
            if node.is_ready or cluster.node(node.number).name in names
            else replace(node, state=REMOVED)
            for node in nodes
        )

    async def _node(self, node: LocalNode) -> NodeStatus:
        pid = node.pid
        if pid is None:
            is_removed = ended_as_removed(self._directory, node.number)
            return NodeStatus(node.number, node.endpoint, REMOVED if is_removed else DOWN)
        try:
            ready = await asyncio.to_thread(_ask_ready, node.http)
        except ConnectionRefusedError:
            return NodeStatus(node.number, node.endpoint, STARTING, pid=pid)
        except (OSError, HTTPException, ValueError):
            return NodeStatus(node.number, node.endpoint, SILENT, pid=pid)
        stage = str(ready["stage"])
        status: admin_pb2.GetStatusResponse | None = None
        if stage in _STAGES_WITH_STATUS:
            try:
                status = await self._client(node.endpoint).admin.status(endpoint=node.endpoint)
            except OnelogError:
                stage = SILENT  # it ended or hung between the two calls
        is_ready = bool(ready["ready"]) and status is not None
        return NodeStatus(
            node.number,
            node.endpoint,
            WAITING if stage == SERVING and not is_ready else stage,
            is_ready=is_ready,
            pid=pid,
            waiting_for=str(ready["waiting_for"]),
            uptime_s=None if status is None else status.uptime_ms / 1000,
            replicas=() if status is None else tuple(map(_replica, status.shards)),
            alarms=()
            if status is None
            else tuple(f"{each.reason}: {each.message}" for each in status.alarms),
        )

    def _shard(self, shard: int, nodes: Sequence[NodeStatus]) -> ShardStatus:
        answers = {
            node.number: replica
            for node in nodes
            for replica in node.replicas
            if replica.shard == shard
        }
        term = max((each.term for each in answers.values()), default=None)
        # A leader that was replaced and does not know it yet has an older term.
        leader = next(
            (
                number
                for number, each in answers.items()
                if each.role == "leader" and each.term == term
            ),
            None,
        )
        commit_index = max((each.commit_index for each in answers.values()), default=None)
        behind: dict[int, int | None] = {}
        for node in nodes:
            applied = self._applied.get((node.number, shard))
            behind[node.number] = (
                None if applied is None or commit_index is None else max(0, commit_index - applied)
            )
        return ShardStatus(
            shard,
            leader,
            term,
            commit_index,
            max((each.applied_index for each in answers.values()), default=None),
            behind,
            holds=() if leader is None else answers[leader].holds,
        )

    def _client(self, endpoint: str) -> AsyncClient:
        client = self._clients.get(endpoint)
        if client is None:
            client = self._clients[endpoint] = AsyncClient(
                endpoint, timeout_s=ASK_S_MAX, tls=self._tls()
            )
        return client

    def _tls(self) -> Tls | None:
        """Return the credentials of a client on this machine, if the cluster has TLS."""
        if not self._directory.load().is_tls:
            return None
        own = client_pair(self._directory)
        authority = Pair.at(self._directory.certificates, CA_NAME)
        return Tls(
            ca=authority.certificate.read_bytes(),
            certificate=own.certificate.read_bytes(),
            key=own.key.read_bytes(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.close()


def _replica(status: admin_pb2.ShardStatus) -> Replica:
    return Replica(
        status.shard,
        admin_pb2.Role.Name(status.role).removeprefix("ROLE_").lower(),
        status.term,
        status.commit_index,
        status.applied_index,
        tuple(status.holds),
    )


# Ignore a proxy of the environment: the nodes are on this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _ask_ready(address: str) -> dict[str, Any]:
    try:
        with _opener.open(f"http://{address}/ready", timeout=ASK_S_MAX) as answer:
            body = answer.read(_ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(_ANSWER_BYTES_MAX)  # not ready, and it says why
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from None
    found: dict[str, Any] = json.loads(body)
    return found


# History

EVENTS_KEPT_MAX = 100
# A rate covers this many statuses: one interval is too short for a steady value.
RATE_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Event:
    """A change in the cluster, for the user to read."""

    at: datetime
    text: str
    is_bad: bool


class History:
    """Compares successive statuses: which events happened, and how fast shards progress."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT_MAX)
        self._last: ClusterStatus | None = None
        self._leaders: dict[int, str] = {}
        self._behind: set[int] = set()
        self._applied: deque[tuple[float, dict[int, int]]] = deque(maxlen=RATE_LOOKS)

    def add(self, status: ClusterStatus) -> list[Event]:
        """Add a status; return the events since the last one."""
        found: list[tuple[str, bool]] = []
        for node in status.nodes:
            before = None if self._last is None else self._last.nodes[node.number - 1]
            found += self._node_events(before, node, status)
        found += self._leader_events(status)
        self._last = status
        # A status without any answer says nothing about progress.
        applied = {shard.shard: shard.applied_index or 0 for shard in status.shards}
        if any(applied.values()):
            self._applied.append((status.at_s, applied))
        now = datetime.now().astimezone()
        events = [Event(now, text, is_bad) for text, is_bad in found]
        self.events.extend(events)
        return events

    def _node_events(
        self, before: NodeStatus | None, node: NodeStatus, status: ClusterStatus
    ) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        name = f"node {node.number}"
        if before is not None and before.state != node.state:
            if node.state == DOWN:
                self._behind.add(node.number)
                found.append((f"{name} down", True))
            elif node.state == REMOVED:
                found.append((f"{name} was removed from the cluster", False))
            elif before.state == DOWN:
                found.append((f"{name} started, process {node.pid}", False))
            elif node.state == SERVING:
                found.append((f"{name} serving", False))
        is_behind = any(shard.behind[node.number] for shard in status.shards)
        if node.number in self._behind and node.is_ready and not is_behind:
            self._behind.discard(node.number)
            found.append((f"{name} has caught up", False))
        known = () if before is None else before.alarms
        found += [(f"{name}: {alarm}", True) for alarm in node.alarms if alarm not in known]
        return found

    def _leader_events(self, status: ClusterStatus) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        led_before = (
            {} if self._last is None else {s.shard: s.leader_name for s in self._last.shards}
        )
        for shard in status.shards:
            was, last = led_before.get(shard.shard), self._leaders.get(shard.shard)
            leader = shard.leader_name
            if leader is None:
                if was is not None:
                    found.append((f"shard {shard.shard} has no leader", True))
                continue
            self._leaders[shard.shard] = leader
            if last is None:
                found.append((f"{leader} leads shard {shard.shard}", False))
            elif last != leader:
                found.append((f"leader of shard {shard.shard} moved to {leader}", False))
            elif was is None:
                found.append((f"{leader} leads shard {shard.shard} again", False))
        return found

    def entries_per_s(self, shard: int) -> float | None:
        """Return the entries per second that a shard has applied lately; None if not known yet."""
        if len(self._applied) < 2:
            return None
        (first_s, first), (last_s, last) = self._applied[0], self._applied[-1]
        return max(0.0, (last[shard] - first[shard]) / (last_s - first_s))
