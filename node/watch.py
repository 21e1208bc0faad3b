"""Watching: every event once and in order, however slow the watcher is, from wherever it resumes.

A watcher has a cursor for each shard, and the log is the truth: an event belongs to an entry, and
the cursor says which entries were looked at. Two ways lead to the same events:

* *Live*: entries are turned into events once, when they are applied, and handed to the watchers
  that want them, into a bounded buffer each.
* *Behind*: a watcher reads the log by itself, a page at a time. It is behind when it begins in the
  past, and when its buffer is full: what does not fit is not kept for it, since the log has it.
  What an entry did that neither it nor the live state tells any more, a state of the past does.

A watcher goes live when its cursor reaches the head, the last entry that was handed out; both are
looked at in one step of the loop, so no entry falls in between. Any replica serves watchers, and a
leader that goes takes nothing with it: committed entries are the same everywhere.

A watcher of shards that another process of this node holds is sent what that process says; one
whose cursor is ahead of this replica, what the leader says. A cursor that is ahead of the leader is
of another cluster, or of one before it was restored: it is refused, since nothing would ever come.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any

from node.calls import LEADER_WAIT_S, Call, gather
from node.edge import Edge, invalid
from node.forwarding import Elsewhere
from node.status_mapping import error_of_reason
from node.waits import Wake
from node.watch_feeds import EventPage, Feed, Filters, Page, source_of
from onelog.v1 import common_pb2, pipeline_pb2
from projections.reasons import Reason
from ual.errors import IndexDropped

PROGRESS_DEFAULT_MS = 10_000
PROGRESS_MS_MIN = 100
PROGRESS_MS_MAX = 86_400_000
INDEX_MAX = 1 << 63
# How long a leader may take to make sure that it leads, before a cursor ahead of it is refused.
LEADERSHIP_WAIT_S = 5.0
WATCH_METHOD = "/onelog.v1.Pipeline/Watch"
# Messages of another process that wait here.
MESSAGES_WAITING_MAX = 4


class Watches:
    """The watchers of one process."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def watch(
        self, request: pipeline_pb2.WatchRequest, call: Call
    ) -> AsyncIterator[pipeline_pb2.WatchResponse]:
        """Yield what happens from a cursor on."""
        edge = self._edge
        progress_s = _progress_ms(request) / 1000
        filters = Filters(request.filters)
        shards = sorted({edge.check_shard(shard) for shard in request.shards}) or range(edge.shards)
        positions = {edge.check_shard(each.shard): each for each in request.cursor.positions}
        local, remote = await places(edge, shards, positions, call)
        wake = Wake()
        feeds: list[Feed] = []
        parts = {
            endpoint: (_part_of(request, theirs), theirs) for endpoint, theirs in remote.items()
        }
        others = Others(edge, WATCH_METHOD, pipeline_pb2.WatchResponse, parts, call, wake)
        try:
            for shard in local:  # one by one: what has begun is ended if another is refused
                feeds.append(  # noqa: PERF401
                    self._feed(
                        shard,
                        filters,
                        positions.get(shard),
                        wake,
                        with_previous=request.with_previous,
                    )
                )
            messages = follow(
                feeds,
                others,
                lambda: EventPage(with_previous=request.with_previous),
                wake,
                progress_s,
            )
            async with aclosing(messages):
                async for message in messages:
                    yield message
        finally:
            for feed in feeds:
                feed.close()
            await others.close()

    def _feed(
        self,
        shard: int,
        filters: Filters,
        position: common_pb2.Position | None,
        wake: Wake,
        *,
        with_previous: bool,
    ) -> Feed:
        source = source_of(self._edge, shard)
        cursor, sent = source.applied_index, 0
        if position is not None:
            cursor, sent = position.index, position.events_sent
            if cursor + 1 < source.first_index:
                raise IndexDropped(cursor + 1, source.first_index, source.applied_index)
        feed = Feed(source, filters, cursor, sent, wake, with_previous=with_previous)
        source.add(feed)
        return feed


async def follow(
    feeds: Sequence[Feed],
    others: "Others",
    new_page: Callable[[], Page],
    wake: Wake,
    progress_s: float,
) -> AsyncGenerator[Any, None]:
    """Yield messages of what feeds and other processes have, each with the cursor behind it.

    The first is empty and says where it begins: whoever goes on there has missed nothing. Later
    ones come when there is something, or every ``progress_s``.
    """
    await others.start()
    yield _message(feeds, others, new_page().message)
    while True:
        wake.clear()
        page = new_page()
        for feed in feeds:
            await feed.fill(page)
        others.fill(page)
        if page.items:
            yield _message(feeds, others, page.message)
            continue
        if not all(feed.is_waiting for feed in feeds):
            continue
        if not await wake.wait(progress_s):
            yield _message(feeds, others, page.message)


async def places(
    edge: Edge, shards: Iterable[int], positions: Mapping[int, common_pb2.Position], call: Call
) -> tuple[list[int], dict[str, list[int]]]:
    """Return which of the shards this process serves from a cursor on, and who serves the others.

    That is another process of this node, or the leader if this replica is behind the cursor.
    """
    shards = list(shards)
    endpoints = await gather(*(_place(edge, each, positions.get(each), call) for each in shards))
    local: list[int] = []
    remote: dict[str, list[int]] = {}
    for shard, endpoint in zip(shards, endpoints, strict=True):
        (local if endpoint is None else remote.setdefault(endpoint, [])).append(shard)
    return local, remote


async def _place(
    edge: Edge, shard: int, position: common_pb2.Position | None, call: Call
) -> str | None:
    """Return where a shard is served, None for here; refuse an index that nobody has come to."""
    topology, driver = edge.context.topology, edge.context.drivers.get(shard)
    if driver is None:
        endpoint = topology.endpoint(shard, topology.self_id)
        if endpoint is None or call.is_forwarded:
            raise Elsewhere(shard, endpoint).error()
        return endpoint
    index = 0 if position is None else position.index
    if index >= INDEX_MAX:
        raise invalid("CURSOR_INVALID", f"there is no index {index}")
    held = driver.shard
    if index <= held.log.applied_index:
        return None
    try:
        # What a leader has applied behind a read is all that any replica has told anybody.
        error = await edge.leading(shard).read(edge.context.clock.now_s() + LEADERSHIP_WAIT_S)
        if error is not None:
            raise edge.failure(shard, error)
    except Elsewhere as elsewhere:
        # A follower: the cursor may come from a replica that is ahead of this one.
        if await edge.waits(shard).until(lambda: held.log.applied_index >= index, LEADER_WAIT_S):
            return None
        if elsewhere.endpoint is None or call.is_forwarded:
            raise elsewhere.error() from None
        return elsewhere.endpoint
    if index > held.log.applied_index:
        raise error_of_reason(Reason.INDEX_IN_FUTURE, held.log.applied_index)
    return None


def _part_of(request: pipeline_pb2.WatchRequest, shards: Sequence[int]) -> bytes:
    part = pipeline_pb2.WatchRequest()
    part.CopyFrom(request)
    del part.shards[:]
    part.shards.extend(shards)
    put_part(part.cursor, request.cursor, shards)
    data: bytes = part.SerializeToString()
    return data


def put_part(target: common_pb2.Cursor, cursor: common_pb2.Cursor, shards: Sequence[int]) -> None:
    """Write the part of a cursor that is about some shards."""
    del target.positions[:]
    target.positions.extend(each for each in cursor.positions if each.shard in shards)


class Others:
    """The shards that other processes of this node hold: what those send, passed on."""

    __slots__ = (
        "_call", "_edge", "_messages", "_method", "_parts", "_positions", "_response", "_room",
        "_tasks", "_wake",
    )  # fmt: skip

    def __init__(
        self,
        edge: Edge,
        method: str,
        response: Any,
        parts: Mapping[str, tuple[bytes, Sequence[int]]],
        call: Call,
        wake: Wake,
    ) -> None:
        """``parts``: what is asked of which endpoint, and about which shards."""
        self._edge = edge
        self._method = method
        self._response = response
        self._parts = parts
        self._call = call
        self._wake = wake
        self._tasks: list[asyncio.Task[None]] = []
        # With the bytes that each came in; few, so no deque, which takes a page of memory.
        self._messages: list[tuple[Any, int]] = []
        self._room = asyncio.Semaphore(MESSAGES_WAITING_MAX)
        self._positions: dict[int, common_pb2.Position] = {}

    async def start(self) -> None:
        """Begin to listen; return when all have said where they begin, and take no more yet."""
        for endpoint, (request, _) in self._parts.items():
            self._tasks.append(asyncio.create_task(self._follow(endpoint, request)))
        count = sum(len(shards) for _, shards in self._parts.values())
        while len(self._positions) < count:
            self._wake.clear()
            self._raise_ended()
            await self._wake.wait()

    async def _follow(self, endpoint: str, request: bytes) -> None:
        forwarder = self._edge.calls.forwarder
        has_begun = False
        try:
            async for data in forwarder.stream(
                endpoint, self._method, request, self._call.metadata
            ):
                message = self._response.FromString(data)
                if has_begun:
                    await self._room.acquire()
                    self._messages.append((message, len(data)))
                else:  # empty, and takes no room: those that follow may have to wait for it
                    has_begun = True
                    self._take(message)
                self._wake.set()
        finally:
            self._wake.set()

    def fill(self, page: Page) -> None:
        """Put what has come into a message; raises why one of the others has ended."""
        while self._messages and page.has_room(self._messages[0][1]):
            message, size = self._messages.pop(0)
            self._room.release()
            page.pass_on(message, size)
            self._take(message)
        if not self._messages:
            self._raise_ended()

    def _take(self, message: Any) -> None:
        """What a message holds is told: say so where to resume."""
        self._positions.update((each.shard, each) for each in message.cursor.positions)

    def _raise_ended(self) -> None:
        for task in self._tasks:
            if task.done():
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


def _message(feeds: Sequence[Feed], others: Others, message: Any) -> Any:
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
