"""One replica of one shard: its log, its state and its seat in the Raft group.

Driven by explicit calls, on one thread, and by nothing else: the same code runs under an event loop
and under a simulator. Whoever drives it

* calls ``tick`` at least every third of a heartbeat,
* hands in messages of peers with ``on_message`` and delivers what is sent through ``send``,
* asks ``sync_begin`` after anything that may have appended, runs the job where it may block, and
  returns it to ``on_synced``.

Group commit: requests collect while an fdatasync is on its way and become one proposal when it
returns, or at once when the disk is idle. So the busier it is, the larger the groups are.

Outcomes: a request that was never proposed failed for certain (``NotLeader``, ``Expired``). One
that was proposed has the result of its entries, or was ``Discarded`` because another leader's
proposal has its place, or nobody knows: ``OutcomeUnknown``, and a retry in a session is exact.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from cluster.config import ALL_ON, Protections, RaftConfig
from cluster.errors import (
    ClusterError,
    Discarded,
    Expired,
    NotLeader,
    OutcomeUnknown,
    ProposalRefused,
)
from cluster.journal import KIND_NOOP, RaftJournal
from cluster.log_time import LogTime
from cluster.member import LEADER, RaftMember
from cluster.messages import Message
from cluster.reads import READS_WAITING_MAX, ReadCallback, ReadRounds
from projections.result import Result
from projections.table import build_projections
from snapshot.recovery import recover_state
from snapshot.store import SnapshotStore
from ual.directory import ShardPaths
from ual.entry import HEADER_SIZE, decode_entries
from ual.files import Files
from ual.jobs import SyncJob
from ual.log_config import LogConfig
from ual.opening import open_hard_state, open_log

Drafts = Sequence[tuple[int, bytes, int]]
Outcome = list[Result] | ClusterError
Callback = Callable[[Outcome], None]

# How many expired things a leader proposes to remove at a time; the rest comes next.
EXPIRE_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """Limits of one replica."""

    # A group stays far below what may be unsynced, so that several fit one sync.
    group_bytes_max: int = 1 << 20
    group_entries_max: int = 4096
    # Requests that wait to become part of a group; more are refused.
    pending_requests_max: int = 65_536


class NodeClock(Protocol):
    """Time and chance, handed in."""

    def now_s(self) -> float:
        """Return monotonic seconds."""

    def wall_ns(self) -> int:
        """Return the wall clock in nanoseconds since 1970."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


@dataclass(slots=True)
class _Request:
    drafts: Drafts
    callback: Callback
    deadline_s: float
    term: int = 0
    at: int = 0  # where its entries stand in its group


class Shard:
    """See the module's text."""

    def __init__(
        self,
        files: Files,
        paths: ShardPaths,
        shard: int,
        self_id: UUID,
        peer_ids: list[UUID],
        clock: NodeClock,
        send: Callable[[UUID, Message], None],
        *,
        config: ShardConfig | None = None,
        log_config: LogConfig | None = None,
        raft_config: RaftConfig | None = None,
        protections: Protections = ALL_ON,
    ) -> None:
        self.config = config or ShardConfig()
        self.clock = clock
        self._hard_state = open_hard_state(files, paths)
        self.log, self.survey = open_log(
            files, paths, self._hard_state, shard=shard, config=log_config
        )
        self.log_time = LogTime(
            lambda: int(clock.now_s() * 1e9), clock.wall_ns, lambda: self.log.last_timestamp_ns
        )
        journal = RaftJournal(self.log, self._hard_state, self.log_time.now_ns)
        if not len(journal):
            journal.add(KIND_NOOP, 1, 0)
            self.log.sync()
        if self.log.commit_index == 0:
            self.log.mark_committed(1)  # the same on every replica: committed by definition
        self.snapshots = SnapshotStore.open(files, paths, self.log)
        self.recovered = recover_state(files, shard, self.log, self.snapshots, build_projections)
        self.projections = self.recovered.state
        self.router = self.projections.router
        self.member = RaftMember(
            raft_config or RaftConfig(),
            self_id,
            peer_ids,
            journal,
            clock,
            self,
            send,
            applied=self.log.proposals.of_index(self.log.applied_index),
            protections=protections,
        )
        self.reads = ReadRounds(self.member)
        self._pending: deque[_Request] = deque()
        self._waiting: dict[int, list[_Request]] = {}
        self._expire_number = 0  # the proposal that carries the last expire entries
        self._syncing = False
        self._led_term = 0

    # What the driver calls

    def tick(self) -> None:
        """Let time pass."""
        self.member.tick()
        self._after()
        self._expire_requests()

    def on_message(self, sender: UUID, message: Message) -> None:
        """Take a message of a peer."""
        self.member.on_message(sender, message)
        self._after()

    def sync_begin(self) -> SyncJob | None:
        """Return a sync to run, if there is something to sync and none is on its way."""
        if self._syncing or not self.log.unsynced_bytes:
            return None
        self._syncing = True
        return self.log.sync_begin()

    def on_synced(self, job: SyncJob) -> None:
        """Take a sync back that has run."""
        self._syncing = False
        self.log.sync_finish(job)
        self.member.on_synced()
        # What it made durable may be committed and applied by it: do not wait for the timer.
        self.tick()

    def propose(self, drafts: Drafts, deadline_s: float, callback: Callback) -> None:
        """Replicate the entries of one request; call back once with their outcome."""
        if self.member.state != LEADER:
            callback(NotLeader(self.member.leader_id))
        elif len(self._pending) >= self.config.pending_requests_max:
            callback(ProposalRefused(f"{self.config.pending_requests_max} requests are waiting"))
        else:
            self._pending.append(_Request(drafts, callback, deadline_s))
            if not self._syncing:
                self._flush()

    def read(self, callback: ReadCallback) -> None:
        """Call back when a linearizable read may look at the projections."""
        if len(self.reads) >= READS_WAITING_MAX:
            callback(NotLeader(self.member.leader_id))
        else:
            self.reads.add(callback)

    def lead(self) -> None:
        """Begin to lead: from now on this replica stamps the log; Raft's upcall."""
        self.log_time.start()

    def apply(self, number: int, data: bytes) -> None:
        """Apply a committed group; Raft's upcall (``cluster.member.Applier``)."""
        entries = decode_entries(data)
        last_index, term = entries[-1].index, entries[0].term
        self.log.mark_committed(max(last_index, self.log.commit_index))
        results = self.router.apply_group(entries)
        self.log.mark_applied(last_index)
        for request in self._waiting.pop(number, ()):
            if request.term == term:
                request.callback(results[request.at : request.at + len(request.drafts)])
            else:
                request.callback(Discarded(number))

    # Inside

    def _after(self) -> None:
        """Do what any progress of the member may have made possible."""
        member = self.member
        if member.state == LEADER and self._led_term != member.term:
            self._led_term = member.term
            self._expire_number = 0
        elif member.state != LEADER and self._pending:
            pending, self._pending = self._pending, deque()
            for request in pending:
                request.callback(NotLeader(member.leader_id))
        self.reads.advance()
        if member.has_applied_noop:
            self._propose_expiries()
        if not self._syncing:
            self._flush()

    def _flush(self) -> None:
        """Turn what is pending into proposals, as large as the limits allow."""
        config, pending = self.config, self._pending
        while pending and self.member.state == LEADER:
            group: list[tuple[int, bytes, int]] = []
            requests: list[_Request] = []
            size = 0
            while pending:
                drafts = pending[0].drafts
                added = sum(HEADER_SIZE + len(payload) for _, payload, _ in drafts)
                if group and (
                    size + added > config.group_bytes_max
                    or len(group) + len(drafts) > config.group_entries_max
                ):
                    break
                request = pending.popleft()
                request.at = len(group)
                group += drafts
                size += added
                requests.append(request)
            try:
                number, term = self.member.propose(group)
            except ClusterError as error:
                for request in requests:
                    request.callback(error)
                continue
            for request in requests:
                request.term = term
            self._waiting[number] = requests

    def _propose_expiries(self) -> None:
        """As leader, propose to remove what is due; again only when the last is applied."""
        deadline_ns = self.router.next_deadline()
        if deadline_ns is None or self._expire_number > self.member.applied:
            return
        now_ns = self.log_time.now_ns()
        if deadline_ns <= now_ns:
            drafts = self.router.due(now_ns, EXPIRE_LIMIT)
            if drafts:
                self._expire_number, _ = self.member.propose(drafts)

    def _expire_requests(self) -> None:
        """Give up on requests whose time is over."""
        now_s = self.clock.now_s()
        while self._pending and self._pending[0].deadline_s <= now_s:
            self._pending.popleft().callback(Expired("the deadline passed before it was proposed"))
        for number in list(self._waiting):
            late = [each for each in self._waiting[number] if each.deadline_s <= now_s]
            if late:
                left = [each for each in self._waiting[number] if each.deadline_s > now_s]
                if left:
                    self._waiting[number] = left
                else:
                    del self._waiting[number]
                for request in late:
                    request.callback(OutcomeUnknown("the deadline passed after it was proposed"))
