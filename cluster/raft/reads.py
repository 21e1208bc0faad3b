"""Linearizable reads without a clock: ask a majority whether we still lead.

A read notes the commit index, then a round of appends is started, and the read may be answered
when a majority has answered that round or a later one in this term and everything up to the noted
index is applied. Reads that arrive while a round is on its way share the next one, so any number
of readers costs one round at a time. A leader notes nothing before the no-op of its term is
applied: until then it does not know what its predecessors committed.

A leader that is the only voter needs no round: no other member can lead or commit. Nor does a
leader with a lease (cluster/raft/peers.py), for reads that agree to trust clocks.

Every read ends by its deadline. Its outcome is appended to a queue of the shard, which calls the
callbacks outside of Raft's own work.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from onelog.cluster.errors import ClusterError, Expired, NotLeader, ProposalRefused
from onelog.cluster.raft.member import LEADER, RaftMember

ReadCallback = Callable[[ClusterError | None], None]
# Callbacks whose outcome is known, with that outcome.
Answers = deque[tuple[Callable[[Any], None], Any]]
_Reads = list[tuple[float, ReadCallback]]  # each with its deadline

READS_WAITING_MAX = 65_536


class ReadRounds:
    """The reads of one leader that wait for their round; ``count`` is their number."""

    def __init__(self, member: RaftMember, answers: Answers) -> None:
        self.count = 0
        self._member = member
        self._answers = answers
        self._term = 0
        self._next: _Reads = []  # wait for a round to be started for them
        self._asked: deque[tuple[int, int, _Reads]] = deque()  # round, commit, reads
        self._deadline_s_min = float("inf")  # no waiting read has an earlier one

    def may_look(self, *, by_lease: bool) -> bool:
        """Whether a read may be answered at once: everything committed is applied here."""
        member = self._member
        if not member.has_applied_noop:
            return False
        is_alone = len(member.membership.voters) == 1
        if not is_alone and not (by_lease and member.leadership.holds_lease):
            return False
        return member.applied >= member.commit

    def add(self, callback: ReadCallback, deadline_s: float) -> None:
        """Queue a read for the next round, which ``advance`` starts."""
        if self.count >= READS_WAITING_MAX:
            self._answers.append((callback, ProposalRefused(f"{READS_WAITING_MAX} reads wait")))
            return
        self.count += 1
        self._next.append((deadline_s, callback))
        self._deadline_s_min = min(self._deadline_s_min, deadline_s)

    def advance(self) -> None:
        """Start a round if reads wait and none is under way; answer the reads that may go."""
        if not self.count:
            return
        member = self._member
        if member.state != LEADER:
            self.fail(NotLeader(member.leader_id))
            return
        if member.term != self._term:
            # Rounds of an earlier term get no answer; reads that have no round yet can wait.
            self._term = member.term
            self._fail_asked(NotLeader(None))
        asked = self._asked
        is_idle = not asked or asked[-1][0] <= member.confirmed_round()
        if self._next and is_idle and member.has_applied_noop:
            reads, self._next = self._next, []
            commit = member.commit
            asked.append((member.start_round(), commit, reads))
        confirmed = member.confirmed_round()
        while asked and asked[0][0] <= confirmed and asked[0][1] <= member.applied:
            self._answer(asked.popleft()[2], None)

    def expire(self, now_s: float) -> None:
        """End the reads whose deadline has passed."""
        if now_s < self._deadline_s_min:
            return
        expired = Expired("the read could not be answered by its deadline")
        for reads in (self._next, *(each[2] for each in self._asked)):
            self._answer([each for each in reads if each[0] <= now_s], expired)
            reads[:] = [each for each in reads if each[0] > now_s]
        waiting = [*self._next, *(each for _, _, reads in self._asked for each in reads)]
        self._deadline_s_min = min((each[0] for each in waiting), default=float("inf"))

    def fail(self, error: ClusterError) -> None:
        """Refuse all waiting reads."""
        self._fail_asked(error)
        reads, self._next = self._next, []
        self._answer(reads, error)

    def _fail_asked(self, error: ClusterError) -> None:
        asked, self._asked = self._asked, deque()
        for _, _, reads in asked:
            self._answer(reads, error)

    def _answer(self, reads: _Reads, outcome: ClusterError | None) -> None:
        self.count -= len(reads)
        self._answers.extend((callback, outcome) for _, callback in reads)
