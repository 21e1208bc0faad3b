"""Whether two processes may talk: compared before anything else is believed.

Both sides check the other's ``Hello`` with the same rules, and whoever finds a difference says so
before it hangs up, so that both can report it. Nothing here does I/O.
"""

from collections.abc import Container
from dataclasses import dataclass
from uuid import UUID

from onelog.cluster.transport.wire import PROTOCOL_MAX, PROTOCOL_MIN, Hello
from onelog.cluster.transport.wire_errors import Reason, WireError


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is and which cluster it belongs to."""

    cluster_id: UUID
    node_id: UUID
    shards: int
    partitions: int
    incarnation: int  # a random number for the life of the process
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    node_name: str = ""
    endpoints: tuple[str, ...] = ()  # where clients call this node, by worker

    def hello(self, target_id: UUID, session: int) -> Hello:
        """Return what to say to a peer."""
        return Hello(
            self.protocol_min,
            self.protocol_max,
            self.cluster_id,
            self.node_id,
            target_id,
            self.shards,
            self.partitions,
            self.incarnation,
            session,
            self.node_name,
            self.endpoints,
        )


def dials(self_id: UUID, peer_id: UUID) -> bool:
    """Tell which side of a pair opens the stream: the one with the smaller id."""
    return self_id < peer_id


def check_hello(ours: Identity, theirs: Hello, known: Container[UUID]) -> int:
    """Return the protocol version to speak, or raise a ``WireError`` that says what differs.

    The version comes first: of a process that speaks another one, nothing else is sure.
    """
    if theirs.protocol_max < ours.protocol_min:
        raise WireError(
            Reason.PROTOCOL_TOO_OLD,
            f"it speaks up to {theirs.protocol_max}, the oldest here is {ours.protocol_min}",
        )
    if theirs.protocol_min > ours.protocol_max:
        raise WireError(
            Reason.PROTOCOL_TOO_NEW,
            f"it speaks from {theirs.protocol_min} on, the newest here is {ours.protocol_max}",
        )
    if theirs.cluster_id != ours.cluster_id:
        raise WireError(
            Reason.CLUSTER_MISMATCH, f"its cluster is {theirs.cluster_id}, ours {ours.cluster_id}"
        )
    if (theirs.shards, theirs.partitions) != (ours.shards, ours.partitions):
        raise WireError(
            Reason.TOPOLOGY_MISMATCH,
            f"it has {theirs.shards} shards and {theirs.partitions} partitions, "
            f"here are {ours.shards} and {ours.partitions}",
        )
    if theirs.target_id != ours.node_id:
        raise WireError(
            Reason.WRONG_TARGET, f"it looks for node {theirs.target_id}, this is {ours.node_id}"
        )
    if theirs.node_id == ours.node_id or theirs.node_id not in known:
        raise WireError(Reason.UNKNOWN_NODE, f"node {theirs.node_id} is not a peer of this one")
    return min(theirs.protocol_max, ours.protocol_max)


def check_caller(ours: Identity, theirs: Hello, last: Hello | None) -> None:
    """Refuse a caller that should be called, or whose stream is older than the one in use."""
    if not dials(theirs.node_id, ours.node_id):
        raise WireError(
            Reason.WRONG_DIRECTION, f"node {theirs.node_id} is called by {ours.node_id}"
        )
    if (
        last is not None
        and last.incarnation == theirs.incarnation
        and last.session >= theirs.session
    ):
        raise WireError(
            Reason.STALE_SESSION, f"session {theirs.session} after session {last.session}"
        )
