"""What happens in a cluster from look to look: how fast it goes, and what has changed.

Only what two looks show is told: a node that dies and comes back between them was not seen.
"""

from collections import deque
from dataclasses import dataclass
from datetime import datetime

from onelog.cli.cluster.status import DOWN, SERVING, ClusterStatus, NodeStatus

EVENTS_KEPT_MAX = 100
# A rate is taken over so many looks: a single one is too short to be steady.
RATE_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has changed."""

    at: datetime
    text: str
    is_bad: bool


class History:
    """Fed with one status after the other."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT_MAX)
        self._last: ClusterStatus | None = None
        self._leaders: dict[int, str] = {}
        self._behind: set[int] = set()
        self._applied: deque[tuple[float, dict[int, int]]] = deque(maxlen=RATE_LOOKS)

    def add(self, status: ClusterStatus) -> list[Event]:
        """Take what a look has shown; return what is new in it."""
        found: list[tuple[str, bool]] = []
        for node in status.nodes:
            before = None if self._last is None else self._last.nodes[node.number - 1]
            found += self._of_node(before, node, status)
        found += self._of_leaders(status)
        self._last = status
        # A moment without any answer says nothing about progress.
        if any(shard.applied_index for shard in status.shards):
            applied = {shard.shard: shard.applied_index for shard in status.shards}
            self._applied.append((status.at_s, applied))
        now = datetime.now().astimezone()
        events = [Event(now, text, is_bad) for text, is_bad in found]
        self.events.extend(events)
        return events

    def _of_node(
        self, before: NodeStatus | None, node: NodeStatus, status: ClusterStatus
    ) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        name = f"node {node.number}"
        if before is not None and before.state != node.state:
            if node.state == DOWN:
                self._behind.add(node.number)
                found.append((f"{name} down", True))
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

    def _of_leaders(self, status: ClusterStatus) -> list[tuple[str, bool]]:
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
            if last is not None and last != leader:
                found.append((f"leader of shard {shard.shard} moved to {leader}", False))
            elif last is not None and was is None:
                found.append((f"{leader} leads shard {shard.shard} again", False))
        return found

    def entries_per_s(self, shard: int) -> float | None:
        """Return how many entries a second the shard has applied lately, if that is known yet."""
        if len(self._applied) < 2:
            return None
        (first_s, first), (last_s, last) = self._applied[0], self._applied[-1]
        return max(0.0, (last[shard] - first[shard]) / (last_s - first_s))
