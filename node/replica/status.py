"""What a replica says about itself, as one value; also after it has stopped."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from onelog.cluster.raft.member import CANDIDATE, FOLLOWER, LEADER
from onelog.cluster.raft.state_comparison import ComparisonStatus
from onelog.node.replica.shipping import ShippingStatus

if TYPE_CHECKING:
    from onelog.node.replica.shard import Shard

_NO_NAMES: Mapping[UUID, str] = MappingProxyType({})
_ROLES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}


class Alarm(NamedTuple):
    """Something that needs attention, and with what of a shard, where there may be several."""

    reason: str  # one of ``onelog.reasons.ALARMS``
    subject: str
    message: str


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
    # Wall clock minus log time, when it last stamped something or heard a leader.
    clock_offset_ns: int
    alarms: tuple[Alarm, ...]


def describe_status(shard: "Shard") -> ShardStatus:
    """Return the status of a replica."""
    member, log = shard.member, shard.log
    leadership, membership = member.leadership, member.membership
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
        comparison=shard.comparison.status(),
        shipping=shard.shipping.status,
        clock_offset_ns=shard.log_time.offset_ns,
        alarms=tuple(find_alarms(shard)),
    )


def find_alarms(shard: "Shard", names: Mapping[UUID, str] = _NO_NAMES) -> Iterator[Alarm]:
    """Yield what of a replica needs attention; ``onelog.reasons`` lists the reasons.

    ``names`` are those of the members, as far as they are known.
    """
    if shard.failure is not None:
        yield Alarm("REPLICA_STOPPED", "", str(shard.failure))
    refusal = shard.log.guard.refusal
    if refusal is not None:
        yield Alarm(refusal.reason, "", str(refusal))
    if shard.log_time.is_alarming:
        offset_s = shard.log_time.offset_ns / 1e9
        words = f"the wall clock is {offset_s:+.1f} s away from log time, and is not followed"
        yield Alarm("CLOCK_JUMPED", "", words)
    for damage in shard.shipping.repair.damages.values():
        yield Alarm("SEGMENT_DAMAGED", damage.path, damage.describe())
    comparison = shard.comparison.status()
    difference = comparison.alarm
    if difference is not None:
        yield Alarm("STATE_DIVERGED", "", difference.describe(names))
