"""What replication can refuse or report.

::

    ClusterError
    ├── NotLeader          propose and read where the leader is
    ├── OutcomeUnknown     a proposal lost its leader: it may or may not take effect
    ├── Discarded          a proposal lost its place: it will never take effect
    ├── Expired            the deadline passed before anything was proposed
    ├── ProposalRefused    too large, or too many are in flight
    ├── StorageFull        the leader's disk is full; nothing was proposed
    │   └── DescriptorsExhausted  it may open no more files; likewise
    ├── ResultNeeded       durability ASYNC for an operation whose answer needs its result
    ├── StaleBoundExceeded the state here may be older than the read allows: ask another replica
    ├── MembershipRefused  not now, or not this change; nothing was proposed
    ├── TransferFailed     the leadership stayed where it was
    ├── ReplicaStopped     this replica met an error after which it must not continue
    ├── StateDiverged      a majority has another state at the same index: this replica is wrong
    └── Diverged           two replicas hold different bytes at the same place: stop and alarm
"""

from typing import ClassVar
from uuid import UUID


class ClusterError(Exception):
    """Base of every error that this package raises on purpose."""

    reason: ClassVar[str] = "CLUSTER_ERROR"


class NotLeader(ClusterError):
    """This replica does not lead its group; ``leader`` does, if known."""

    reason = "NOT_LEADER"

    def __init__(self, leader: UUID | None) -> None:
        super().__init__("no leader is known" if leader is None else f"the leader is {leader}")
        self.leader = leader


class OutcomeUnknown(ClusterError):
    """The proposal may still be committed, by this leader or a later one; retry in a session."""

    reason = "OUTCOME_UNKNOWN"


class Discarded(ClusterError):
    """Another leader's proposal is committed in its place: retry."""

    reason = "DISCARDED"

    def __init__(self, number: int) -> None:
        super().__init__(f"proposal {number} was replaced by another leader's")


class Expired(ClusterError):
    """The deadline passed before anything was proposed: nothing happened."""

    reason = "EXPIRED"


class ProposalRefused(ClusterError):
    """Nothing was proposed: the limit in the message would be exceeded."""

    reason = "OVERLOADED"


class StorageFull(ClusterError):
    """Nothing was proposed: there is no room for it on the leader's disk."""

    reason = "DISK_FULL"


class DescriptorsExhausted(StorageFull):
    """Nothing was proposed: the leader may open no more files."""

    reason = "TOO_MANY_OPEN_FILES"


class ResultNeeded(ClusterError):
    """Nothing was proposed: ASYNC answers before an operation is applied, so it has no result."""

    reason = "ASYNC_NEEDS_RESULT"


class StaleBoundExceeded(ClusterError):
    """This replica cannot show that its state is as recent as the read demands."""

    reason = "STALE_BOUND_EXCEEDED"

    def __init__(self, age_s: float, max_staleness_s: float) -> None:
        known = "of unknown age" if age_s == float("inf") else f"up to {age_s:.3f} s old"
        super().__init__(f"the state here is {known}, the bound is {max_staleness_s:.3f} s")
        self.age_s = age_s


class MembershipRefused(ClusterError):
    """The change of members was not proposed; the message says what is in its way."""

    reason = "MEMBERSHIP_REFUSED"


class TransferFailed(ClusterError):
    """The leadership was not handed over; this replica stays leader if it still is."""

    reason = "TRANSFER_FAILED"


class ReplicaStopped(ClusterError):
    """Something failed that leaves this replica unsure of itself: only a restart helps."""

    reason = "REPLICA_STOPPED"


class Diverged(ClusterError):
    """The same proposal number and term stands for different bytes here and at a peer."""

    reason = "DIVERGED"

    def __init__(self, number: int, term: int) -> None:
        super().__init__(f"proposal {number} of term {term} differs from the leader's")
        self.number = number
        self.term = term


class StateDiverged(ClusterError):
    """A majority of the voters computed another state from the same entries: this one is wrong."""

    reason = "STATE_DIVERGED"

    def __init__(self, shard: int, index: int, owners: tuple[int, ...], text: str) -> None:
        super().__init__(
            f"shard {shard}: {text}; keep this directory, and check it with onelog log prove "
            "before this node is started again"
        )
        self.shard = shard
        self.index = index
        self.owners = owners
