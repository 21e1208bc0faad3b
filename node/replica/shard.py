"""One replica of one shard: its log, its state and its seat in the Raft group.

Driven by explicit calls, on one thread, and by nothing else: the same code runs under an event loop
and under a simulator. Whoever drives it

* calls ``tick`` at least every third of a heartbeat, where ``is_due`` says so, and, if the member
  is due, when a sync is back: what a follower applies can wait for the ack that its leader needs,
* hands in messages of peers with ``on_message`` and delivers what is sent through ``send``,
* asks ``sync_begin`` after anything that may have appended, runs the job where it may block, and
  returns it to ``on_synced``; likewise ``seal_begin`` and ``on_sealed``, now and then, and
  ``ship_begin`` and ``on_shipped``, after messages and ticks.

Group commit: requests collect while an fdatasync is on its way and become one proposal when it
returns, or at once when the disk is idle. So the busier it is, the larger the groups are.

Outcomes: a request that was never proposed failed for certain (``NotLeader``, ``Expired``). One
that was proposed has the result of its entries, or was ``Discarded`` because another leader's
proposal has its place, or nobody knows: ``OutcomeUnknown``, and a retry in a session is exact.
Every callback is called once, outside of Raft's own work: one that raises takes nothing with it.

Failure: a full disk refuses requests (``StorageFull``) and reads go on. Any other error that comes
out of a call means that this replica is not sure of itself any more. It stops: everything that
waits is answered, ``failure`` says why, and every further call raises ``ReplicaStopped``. The
driver starts a new one on the same directory.

Guard
-----
What stands around every call of a shard: after an error nobody expected, nothing goes on.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from uuid import UUID

from onelog.cluster.config import ALL_ON, Protections, RaftConfig, ShippingConfig
from onelog.cluster.errors import (
    ClusterError,
    NotLeader,
    ProposalRefused,
    ReplicaStopped,
    StorageFull,
)
from onelog.cluster.log_time import LogTime
from onelog.cluster.raft.journal import KIND_NOOP, RaftJournal
from onelog.cluster.raft.member import (
    LEADER,
    RaftMember,
    Transfer,
    TransferCallback,
    change_membership,
)
from onelog.cluster.raft.membership import Membership
from onelog.cluster.raft.messages import Message, Offer, StateReport
from onelog.cluster.raft.reads import ReadCallback, ReadRounds
from onelog.cluster.raft.state_comparison import StateComparison
from onelog.node.replica.jobs import ShipJob
from onelog.node.replica.requests import (
    Answers,
    Callback,
    Drafts,
    Durability,
    Outcome,
    Request,
    Requests,
    ShardConfig,
    refusal_of,
)
from onelog.node.replica.shipping import Shipped, Shipping
from onelog.node.replica.stale_reads import Level, StaleReads
from onelog.node.replica.status import ShardStatus, status_of
from onelog.projections.result import Result
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.system.commands import TYPES_OPAQUE
from onelog.projections.timeseries.columns import CorruptBlock
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.recovery import recover_state
from onelog.snapshot.store import SnapshotStore
from onelog.ual.directory import ShardPaths
from onelog.ual.entry import HEADER_SIZE, Draft, Entry, decode_entries
from onelog.ual.errors import CorruptFile, DataError, DiskFull, GroupTooLarge, IndexUnavailable
from onelog.ual.files import Files
from onelog.ual.jobs import ManifestJob, SealJob, SyncJob
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import open_hard_state, open_log


class Guarded(Protocol):
    """A replica that can stop."""

    failure: Exception | None

    def stop_for(self, error: Exception) -> None:
        """Stop, and remember why."""


class Guard:
    """Lets nothing go on after an error that was not expected where it happened."""

    __slots__ = ("_shard",)

    def __init__(self, shard: Guarded) -> None:
        self._shard = shard

    def __enter__(self) -> None:
        failure = self._shard.failure
        if failure is not None:
            raise ReplicaStopped(str(failure)) from failure

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        # A callback may call in again, so this may be the inner one of two: the first error counts.
        if isinstance(error, Exception) and self._shard.failure is None:
            self._shard.stop_for(error)


# Shard

# Committed groups that a follower leaves until its ack is on its way, however long syncs take.
UNAPPLIED_MAX = 1
# How many expired things a leader proposes to remove at a time; the rest comes next.
EXPIRE_LIMIT = 1000


class NodeClock(Protocol):
    """Time and chance, handed in."""

    def now_s(self) -> float:
        """Return monotonic seconds."""

    def wall_ns(self) -> int:
        """Return the wall clock in nanoseconds since 1970."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


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
        founders: Membership | None = None,
        shipping: ShippingConfig | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """``founders``: the first members, where this replica was not among them."""
        self.config = config or ShardConfig()
        self.clock = clock
        self.failure: Exception | None = None
        self._guard = Guard(self)
        self._hard_state = open_hard_state(files, paths)
        self.log, self.survey = open_log(
            files, paths, self._hard_state, shard=shard, config=log_config, allow_damaged=True
        )
        self.log_time = LogTime(
            lambda: int(clock.now_s() * 1e9), clock.wall_ns, lambda: self.log.last_timestamp_ns
        )
        journal = self._open_journal(founders or Membership.of([self_id, *peer_ids]))
        self.snapshots = SnapshotStore.open(files, paths, self.log)
        self.recovered = recover_state(
            files, shard, self.log, self.snapshots, build_projections, progress
        )
        self._use(self.recovered.state)
        applied = self.log.proposals.of_index(self.log.applied_index)
        journal.recover_membership(applied, self.projections.system.raft_config)
        self.member = RaftMember(
            raft_config or RaftConfig(),
            self_id,
            journal,
            clock,
            self,
            send,
            applied=applied,
            protections=protections,
        )
        shipping_config = shipping or ShippingConfig()
        self.shipping = Shipping(self, files, paths, shard, shipping_config, send)
        self.comparison = StateComparison(
            self.member,
            lambda: self.router,
            send,
            index_step=self.config.hash_index_step,
            time_step_ns=self.config.hash_time_step_ns,
        )
        self.reads = ReadRounds(self.member)
        self._answers: Answers = deque()
        self._requests = Requests(self.config, self._answers)
        self._stale_reads = StaleReads(self.member, lambda: self.log.applied_index, self._answers)
        self._transfer: Transfer | None = None
        self._due_number = 0  # the proposal that carries what was due last
        self._syncing = False
        self._led_term = 0
        # Told of every group that was applied, with its results; must not raise or block.
        self.listeners: list[Callable[[list[Entry], list[Result]], None]] = []

    def _open_journal(self, founders: Membership) -> RaftJournal:
        journal = RaftJournal(self.log, self._hard_state, self.log_time.now_ns, founders)
        if not len(journal):
            journal.add(KIND_NOOP, 1, 0)
            self.log.sync()
        if self.log.commit_index == 0:
            self.log.mark_committed(1)  # the same on every replica: committed by definition
        return journal

    # What the driver calls

    def tick(self) -> None:
        """Let time pass."""
        with self._guard:
            self.member.tick()
            self.shipping.tick()
            self._after()
            if self.member.has_applied_noop and self._transfer is None:
                self._propose_due()
            self._requests.expire(self.clock.now_s())
        self._deliver()

    def on_message(self, sender: UUID, message: Message) -> None:
        """Take a message of a peer."""
        with self._guard:
            if isinstance(message, Shipped):
                self.shipping.on_message(sender, message)
            elif isinstance(message, StateReport):
                self.comparison.on_report(sender, message)
            else:
                self.member.on_message(sender, message)
            self._lead_on()
            self._after()
        self._deliver()

    @property
    def is_due(self) -> bool:
        """Whether to tick now: something can be committed or applied, and no ack waits for that."""
        member, left = self.member, self.member.commit - self.member.applied
        if member.state != LEADER and (self._syncing or self.log.needs_sync):
            return left > UNAPPLIED_MAX
        return member.is_due or left > 0

    def _lead_on(self) -> None:
        """As leader, commit and apply what can be: somebody waits for the answer."""
        if self.member.is_due and self.member.state == LEADER:
            self.member.tick()

    def sync_begin(self) -> SyncJob | None:
        """Return a sync to run, if there is something to sync and none is on its way."""
        with self._guard:
            if self._syncing or not self.log.needs_sync:
                return None
            job = self.log.sync_begin()
            self._syncing = True
            return job

    def on_synced(self, job: SyncJob) -> None:
        """Take a sync back that has run."""
        with self._guard:
            self._syncing = False
            self.log.sync_finish(job)
            self.member.on_synced()
            self._lead_on()
            self._after()
        self._deliver()

    def seal_begin(self) -> SealJob | None:
        """Return a segment to seal, if there is one; run one such job at a time."""
        with self._guard:
            if self.shipping.is_installing:
                return None
            with suppress(DiskFull):  # there is no room for the next file: another time
                self.log.close_aged(self.log_time.estimate_ns())
            return self.log.seal_begin()

    def on_sealed(self, job: SealJob) -> bool:
        """Take a seal back that has run; False if the disk is full: try again later."""
        with self._guard:
            try:
                self.log.seal_finish(job)
            except DiskFull:
                return False
            return True

    def propose(
        self,
        drafts: Drafts,
        deadline_s: float,
        callback: Callback,
        *,
        durability: Durability = Durability.SYNC,
    ) -> None:
        """Replicate the entries of one request; call back once with their outcome."""
        assert drafts, "a request has at least one entry"
        assert all(draft[0] not in TYPES_OPAQUE for draft in drafts), "not for requests"
        request = Request(drafts, callback, deadline_s, durability)
        is_early = durability is Durability.ASYNC
        with self._guard:
            if is_early and (refusal := refusal_of(drafts)):
                self._answers.append((callback, refusal))
            elif self.member.state != LEADER:
                self._answers.append((callback, NotLeader(self.member.leader_id)))
            elif self._requests.add(request) and (is_early or not self._syncing):
                self._flush()  # an early answer does not wait for the sync that is on its way
                self._answer_received()
        self._deliver()

    def read(
        self,
        callback: ReadCallback,
        *,
        level: Level = Level.LINEARIZABLE,
        max_staleness_s: float | None = None,
        min_index: int = 0,
        deadline_s: float = float("inf"),
    ) -> None:
        """Call back when a read may look at the projections, in that very call.

        ``min_index``: not before this entry is applied, unless the deadline passes. A bound is for
        stale reads; see node/replica/stale_reads.py.
        """
        assert max_staleness_s is None or level is Level.STALE, "a bound is for stale reads"
        with self._guard:
            if level is Level.STALE:
                self._stale_reads.add(callback, max_staleness_s, min_index, deadline_s)
            elif min_index > self.log.applied_index:
                then_read = self._then_read(callback, level)
                self._stale_reads.add(then_read, None, min_index, deadline_s)
            elif self.may_look(level):
                self._answers.append((callback, None))
            else:
                self.reads.add(callback)
        self._deliver()

    def may_look(self, level: Level) -> bool:
        """Whether a read at the leader needs no round and may look at the projections now."""
        return self.failure is None and self.reads.may_look(by_lease=level is Level.LEASE)

    def _then_read(self, callback: ReadCallback, level: Level) -> ReadCallback:
        """Begin a read at the leader when what it waits for is here."""
        return lambda error: self.read(callback, level=level) if error is None else callback(error)

    def change_membership(
        self, membership: Membership, deadline_s: float, callback: Callback
    ) -> None:
        """As leader, change the members of the group; call back once with the outcome."""
        with self._guard:
            request = Request([membership.draft()], callback, deadline_s)
            try:
                if self._transfer is not None:
                    raise ProposalRefused("the leadership is being handed over")
                number, term = change_membership(self.member, membership)
            except DiskFull as error:
                self._answers.append((callback, StorageFull(str(error))))
            except ClusterError as error:
                self._answers.append((callback, error))
            else:
                self._requests.proposed([request], number, term, self.log.last_index)
        self._deliver()

    def transfer(self, target: UUID, callback: TransferCallback, hold_ms: int = 0) -> None:
        """As leader, hand the leadership to another voter; call back once when it is over."""
        with self._guard:
            try:
                if self._transfer is not None:
                    raise ProposalRefused("the leadership is being handed over already")
                self._transfer = Transfer(self.member, target, callback, hold_ms)
                self._after()
            except ClusterError as error:
                self._answers.append((callback, error))
        self._deliver()

    def trim_begin(
        self, keep_from: int | None = None, segments_max: int | None = None
    ) -> ManifestJob | None:
        """Let go of what snapshots have made needless and nobody is being sent.

        Nothing from ``keep_from`` on, and no more than ``segments_max`` at a time. The log takes
        the job back.
        """
        with self._guard:
            return self.shipping.trim_begin(keep_from, segments_max)

    def ship_begin(self) -> ShipJob | None:
        """Return something that may block, if there is something: run it, then hand it back."""
        with self._guard:
            return self.shipping.next_job()

    def on_shipped(self, job: ShipJob) -> None:
        """Take such a job back that has run."""
        with self._guard:
            self.shipping.finish(job)
            self.shipping.tick()
            self._after()
        self._deliver()

    def status(self) -> ShardStatus:
        """Return what there is to say about this replica, also after it has stopped."""
        return status_of(self)

    # What Raft calls (``onelog.cluster.raft.member.Applier``)

    def lead(self) -> None:
        """Begin to lead: from now on this replica stamps the log."""
        self.log_time.start()

    def heard(self, log_time_ns: int) -> None:
        """Note the leader's log time."""
        self.log_time.heard(log_time_ns)

    def offered(self, source: UUID, offer: Offer) -> None:
        """Consider a snapshot of what this replica lacks."""
        self.shipping.offered(source, offer)

    def take_over(self, state: Projections, number: int) -> None:
        """Go on with the state of a snapshot; what was proposed here up to it has no outcome."""
        self._use(state)
        self._requests.replaced(number)
        self.comparison.replaced()

    def _use(self, state: Projections) -> None:
        self.projections, self.router = state, state.router
        state.series.use_log(self._read_block)

    def _read_block(self, index: int) -> bytes:
        """Return the payload of a block of series, for the chores of a leader."""
        try:
            return self.log.read(index).plain_payload()
        except (DataError, IndexUnavailable) as error:
            if isinstance(error, CorruptFile):
                self.shipping.note_damage(error)
            raise CorruptBlock(index, str(error)) from error

    def apply(self, number: int, data: bytes) -> None:
        """Apply a committed group."""
        entries = decode_entries(data)
        last_index, term = entries[-1].index, entries[0].term
        self.log.mark_committed(max(last_index, self.log.commit_index))
        results = self.router.apply_group(entries)
        self.log.mark_applied(last_index)
        self.comparison.applied()
        self._requests.applied(number, term, results)
        for listener in self.listeners:
            listener(entries, results)

    # Inside

    def stop_for(self, error: Exception) -> None:
        """Answer everything that waits, before the error goes to the driver."""
        self.failure = error
        stopped = ReplicaStopped("this replica has stopped")
        self._requests.stop(stopped)
        if self._transfer is not None:
            self._answers.append((self._transfer.callback, stopped))
        self.reads.fail(stopped)
        self._stale_reads.fail(stopped)
        self._deliver()

    def _deliver(self) -> None:
        """Call back; whatever that raises, the rest is still here for the next time."""
        while self._answers:
            callback, outcome = self._answers.popleft()
            callback(outcome)
        self.reads.deliver()

    def _after(self) -> None:
        """Do what any progress of the member may have made possible."""
        member = self.member
        self.comparison.advance()
        transfer = self._transfer
        if transfer is not None and transfer.advance():
            self._transfer = None
            self._answers.append((transfer.callback, transfer.error))
        if member.state == LEADER and self._led_term != member.term:
            self._led_term = member.term
            self._due_number = 0
        elif member.state != LEADER and self._requests.is_pending:
            self._requests.turn_away(NotLeader(member.leader_id))
        self._answer_received()
        self.reads.advance()
        self._stale_reads.advance()
        if not self._syncing:
            self._flush()

    def _flush(self) -> None:
        """Turn what is pending into proposals, as large as the limits allow.

        What the log has no room for waits for the next sync. Waiting for it here would keep
        heartbeats back, and on a slow disk cost the leadership.
        """
        while self._requests.is_pending and self._transfer is None and self.member.state == LEADER:
            if not self.log.has_room(self._requests.next_bytes_max):
                return
            requests = self._requests.next_group(self.clock.now_s())
            if not requests:
                continue
            drafts = [each for request in requests for each in request.drafts]
            try:
                number, term = self.member.propose(drafts)
            except DiskFull as error:
                outcome: Outcome = StorageFull(str(error))
            except GroupTooLarge as error:
                outcome = ProposalRefused(str(error))
            except ClusterError as error:
                outcome = error
            else:
                first_index = self.log.last_index + 1 - len(drafts)
                self._requests.proposed(requests, number, term, first_index)
                continue
            self._requests.answer(requests, outcome)

    def _answer_received(self) -> None:
        """Answer the ASYNC requests that a majority has, by the word of this term's acks."""
        member = self.member
        if self._requests.is_early and member.state == LEADER:
            self._requests.received(member.term, member.leadership.received_by_majority())

    def _propose_due(self) -> None:
        """As leader, propose what is due by now; again only when the last of it is applied."""
        deadline_ns = self.router.next_deadline()
        if deadline_ns is None or self._due_number > self.member.applied:
            return
        if not self.log.has_room(self.config.group_bytes_max):
            return
        now_ns = self.log_time.now_ns()
        if deadline_ns > now_ns:
            return
        drafts = self._within_group(self.router.due(now_ns, EXPIRE_LIMIT))
        if drafts:
            try:
                self._due_number, _ = self.member.propose(drafts)
            except (DiskFull, GroupTooLarge, ProposalRefused):
                return  # nothing is lost: what is due stays due

    def _within_group(self, drafts: list[Draft]) -> list[Draft]:
        """Return the first of these that make a group of the usual size; the rest comes next."""
        size = 0
        for at, draft in enumerate(drafts):
            size += HEADER_SIZE + len(draft.payload)
            if at and (size > self.config.group_bytes_max or at >= self.config.group_entries_max):
                return drafts[:at]
        return drafts
