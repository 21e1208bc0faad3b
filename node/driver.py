"""Shards under an event loop: who calls ``tick``, ``on_message``, ``propose`` and ``on_synced``.

All work of a shard happens in passes on the loop. What arrives between two passes (messages,
proposals, reads) waits in plain lists, and one pass hands it over in tight loops: many proposals
become one group, many reads one round, and many messages cost one tick and at most one sync. An
fdatasync runs on the shard's own thread; while it runs, the next group fills.

* Ticks come at most a third of a heartbeat apart and never stop: elections, stepping down and
  applying live in them. Whatever raises in a pass, a timer or a thread ends ``run`` with that
  error, and with it the process: a replica that is unsure of itself must not go on.
* Every proposal and read ends by its deadline, whatever the shard does. Outcomes are values.
  ``Expired`` means that nothing was proposed; after that it is ``OutcomeUnknown``.
* A message with damaged groups changes nothing: it is refused, and the stream of its sender ends.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from cluster.errors import ClusterError, Expired, OutcomeUnknown, ProposalRefused
from cluster.messages import Message
from cluster.wire import Reason, WireError
from node.durability import Durability, refusal_of
from node.job_thread import JobThread
from node.requests import Drafts, Outcome
from node.shard import Shard
from node.stale_reads import Level
from ual.entry import HEADER_SIZE
from ual.jobs import SealJob, SyncJob

# Requests that were handed in and have no outcome yet, for each shard.
REQUESTS_MAX = 65_536
TICKS_PER_HEARTBEAT = 4
# How often somebody looks for segments to seal.
SEAL_PERIOD_S = 1.0


class Stopping(ClusterError):
    """This node is shutting down; nothing was proposed."""

    reason: ClassVar[str] = "STOPPING"


@dataclass(slots=True, eq=False)
class _Request:
    drafts: Drafts
    size: int
    deadline_s: float
    durability: Durability
    future: "asyncio.Future[Outcome]"


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
        self._is_sealing = False
        self._scheduled = False
        self._stopping = False
        self._closed = False
        self._inbox: list[tuple[UUID, Message]] = []
        self._proposals: list[_Request] = []
        self._batches: set[_Batch] = set()
        self._reads: list[tuple[float, asyncio.Future[ClusterError | None]]] = []
        self._asked: list[tuple[float, asyncio.Future[ClusterError | None]]] = []
        self._waiting = 0

    # What the node calls

    @property
    def waiting(self) -> int:
        """How many requests have no outcome yet."""
        return self._waiting

    def propose(
        self, drafts: Drafts, deadline_s: float, durability: Durability = Durability.SYNC
    ) -> "asyncio.Future[Outcome]":
        """Replicate the entries of one request; the future gets their outcome.

        ``deadline_s`` is a time of the shard's clock. The entries stay together and in order; a
        batch of independent operations is one request, with a result for each, or with one
        ``Received`` for all of them (node/durability.py).
        """
        future: asyncio.Future[Outcome] = self._loop.create_future()
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
    ) -> "asyncio.Future[ClusterError | None]":
        """Return a future that is None when a read of this level may look at the projections.

        Whoever waits for it looks in the same step of the loop in which it goes on. A stale read
        that waits for no index has its answer when this returns.
        """
        future: asyncio.Future[ClusterError | None] = self._loop.create_future()
        if self._stopping:
            future.set_result(Stopping("this node is shutting down"))
        elif level is Level.LINEARIZABLE and not min_index:
            self._reads.append((deadline_s, future))
            self._schedule()
        else:
            self._read_apart(future, deadline_s, level, max_staleness_s, min_index)
        return future

    def _read_apart(
        self,
        future: "asyncio.Future[ClusterError | None]",
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

    def deliver(self, sender: UUID, message: Message) -> None:
        """Take a message of a peer."""
        self._inbox.append((sender, message))
        self._schedule()

    # Passes

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run_pass)

    def run_pass(self) -> None:
        """Hand over what has come since the last pass, and let time pass."""
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
            shard.tick()
            self._begin_sync()
            # A tick applies for a bounded time only; let others run, then go on.
            if shard.member.applied < shard.member.commit:
                self._schedule()
        except BaseException as error:  # noqa: BLE001 - the root of a callback
            self._fail(error)

    def _hand_in_messages(self) -> None:
        inbox, self._inbox = self._inbox, []
        on_message, member = self.shard.on_message, self.shard.member
        for sender, message in inbox:
            damaged = member.damaged_messages
            on_message(sender, message)
            if member.damaged_messages != damaged:
                self.bad_messages += 1
                self._refuse(sender, WireError(Reason.BAD_GROUP, member.refusal))

    def _hand_in_proposals(self) -> None:
        """Merge the requests into as few as the limits of a group allow: a shard counts those.

        A merged request has one durability; several of them may still share a group.
        """
        requests, self._proposals = self._proposals, []
        config = self.shard.config
        bytes_max, entries_max = config.group_bytes_max, config.group_entries_max
        merged: list[_Request] = []
        size = entries = 0
        for request in requests:
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
            for request in batch.requests:
                if not request.future.done():
                    request.future.set_result(outcome)
            return
        at = 0
        for request in batch.requests:
            count = len(request.drafts)
            if not request.future.done():
                request.future.set_result(outcome.part(at, count))
            at += count

    def _hand_in_reads(self) -> None:
        reads, self._reads = self._reads, []
        self._asked += reads

        def answer(error: ClusterError | None) -> None:
            for _, future in reads:
                if not future.done():
                    future.set_result(error)

        self.shard.read(answer)

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

    # Deadlines

    def expire(self) -> None:
        """End what has waited for too long."""
        now_s = self.shard.clock.now_s()
        for batch in self._batches:
            if batch.deadline_s_min <= now_s:
                for request in batch.requests:
                    if request.deadline_s <= now_s and not request.future.done():
                        request.future.set_result(OutcomeUnknown("no outcome by its deadline"))
                waiting = [r.deadline_s for r in batch.requests if not r.future.done()]
                batch.deadline_s_min = min(waiting, default=float("inf"))
        asked = []
        for deadline_s, future in self._asked:
            if future.done():
                continue
            if deadline_s <= now_s:
                future.set_result(Expired("the read could not be answered by its deadline"))
            else:
                asked.append((deadline_s, future))
        self._asked = asked

    # The end

    def refuse_new(self) -> "list[asyncio.Future[Outcome]]":
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
        for batch in list(self._batches):
            self._finish(batch, OutcomeUnknown("this node has shut down"))
        for _, future in self._asked + self._reads:
            if not future.done():
                future.set_result(Stopping("this node has shut down"))
        self.shard.log.close()


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
                driver.run_pass()
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
