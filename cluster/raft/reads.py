"""Linearizable reads without a clock: ask a majority whether we still lead.

A read notes the commit index, then a round of appends is started, and the read may be answered
when a majority has answered that round or a later one in this term and everything up to the noted
index is applied. Reads that arrive while a round is on its way share the next one, so any number
of readers costs one round at a time. A leader notes nothing before the no-op of its term is
applied: until then it does not know what its predecessors committed.

A leader that is the only voter needs no round: no other member can lead or commit. Nor does a
leader with a lease (cluster/raft/peers.py), for reads that agree to trust clocks.

Each callback is called once, by ``deliver``, outside of Raft's own work: if a callback raises, the
others are still called, by the next ``deliver`` at the latest.
"""

from collections import deque
from collections.abc import Callable

from onelog.cluster.errors import ClusterError, NotLeader, ProposalRefused
from onelog.cluster.raft.member import LEADER, RaftMember

ReadCallback = Callable[[ClusterError | None], None]

READS_WAITING_MAX = 65_536


class ReadRounds:
    """The reads of one leader that wait for their round."""

    def __init__(self, member: RaftMember) -> None:
        self._member = member
        self._term = 0
        self._count = 0
        self._next: list[ReadCallback] = []  # wait for a round to be started for them
        self._asked: deque[tuple[int, int, list[ReadCallback]]] = deque()  # round, commit, reads
        self._answers: deque[tuple[ReadCallback, ClusterError | None]] = deque()

    def __len__(self) -> int:
        return self._count

    def may_look(self, *, by_lease: bool) -> bool:
        """Whether a read may be answered at once: everything committed is applied here."""
        member = self._member
        if not member.has_applied_noop:
            return False
        is_alone = len(member.membership.voters) == 1
        if not is_alone and not (by_lease and member.leadership.holds_lease):
            return False
        return member.applied >= member.commit

    def add(self, callback: ReadCallback) -> None:
        """Call back when a read may use the state, or with the error why it may not."""
        if self._count >= READS_WAITING_MAX:
            callback(ProposalRefused(f"{READS_WAITING_MAX} reads are waiting"))
            return
        self._count += 1
        self._next.append(callback)
        self.advance()

    def advance(self) -> None:
        """Start a round if reads wait and none is under way; collect the reads that may go."""
        member = self._member
        if not self._count:
            return
        if member.state != LEADER:
            self.fail(NotLeader(member.leader_id))
        elif member.term != self._term:
            # Rounds of an earlier term get no answer; reads that have no round yet can wait.
            self._term = member.term
            self._fail_asked(NotLeader(None))
        if member.state == LEADER:
            self._advance_rounds()

    def fail(self, error: ClusterError) -> None:
        """Refuse all waiting reads."""
        self._fail_asked(error)
        reads, self._next = self._next, []
        self._answers.extend((callback, error) for callback in reads)

    def deliver(self) -> None:
        """Call the callbacks whose outcome is known."""
        while self._answers:
            callback, error = self._answers.popleft()
            self._count -= 1
            callback(error)

    def _advance_rounds(self) -> None:
        member, asked = self._member, self._asked
        is_idle = not asked or asked[-1][0] <= member.confirmed_round()
        if self._next and is_idle and member.has_applied_noop:
            reads, self._next = self._next, []
            commit = member.commit
            asked.append((member.start_round(), commit, reads))
        confirmed = member.confirmed_round()
        while asked and asked[0][0] <= confirmed and asked[0][1] <= member.applied:
            self._answers.extend((callback, None) for callback in asked.popleft()[2])

    def _fail_asked(self, error: ClusterError) -> None:
        asked, self._asked = self._asked, deque()
        for _, _, reads in asked:
            self._answers.extend((callback, error) for callback in reads)
