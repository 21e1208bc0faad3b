"""What a Raft member tells the replica that it belongs to."""

from typing import Protocol
from uuid import UUID

from onelog.cluster.raft.messages import Offer


class Applier(Protocol):
    """Who learns that proposals are committed, in order, each once."""

    def lead(self) -> None:
        """This member is about to lead: its next call may append."""

    def heard(self, log_time_ns: int) -> None:
        """For the leader it is this time now."""

    def offered(self, source: UUID, offer: Offer) -> None:
        """The leader offers a snapshot of something that this member's log does not hold."""

    def apply(self, number: int, data: bytes) -> None:
        """Fold a committed group into the state. Must not raise: that would stop the replica."""
