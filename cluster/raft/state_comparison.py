"""Replicas compare their states while they run, at equal indexes, and a wrong one stops.

Apply is deterministic, so all replicas have the same state at the same index. If one does not (bad
memory, a defect that depends on the machine, two versions that differ), nothing else would show it
before a client reads the wrong value. So each replica takes a *mark* now and then: the state hash
of each projection, which is kept up to date anyway and costs microseconds.

* Where marks are taken follows from the log alone: at the end of the first group that reaches a
  multiple of ``index_step`` indexes or of ``time_step_ns`` of log time. So all replicas take the
  same ones, busy or idle. Replicas that are configured differently compare fewer, never wrongly.
* A follower reports its newest mark to the leader, again after a while and to every new leader. The
  leader compares, and sends the rows to all members: when rows of one index differ, and when all
  voters agree. So all members come to the same conclusions by the same rules.
* The state of more than half of the voters is taken for right. A replica, learner or leader that
  has another one steps down and stops with ``StateDiverged``: it serves no read and gets no vote.
  Without such a majority (one against one, or the third is away), all raise an alarm and none
  stops: it is unknown which one is right.
* An alarm ends when all voters agree at a later index, with every replica that the alarm is about
  and that is still a member.

A replica judges itself by the hashes that it computed, whatever others report about it. A member
reports its own hashes; only the leader that this replica follows passes on those of others. Reports
about an index that this log does not reach are ignored. ``MARKS_KEPT`` marks are kept: a replica
that is further behind is compared when it has caught up.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from onelog.cluster.errors import StateDiverged
from onelog.cluster.raft.member import LEADER, RaftMember
from onelog.cluster.raft.messages import Message, StateReport, StateRow
from onelog.projections.router import ProjectionRouter
from onelog.ual.entry import OWNER_NAMES

MARKS_KEPT = 64
REPEAT_S = 5.0
_NO_NAMES: Mapping[UUID, str] = MappingProxyType({})

_log = logging.getLogger("onelog.cluster.states")


@dataclass(frozen=True, slots=True)
class Alarm:
    """Replicas that had different states at one index."""

    index: int
    rows: tuple[StateRow, ...]
    owners: tuple[int, ...]  # of the projections that differ
    # The replicas whose state is not that of the majority; None: there is no majority.
    wrong: tuple[UUID, ...] | None

    @property
    def projections(self) -> tuple[str, ...]:
        """The names of the projections that differ."""
        return tuple(OWNER_NAMES.get(owner, f"0x{owner:02x}") for owner in self.owners)

    def describe(self, names: Mapping[UUID, str] = _NO_NAMES) -> str:
        """Say which hashes each replica has and which ones stop; ``names`` are those of nodes."""

        def shown(node_id: UUID) -> str:
            return f"{names[node_id]} ({node_id})" if names.get(node_id) else str(node_id)

        replicas = []
        for row in self.rows:
            hashes = dict(row.hashes)
            each = zip(self.owners, self.projections, strict=True)
            texts = (f"{name} {hashes.get(owner, 0):016x}" for owner, name in each)
            replicas.append(f"{shown(row.node_id)} has {', '.join(texts)}")
        end = "none stops, because no majority of the voters agrees"
        if self.wrong is not None:
            end = f"{', '.join(map(shown, self.wrong))} stops: its state is not the majority's"
        what = ", ".join(self.projections)
        return f"states differ at index {self.index} in {what}: {'; '.join(replicas)}; {end}"

    def __str__(self) -> str:
        return self.describe()


@dataclass(frozen=True, slots=True)
class ComparisonStatus:
    """The result of all comparisons so far."""

    marked_index: int = 0  # of the newest mark here
    agreed_index: int = 0  # of the newest mark that all voters agreed on, as far as is known here
    marks: int = 0
    comparisons: int = 0  # with the hashes of another replica
    alarms: int = 0  # marks at which states differed
    alarm: Alarm | None = None  # the newest, until states agree again


class StateComparison:
    """One replica's marks and comparisons."""

    def __init__(
        self,
        member: RaftMember,
        router: Callable[[], ProjectionRouter],
        send: Callable[[UUID, Message], None],
        *,
        index_step: int,
        time_step_ns: int,
        shard: int = 0,
    ) -> None:
        """``shard`` is the number that the log of the process names."""
        self._member = member
        self._shard = shard
        self._router = router  # asked each time: a snapshot of a peer replaces the state
        self._send = send
        self._index_step = index_step
        self._time_step_ns = time_step_ns
        self._position = (router().applied_index, router().log_time_ns)
        self._rows: dict[int, dict[UUID, StateRow]] = {}  # by index and replica
        self.is_new = False  # a mark that was not compared yet
        self._reported: tuple[int, int, UUID | None] = (0, 0, None)
        self._reported_s = float("-inf")
        self._marked_index = self._agreed_index = self._marks = 0
        self._comparisons = self._alarm_count = 0
        self._alarm: Alarm | None = None
        self._alarmed: set[int] = set()  # the indexes of rows at which states differed

    def status(self) -> ComparisonStatus:
        """Return the result so far."""
        return ComparisonStatus(
            self._marked_index,
            self._agreed_index,
            self._marks,
            self._comparisons,
            self._alarm_count,
            self._alarm,
        )

    def applied(self, index: int, time_ns: int) -> None:
        """Take a mark if one is due where a group has been applied: its last index and its time."""
        index_before, time_before_ns = self._position
        self._position = index, time_ns
        if (
            index // self._index_step > index_before // self._index_step
            or time_ns // self._time_step_ns > time_before_ns // self._time_step_ns
        ):
            # An empty projection is left out, so that a version without it agrees.
            state_hashes = self._router().state_hashes()
            hashes = tuple((owner, each) for owner, each in state_hashes.items() if each)
            self._marks += 1
            self._marked_index = index
            self._keep(index, StateRow(self._member.self_id, hashes), is_first_hand=True)
            self.is_new = True

    def replaced(self) -> None:
        """A snapshot replaced the state: the next mark is where others take theirs."""
        self._position = (self._router().applied_index, self._router().log_time_ns)

    def advance(self) -> None:
        """Compare, or report to the leader; raise ``StateDiverged`` if this one is wrong."""
        if self.is_new and self._marked_index in self._rows:
            self.is_new = False
            if self._judge(self._marked_index, is_news=True) and self._member.state == LEADER:
                self._tell_all(self._marked_index)
            self._stop_if_wrong(self._marked_index)
        self._report()

    def on_report(self, sender: UUID, report: StateReport) -> None:
        """Handle a report of another; raise ``StateDiverged`` if this replica is the wrong one."""
        members = self._member.membership.members
        index = report.index
        if sender not in members or index > self._member.journal.log.last_index:
            return
        is_news = False
        leads = sender == self._member.leader_id and report.term == self._member.term
        for row in report.rows:
            is_first_hand = row.node_id == sender
            if row.node_id not in members or not (is_first_hand or leads):
                continue
            if row.node_id != self._member.self_id:
                is_news |= self._keep(index, row, is_first_hand=is_first_hand)
        if index not in self._rows:
            return
        if self._judge(index, is_news=is_news) and self._member.state == LEADER:
            if is_news:
                self._tell_all(index)
            else:
                self._tell(sender, index)
        self._stop_if_wrong(index)

    def _report(self) -> None:
        """As a follower, report the newest mark to the leader."""
        member = self._member
        leader_id, index = member.leader_id, self._marked_index
        if member.state == LEADER or leader_id is None or index not in self._rows:
            return
        now_s = member.clock.now_s()
        what = (index, member.term, leader_id)
        if what != self._reported or now_s - self._reported_s >= REPEAT_S:
            self._reported, self._reported_s = what, now_s
            row = self._rows[index][member.self_id]
            self._send(leader_id, StateReport(member.term, index, (row,)))

    def _tell_all(self, index: int) -> None:
        for peer_id in self._member.membership.members:
            self._tell(peer_id, index)

    def _tell(self, peer_id: UUID, index: int) -> None:
        if peer_id != self._member.self_id:
            rows = tuple(self._rows[index].values())
            self._send(peer_id, StateReport(self._member.term, index, rows))

    def _keep(self, index: int, row: StateRow, *, is_first_hand: bool) -> bool:
        """Store a row; return whether it is new."""
        known = self._rows.setdefault(index, {})
        before = known.get(row.node_id)
        if before == row or (before is not None and not is_first_hand):
            return False
        known[row.node_id] = row
        if self._member.self_id in known:
            self._comparisons += len(known) - 1 if row.node_id == self._member.self_id else 1
        while len(self._rows) > MARKS_KEPT:
            oldest = min(self._rows)
            del self._rows[oldest]
            self._alarmed.discard(oldest)
        return index in self._rows

    def _judge(self, index: int, *, is_news: bool) -> bool:
        """Compare the rows of an index; return whether they differ."""
        rows = self._rows[index]
        if len({row.hashes for row in rows.values()}) == 1:
            self._agree(index)
            return False
        if is_news and (self._alarm is None or self._alarm.index <= index):
            self._raise_alarm(index)
        return True

    def _agree(self, index: int) -> None:
        """All rows of an index are equal: if all voters have one, that may end the alarm."""
        rows, membership, alarm = self._rows[index], self._member.membership, self._alarm
        if not all(voter in rows for voter in membership.voters):
            return
        is_new = index > self._agreed_index
        self._agreed_index = max(self._agreed_index, index)
        if alarm is not None and alarm.index < index:
            involved = {row.node_id for row in alarm.rows}.intersection(membership.members)
            if involved <= rows.keys():
                self._alarm, is_new = None, True
                _log.warning("shard %d: states agree again at index %d", self._shard, index)
        if is_new and self._member.state == LEADER:
            self._tell_all(index)

    def _raise_alarm(self, index: int) -> None:
        """Note and log who differs; again if another replica's hashes have come since."""
        rows = self._rows[index]
        ordered = tuple(rows[each] for each in sorted(rows))
        majority = self._majority(index)
        wrong = None
        if majority is not None:
            wrong = tuple(row.node_id for row in ordered if row.hashes != majority)
        self._alarm_count += index not in self._alarmed
        self._alarmed.add(index)
        self._alarm = Alarm(index, ordered, _differing(ordered), wrong)
        text = self._alarm.describe(dict(self._member.membership.names))
        _log.error("shard %d: STATE_DIVERGED: %s", self._shard, text)

    def _majority(self, index: int) -> tuple[tuple[int, int], ...] | None:
        """Return the hashes that more than half of the voters have, if there are such."""
        voters = self._member.membership.voters
        rows = self._rows[index]
        counts = Counter(rows[voter].hashes for voter in voters if voter in rows)
        for hashes, count in counts.items():
            if 2 * count > len(voters):
                return hashes
        return None

    def _stop_if_wrong(self, index: int) -> None:
        own = self._rows.get(index, {}).get(self._member.self_id)
        if own is None:
            return
        majority = self._majority(index)
        if majority is not None and own.hashes != majority:
            alarm = self._alarm
            if alarm is None or alarm.index != index or alarm.wrong is None:
                self._raise_alarm(index)
                alarm = self._alarm
            assert alarm is not None
            self._member.step_down()
            text = alarm.describe(dict(self._member.membership.names))
            raise StateDiverged(self._shard, index, alarm.owners, text)


def _differing(rows: tuple[StateRow, ...]) -> tuple[int, ...]:
    """Return the owners whose hashes are not the same in all rows."""
    tables = [dict(row.hashes) for row in rows]
    owners = sorted({owner for table in tables for owner in table})
    return tuple(each for each in owners if len({table.get(each, 0) for table in tables}) > 1)
