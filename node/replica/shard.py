"""One replica of one shard: its log, its state and its seat in the Raft group.

It is driven by explicit calls, on one thread, and by nothing else: the same code runs under an
event loop and under a simulator. Its driver

* calls ``tick`` at least every third of a heartbeat, when ``is_due`` says so, and, if the member is
  due, when a sync has returned: what a follower applies can wait for the ack that its leader needs,
* passes the messages of peers to ``on_message`` and delivers what is sent through ``send``,
* calls ``start_waiting`` after requests and reads were queued with ``propose`` and ``read``,
* asks ``sync_begin`` after anything that may have appended, runs the job where it may block, and
  passes it to ``on_synced``; likewise ``seal_begin`` and ``on_sealed``, now and then, and
  ``ship_begin`` and ``on_shipped``, after messages and ticks,
* calls ``deliver`` in the end, also after an error: it calls back with the outcomes that are known.

Group commit: requests collect while an fdatasync is on its way and become one proposal when it
returns, or at once when the disk is idle (node/replica/requests.py). So the busier it is, the
larger the groups are.

Outcomes: a request that was never proposed failed for certain (``NotLeader``, ``Expired``). One
that was proposed has the results of its entries, or was ``Discarded`` because another leader's
proposal has its place, or its outcome is unknown: ``OutcomeUnknown``, and a retry in a session is
exact. Every callback is called once, outside of Raft's own work: one that raises affects no other.

Failure: a full disk refuses requests (``StorageFull``) and reads continue. After any other error
that leaves a call, this replica is not sure of itself any more and stops (``Guard``): everything
that waits is answered, ``failure`` says why, and every further call raises ``ReplicaStopped``. The
driver starts a new one on the same directory.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from uuid import UUID

from onelog.cluster.config import ALL_ON, Protections, RaftConfig, ShippingConfig
from onelog.cluster.errors import (
    ClusterError,
    DescriptorsExhausted,
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
from onelog.cluster.raft.reads import Answers, ReadCallback, ReadRounds
from onelog.cluster.raft.state_comparison import StateComparison
from onelog.node.replica.jobs import ShipJob
from onelog.node.replica.requests import (
    Callback,
    Drafts,
    Durability,
    Request,
    Requests,
    ShardConfig,
)
from onelog.node.replica.shipping import Shipped, Shipping
from onelog.node.replica.stale_reads import Level, StaleReads
from onelog.node.replica.status import ShardStatus, describe_status
from onelog.projections.result import Result
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.system.commands import TYPES_OPAQUE
from onelog.projections.timeseries.columns import CorruptBlock
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.recovery import recover_state
from onelog.snapshot.store import KeepConfig, SnapshotStore
from onelog.ual.directory import ShardPaths
from onelog.ual.entry import HEADER_SIZE, Draft, Entry, decode_entries
from onelog.ual.errors import (
    DataError,
    DiskFull,
    GroupTooLarge,
    IndexUnavailable,
    TooManyOpenFiles,
)
from onelog.ual.files import Files
from onelog.ual.jobs import ManifestJob, SealJob, SyncJob
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import open_hard_state, open_log


class Guard:
    """Stops a shard at the first error that was not expected where it happened."""

    __slots__ = ("_shard",)

    def __init__(self, shard: "Shard") -> None:
        self._shard = shard

    def check(self) -> None:
        """Raise ``ReplicaStopped`` if the shard has stopped."""
        failure = self._shard.failure
        if failure is not None:
            raise ReplicaStopped(str(failure)) from failure

    __enter__ = check

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        # A callback may call in again, so this may be the inner one of two: the first error counts.
        if isinstance(error, Exception) and self._shard.failure is None:
            self._shard.stop_for(error)


# How many committed groups a follower leaves unapplied until its ack is sent.
UNAPPLIED_MAX = 1
# How many expirations a leader proposes at a time; the rest follows.
EXPIRE_LIMIT = 1000


class NodeClock(Protocol):
    """Time and random numbers, passed in so that a run can be repeated exactly."""

    def now_s(self) -> float:
        """Return monotonic seconds."""

    def wall_ns(self) -> int:
        """Return the wall clock in nanoseconds since 1970."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


class Shard:
    """See the module."""

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
        keep: KeepConfig | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """``founders``: the first members, if this replica was not one of them."""
        self.config = config or ShardConfig()
        self.clock = clock
        self.failure: Exception | None = None
        self._guard = Guard(self)
        self._hard_state = open_hard_state(files, paths)
        self.log, self.survey = open_log(
            files, paths, self._hard_state, shard=shard, config=log_config,
            allow_damaged=True, allow_missing=bool(peer_ids),
        )  # fmt: skip
        self.log_time = LogTime(
            lambda: int(clock.now_s() * 1e9), clock.wall_ns, lambda: self.log.last_timestamp_ns
        )
        journal = self._open_journal(founders or Membership.of([self_id, *peer_ids]))
        self.snapshots = SnapshotStore.open(files, paths, self.log, keep)
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
        self.shipping = Shipping(self, files, paths, shard, shipping or ShippingConfig(), send)
        self.shipping.repair.listeners.append(self._pass_on_damage)
        self._pass_on_damage()
        self.comparison = StateComparison(
            self.member, lambda: self.router, send, shard=shard,
            index_step=self.config.hash_index_step, time_step_ns=self.config.hash_time_step_ns,
        )  # fmt: skip
        self._answers: Answers = deque()
        self.reads = ReadRounds(self.member, self._answers)
        self.requests = Requests(self.config, self._answers)
        self._stale_reads = StaleReads(self.member, self._answers)
        self._transfer: Transfer | None = None
        self._due_number = 0  # the last proposal of expirations and the like
        self._syncing = False
        self._led_term = 0
        # Called with every group that was applied and its results; must not raise or block.
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
        """Do what is due by now: elections, heartbeats, applying, expirations, deadlines."""
        with self._guard:
            self.member.tick()
            self.shipping.tick()
            self._after()
            if self.member.has_applied_noop and self._transfer is None:
                self._propose_due()
            now_s = self.clock.now_s()
            self.requests.expire(now_s)
            self.reads.expire(now_s)

    def on_message(self, sender: UUID, message: Message) -> None:
        """Handle a message of a peer."""
        with self._guard:
            if isinstance(message, Shipped):
                self.shipping.on_message(sender, message)
            elif isinstance(message, StateReport):
                self.comparison.on_report(sender, message)
            else:
                self.member.on_message(sender, message)
            self._lead_on()
            self._after()

    @property
    def is_due(self) -> bool:
        """Whether to tick now: something can be committed or applied, and no ack waits for that."""
        member = self.member
        left = member.commit - member.applied
        if left <= 0 and not member.is_due:
            return False
        if member.state != LEADER and (self._syncing or self.log.needs_sync):
            return left > UNAPPLIED_MAX
        return True

    def _lead_on(self) -> None:
        """As leader, commit and apply at once what can be: callers wait for it."""
        if self.member.is_due and self.member.state == LEADER:
            self.member.tick()

    def sync_begin(self) -> SyncJob | None:
        """Return a sync to run, if there is something to sync and no other sync runs."""
        if self._syncing or not self.log.needs_sync:
            return None
        with self._guard:
            job = self.log.sync_begin()
            self._syncing = True
            return job

    def on_synced(self, job: SyncJob) -> None:
        """Finish a sync that has run."""
        with self._guard:
            self._syncing = False
            self.log.sync_finish(job)
            self.member.on_synced()
            self._lead_on()
            self._after()

    def seal_begin(self) -> SealJob | None:
        """Return a segment to seal, if there is one; run one such job at a time."""
        with self._guard:
            if self.shipping.is_installing:
                return None
            with suppress(DiskFull):  # no room for the next file: try again later
                self.log.close_aged(self.log_time.estimate_ns())
            return self.log.seal_begin()

    def on_sealed(self, job: SealJob) -> bool:
        """Finish a seal that has run; return False if the disk is full: try again later."""
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
        durability: Durability = Durability.SYNC,
        has_left: Callable[[], bool] | None = None,
    ) -> None:
        """Queue the entries of one request for the next group; call back once with their outcome.

        ``start_waiting`` forms the group, as leader. A request that cannot be queued is answered
        here; one whose caller ``has_left`` by then is dropped.
        """
        assert drafts, "a request has at least one entry"
        if self.failure is not None:
            self._guard.check()
        size = HEADER_SIZE * len(drafts)
        for entry_type, payload, _ in drafts:
            assert entry_type not in TYPES_OPAQUE, "not for requests"
            size += len(payload)
        request = Request(drafts, size, callback, deadline_s, durability, has_left)
        refusal = self.requests.add(request)
        if refusal is not None:
            callback(refusal)

    def read(
        self,
        callback: ReadCallback,
        *,
        level: Level = Level.LINEARIZABLE,
        max_staleness_s: float | None = None,
        min_index: int = 0,
        deadline_s: float = float("inf"),
    ) -> None:
        """Call back when a read may use the projections, in that very call: here, if it is now.

        Otherwise ``start_waiting`` starts its round. ``min_index``: not before this entry is
        applied, unless the deadline passes. ``max_staleness_s`` is for stale reads; see
        node/replica/stale_reads.py.
        """
        assert max_staleness_s is None or level is Level.STALE, "a bound is for stale reads"
        self._guard.check()
        if min_index > self.log.applied_index:
            self._stale_reads.add(callback, level, max_staleness_s, min_index, deadline_s)
        elif level is Level.STALE:
            callback(self._stale_reads.check_age(max_staleness_s))
        elif self.may_look(level):
            callback(None)
        else:
            self.reads.add(callback, deadline_s)

    def start_waiting(self) -> None:
        """Start what was queued: groups for requests, a round for reads.

        Requests wait while a sync is on its way, unless one of them is ASYNC.
        """
        with self._guard:
            requests = self.requests
            if requests.pending:
                if self.member.state != LEADER:
                    requests.turn_away(NotLeader(self.member.leader_id))
                elif not self._syncing or requests.is_async_pending:
                    self._flush()
                    if requests.unreceived:
                        self._answer_received()
            if self.reads.count:
                self.reads.advance()

    def deliver(self) -> None:
        """Call back with the outcomes that are known; if one raises, the rest stays for later."""
        answers = self._answers
        while answers:
            callback, outcome = answers.popleft()
            callback(outcome)

    def may_look(self, level: Level) -> bool:
        """Whether a read at the leader needs no round and may use the projections now."""
        return self.failure is None and self.reads.may_look(by_lease=level is Level.LEASE)

    def change_membership(
        self, membership: Membership, deadline_s: float, callback: Callback
    ) -> None:
        """As leader, change the members of the group; call back once with the outcome."""
        with self._guard:
            draft = membership.draft()
            try:
                if self._transfer is not None:
                    raise ProposalRefused("the leadership is being handed over")
                number, term = change_membership(self.member, membership)
            except DiskFull as error:
                self._answers.append((callback, _storage_full(error)))
            except ClusterError as error:
                self._answers.append((callback, error))
            else:
                size = HEADER_SIZE + len(draft.payload)
                request = Request([draft], size, callback, deadline_s, Durability.SYNC)
                self.requests.add_proposed(request, number, term, self.log.last_index)

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

    def trim_begin(
        self, keep_from: int | None = None, segments_max: int | None = None
    ) -> ManifestJob | None:
        """Drop segments that snapshots cover and that no peer is being sent.

        Entries from ``keep_from`` on are kept, and at most ``segments_max`` segments are dropped
        at a time. Run the job, then pass it to ``log.manifest_file.finish``.
        """
        with self._guard:
            return self.shipping.trim_begin(keep_from, segments_max)

    def ship_begin(self) -> ShipJob | None:
        """Return the next job of shipping or repair, if there is one: it may block."""
        with self._guard:
            return self.shipping.next_job()

    def on_shipped(self, job: ShipJob) -> None:
        """Finish a shipping job that has run."""
        with self._guard:
            self.shipping.finish(job)
            self.shipping.tick()
            self._after()

    def status(self) -> ShardStatus:
        """Return the status of this replica, also after it has stopped."""
        return describe_status(self)

    # What Raft calls (``onelog.cluster.raft.member.Applier``)

    def lead(self) -> None:
        """Begin to lead: from now on this replica stamps the log."""
        self.log_time.start()

    def heard(self, log_time_ns: int, travelled_s: float) -> None:
        """Note the leader's log time of at most ``travelled_s`` seconds ago."""
        self.log_time.heard(log_time_ns, travelled_s)

    def offered(self, source: UUID, offer: Offer) -> None:
        """Consider a snapshot that the leader offers, of entries that this replica lacks."""
        self.shipping.offered(source, offer)

    def take_over(self, state: Projections, number: int) -> None:
        """Continue with the state of a snapshot; proposals up to it have no known outcome."""
        self._use(state)
        self._pass_on_damage()
        self.requests.replaced(number)
        self.comparison.replaced()

    def _use(self, state: Projections) -> None:
        self.projections, self.router = state, state.router
        state.series.use_log(self._read_block)

    def _pass_on_damage(self) -> None:
        """Tell what makes leases which messages this replica cannot give to anybody."""
        self.projections.queue.unreadable = self.shipping.repair.unreadable

    def _read_block(self, index: int) -> bytes:
        """Return the payload of a block of series, for rollups and retention."""
        try:
            return self.log.read(index).plain_payload()
        except (DataError, IndexUnavailable) as error:
            raise CorruptBlock(index, str(error)) from error

    def apply(self, number: int, data: bytes) -> None:
        """Apply a committed group."""
        entries = decode_entries(data)
        last_index, term = entries[-1].index, entries[0].term
        self.log.mark_committed(max(last_index, self.log.commit_index))
        results = self.router.apply_group(entries)
        self.log.mark_applied(last_index)
        self.comparison.applied(last_index, entries[-1].timestamp_ns)
        self.requests.applied(number, term, results)
        for listener in self.listeners:
            listener(entries, results)

    # Inside

    def stop_for(self, error: Exception) -> None:
        """Stop, before the error goes to the driver."""
        self.failure = error
        self.refuse_all(ReplicaStopped("this replica has stopped"))

    def refuse_all(self, error: ClusterError) -> None:
        """End everything that waits: with this error, or as unknown if it was proposed."""
        self.requests.stop(error)
        if self._transfer is not None:
            self._answers.append((self._transfer.callback, error))
            self._transfer = None
        self.reads.fail(error)
        self._stale_reads.fail(error)

    def _after(self) -> None:
        """Do what the last progress of the member may have made possible."""
        member = self.member
        leads = member.state == LEADER
        if self.comparison.is_new or not leads:
            self.comparison.advance()
        transfer = self._transfer
        if transfer is not None and transfer.advance():
            self._transfer = None
            self._answers.append((transfer.callback, transfer.error))
        if leads and self._led_term != member.term:
            self._led_term = member.term
            self._due_number = 0
        elif not leads and self.requests.pending:
            self.requests.turn_away(NotLeader(member.leader_id))
        if self.requests.unreceived:
            self._answer_received()
        if self._stale_reads.waiting:
            for read in self._stale_reads.advance(self.log.applied_index):
                if self.may_look(read.level):
                    self._answers.append((read.callback, None))
                else:
                    self.reads.add(read.callback, read.deadline_s)
        if self.reads.count:
            self.reads.advance()
        if self.requests.pending and not self._syncing:
            self._flush()

    def _flush(self) -> None:
        """Propose the pending requests in groups as large as the limits allow.

        What the log has no room for waits for the next sync. Waiting for it here would keep
        heartbeats back, and on a slow disk cost the leadership.
        """
        queue, log = self.requests, self.log
        while queue.pending and self._transfer is None and self.member.state == LEADER:
            if not log.has_room(queue.next_bytes_max):
                return
            now_s = self.clock.now_s()
            requests = queue.next_group(now_s)
            if not requests:
                return
            drafts = [draft for request in requests for draft in request.drafts]
            try:
                number, term = self.member.propose(drafts)
            except DiskFull as error:
                queue.refuse(requests, _storage_full(error))
            except GroupTooLarge as error:
                queue.refuse(requests, ProposalRefused(str(error)))
            except ClusterError as error:
                queue.refuse(requests, error)
            else:
                first_index = log.last_index + 1 - len(drafts)
                queue.proposed(requests, number, term, first_index, now_s)

    def _answer_received(self) -> None:
        """Answer the ASYNC requests that a majority has, by the acks of this term."""
        member = self.member
        if member.state == LEADER:
            self.requests.received(member.term, member.leadership.received_by_majority())

    def _propose_due(self) -> None:
        """As leader, propose what is due by now, once the last such proposal is applied."""
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
        """Return the first of these that fit a group of the usual size; the rest follows."""
        size = 0
        for at, draft in enumerate(drafts):
            size += HEADER_SIZE + len(draft.payload)
            if at and (size > self.config.group_bytes_max or at >= self.config.group_entries_max):
                return drafts[:at]
        return drafts


def _storage_full(error: DiskFull) -> StorageFull:
    kind = DescriptorsExhausted if isinstance(error, TooManyOpenFiles) else StorageFull
    return kind(str(error))
