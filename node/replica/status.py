"""What a replica says about itself, as one value; also after it has stopped."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from onelog.cluster.errors import ClusterError
from onelog.cluster.raft.member import CANDIDATE, FOLLOWER, LEADER
from onelog.cluster.raft.state_comparison import ComparisonStatus
from onelog.node.replica.shipping import ShippingStatus

if TYPE_CHECKING:
    from onelog.node.replica.shard import Shard

_ROLES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}


@dataclass(frozen=True, slots=True)
class PeerLag:
    """As the leader knows it: how many proposals a peer is behind the end of the log."""

    unsynced: int
    unreceived: int
    needs_snapshot: bool


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One replica of one shard. Indexes are those of entries."""

    role: str  # leader, candidate, follower, learner, removed or stopped
    term: int
    leader: UUID | None
    first_index: int
    last_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    age_s: float  # how old the state is at most, by this replica's clock; infinite if unknown
    lag: dict[UUID, PeerLag]  # empty unless it leads
    comparison: ComparisonStatus
    shipping: ShippingStatus  # snapshots on their way, and repairs
    clock_offset_ns: int  # wall clock minus log time, when this replica last stamped something
    alarms: tuple[str, ...]  # REASON: text, for people and for monitoring


def status_of(shard: "Shard") -> ShardStatus:
    """Return the status of a replica."""
    member, log = shard.member, shard.log
    leadership, membership = member.leadership, member.membership
    comparison = shard.comparison.status()
    role = _ROLES[member.state]
    if shard.failure is not None:
        role = "stopped"
    elif member.self_id in membership.learners:
        role = "learner"
    elif member.self_id not in membership.voters:
        role = "removed"
    lag = {}
    if role == "leader":
        last, behind = member.journal.last, leadership.peers_behind
        for peer_id, peer in leadership.peers.items():
            lag[peer_id] = PeerLag(last - peer.match, last - peer.received, peer_id in behind)
    return ShardStatus(
        role=role,
        term=member.term,
        leader=None if shard.failure is not None else member.leader_id,
        first_index=log.first_index,
        last_index=log.last_index,
        durable_index=log.durable_index,
        commit_index=log.commit_index,
        applied_index=log.applied_index,
        age_s=leadership.freshness.age_s(member.applied),
        lag=lag,
        comparison=comparison,
        shipping=shard.shipping.status,
        clock_offset_ns=shard.log_time.offset_ns,
        alarms=_alarms(shard, comparison),
    )


def _alarms(shard: "Shard", comparison: ComparisonStatus) -> tuple[str, ...]:
    alarms = []
    failure = shard.failure
    if failure is not None:
        reason = failure.reason if isinstance(failure, ClusterError) else type(failure).__name__
        alarms.append(f"{reason}: {failure}")
    if comparison.alarm is not None and comparison.agreed_index < comparison.alarm.index:
        alarms.append(f"STATES_DIFFER: {comparison.alarm}")
    if shard.log_time.is_alarming:
        offset_s = shard.log_time.offset_ns / 1e9
        alarms.append(f"CLOCK_OFFSET: the wall clock is {offset_s:+.1f} s away from log time")
    for damage in shard.shipping.mending.damages.values():
        found = f"{damage.path}, entries {damage.first_index} to {damage.last_index}: {damage.rule}"
        where = "; no member can give a copy" if damage.is_alarming else "; being repaired"
        alarms.append(f"LOG_DAMAGED: {found}{where}")
    return tuple(alarms)
