"""Whether a process serves clients, and if not, why, and how far it is.

A process goes through *forming* (until it belongs to a cluster), *recovering* (its shards replay
their logs), *electing* (until every shard here has had a leader), *serving* and *stopping*, or
*removed* if its cluster does not want it any more. It is ready while serving. While a shard cannot
start because its log has to be repaired first, the process is *repairing*: it serves the others,
and is not ready. A shard without a leader, or whose leader is not heard here, makes a serving node
not ready only after a while: elections are short, and a load balancer that took every node away for
one would do harm.

Progress is written by the thread that recovers and read by the loop: single assignments of whole
values, so that no lock is needed.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from onelog.cluster.raft.member import LEADER
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.start_repair import StartRepair
from onelog.node.replicas import RecoveryStopped
from onelog.snapshot.progress import Phase

# A serving node stays ready for this long while a shard has no leader.
LEADERLESS_S_MAX = 5.0


class Stage(StrEnum):
    """What a process is doing."""

    FORMING = "forming"
    RECOVERING = "recovering"
    ELECTING = "electing"
    SERVING = "serving"
    REPAIRING = "repairing"
    STOPPING = "stopping"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """How far the recovery of a shard is: ``done`` of ``total`` bytes or entries of a phase."""

    phase: str
    done: int
    total: int


class Readiness:
    """See the module's text."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.stage = Stage.FORMING
        self.waiting_for = ""
        self._now_s = now_s
        self._progress: dict[int, ShardProgress] = {}
        self._drivers: Mapping[int, ShardDriver] = {}
        self._led_s: dict[int, float] = {}
        self._is_stopping = False
        # The shards that this node was removed from.
        self.removed: Collection[int] = ()
        # The shards that start when their logs are repaired.
        self.repairs: Mapping[int, StartRepair] = {}

    # Called by the server

    def say(self, waiting_for: str) -> None:
        """Record what the process is waiting for."""
        self.waiting_for = waiting_for

    def recover(self, shards: list[int]) -> None:
        """Begin to recover these shards."""
        self.stage = Stage.RECOVERING
        self.waiting_for = ""
        self._progress = {shard: ShardProgress("waiting", 0, 0) for shard in shards}

    def progress(self, shard: int, phase: Phase, done: int, total: int) -> None:
        """Record progress, on the recovery thread; raise ``RecoveryStopped`` if it should stop."""
        self._progress[shard] = ShardProgress(phase.value, done, total)
        if self._is_stopping:
            raise RecoveryStopped

    def elect(self, drivers: Mapping[int, ShardDriver]) -> None:
        """Record that all shards have recovered; wait for their leaders."""
        self.stage = Stage.ELECTING
        self._drivers = drivers
        self._progress = {
            shard: ShardProgress("done", each.total, each.total)
            for shard, each in self._progress.items()
        }

    def remove(self) -> None:
        """Stop being ready for good: the node is no member any more."""
        self.stage = Stage.REMOVED
        self.waiting_for = "nothing: the cluster has removed this node"

    def stop(self) -> None:
        """Stop being ready, and abort a recovery that is running."""
        if self.stage is not Stage.REMOVED:
            self.stage = Stage.STOPPING
        self._is_stopping = True

    # Queries

    def look(self) -> bool:
        """Check the shards and return whether the process is ready."""
        if self.stage not in (Stage.ELECTING, Stage.SERVING):
            return False
        now_s = self._now_s()
        for shard, driver in self._drivers.items():
            member = driver.shard.member
            # A leader that has applied nothing of its own term yet cannot serve reads.
            if member.hears_leader and (member.state != LEADER or member.has_applied_noop):
                self._led_s[shard] = now_s
        if self.stage is Stage.ELECTING and len(self._led_s) == len(self._drivers):
            self.stage = Stage.SERVING
        return self.stage is Stage.SERVING and not self.leaderless() and not self.repairs

    def leaderless(self) -> list[int]:
        """Return the shards that have had no leader for too long."""
        oldest_s = self._now_s() - LEADERLESS_S_MAX
        if self.stage is Stage.ELECTING:
            return [shard for shard in self._drivers if shard not in self._led_s]
        return [shard for shard in self._drivers if self._led_s.get(shard, 0.0) < oldest_s]

    def report(self) -> dict[str, Any]:
        """Return what ``/ready`` shows."""
        is_ready = self.look()
        shards: dict[str, Any] = {}
        for shard, progress in sorted(self._progress.items()):
            shards[str(shard)] = {"recovery": asdict(progress)}
        for shard, driver in self._drivers.items():
            member = driver.shard.member
            leader_id = member.leader_id
            shards.setdefault(str(shard), {}).update(
                applied_index=driver.shard.log.applied_index,
                commit_index=driver.shard.log.commit_index,
                leader_id=None if leader_id is None else str(leader_id),
                term=member.term,
            )
        for shard, repair in self.repairs.items():
            shards.setdefault(str(shard), {}).update(repair=repair.report())
        is_repairing = bool(self.repairs) and self.stage in (Stage.ELECTING, Stage.SERVING)
        return {
            "ready": is_ready,
            "stage": (Stage.REPAIRING if is_repairing else self.stage).value,
            "waiting_for": self.waiting_for or self._missing(),
            "shards": shards,
        }

    def _missing(self) -> str:
        if self.removed and self.stage is not Stage.REMOVED:
            shards = ", ".join(map(str, sorted(self.removed)))
            return f"the rest of its removal: it was removed from shard {shards} only; repeat it"
        if self.stage in (Stage.ELECTING, Stage.SERVING):
            if self.repairs:
                return "; ".join(each.describe() for each in self.repairs.values())
            leaderless = self.leaderless()
            if leaderless:
                return f"a leader of shard {', '.join(map(str, leaderless))}"
        return ""
