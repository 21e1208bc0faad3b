"""What must happen by itself: clients say what is to end, and this judge, whether it is in time.

Lifetimes, delays and leases count in log time, which nobody promises anything about while there is
no leader. But once somebody leads together with a majority that is well, and for as long as that
lasts, log time goes on: by the leader's clock, which may be slow, and which may be slewed. So what
was begun with ``lasts_s`` to live is over at the latest ``SLOWEST`` times that after the answer, or
after that leadership began if that was later; and the leader has applied it ``LATE_S_MAX`` later.
Nor does any deadline that the leader itself knows of stay overdue for longer than that.
In the end the same must be so on every member, since the faults are over and there are no excuses.

Too early is easier to say: whatever the clocks did, nothing ends before the log time of the entry
that set its end, and its lifetime, are over by the log time of what is applied.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from uuid import UUID

from onelog.cluster.log_time import SLEW
from onelog.cluster.raft.member import LEADER
from onelog.node.replica.shard import Shard
from tests.simulation.network import Network
from tests.simulation.replica import RATE_MIN, Replica
from tests.simulation.schedule import Schedule

SLOWEST = 1 / (RATE_MIN * (1 - SLEW))  # simulated seconds to a second of log time, at most
LATE_S_MAX = 3.0
LOOK_S = 0.1  # shorter than any cut, pause or full disk

SECOND_NS = 10**9

HasHappened = Callable[[Shard], bool]


@dataclass(frozen=True, slots=True)
class Due:
    """Something that ends by itself, ``lasts_s`` after the entry ``index`` if one is known."""

    what: str
    answered_s: float
    lasts_s: float
    has_happened: HasHappened
    index: int | None

    def latest_s(self, since_s: float) -> float:
        """Return when it is too late, if log time goes on since then."""
        return max(self.answered_s, since_s) + SLOWEST * self.lasts_s + LATE_S_MAX


class DueJudge:
    """See the module's text. ``fail`` raises."""

    def __init__(
        self,
        replicas: list[Replica],
        schedule: Schedule,
        network: Network,
        stamps: Mapping[int, int],
        fail: Callable[[str], None],
    ) -> None:
        """``stamps``: the log time of each entry, by index."""
        self._replicas = replicas
        self._schedule = schedule
        self._network = network
        self._stamps = stamps
        self._fail = fail
        self._waiting: list[Due] = []
        self._well_since: dict[UUID, tuple[Shard, float]] = {}
        self._leads_since: tuple[Shard | None, int, float] = (None, 0, inf)
        self._overdue: tuple[int | None, float] = (None, inf)  # a deadline, and since when
        self.happened = 0

    def expect(
        self, what: str, lasts_s: float, has_happened: HasHappened, index: int | None = None
    ) -> None:
        """Expect something that was answered just now and ends by itself after ``lasts_s``.

        Without the index of the entry that it counts from, it may have ended already.
        """
        self._waiting.append(Due(what, self._schedule.now_s, lasts_s, has_happened, index))

    def look(self) -> None:
        """Look at the present leader, now and from time to time."""
        self._schedule.after(LOOK_S, self.look)
        leader = self._find_leader()
        if leader is None:
            self._leads_since = (None, 0, inf)
            return
        shard = leader.shard
        assert shard is not None
        now_s = self._schedule.now_s
        if self._leads_since[:2] != (shard, shard.member.term):
            self._leads_since = (shard, shard.member.term, now_s)
        since_s = max(self._leads_since[2], self._majority_since(leader, shard))
        left = []
        for due in self._waiting:
            if due.has_happened(shard):
                self.happened += 1
                self._look_whether_early(due, leader, shard)
            else:
                left.append(due)
                if now_s > due.latest_s(since_s):
                    self._fail(f"{self._describe(due)} on {leader.name}, which leads")
        self._waiting = left
        self._look_at_deadlines(leader, shard, since_s)

    def _look_whether_early(self, due: Due, leader: Replica, shard: Shard) -> None:
        if due.index is not None:
            left_ns = self._stamps[due.index] + to_ns(due.lasts_s) - shard.router.log_time_ns
            if left_ns > 0:
                what = f"{due.what}, begun by {due.index} to last {due.lasts_s:.3f} s"
                self._fail(f"{what}, ended {left_ns / 1e9:.3f} s too early on {leader.name}")

    def _look_at_deadlines(self, leader: Replica, shard: Shard, since_s: float) -> None:
        """No deadline that the leader itself knows of stays overdue: chores count as well."""
        deadline_ns, now_s = shard.router.next_deadline(), self._schedule.now_s
        if deadline_ns is None or deadline_ns > shard.log_time.estimate_ns():
            self._overdue = (None, inf)
        elif self._overdue[0] != deadline_ns:
            self._overdue = (deadline_ns, now_s)
        elif now_s > max(since_s, self._overdue[1]) + LATE_S_MAX:
            self._fail(f"the deadline {deadline_ns} is over and stays, on {leader.name}")

    def finish(self, members: Iterable[Replica], since_s: float) -> None:
        """Judge the end of a run in which everything should be well since then."""
        for replica in members:
            assert replica.shard is not None
            for due in self._waiting:
                is_late = self._schedule.now_s > due.latest_s(since_s)
                if is_late and not due.has_happened(replica.shard):
                    self._fail(f"{self._describe(due)} on {replica.name} in the end")

    def _find_leader(self) -> Replica | None:
        """Return who leads the last term, knows what is committed, and is well."""
        leading = [
            (each.shard.member.term, at, each)
            for at, each in enumerate(self._replicas)
            if each.shard is not None and each.shard.member.state == LEADER
        ]
        leader = max(leading)[2] if leading else None
        if leader is None or leader.shard is None or not leader.is_well:
            return None
        return leader if leader.shard.member.has_applied_noop else None

    def _majority_since(self, leader: Replica, leading: Shard) -> float:
        """Return since when a majority of voters is well and hears and is heard by its leader."""
        times_s = []
        for voter in leading.member.membership.voters:
            replica = self._replicas[voter.int - 1]
            links = {(voter, leader.node_id), (leader.node_id, voter)}
            is_heard = self._network.is_fair and not links & self._network.cut
            if replica.shard is None or not replica.is_well or not is_heard:
                self._well_since.pop(voter, None)
                times_s.append(inf)
                continue
            known = self._well_since.get(voter)
            if known is None or known[0] is not replica.shard:
                known = self._well_since[voter] = (replica.shard, self._schedule.now_s)
            times_s.append(known[1])
        return sorted(times_s)[len(times_s) // 2]

    def _describe(self, due: Due) -> str:
        begun = f"begun at {due.answered_s:.3f} to last {due.lasts_s:.3f} s"
        return f"{due.what}, {begun}, has not ended"


def to_ns(seconds: float) -> int:
    """Return a lifetime as commands have it."""
    return int(seconds * SECOND_NS)
