"""Watching: every event once and in order, however slow the watcher is, from wherever it resumes.

A watcher has a cursor for each shard, and the log is the truth: an event belongs to an entry, and
the cursor says which entries were looked at. Two ways lead to the same events:

* *Live*: entries are turned into events once, when they are applied, and handed to the watchers
  that want them, into a bounded buffer each.
* *Behind*: a watcher reads the log by itself, a page at a time. It is behind when it begins in the
  past, and when its buffer is full: what does not fit is not kept for it, since the log has it.

A watcher goes live when its cursor reaches the head, the last entry that was handed out; both are
looked at in one step of the loop, so no entry falls in between. Any replica serves watchers, and a
leader that goes takes nothing with it: committed entries are the same everywhere.

A watcher of shards that another process of this node holds is sent what that process says.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from node.calls import Call
from node.edge import Edge, invalid
from node.forwarding import Elsewhere
from node.watch_feeds import Feed, Filters, Page, Source
from onelog.v1 import common_pb2, pipeline_pb2
from ual.errors import IndexDropped

PROGRESS_DEFAULT_MS = 10_000
PROGRESS_MS_MIN = 100
PROGRESS_MS_MAX = 86_400_000
INDEX_MAX = 1 << 63
WATCH_METHOD = "/onelog.v1.Pipeline/Watch"
# Messages of another process that wait here.
MESSAGES_WAITING_MAX = 4


class Watches:
    """The watchers of one process."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._sources: dict[int, Source] = {}

    def source(self, shard: int) -> Source:
        """Return the events of a shard."""
        found = self._sources.get(shard)
        if found is None:
            driver = self._edge.replica(shard)
            found = self._sources[shard] = Source(driver, self._edge.readers)
        return found

    async def watch(
        self, request: pipeline_pb2.WatchRequest, call: Call
    ) -> AsyncIterator[pipeline_pb2.WatchResponse]:
        """Yield what happens from a cursor on."""
        edge = self._edge
        progress_s = _progress_ms(request) / 1000
        filters = Filters(request.filters)
        shards = sorted({edge.check_shard(shard) for shard in request.shards}) or range(edge.shards)
        local = [shard for shard in shards if shard in edge.context.drivers]
        remote = [shard for shard in shards if shard not in edge.context.drivers]
        positions = {edge.check_shard(each.shard): each for each in request.cursor.positions}
        wake = asyncio.Event()
        feeds: list[Feed] = []
        others = Others(edge, request, remote, call, wake)
        try:
            for shard in local:  # one by one: what has begun is ended if another is refused
                feeds.append(self._feed(shard, filters, positions.get(shard), wake))  # noqa: PERF401
            page = Page(with_previous=request.with_previous)
            await others.start(page)
            yield _message(feeds, others, page.message)
            while True:
                wake.clear()
                page = Page(with_previous=request.with_previous)
                for feed in feeds:
                    await feed.fill(page)
                others.fill(page)
                if page.message.events:
                    yield _message(feeds, others, page.message)
                    continue
                if not all(feed.is_idle for feed in feeds):
                    continue
                try:
                    async with asyncio.timeout(progress_s):
                        await wake.wait()
                except TimeoutError:
                    yield _message(feeds, others, page.message)
        finally:
            for feed in feeds:
                feed.close()
            await others.close()

    def _feed(
        self,
        shard: int,
        filters: Filters,
        position: common_pb2.Position | None,
        wake: asyncio.Event,
    ) -> Feed:
        source = self.source(shard)
        cursor, sent = source.applied_index, 0
        if position is not None:
            cursor, sent = position.index, position.events_sent
            if cursor >= INDEX_MAX:
                raise invalid("CURSOR_INVALID", f"there is no index {cursor}")
            if cursor + 1 < source.first_index:
                raise IndexDropped(cursor + 1, source.first_index, source.applied_index)
        feed = Feed(source, filters, cursor, sent, wake)
        source.add(feed)
        return feed


class Others:
    """The shards that other processes of this node hold: what those send, passed on."""

    def __init__(
        self,
        edge: Edge,
        request: pipeline_pb2.WatchRequest,
        shards: Sequence[int],
        call: Call,
        wake: asyncio.Event,
    ) -> None:
        self._edge = edge
        self._request = request
        self._call = call
        self._wake = wake
        self._by_endpoint: dict[str, list[int]] = {}
        topology = edge.context.topology
        for shard in shards:
            endpoint = topology.endpoint(shard, topology.self_id)
            if endpoint is None or call.is_forwarded:
                raise Elsewhere(shard, endpoint).error()
            self._by_endpoint.setdefault(endpoint, []).append(shard)
        self._tasks: list[asyncio.Task[None]] = []
        self._messages: deque[pipeline_pb2.WatchResponse] = deque()
        self._room = asyncio.Semaphore(MESSAGES_WAITING_MAX)
        self._positions: dict[int, common_pb2.Position] = {}

    async def start(self, page: Page) -> None:
        """Begin to listen; return when all have said where they begin."""
        for endpoint, shards in self._by_endpoint.items():
            request = pipeline_pb2.WatchRequest()
            request.CopyFrom(self._request)
            del request.shards[:]
            request.shards.extend(shards)
            del request.cursor.positions[:]
            request.cursor.positions.extend(
                each for each in self._request.cursor.positions if each.shard in shards
            )
            data = request.SerializeToString()
            self._tasks.append(asyncio.create_task(self._follow(endpoint, data)))
        count = sum(map(len, self._by_endpoint.values()))
        while len(self._positions) < count:
            self._wake.clear()
            self.fill(page)
            if len(self._positions) < count:
                await self._wake.wait()

    async def _follow(self, endpoint: str, request: bytes) -> None:
        forwarder = self._edge.calls.forwarder
        try:
            async for data in forwarder.stream(
                endpoint, WATCH_METHOD, request, self._call.metadata
            ):
                await self._room.acquire()
                self._messages.append(pipeline_pb2.WatchResponse.FromString(data))
                self._wake.set()
        finally:
            self._wake.set()

    def fill(self, page: Page) -> None:
        """Put what has come into a message; raises why one of the others has ended."""
        while self._messages and not page.is_full:
            message = self._messages.popleft()
            self._room.release()
            page.message.events.extend(message.events)
            self._positions.update((each.shard, each) for each in message.cursor.positions)
        for task in self._tasks:
            if task.done() and not self._messages:
                task.result()
                raise Elsewhere(0, None).error()

    def position(self, target: common_pb2.Cursor) -> None:
        """Say from where to resume."""
        target.positions.extend(self._positions.values())

    async def close(self) -> None:
        """Listen no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _message(
    feeds: list[Feed], others: Others, message: pipeline_pb2.WatchResponse
) -> pipeline_pb2.WatchResponse:
    """Return a message with the cursor from which to resume after it."""
    for feed in feeds:
        feed.position(message.cursor.positions.add())
    others.position(message.cursor)
    return message


def _progress_ms(request: pipeline_pb2.WatchRequest) -> int:
    progress_ms = request.progress_ms or PROGRESS_DEFAULT_MS
    if not PROGRESS_MS_MIN <= progress_ms <= PROGRESS_MS_MAX:
        raise invalid("PROGRESS_INVALID", f"a message every {progress_ms} ms")
    return int(progress_ms)
