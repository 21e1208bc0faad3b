"""Pre-vote: before a member stands for election it asks whether it would win.

A member that was cut off has heard no leader for long. Without asking first it would raise the term
and depose a healthy leader. A member that hears a leader, or has a newer log, does not answer;
answers count until the asking member's next election timeout. Nothing here changes a
term or a vote, and nothing is kept on disk.

A member that hears a leader does not vote for another one either, nor stand for election: that is
its promise in its acks (cluster/raft/peers.py). A restarted process does not know which leader it
heard before, and behaves as if it had just heard one; if it knows of no term, there was none.
"""

from collections.abc import Callable, Collection
from uuid import UUID

from onelog.cluster.config import RaftConfig
from onelog.cluster.raft.journal import RaftJournal
from onelog.cluster.raft.messages import Append, Message, Offer, Vote, VoteRequest
from onelog.cluster.raft.peers import Ballot
from onelog.cluster.raft.pysyncobj_seam import Clock


class PreVote:
    """One member's pre-votes, and its answers to those of others."""

    def __init__(
        self,
        config: RaftConfig,
        journal: RaftJournal,
        clock: Clock,
        send: Callable[[UUID, Message], None],
        *,
        is_sticky: bool,
    ) -> None:
        self._config = config
        self._journal = journal
        self._clock = clock
        self._send = send
        self._is_sticky = is_sticky
        self._ballot = Ballot()
        has_history = journal.getCurrentTerm() > 0
        self._leader_heard_s = clock.now_s() if has_history else float("-inf")

    def heard_leader(self) -> None:
        """Note a sign of life of a leader, and end a pre-vote under way."""
        self._leader_heard_s = self._clock.now_s()
        self._ballot.close()

    @property
    def hears_leader(self) -> bool:
        """Whether a leader was heard recently, or may have been before a restart."""
        return self._clock.now_s() - self._leader_heard_s < self._config.election_s_min

    @property
    def is_bound(self) -> bool:
        """Whether this member must not help to elect anybody, itself included."""
        return self._is_sticky and self.hears_leader

    def would_win(self, term: int, voters: Collection[UUID], timeout_s: float) -> bool:
        """Return whether a majority would vote for this member in ``term``; ask if unknown."""
        ballot, now_s = self._ballot, self._clock.now_s()
        if now_s >= ballot.until_s or ballot.term != term:
            ballot.open(term, now_s + timeout_s)
            last, last_term = self._journal.last, self._journal.last_term
            for voter in voters:
                self._send(voter, VoteRequest(term, last, last_term, pre_vote=True))
        if not ballot.has_majority(voters):
            return False
        ballot.close()
        return True

    def on_request(self, sender: UUID, request: VoteRequest) -> None:
        """Say yes, unless a leader is heard or the sender could not win."""
        ours = (self._journal.last_term, self._journal.last)
        if not self.hears_leader and (request.last_term, request.last_proposal) >= ours:
            self._send(sender, Vote(request.term, pre_vote=True))

    def may_be_new(self, sender: UUID, message: Message, leader_id: UUID | None) -> bool:
        """Return whether a non-member's message is accepted: this replica may have missed a change.

        Otherwise a group whose other voters are new could not elect a leader. Only without another
        leader, and a vote only for a newer log.
        """
        match message:
            case VoteRequest():
                ours = (self._journal.last_term, self._journal.last)
                return (message.last_term, message.last_proposal) > ours and not self.hears_leader
            case Append() | Offer():
                return sender == leader_id or not self.hears_leader
        return False

    def on_answer(self, sender: UUID, vote: Vote) -> None:
        """Count a yes."""
        self._ballot.add(vote.term, sender)
