"""One shard under an event loop: its passes, syncs and jobs, and the futures of its requests.

All work of a shard happens in passes on the loop. What arrives between two passes (messages,
proposals, reads) waits in plain lists, and one pass hands it over in tight loops: many proposals
become one group, many reads one round, and many messages cost one tick and at most one sync. An
fdatasync runs on the shard's own thread; while it runs, the next group fills.

* Every proposal and read ends by its deadline, whatever the shard does. Outcomes are values.
  ``Expired`` means that nothing was proposed; after that it is ``OutcomeUnknown``.
* What is late, or whose caller has left, when its pass comes is not proposed, whoever it would
  have been merged with.
* Who shares a group or a round is answered at the end of a pass, when the next sync is on its way:
  what callers do with their answers takes about as long, and both happen at the same time.
* A message with damaged groups changes nothing: it is refused, and the stream of its sender ends.

Driver
------
The shards of one process under an event loop: who ticks them, and what happens when one fails.

Ticks come at most a third of a heartbeat apart and never stop: elections, stepping down and
applying live in them. Whatever raises in a pass, a timer or a thread ends ``run`` with that error,
and with it the process: a replica that is unsure of itself must not go on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from onelog.cluster.errors import ClusterError, Expired, OutcomeUnknown, ProposalRefused
from onelog.cluster.raft.membership import Membership
from onelog.cluster.raft.messages import Ack, Append, Message
from onelog.cluster.transport.wire import Reason, WireError
from onelog.node.replica.direct_future import DirectFuture
from onelog.node.replica.jobs import JobThread, ShipJob
from onelog.node.replica.requests import Drafts, Durability, Outcome, refusal_of
from onelog.node.replica.shard import Shard
from onelog.node.replica.stale_reads import Level
from onelog.node.replica.status import ShardStatus
from onelog.ual.entry import HEADER_SIZE
from onelog.ual.jobs import ManifestJob, SealJob, SyncJob

# Requests that were handed in and have no outcome yet, for each shard.
REQUESTS_MAX = 65_536


class Stopping(ClusterError):
    """This node is shutting down; nothing was proposed."""

    reason: ClassVar[str] = "STOPPING"


@dataclass(slots=True, eq=False)
class _Request:
    drafts: Drafts
    size: int
    deadline_s: float
    durability: Durability
    future: DirectFuture[Outcome]


@dataclass(slots=True, eq=False)
class _Batch:
    """Requests of one pass that were proposed together."""

    requests: list[_Request]
    deadline_s_min: float
    deadline_s_max: float


class ShardDriver:
    """Drives one shard. Made by ``Driver.add``."""

    def __init__(
        self,
        number: int,
        shard: Shard,
        fail: Callable[[BaseException], None],
        refuse: Callable[[UUID, WireError], None],
        seals: JobThread[SealJob],
    ) -> None:
        self.number = number
        self.shard = shard
        self.bad_messages = 0
        self.passes = 0
        self.seal_failures = 0
        self._fail = fail
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self.syncs: JobThread[SyncJob] = JobThread(f"sync-{number}", fail)
        self._seals = seals
        # Of its own: a snapshot may take long to load, and other shards are asked for theirs.
        self.ships: JobThread[ShipJob] = JobThread(f"ship-{number}", fail)
        self._membership = shard.member.membership
        self.on_members: Callable[[], None] = lambda: None  # they have changed
        self._is_sealing = False
        self._recording = asyncio.Lock()
        self._scheduled = False
        self._is_tick_due = False
        self._stopping = False
        self._closed = False
        self._inbox: list[tuple[UUID, Message]] = []
        self._proposals: list[_Request] = []
        self._batches: set[_Batch] = set()
        self._reads: list[tuple[float, DirectFuture[ClusterError | None]]] = []
        self._asked: list[tuple[float, DirectFuture[ClusterError | None]]] = []
        self._answers: deque[tuple[DirectFuture[Any], Any]] = deque()
        # What every read gets that may look at once: most gets of a leader that is alone.
        self._now: DirectFuture[ClusterError | None] = DirectFuture(loop=self._loop)
        self._now.set_result(None)
        self._waiting = 0

    # What the node calls

    @property
    def waiting(self) -> int:
        """How many requests have no outcome yet."""
        return self._waiting

    def propose(
        self, drafts: Drafts, deadline_s: float, durability: Durability = Durability.SYNC
    ) -> DirectFuture[Outcome]:
        """Replicate the entries of one request; the future gets their outcome.

        ``deadline_s`` is a time of the shard's clock. The entries stay together and in order; a
        batch of independent operations is one request, with a result for each, or with one
        ``Received`` for all of them (node/replica/requests.py).
        """
        future: DirectFuture[Outcome] = DirectFuture(loop=self._loop)
        # Here, before it is merged with others that are not to blame.
        if durability is Durability.ASYNC and (refusal := refusal_of(drafts)):
            future.set_result(refusal)
        elif self._stopping:
            future.set_result(Stopping("this node is shutting down"))
        elif self._waiting >= REQUESTS_MAX:
            future.set_result(ProposalRefused(f"{REQUESTS_MAX} requests are waiting"))
        else:
            size = HEADER_SIZE * len(drafts)
            for _, payload, _ in drafts:
                size += len(payload)
            self._waiting += 1
            self._proposals.append(_Request(drafts, size, deadline_s, durability, future))
            self._schedule()
        return future

    def read(
        self,
        deadline_s: float,
        *,
        level: Level = Level.LINEARIZABLE,
        max_staleness_s: float | None = None,
        min_index: int = 0,
    ) -> DirectFuture[ClusterError | None]:
        """Return a future that is None when a read of this level may look at the projections.

        Whoever waits for it looks in the same step of the loop in which it goes on. A read that
        needs no round (cluster/raft/reads.py) and waits for no index has its answer when this
        returns.
        """
        is_apart = min_index or level is Level.STALE
        if not is_apart and not self._stopping and self.shard.may_look(level):
            return self._now
        future: DirectFuture[ClusterError | None] = DirectFuture(loop=self._loop)
        if self._stopping:
            future.set_result(Stopping("this node is shutting down"))
        elif is_apart:
            self._read_apart(future, deadline_s, level, max_staleness_s, min_index)
        else:
            self._reads.append((deadline_s, future))
            self._schedule()
        return future

    def change_membership(
        self, membership: Membership, deadline_s: float
    ) -> "asyncio.Future[Outcome]":
        """As leader, change the members of the group; the future gets the outcome."""
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def answer(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self.shard.change_membership(membership, deadline_s, answer)
        self._schedule()
        return future

    def _read_apart(
        self,
        future: DirectFuture[ClusterError | None],
        deadline_s: float,
        level: Level,
        max_staleness_s: float | None,
        min_index: int,
    ) -> None:
        """Hand in a read that shares nothing with others."""

        def answer(error: ClusterError | None) -> None:
            if not future.done():
                future.set_result(error)

        try:
            self.shard.read(
                answer,
                level=level,
                max_staleness_s=max_staleness_s,
                min_index=min_index,
                deadline_s=deadline_s,
            )
        except ClusterError as error:  # the replica has stopped, and soon the process will
            answer(error)
        if not future.done():
            self._asked.append((deadline_s, future))

    def status(self) -> ShardStatus:
        """Return what the shard says about itself."""
        return self.shard.status()

    def deliver(self, sender: UUID, message: Message) -> None:
        """Take a message of a peer."""
        self._inbox.append((sender, message))
        self._schedule()

    # Passes

    def tick(self) -> None:
        """Let time pass.

        Other passes tick only where something is to be committed or applied: of what is done for a
        group, ticks that had nothing to do were a fifth.
        """
        self._is_tick_due = True
        self.run_pass()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run_pass)

    def run_pass(self) -> None:
        """Hand over what has come since the last pass."""
        self._scheduled = False
        if self._closed:
            return  # scheduled before the end
        self.passes += 1
        try:
            shard = self.shard
            if self._inbox:
                self._hand_in_messages()
            if self._proposals:
                self._hand_in_proposals()
            if self._reads:
                self._hand_in_reads()
            if self._is_tick_due or shard.is_due:
                self._is_tick_due = False
                shard.tick()
            self._begin_sync()
            self._begin_ship()
            if shard.member.membership is not self._membership:
                self._membership = shard.member.membership
                self.on_members()
            # A tick applies for a bounded time only; let others run, then go on.
            if shard.is_due:
                self._schedule()
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)
        self._answer()

    def _hand_in_messages(self) -> None:
        inbox, self._inbox = self._inbox, []
        on_message, member = self.shard.on_message, self.shard.member
        for sender, message in inbox:
            damaged = member.damaged_messages
            on_message(sender, message)
            # The usual ones have had their effect; what follows others may take a tick.
            self._is_tick_due = self._is_tick_due or not isinstance(message, Append | Ack)
            if member.damaged_messages != damaged:
                self.bad_messages += 1
                self._refuse(sender, WireError(Reason.BAD_GROUP, member.refusal))

    def _hand_in_proposals(self) -> None:
        """Merge the requests into as few as the limits of a group allow: a shard counts those.

        A merged request has one durability; several of them may still share a group. Its deadline
        is the latest of all, so those that are late by now are left out here.
        """
        requests, self._proposals = self._proposals, []
        config, now_s = self.shard.config, self.shard.clock.now_s()
        bytes_max, entries_max = config.group_bytes_max, config.group_entries_max
        merged: list[_Request] = []
        size = entries = 0
        for request in requests:
            if request.deadline_s <= now_s or request.future.done():
                self._leave_out(request)
                continue
            count = len(request.drafts)
            if merged and (
                size + request.size > bytes_max
                or entries + count > entries_max
                or request.durability is not merged[0].durability
            ):
                self._hand_in(merged)
                merged, size, entries = [], 0, 0
            merged.append(request)
            size += request.size
            entries += count
        if merged:
            self._hand_in(merged)

    def _leave_out(self, request: _Request) -> None:
        """End a request that is late, or cancelled, without a trace in the log."""
        self._waiting -= 1
        expired = Expired("the deadline passed before it was proposed")
        self._answers.append((request.future, expired))

    def _hand_in(self, requests: list[_Request]) -> None:
        deadlines = [request.deadline_s for request in requests]
        batch = _Batch(requests, min(deadlines), max(deadlines))
        drafts: list[tuple[int, bytes, int]] = []
        for request in requests:
            drafts += request.drafts
        self._batches.add(batch)
        self.shard.propose(
            drafts,
            batch.deadline_s_max,
            lambda outcome: self._finish(batch, outcome),
            durability=requests[0].durability,
        )

    def _finish(self, batch: _Batch, outcome: Outcome) -> None:
        """Give each request of a batch its part of the outcome."""
        self._batches.discard(batch)
        self._waiting -= len(batch.requests)
        if isinstance(outcome, ClusterError):
            self._answers.extend((request.future, outcome) for request in batch.requests)
            return
        at = 0
        for request in batch.requests:
            count = len(request.drafts)
            self._answers.append((request.future, outcome.part(at, count)))
            at += count

    def _hand_in_reads(self) -> None:
        reads, self._reads = self._reads, []
        self._asked += reads

        def answer(error: ClusterError | None) -> None:
            self._answers.extend((future, error) for _, future in reads)

        self.shard.read(answer)

    def _answer(self) -> None:
        """Continue those whose outcome is there."""
        answers = self._answers
        while answers:
            future, outcome = answers.popleft()
            if not future.done():
                future.set_result(outcome)

    def _begin_sync(self) -> None:
        job = self.shard.sync_begin()
        if job is not None:
            self.syncs.run(job, self._synced)

    def _synced(self, job: SyncJob) -> None:
        """Take a sync back from its thread."""
        if self._closed:
            return
        try:
            self.shard.on_synced(job)
            self._begin_sync()
            if self.shard.member.is_due:
                self._is_tick_due = True  # behind the ack, which leaves before the next pass
                self._schedule()
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)
        self._answer()

    def _begin_ship(self) -> None:
        job = self.shard.ship_begin()
        if job is not None:
            self.ships.run(job, self._shipped)

    def _shipped(self, job: ShipJob) -> None:
        """Take a step of a transfer back from its thread."""
        try:
            self.shard.on_shipped(job)
            self._begin_ship()
            self._is_tick_due = True
            self._schedule()
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)

    def begin_seal(self) -> None:
        """Let a closed segment be sealed, if there is one and none is on its way."""
        if self._is_sealing or self._stopping:
            return
        job = self.shard.seal_begin()
        if job is not None:
            self._is_sealing = True
            self._seals.run(job, self._sealed)

    def _sealed(self, job: SealJob) -> None:
        if self._closed:
            return
        try:
            self._is_sealing = False
            if self.shard.on_sealed(job):
                self.begin_seal()
            else:
                self.seal_failures += 1  # the disk is full; the timer tries again
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)

    async def record(self, begin: Callable[[], ManifestJob | None]) -> ManifestJob | None:
        """Change MANIFEST while the shard goes on: a slow disk must not keep its heartbeats back.

        One change after the other; the next one's ``begin`` finds the last one done. Who leaves
        meanwhile leaves a change that the log settles.
        """
        async with self._recording:
            job = begin()
            if job is not None:
                await asyncio.to_thread(job.run)
                self.shard.log.manifest_file.finish(job)
            return job

    # Deadlines

    def expire(self) -> None:
        """End what has waited for too long."""
        now_s = self.shard.clock.now_s()
        unknown = OutcomeUnknown("no outcome by its deadline")
        for batch in self._batches:
            if batch.deadline_s_min <= now_s:
                late = [r for r in batch.requests if r.deadline_s <= now_s]
                self._answers.extend((request.future, unknown) for request in late)
                waiting = [r.deadline_s for r in batch.requests if r.deadline_s > now_s]
                batch.deadline_s_min = min(waiting, default=float("inf"))
        self._asked = [each for each in self._asked if not each[1].done()]
        expired = Expired("the read could not be answered by its deadline")
        self._answers.extend(
            (future, expired) for until_s, future in self._asked if until_s <= now_s
        )
        self._answer()

    # The end

    def refuse_new(self) -> list[DirectFuture[Outcome]]:
        """Take no more requests; return those that are under way."""
        self._stopping = True
        under_way = [request.future for batch in self._batches for request in batch.requests]
        return under_way + [request.future for request in self._proposals]

    def close(self) -> None:
        """Let the thread end and close the log; blocks for a sync.

        Messages of peers and jobs that were on their way may still arrive; they change nothing.
        """
        self._closed = True
        self.syncs.stop()
        self.ships.stop(waits=False)  # it writes nothing but temporary files
        for batch in list(self._batches):
            self._finish(batch, OutcomeUnknown("this node has shut down"))
        self._answer()
        for _, future in self._asked + self._reads:
            if not future.done():
                future.set_result(Stopping("this node has shut down"))
        self.shard.log.close()


# Driver

TICKS_PER_HEARTBEAT = 4
# How often somebody looks for segments to seal.
SEAL_PERIOD_S = 1.0


class Driver:
    """Drives the shards of one process."""

    def __init__(self, refuse: Callable[[UUID, WireError], None] | None = None) -> None:
        self._shards: dict[int, ShardDriver] = {}
        self._refuse = refuse or (lambda _sender, _error: None)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Sealing reads and writes whole files: a sync must not wait behind it.
        self._seals: JobThread[SealJob] = JobThread("seal", self._fail)
        self._stopped = asyncio.Event()
        self.tick_late_s_max = 0.0

    def add(self, number: int, shard: Shard) -> ShardDriver:
        """Take a shard over."""
        assert number not in self._shards, number
        driver = ShardDriver(number, shard, self._fail, self._refuse, self._seals)
        self._shards[number] = driver
        return driver

    def __getitem__(self, number: int) -> ShardDriver:
        return self._shards[number]

    def deliver(self, sender: UUID, messages: list[tuple[int, Message]]) -> None:
        """Take messages of a peer; those of shards that are not here are dropped."""
        shards = self._shards
        for number, message in messages:
            driver = shards.get(number)
            if driver is not None:
                driver.deliver(sender, message)

    async def run(self) -> None:
        """Tick until ``stop``; raises what made a shard fail."""
        ticking = asyncio.ensure_future(self._tick_forever())
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait(
                (ticking, stopped, self._failure), return_when=asyncio.FIRST_COMPLETED
            )
            if self._failure.done():
                self._failure.result()
            if ticking.done():
                ticking.result()
        finally:
            for task in (ticking, stopped):
                task.cancel()
            await asyncio.gather(ticking, stopped, return_exceptions=True)
            if self._failure.done() and not self._failure.cancelled():
                self._failure.exception()  # or asyncio complains that nobody looked at it

    async def stop(self, grace_s: float = 2.0) -> None:
        """Refuse what is new, wait for what is under way, close; ``run`` returns."""
        drivers = list(self._shards.values())
        under_way = [future for driver in drivers for future in driver.refuse_new()]
        if under_way:
            await asyncio.wait(under_way, timeout=grace_s)
        self._stopped.set()
        self._seals.stop()
        for driver in drivers:
            driver.close()

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _tick_forever(self) -> None:
        """Tick every shard at least three times a heartbeat."""
        loop = asyncio.get_running_loop()
        period_s = (
            min(
                (each.shard.member.config.heartbeat_s for each in self._shards.values()),
                default=0.1,
            )
            / TICKS_PER_HEARTBEAT
        )
        due_s = seal_s = loop.time()
        while True:
            now_s = loop.time()
            self.tick_late_s_max = max(self.tick_late_s_max, now_s - due_s)
            for driver in self._shards.values():
                driver.tick()
                driver.expire()
                if now_s >= seal_s:
                    driver.begin_seal()
            if now_s >= seal_s:
                seal_s = now_s + SEAL_PERIOD_S
            due_s = now_s + period_s
            await asyncio.sleep(max(due_s - loop.time(), 0))


def run_until_complete(main: Coroutine[Any, Any, None]) -> None:
    """Run a process's main coroutine, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        factory = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


async def own_task() -> None:
    """Continue in a task, where ``asyncio.timeout`` and the like may be used.

    A current task proves nothing: it may be that of a tick, which has brought an outcome.
    """
    await asyncio.sleep(0)
