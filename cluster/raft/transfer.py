"""Handing a leadership over, under load: hold, wait, hand over, resume.

While a transfer is under way the leader proposes nothing new, so that the target can come to have
everything (``Hold``); then it is asked to stand for election at once. Both phases are bounded by
one election timeout: if the target cannot catch up or is not elected, the leader goes on as if
nothing had been asked. Clients see a pause, never an error.
"""

from collections.abc import Callable
from uuid import UUID

from onelog.cluster.errors import ClusterError, NotLeader, TransferFailed
from onelog.cluster.raft.member import LEADER, RaftMember

TransferCallback = Callable[[ClusterError | None], None]


class Transfer:
    """One attempt. ``advance`` until it returns True; then ``error`` says how it ended."""

    def __init__(
        self, member: RaftMember, target: UUID, callback: TransferCallback, hold_ms: int = 0
    ) -> None:
        """``hold_ms``: how long the target should keep it (``node/membership/balance.py``)."""
        if member.state != LEADER:
            raise NotLeader(member.leader_id)
        if target == member.self_id or target not in member.membership.voters:
            raise TransferFailed(f"{target} is not another voter")
        self.callback = callback
        self.error: ClusterError | None = None
        self._member = member
        self._target = target
        self._hold_ms = hold_ms
        self._term = member.term
        self._is_asked = False
        self._until_s = self._later_s()

    def advance(self) -> bool:
        """Do what can be done now; tell whether the attempt is over."""
        member = self._member
        if member.state != LEADER or member.term != self._term:
            return True  # somebody else leads, or soon will
        if member.clock.now_s() >= self._until_s:
            what = "was not elected in time" if self._is_asked else "did not catch up in time"
            self.error = TransferFailed(f"{self._target} {what}")
            return True
        if not self._is_asked and member.match_of(self._target) == member.journal.last:
            self._is_asked = True
            self._until_s = self._later_s()
            member.hand_over(self._target, self._hold_ms)
        return False

    def _later_s(self) -> float:
        return self._member.clock.now_s() + self._member.config.election_s_max
