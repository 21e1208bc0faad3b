"""Reads that any replica answers from its own state, without asking anybody.

A read may say how old the state may be (``max_staleness_s``, in seconds of this replica's own
clock; see cluster/raft/peers.py for what is known), and which entry it must contain
(``min_index``: a client that was told the index of its write reads it anywhere). It waits for the
index until its deadline; for the bound it does not wait: either this replica knows that it is young
enough, or the read is refused and the client asks another replica, or the leader.

An idle follower hears an echo every heartbeat, about two heartbeats after the stamp was made, so
bounds below three or four heartbeats are often refused there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from onelog.cluster.errors import ClusterError, Expired, ProposalRefused, StaleBoundExceeded
from onelog.cluster.raft.member import RaftMember
from onelog.cluster.raft.reads import READS_WAITING_MAX, ReadCallback
from onelog.node.replica.requests import Answers


class Level(Enum):
    """How current a read is."""

    LINEARIZABLE = "linearizable"
    LEASE = "lease"  # linearizable too, if clocks run as they should: see cluster/raft/peers.py
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class _Read:
    callback: ReadCallback
    max_staleness_s: float | None
    min_index: int
    deadline_s: float


class StaleReads:
    """The local reads of one replica that wait for an index."""

    def __init__(
        self, member: RaftMember, applied_index: Callable[[], int], answers: Answers
    ) -> None:
        self._member = member
        self._applied_index = applied_index
        self._answers = answers
        self._waiting: list[_Read] = []

    def add(
        self,
        callback: ReadCallback,
        max_staleness_s: float | None,
        min_index: int,
        deadline_s: float,
    ) -> None:
        """Answer a read now, or when the index is applied."""
        read = _Read(callback, max_staleness_s, min_index, deadline_s)
        if min_index <= self._applied_index():
            self._answer(read)
        elif len(self._waiting) >= READS_WAITING_MAX:
            self._answers.append((callback, ProposalRefused(f"{READS_WAITING_MAX} reads wait")))
        else:
            self._waiting.append(read)

    def advance(self) -> None:
        """Answer what waited for an index that is applied now, or for too long."""
        if not self._waiting:
            return
        index, now_s = self._applied_index(), self._member.clock.now_s()
        waiting, self._waiting = self._waiting, []
        for read in waiting:
            if read.min_index <= index:
                self._answer(read)
            elif read.deadline_s <= now_s:
                error = Expired(f"index {read.min_index} was not applied in time, but {index}")
                self._answers.append((read.callback, error))
            else:
                self._waiting.append(read)

    def fail(self, error: ClusterError) -> None:
        """Refuse everything that waits."""
        self._answers.extend((read.callback, error) for read in self._waiting)
        self._waiting.clear()

    def _answer(self, read: _Read) -> None:
        error = None
        if read.max_staleness_s is not None:
            age_s = self._member.leadership.freshness.age_s(self._member.applied)
            if age_s > read.max_staleness_s:
                error = StaleBoundExceeded(age_s, read.max_staleness_s)
        self._answers.append((read.callback, error))
