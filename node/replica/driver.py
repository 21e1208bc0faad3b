"""The shards of one process under an event loop: passes, syncs, jobs, and futures for callers.

All work of a shard happens in passes on the loop. What arrives between two passes (messages,
requests, reads) waits, and one pass processes all of it: many requests become one group, many reads
share one round, and many messages cost one tick and at most one sync. An fdatasync runs on the
shard's own thread; while it runs, the next group fills.

* Requests and reads are merged, bounded and ended by their deadlines in the shard
  (node/replica/requests.py, cluster/raft/reads.py). Here each has a future, which gets the outcome
  as a value.
* Outcomes are delivered at the end of a pass, after the next sync was started: what callers do with
  them takes about as long as a sync, and so both happen at the same time.
* A message with damaged groups changes nothing: it is refused, and the stream of its sender ends.
* Ticks come at most a third of a heartbeat apart and never stop: elections, stepping down and
  applying live in them.
* Every request and read that was accepted is answered, at the latest when its shard is closed.

Failure: an error in a pass, a timer or a thread ends ``Driver.run`` with that error, and with it
the process: a replica that is unsure of itself must not continue.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar
from uuid import UUID

from onelog.cluster.errors import ClusterError, ReplicaStopped
from onelog.cluster.raft.messages import Ack, Append, Message
from onelog.cluster.transport.wire import Reason, WireError
from onelog.node.replica.direct_future import DirectFuture
from onelog.node.replica.jobs import JobThread, ShipJob
from onelog.node.replica.requests import Drafts, Durability, Outcome
from onelog.node.replica.shard import Shard
from onelog.node.replica.stale_reads import Level
from onelog.node.replica.start_repair import StartRepair
from onelog.node.replica.status import ShardStatus
from onelog.ual.jobs import ManifestJob, SealJob, SyncJob


class Stopping(ClusterError):
    """This node is shutting down; nothing was proposed."""

    reason: ClassVar[str] = "STOPPING"


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
        # One for each shard: a snapshot may take long to load, and others have theirs to send.
        self.ships: JobThread[ShipJob] = JobThread(f"ship-{number}", fail)
        self._membership = shard.member.membership
        self.on_members: Callable[[], None] = lambda: None  # called when they have changed
        self._is_sealing = False
        self._recording = asyncio.Lock()
        self._scheduled = False
        self._is_tick_due = False
        self._stopping = False
        self._closed = False
        self._inbox: list[tuple[UUID, Message]] = []
        self._has_queued = False  # requests or reads, since the last pass
        # The answer to every read that needs no waiting: most gets of a leader that is alone.
        self._now: DirectFuture[ClusterError | None] = DirectFuture(loop=self._loop)
        self._now.set_result(None)
        self._idle: asyncio.Future[None] = self._loop.create_future()  # see ``refuse_new``

    # What the node calls

    @property
    def waiting(self) -> int:
        """The number of requests that have no outcome yet."""
        return self.shard.requests.count

    def propose(
        self, drafts: Drafts, deadline_s: float, durability: Durability = Durability.SYNC
    ) -> DirectFuture[Outcome]:
        """Replicate the entries of one request; the future gets their outcome.

        ``deadline_s`` is a time of the shard's clock. The entries stay together and in order; a
        batch of independent operations is one request, with a result for each, or with one
        ``Received`` for all of them (node/replica/requests.py).
        """
        future: DirectFuture[Outcome] = DirectFuture(loop=self._loop)
        if self._stopping:
            future.set_result(Stopping("this node is shutting down"))
            return future
        try:
            self.shard.propose(drafts, deadline_s, future.answer, durability, future.done)
        except ReplicaStopped as error:  # the process is about to end
            future.set_result(error)
        if not future.done():
            self._has_queued = True
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
        """Return a future that ends with None when a read of this level may use the projections.

        Its awaiter reads them in the same step of the loop in which it continues. A read that needs
        no round (cluster/raft/reads.py) and waits for no index has its answer when this returns.
        """
        is_at_leader = not min_index and level is not Level.STALE
        if is_at_leader and not self._stopping and self.shard.may_look(level):
            return self._now
        future: DirectFuture[ClusterError | None] = DirectFuture(loop=self._loop)
        if self._stopping:
            future.set_result(Stopping("this node is shutting down"))
            return future
        try:
            self.shard.read(
                future.answer,
                level=level,
                max_staleness_s=max_staleness_s,
                min_index=min_index,
                deadline_s=deadline_s,
            )
        except ReplicaStopped as error:  # the process is about to end
            future.set_result(error)
        if not future.done():
            self._has_queued = True
            self._schedule()
        return future

    def status(self) -> ShardStatus:
        """Return the status of the shard."""
        return self.shard.status()

    def deliver(self, sender: UUID, message: Message) -> None:
        """Queue a message of a peer for the next pass."""
        self._inbox.append((sender, message))
        self._schedule()

    # Passes

    def tick(self) -> None:
        """Run a pass that ticks, for what time brings.

        Other passes tick only if something is to be committed or applied: ticks without anything to
        do were a fifth of the work for a group.
        """
        self._is_tick_due = True
        self.run_pass()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run_pass)

    def run_pass(self) -> None:
        """Process what has come since the last pass."""
        self._scheduled = False
        if self._closed:
            return  # scheduled before the end
        self.passes += 1
        try:
            shard = self.shard
            if self._inbox:
                self._process_messages()
            if self._has_queued:
                self._has_queued = False
                shard.start_waiting()
            if self._is_tick_due or shard.is_due:
                self._is_tick_due = False
                shard.tick()
                self._begin_ship()
                # A tick applies for a bounded time only: let others run, then continue.
                if shard.is_due:
                    self._schedule()
            self._begin_sync()
            if shard.member.membership is not self._membership:
                self._membership = shard.member.membership
                self.on_members()
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)
        self._deliver()

    def _process_messages(self) -> None:
        inbox, self._inbox = self._inbox, []
        on_message, member = self.shard.on_message, self.shard.member
        for sender, message in inbox:
            damaged = member.damaged_messages
            on_message(sender, message)
            # The usual ones have had their effect; others may need a tick.
            self._is_tick_due = self._is_tick_due or not isinstance(message, Append | Ack)
            if member.damaged_messages != damaged:
                self.bad_messages += 1
                self._refuse(sender, WireError(Reason.BAD_GROUP, member.refusal))

    def _deliver(self) -> None:
        """Answer everything whose outcome is known."""
        self.shard.deliver()
        if self._stopping and not self.shard.requests.count and not self._idle.done():
            self._idle.set_result(None)

    def _begin_sync(self) -> None:
        job = self.shard.sync_begin()
        if job is not None:
            self.syncs.run(job, self._synced)

    def _synced(self, job: SyncJob) -> None:
        """Process a sync that its thread has run."""
        if self._closed:
            return
        try:
            self.shard.on_synced(job)
            self._begin_sync()
            if self.shard.member.is_due:
                self._is_tick_due = True  # after the ack, which leaves before the next pass
                self._schedule()
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)
        self._deliver()

    def _begin_ship(self) -> None:
        job = self.shard.ship_begin()
        if job is not None:
            self.ships.run(job, self._shipped)

    def _shipped(self, job: ShipJob) -> None:
        """Process a step of a transfer that its thread has run."""
        if self._closed:
            return
        try:
            self.shard.on_shipped(job)
            self._begin_ship()
            self._is_tick_due = True
            self._schedule()
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)

    def begin_seal(self) -> None:
        """Start to seal a closed segment, if there is one and none is being sealed."""
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
        """Change MANIFEST while the shard continues: a slow disk must not delay its heartbeats.

        Changes run one after the other, and ``begin`` is called when the last one is done. If the
        caller is cancelled meanwhile, the log settles the change.
        """
        async with self._recording:
            job = begin()
            if job is not None:
                await asyncio.to_thread(job.run)
                self.shard.log.manifest_file.finish(job)
            return job

    # The end

    def refuse_new(self) -> "asyncio.Future[None]":
        """Refuse new requests; the future is done when those under way have their outcome."""
        self._stopping = True
        if not self.shard.requests.count and not self._idle.done():
            self._idle.set_result(None)
        return self._idle

    def close(self) -> None:
        """Stop the threads, answer everything that waits and close the log; blocks for a sync.

        Messages of peers and jobs that were on their way may still arrive; they change nothing.
        """
        self._stopping = self._closed = True
        self.syncs.stop()
        self.ships.stop(waits=False)  # it writes nothing but temporary files
        self.shard.refuse_all(Stopping("this node has shut down"))
        self._deliver()
        self.shard.log.close()


class RepairDriver:
    """Drives the repair of a shard that cannot start. Made by ``Driver.add_repair``."""

    def __init__(self, repair: StartRepair, fail: Callable[[BaseException], None]) -> None:
        self.repair = repair
        # Set when the shard can be opened again.
        self.is_over = asyncio.Event()
        self._fail = fail
        self._is_closed = False
        self._jobs: JobThread[ShipJob] = JobThread(f"repair-{repair.number}", fail)

    def deliver(self, sender: UUID, message: Message) -> None:
        """Pass a message of a peer on."""
        self._advance(lambda: self.repair.on_message(sender, message))

    def tick(self) -> None:
        """Do what time brings."""
        self._advance(self.repair.advance)

    def close(self) -> None:
        """Stop; the result of a running job is dropped."""
        self._is_closed = True
        self._jobs.stop(waits=False)

    def _advance(self, act: Callable[[], None]) -> None:
        if self._is_closed:
            return
        try:
            act()
            job = self.repair.next_job()
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)
            return
        if job is not None:
            self._jobs.run(job, self._completed)
        if self.repair.is_done:
            self.is_over.set()

    def _completed(self, job: ShipJob) -> None:
        self._advance(lambda: self.repair.finish(job))


TICKS_PER_HEARTBEAT = 4
# How often the driver looks for segments to seal.
SEAL_PERIOD_S = 1.0


class Driver:
    """Drives the shards of one process."""

    def __init__(self, refuse: Callable[[UUID, WireError], None] | None = None) -> None:
        self._shards: dict[int, ShardDriver] = {}
        self._repairs: dict[int, RepairDriver] = {}  # of shards that cannot start yet
        self._refuse = refuse or (lambda _sender, _error: None)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Sealing reads and writes whole files: a sync must not wait behind it.
        self._seals: JobThread[SealJob] = JobThread("seal", self.fail)
        self._stopped = asyncio.Event()
        self.tick_late_s_max = 0.0

    def add(self, number: int, shard: Shard) -> ShardDriver:
        """Drive a shard from now on."""
        assert number not in self._shards, number
        driver = ShardDriver(number, shard, self.fail, self._refuse, self._seals)
        self._shards[number] = driver
        return driver

    def add_repair(self, repair: StartRepair) -> RepairDriver:
        """Drive the repair of a shard that cannot start, until ``end_repair``."""
        driver = self._repairs[repair.number] = RepairDriver(repair, self.fail)
        return driver

    def end_repair(self, number: int) -> None:
        """End a repair; its shard is opened next."""
        self._repairs.pop(number).close()

    def __getitem__(self, number: int) -> ShardDriver:
        return self._shards[number]

    def deliver(self, sender: UUID, messages: list[tuple[int, Message]]) -> None:
        """Pass messages of a peer to their shards; drop those of shards that are not here."""
        shards = self._shards
        for number, message in messages:
            driver = shards.get(number) or self._repairs.get(number)
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
                self._failure.exception()  # or asyncio reports that it was never retrieved

    async def stop(self, grace_s: float = 2.0) -> None:
        """Refuse what is new, wait for what is under way, close; ``run`` returns."""
        drivers = list(self._shards.values())
        under_way = [driver.refuse_new() for driver in drivers]
        if under_way:
            await asyncio.wait(under_way, timeout=grace_s)
        self._stopped.set()
        self._seals.stop()
        for repair in self._repairs.values():
            repair.close()
        for driver in drivers:
            driver.close()

    def fail(self, error: BaseException) -> None:
        """End ``run`` with this error."""
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
                if now_s >= seal_s:
                    driver.begin_seal()
            for repair in self._repairs.values():
                repair.tick()
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
    """Continue in a task of one's own, where ``asyncio.timeout`` and the like may be used.

    That there is a current task proves nothing: it may be that of a tick that brought an outcome.
    """
    await asyncio.sleep(0)
