"""A follower's side of snapshots: what it says to an offer, and what it may confirm.

An offer says that the leader's log begins behind what this one can follow. Invariants:

* It vouches for nothing but the snapshot: what is committed here does not move because of it
  (``RaftMember.follow``), or a deposed leader would apply what nobody else has.
* A snapshot of something that this replica has, applied or in its log under the same term, is not
  taken: what follows it stays, and Raft goes on from there.
* A confirmation says that everything up to a proposal is durable here and the leader's. It is
  given to the leader whose offer it was, in its term, and to nobody else.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from onelog.cluster.raft.applier import Applier
from onelog.cluster.raft.messages import Ack, Message, Offer
from onelog.cluster.raft.peers import Matched

if TYPE_CHECKING:
    from onelog.cluster.raft.member import RaftMember


class Offers:
    """See the module's text."""

    def __init__(
        self,
        member: "RaftMember",
        matched: Matched,
        applier: Applier,
        send: Callable[[UUID, Message], None],
    ) -> None:
        self._member = member
        self._matched = matched
        self._applier = applier
        self._send = send

    def on_offer(self, sender: UUID, offer: Offer) -> None:
        """Answer a leader that offers a snapshot, and hand on what is worth taking."""
        member = self._member
        if not member.accepts_leader(sender, offer.term):
            return
        member.follow(sender, offer.term, offer.commit)
        if self.is_held(offer):
            self._confirm(sender, offer)
        else:
            self._send(sender, Ack(offer.term, offer.round, member.applied + 1, False, False))
            self._applier.offered(sender, offer)

    def is_held(self, offer: Offer) -> bool:
        """Tell whether this replica has what the snapshot covers."""
        member = self._member
        return member.applied >= offer.proposal or member.journal.holds(
            offer.proposal, offer.snapshot_term
        )

    def installed(self, source: UUID, offer: Offer, config: bytes) -> None:
        """Let Raft go on behind a snapshot that was installed, and tell its leader."""
        member = self._member
        member.begin_at_base(config)
        if offer.term == member.term and member.leader_id == source:
            self._confirm(source, offer)

    def _confirm(self, leader_id: UUID, offer: Offer) -> None:
        self._matched.note(offer.term, offer.round, offer.proposal)
        self._send(leader_id, self._matched.ack(self._member.journal.durable))
