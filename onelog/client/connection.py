"""The core of a client, shared by all of its views: lanes, sessions, topology, channels.

A connection belongs to the event loop in which it is first used. Its first call asks an endpoint
for the topology; from then on the client routes by itself. ``close`` ends every task and channel;
calls under way fail with CLIENT_CLOSED.

A call whose answer must not get lost (leased messages, say) passes ``unwanted``, which handles an
answer that arrives after the caller was cancelled. The cancelled caller waits a moment for that,
and so does ``close``.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from onelog.client.batch import SINGLE, Batch, Single, fail
from onelog.client.calls import UNCERTAIN, Calls, raise_if_closed
from onelog.client.channels import Channels
from onelog.client.lanes import Lane, ReadLane, WriteLane
from onelog.client.options import ClientOptions
from onelog.client.pipeline_stream import Pipe
from onelog.client.sessions import Sessions
from onelog.client.topology import Topology
from onelog.client.values import Read
from onelog.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    OnelogError,
    SessionExpired,
    Unavailable,
)
from onelog.routing import routing_key
from onelog.v1 import pipeline_pb2

if TYPE_CHECKING:
    from onelog.client.blocking import LoopThread

# How often deadlines are checked while something is under way: how late an error may be.
SWEEP_S = 0.02
# How long a cancelled caller, or ``close``, waits until an unwanted answer is handled.
UNWANTED_WAIT_S = 1.0

# Handles an answer that nobody waits for any more; is given the call that will return it.
Unwanted = Callable[[Awaitable[Any]], Coroutine[Any, Any, None]]


class Connection:
    """What all views of a client share. May be made outside an event loop, is used inside one."""

    loop: asyncio.AbstractEventLoop
    # What runs the calls of a blocking client.
    thread: "LoopThread | None" = None

    def __init__(self, endpoints: Iterable[str], options: ClientOptions) -> None:
        self.options = options
        self.channels = Channels(options)
        self.topology = Topology(endpoints, self.channels, options)
        self.calls = Calls(self.channels, self.topology, options)
        self.sessions = Sessions(self.calls, options)
        self._batches: dict[Batch, Lane] = {}
        self._pipes: dict[str, Pipe] = {}
        self._to_flush: list[Lane] = []
        self._is_flushing = False
        self._write_lanes: list[WriteLane] = []
        self._early_lanes: list[WriteLane] = []
        self._lanes_by_partition: list[WriteLane] = []
        self._partition_count = 0
        self._read_lanes: dict[str, ReadLane] = {}
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending: set[asyncio.Task[None]] = set()  # handle unwanted answers
        self._sweeping: asyncio.TimerHandle | None = None
        self._process_id = 0
        self._is_closed = False
        # Whether a call can go ahead without waiting: started, not closed, room for more.
        self._is_clear = False
        self._is_started = False
        self._operations = 0
        self._bytes = 0
        self._room: asyncio.Event | None = None

    # For the models

    def write_lane(self, name: bytes) -> WriteLane | None:
        """Return the lane for writes to a key or name; None: await ``ready`` first."""
        if not self._is_clear:
            return None
        tag = routing_key(name) if b"{" in name else name
        return self._lanes_by_partition[crc32c(tag) % self._partition_count]

    def early_lane(self, name: bytes) -> WriteLane | None:
        """Return the lane for writes that are answered before they are applied.

        They have no session: a session keeps results, and these have none yet when answered.
        """
        return self._early_lanes[self.topology.find_shard(name)] if self._is_clear else None

    def read_lane(self, endpoint: str) -> ReadLane:
        """Return the lane for reads from an endpoint."""
        lane = self._read_lanes.get(endpoint)
        if lane is None:
            lane = self._read_lanes[endpoint] = ReadLane(self, endpoint)
        return lane

    @property
    def is_clear(self) -> bool:
        """Whether a call can go ahead without waiting."""
        return self._is_clear

    async def ready(self, timeout_s: float, refused_s: float | None = None) -> None:
        """Wait until a call can go ahead: started, and below the limits of what is under way.

        If all endpoints refuse a connection, fail after ``refused_s``.
        """
        if self._is_closed:
            raise FailedPrecondition("the client is closed", reason="CLIENT_CLOSED")
        if not self._is_started:
            await self._start(timeout_s, refused_s)
        if self._room is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    while self._room is not None:
                        await self._room.wait()
            except TimeoutError:
                raise DeadlineExceeded(
                    f"{self._operations} operations with {self._bytes} bytes are under way; "
                    "there was no room for more in time",
                    reason="EXPIRED",
                ) from None
        if self._is_closed:
            raise FailedPrecondition("the client is closed", reason="CLIENT_CLOSED")

    async def find_shard(self, name: bytes, timeout_s: float) -> int:
        """Return the shard of a key or name; waits for the topology."""
        if not self._is_clear:
            await self.ready(timeout_s)
        return self.topology.find_shard(name)

    async def write(
        self,
        name: bytes,
        size: int,
        timeout_s: float,
        fill: Callable[[pipeline_pb2.Operation], None],
        decode: Callable[[pipeline_pb2.OperationResult], Any],
        *,
        is_early: bool = False,
        unwanted: Unwanted | None = None,
    ) -> Any:
        """Carry out one write operation through the pipeline; see ``Single`` for the callbacks."""
        if not self._is_clear:
            await self.ready(timeout_s)
        lane = self.early_lane(name) if is_early else self.write_lane(name)
        assert lane is not None
        answer = lane.call(SINGLE, None, Single(fill, decode), size, timeout_s)
        if unwanted is None:
            return await answer
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await self._end(unwanted(answer))
            raise

    async def call_read(
        self,
        path: str,
        request: Any,
        timeout_s: float,
        *,
        name: bytes | None = None,
        is_stale: bool = False,
    ) -> Any:
        """Make a unary read; ``name`` says which shard, if it is one."""
        if not self._is_clear:
            await self.ready(timeout_s)
        shard = None if name is None else self.topology.find_shard(name)
        route: Callable[[], str] | None = None
        if is_stale and shard is not None:
            route = partial(self.topology.find_replica, shard)
        return await self.calls.unary(
            path, request, timeout_s=timeout_s, shard=shard, route=route, is_repeatable=True
        )

    async def pages(
        self, path: str, request: Any, timeout_s: float, read: Read | None
    ) -> AsyncIterator[Any]:
        """Yield the pages of a list by name: of all shards, or of its routing key's shard."""
        if read is not None:
            read.fill(request.options)
        is_stale = read is not None and read.stale
        name = request.routing_key or None
        while True:
            page = await self.call_read(path, request, timeout_s, name=name, is_stale=is_stale)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def call_write(
        self,
        path: str,
        request: Any,
        timeout_s: float,
        *,
        name: bytes,
        poll_s: float = 0.0,
        unwanted: Unwanted | None = None,
    ) -> Any:
        """Make a unary call that writes in one shard; exactly once if sessions are on.

        Without sessions ``unwanted`` is not used: the server sees that the caller is gone.
        """
        if not self._is_clear:
            await self.ready(timeout_s)
        shard = self.topology.find_shard(name)
        if not self.options.sessions:
            return await self.calls.unary(
                path, request, timeout_s=timeout_s, shard=shard, poll_s=poll_s
            )
        is_fresh = self.sessions.get(shard, for_calls=True) is None
        try:
            return await self._call_in_session(path, request, timeout_s, shard, poll_s, unwanted)
        except SessionExpired as expired:
            # This attempt did nothing; if an earlier one may have, Calls.unary has said so.
            if is_fresh or UNCERTAIN in expired.metadata:
                raise
            return await self._call_in_session(path, request, timeout_s, shard, poll_s, unwanted)

    async def _call_in_session(
        self,
        path: str,
        request: Any,
        timeout_s: float,
        shard: int,
        poll_s: float,
        unwanted: Unwanted | None,
    ) -> Any:
        session = await self.sessions.open(shard, timeout_s, for_calls=True)
        # A long poll that finds nothing writes nothing, so it does not renew the session.
        sequence = session.take(1, session.used_s if poll_s else monotonic())
        call = partial(self.calls.unary, path, request, shard=shard, is_repeatable=True)

        async def ask_again() -> None:
            # The session kept the answer, or the repeated request gets one now without waiting.
            if poll_s:
                request.wait_ms = 0
            assert unwanted is not None
            try:
                await unwanted(call(timeout_s=timeout_s))
            finally:
                session.done(sequence)

        def renew() -> None:
            nonlocal sequence
            session.done(sequence)
            sequence = session.take(1, monotonic())
            session.fill(request.options.session, sequence)

        is_left = False
        try:
            session.fill(request.options.session, sequence)
            return await call(timeout_s=timeout_s, poll_s=poll_s, renew=renew)
        except SessionExpired:
            self.sessions.lost(session)
            raise
        except asyncio.CancelledError:
            if unwanted is not None:
                is_left = True
                await self._end(ask_again())
            raise
        finally:
            if not is_left:
                session.done(sequence)

    async def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run ``ending`` for a cancelled caller; wait for it, but not for long."""
        task = self.loop.create_task(ending, name="onelog unwanted answer")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.wait((task,), timeout=UNWANTED_WAIT_S)

    def make_failed(self, error: Exception) -> asyncio.Future[Any]:
        """Return the future of an operation that cannot be sent."""
        failed = self.loop.create_future()
        failed.set_exception(error)
        return failed

    # For the lanes

    def flush_soon(self, lane: Lane) -> None:
        """Call ``flush`` of a lane at the end of this iteration of the loop."""
        self._to_flush.append(lane)
        self._schedule_flush()

    def post(self, batch: Batch, lane: Lane) -> None:
        """Send a batch to its endpoint, with all others of this iteration."""
        endpoint = batch.endpoint
        pipe = self._pipes.get(endpoint)
        if pipe is None:
            pipe = self._pipes[endpoint] = Pipe(self.channels.of(endpoint), self.options)
        pipe.send(batch, lane)
        self._schedule_flush()

    def withdraw(self, batch: Batch) -> None:
        """Forget a batch that was posted; an answer that comes later is ignored."""
        self._pipes[batch.endpoint].withdraw(batch)

    def _schedule_flush(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the calls of this iteration: lanes build batches, pipes write messages."""
        try:
            while self._to_flush:
                self._to_flush.pop().flush()
        finally:
            self._is_flushing = False
        for pipe in self._pipes.values():
            pipe.flush()

    def open_session(self, shard: int, opened: Callable[[OnelogError | None], None]) -> None:
        """Open a session, then call ``opened``."""

        async def run() -> None:
            error: OnelogError | None = None
            try:
                await self.sessions.open(shard, self.options.timeout_s)
            except OnelogError as failure:
                error = failure
            opened(error)

        self._spawn(run(), f"onelog session {shard}")

    def began(self, batch: Batch, lane: Lane) -> None:
        """Check the deadlines of a batch from now on."""
        self._batches[batch] = lane
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(SWEEP_S, self._sweep)

    def entered(self, count: int, size: int) -> None:
        """Count operations that are now under way."""
        self._operations += count
        self._bytes += size
        if self._room is None and not self._has_room():
            self._room = asyncio.Event()
            self._is_clear = False

    def ended(self, batch: Batch) -> None:
        """Forget a batch; its operations are no longer under way."""
        if self._batches.pop(batch, None) is None or not batch.is_counted:
            return
        self._operations -= batch.count
        self._bytes -= batch.size
        assert self._operations >= 0, self._operations
        if self._room is not None and self._has_room():
            self._room.set()
            self._room = None
            self._is_clear = self._is_started and not self._is_closed

    def _has_room(self) -> bool:
        options = self.options
        return (
            self._operations < options.pending_operations_max
            and self._bytes < options.pending_bytes_max
        )

    # Beginning and end

    async def _start(self, timeout_s: float, refused_s: float | None) -> None:
        if self._process_id not in (0, os.getpid()):
            raise FailedPrecondition(
                "a client does not work in a forked process; make one there", reason="FORKED"
            )
        if self._starting is None:
            self.loop = asyncio.get_running_loop()
            self._process_id = os.getpid()
            beginning = self._begin(timeout_s, refused_s)
            self._starting = self.loop.create_task(beginning, name="onelog start")
        starting = self._starting
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            raise_if_closed()
            raise
        finally:
            if starting.done() and self._starting is starting and not self._is_started:
                self._starting = None  # the next call tries again

    async def _begin(self, timeout_s: float, refused_s: float | None) -> None:
        await self.calls.start(timeout_s, refused_s)
        shard_count = self.topology.shard_count
        self._partition_count = self.topology.partition_count
        lanes = self._write_lanes = [
            WriteLane(self, shard, has_session=self.options.sessions)
            for shard in range(shard_count)
        ]
        self._early_lanes = [
            WriteLane(self, shard, has_session=False) for shard in range(shard_count)
        ]
        self._lanes_by_partition = [
            lanes[partition % shard_count] for partition in range(self._partition_count)
        ]
        self._is_started = True
        self._is_clear = not self._is_closed
        self._spawn(self._watch_topology(), "onelog topology refresh")

    async def _watch_topology(self) -> None:
        while True:
            await asyncio.sleep(self.options.topology_refresh_s)
            self.topology.refresh_soon()

    def _sweep(self) -> None:
        self._sweeping = None
        now_s = monotonic()
        for batch, lane in list(self._batches.items()):
            lane.sweep(batch, now_s)
        if self._batches:
            self._sweeping = self.loop.call_later(SWEEP_S, self._sweep)

    def _spawn(self, coroutine: Any, name: str) -> None:
        task = self.loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End everything; may be called more than once."""
        if self._ending and not self._is_closed:
            await asyncio.wait(self._ending, timeout=UNWANTED_WAIT_S)
        if self._is_closed:
            return
        self._is_closed = True
        self._is_clear = False
        if self._room is not None:
            self._room.set()
            self._room = None
        closed = Unavailable("the client is closed", reason="CLIENT_CLOSED")
        for lane in (*self._write_lanes, *self._early_lanes, *self._read_lanes.values()):
            lane.close(closed)
        for pipe in self._pipes.values():
            await pipe.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        tasks = [
            *self._tasks,
            *self._ending,
            *([self._starting] if self._starting is not None else []),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.sessions.close()
        await self.topology.close()
        await self.channels.close()
        for batch in list(self._batches):
            fail(batch.calls, closed)
        self._batches.clear()
