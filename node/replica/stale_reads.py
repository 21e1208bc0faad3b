"""Reads that any replica answers from its own state, without asking anybody.

A read may say how old the state may be (``max_staleness_s``, in seconds of this replica's own
clock; see cluster/raft/peers.py for what is known), and which entry it must contain
(``min_index``: a client that knows the index of its write reads it anywhere). It waits for the
index until its deadline; for the bound it does not wait: either this replica knows that it is young
enough, or the read is refused and the client asks another replica, or the leader.

An idle follower hears an echo every heartbeat, about two heartbeats after the stamp was made, so
bounds below three or four heartbeats are often refused there.
"""

from dataclasses import dataclass
from enum import Enum

from onelog.cluster.errors import ClusterError, Expired, ProposalRefused, StaleBoundExceeded
from onelog.cluster.raft.member import RaftMember
from onelog.cluster.raft.reads import READS_WAITING_MAX, Answers, ReadCallback


class Level(Enum):
    """How current a read is."""

    LINEARIZABLE = "linearizable"
    LEASE = "lease"  # linearizable too, if clocks run as they should: see cluster/raft/peers.py
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class WaitingRead:
    """A read that waits for an index, and then for what its level needs."""

    callback: ReadCallback
    level: Level
    max_staleness_s: float | None
    min_index: int
    deadline_s: float


class StaleReads:
    """The reads of one replica that need no leader; those in ``waiting`` wait for an index."""

    def __init__(self, member: RaftMember, answers: Answers) -> None:
        self.waiting: list[WaitingRead] = []
        self._member = member
        self._answers = answers

    def check_age(self, max_staleness_s: float | None) -> ClusterError | None:
        """Return None if the state is known to be young enough, otherwise the error."""
        if max_staleness_s is None:
            return None
        age_s = self._member.leadership.freshness.age_s(self._member.applied)
        return StaleBoundExceeded(age_s, max_staleness_s) if age_s > max_staleness_s else None

    def add(
        self,
        callback: ReadCallback,
        level: Level,
        max_staleness_s: float | None,
        min_index: int,
        deadline_s: float,
    ) -> None:
        """Queue a read of any level until its index is applied."""
        if len(self.waiting) >= READS_WAITING_MAX:
            self._answers.append((callback, ProposalRefused(f"{READS_WAITING_MAX} reads wait")))
        else:
            read = WaitingRead(callback, level, max_staleness_s, min_index, deadline_s)
            self.waiting.append(read)

    def advance(self, index: int) -> list[WaitingRead]:
        """Answer the stale reads that wait for at most ``index``, and those that are late.

        Returns the others that wait for at most ``index``: they need the leader now.
        """
        now_s = self._member.clock.now_s()
        waiting, self.waiting = self.waiting, []
        at_leader = []
        for read in waiting:
            if read.min_index <= index:
                if read.level is Level.STALE:
                    self._answers.append((read.callback, self.check_age(read.max_staleness_s)))
                else:
                    at_leader.append(read)
            elif read.deadline_s <= now_s:
                error = Expired(f"index {read.min_index} was not applied in time, but {index}")
                self._answers.append((read.callback, error))
            else:
                self.waiting.append(read)
        return at_leader

    def fail(self, error: ClusterError) -> None:
        """Refuse everything that waits."""
        self._answers.extend((read.callback, error) for read in self.waiting)
        self.waiting.clear()
