"""Pre-vote: before a member stands for election it asks whether it would win.

A member that was cut off comes back with a long silence behind it. Without asking first it would
raise the term and depose a healthy leader. Whoever hears a leader, or has a newer log, says
nothing; answers count until the asking member's next election timeout. Nothing here changes a
term or a vote, and nothing is kept on disk.
"""

from collections.abc import Callable, Collection
from uuid import UUID

from cluster.config import RaftConfig
from cluster.journal import RaftJournal
from cluster.messages import Message, Vote, VoteRequest
from cluster.peers import Ballot
from cluster.seam import Clock


class PreVote:
    """One member's questions, and what it answers to those of others."""

    def __init__(
        self,
        config: RaftConfig,
        journal: RaftJournal,
        clock: Clock,
        send: Callable[[UUID, Message], None],
    ) -> None:
        self._config = config
        self._journal = journal
        self._clock = clock
        self._send = send
        self._ballot = Ballot()
        self._leader_heard_s = float("-inf")

    def heard_leader(self) -> None:
        """Note a sign of life of a leader: there is nothing to ask."""
        self._leader_heard_s = self._clock.now_s()
        self._ballot.close()

    @property
    def hears_leader(self) -> bool:
        """Whether a leader spoke not long ago."""
        return self._clock.now_s() - self._leader_heard_s < self._config.election_s_min

    def would_win(self, term: int, voters: Collection[UUID], timeout_s: float) -> bool:
        """Tell whether a majority would vote for this member in ``term``; ask if it is unknown."""
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

    def may_be_new(self, request: VoteRequest) -> bool:
        """Tell whether a stranger may be voted for: it may be a member by a change missed here.

        Or a group whose other voters are new could not elect anybody. Only without a leader, and
        for a log that has something newer.
        """
        ours = (self._journal.last_term, self._journal.last)
        return (request.last_term, request.last_proposal) > ours and not self.hears_leader

    def on_answer(self, sender: UUID, vote: Vote) -> None:
        """Count a yes."""
        self._ballot.add(vote.term, sender)
