"""Linearizable reads without a clock: ask a majority whether we still lead.

A read notes the commit index, then a round of appends is started, and the read may be answered
when a majority has answered that round or a later one in this term and everything up to the noted
index is applied. Reads that arrive while a round is on its way share the next one, so any number
of readers costs one round at a time. A leader notes nothing before the no-op of its term is
applied: until then it does not know what its predecessors committed.
"""

from collections import deque
from collections.abc import Callable

from cluster.errors import NotLeader
from cluster.member import LEADER, RaftMember

ReadCallback = Callable[[NotLeader | None], None]

READS_WAITING_MAX = 65_536


class ReadRounds:
    """The reads of one leader that wait for their round."""

    def __init__(self, member: RaftMember) -> None:
        self._member = member
        self._term = 0
        self._next: list[ReadCallback] = []  # wait for a round to be started for them
        self._asked: deque[tuple[int, int, list[ReadCallback]]] = deque()  # round, commit, reads

    def __len__(self) -> int:
        return len(self._next) + sum(len(reads) for _, _, reads in self._asked)

    def add(self, callback: ReadCallback) -> None:
        """Call back when a read may look at the state, or with the reason why it may not."""
        if self._member.state != LEADER:
            callback(NotLeader(self._member.leader_id))
            return
        self._next.append(callback)
        self.advance()

    def advance(self) -> None:
        """Start a round if one is wanted and none is on its way; answer what may be answered."""
        member = self._member
        if member.state != LEADER or member.term != self._term:
            self._term = member.term
            self._fail_asked()
            if member.state != LEADER:
                waiting, self._next = self._next, []
                for callback in waiting:
                    callback(NotLeader(member.leader_id))
                return
        confirmed = member.confirmed_round()
        while (
            self._asked and self._asked[0][0] <= confirmed and self._asked[0][1] <= member.applied
        ):
            for callback in self._asked.popleft()[2]:
                callback(None)
        started = self._asked and self._asked[-1][0] > confirmed
        if self._next and not started and member.has_applied_noop:
            reads, self._next = self._next, []
            self._asked.append((member.start_round(), member.commit, reads))
            if member.confirmed_round() >= self._asked[-1][0]:  # alone, nobody has to be asked
                self.advance()

    def _fail_asked(self) -> None:
        asked, self._asked = self._asked, deque()
        for _, _, reads in asked:
            for callback in reads:
                callback(NotLeader(self._member.leader_id))
