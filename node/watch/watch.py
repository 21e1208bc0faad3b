"""Watching: every event once and in order, however slow the watcher is, from wherever it resumes.

A watcher has a cursor for each shard, and the log is the truth: an event belongs to an entry, and
the cursor says up to where entries were read. Two ways lead to the same events:

* *Live*: entries are turned into events once, when they are applied, and handed to the watchers
  that want them, into a bounded buffer each.
* *Behind*: a watcher reads the log by itself, a page at a time. It is behind when it begins in the
  past, and when its buffer is full: what does not fit is not kept for it, since the log has it.
  What an entry did that neither it nor the live state tells any more, a state of the past does.

A watcher without a cursor begins behind everything that was acknowledged before (present.py). It
goes live when its cursor reaches the head, the last entry that was handed out; both are
read in one step of the loop, so no entry falls in between. Any replica serves watchers, and a
leader that goes takes nothing with it: committed entries are the same everywhere.

A watcher of shards that another process of this node holds is sent what that process says; one
whose cursor is ahead of this replica, what the leader says. A cursor that is ahead of the leader is
of another cluster, or of one before it was restored: it is refused, since nothing would ever come.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Protocol

from onelog.node.edge.calls import LEADER_WAIT_S, Call, Elsewhere, gather
from onelog.node.edge.shards import Edge, invalid
from onelog.node.edge.waits import Wake
from onelog.node.public_errors import error_of_reason
from onelog.node.watch.feeds import EventPage, Feed, Filters, Page, get_source
from onelog.node.watch.present import get_present
from onelog.projections.reasons import Reason
from onelog.ual.errors import IndexDropped
from onelog.v1 import common_pb2, pipeline_pb2

PROGRESS_DEFAULT_MS = 10_000
PROGRESS_MS_MIN = 100
PROGRESS_MS_MAX = 86_400_000
INDEX_MAX = 1 << 63
# How long a leader may take to make sure that it leads, before a cursor ahead of it is refused.
LEADERSHIP_WAIT_S = 5.0
WATCH_METHOD = "/onelog.v1.Pipeline/Watch"
# Messages of another process that wait here.
MESSAGES_WAITING_MAX = 4

# By whether the values before are wanted.
_NEW_PAGES = {wanted: partial(EventPage, with_previous=wanted) for wanted in (False, True)}


class Watches:
    """The watchers of one process."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def watch(
        self, request: pipeline_pb2.WatchRequest, call: Call
    ) -> AsyncIterator[pipeline_pb2.WatchResponse]:
        """Return what happens from a cursor on."""
        progress_s = _progress_ms(request) / 1000
        begin = partial(self._begin, request, Filters(request.filters), call)
        return Follower(self._edge, begin, _NEW_PAGES[request.with_previous], progress_s)

    async def _begin(
        self,
        request: pipeline_pb2.WatchRequest,
        filters: Filters,
        call: Call,
        follower: "Follower",
    ) -> None:
        edge = self._edge
        shards = sorted({edge.check_shard(shard) for shard in request.shards}) or range(edge.shards)
        positions = {edge.check_shard(each.shard): each for each in request.cursor.positions}
        fresh = [
            shard for shard in shards if shard not in positions and shard in edge.context.drivers
        ]
        begins = await gather(*(get_present(edge, shard).find(call) for shard in fresh))
        for shard, index in zip(fresh, begins, strict=True):
            positions[shard] = common_pb2.Position(shard=shard, index=index)
        local, remote = await places(edge, shards, positions, call)
        for shard in local:
            source = get_source(edge, shard)
            cursor, sent = positions[shard].index, positions[shard].events_sent
            if cursor + 1 < source.first_index:
                raise IndexDropped(cursor + 1, source.first_index, source.applied_index)
            feed = Feed(
                source, filters, cursor, sent, follower.wake, with_previous=request.with_previous
            )
            source.add(feed)
            follower.parts.append(feed)
        parts = {
            endpoint: (_make_part(request, theirs), theirs) for endpoint, theirs in remote.items()
        }
        await follower.follow_others(WATCH_METHOD, pipeline_pb2.WatchResponse, parts, call)


class Part(Protocol):
    """Some of the shards that are followed; sets the follower's ``wake`` when it has something."""

    @property
    def is_waiting(self) -> bool:
        """Whether there is nothing to send before it wakes its follower."""

    async def fill(self, page: Page) -> None:
        """Put what is next into a message."""

    def position(self, cursor: common_pb2.Cursor) -> None:
        """Say from where to resume."""

    async def close(self) -> None:
        """Stop following."""


class Follower:
    """The messages of one watcher or tail, each with the cursor behind it; an async iterator.

    The first is empty and says where it begins: a watcher that resumes there misses nothing. Later
    ones come when there is something, or every ``progress_s``.

    There are thousands, most of them idle: an idle one holds neither its request nor a message. It
    is no generator, which takes 0.7 KB more, half of it in the loop's list of all generators.
    """

    __slots__ = ("_begin", "_edge", "_new_page", "_progress_s", "parts", "wake")

    def __init__(
        self,
        edge: Edge,
        begin: "Callable[[Follower], Awaitable[None]]",
        new_page: Callable[[], Page],
        progress_s: float,
    ) -> None:
        """``begin`` adds the parts, one by one: those that have begun are closed in any case."""
        self.wake = Wake(edge.timeouts)
        self.parts: list[Part] = []
        self._edge = edge
        self._begin: Callable[[Follower], Awaitable[None]] | None = begin
        self._new_page = new_page
        self._progress_s = progress_s

    async def follow_others(
        self,
        method: str,
        response: Any,
        asked: Mapping[str, tuple[bytes, Sequence[int]]],
        call: Call,
    ) -> None:
        """Follow shards of other processes, too; returns when these have begun. See ``Others``."""
        if asked:
            others = Others(self._edge, method, response, asked, call, self.wake)
            self.parts.append(others)
            await others.start()

    def __aiter__(self) -> "Follower":
        return self

    async def __anext__(self) -> Any:
        """Return the next message."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            await begin(self)
            return self._message(self._new_page())
        while True:
            self.wake.clear()
            page = self._new_page()
            for part in self.parts:
                await part.fill(page)
            if page.items:
                return self._message(page)
            del page  # or it would take memory while nothing happens
            if not all(part.is_waiting for part in self.parts):
                continue
            if not await self.wake.wait(self._progress_s):
                return self._message(self._new_page())

    async def aclose(self) -> None:
        """Stop following all shards."""
        for part in self.parts:
            await part.close()

    def _message(self, page: Page) -> Any:
        """Return a message with the cursor from which to resume after it."""
        message = page.message
        for part in self.parts:
            part.position(message.cursor)
        return message


async def places(
    edge: Edge, shards: Iterable[int], positions: Mapping[int, common_pb2.Position], call: Call
) -> tuple[list[int], dict[str, list[int]]]:
    """Return which of the shards this process serves from a cursor on, and who serves the others.

    That is another process of this node, or the leader if this replica is behind the cursor.
    """
    local: list[int] = []
    remote: dict[str, list[int]] = {}
    asked: list[int] = []  # the others are here, and take no task to find out
    for shard in shards:
        (local if _is_applied(edge, shard, positions.get(shard)) else asked).append(shard)
    endpoints = await gather(*(_place(edge, each, positions.get(each), call) for each in asked))
    for shard, endpoint in zip(asked, endpoints, strict=True):
        (local if endpoint is None else remote.setdefault(endpoint, [])).append(shard)
    return sorted(local), remote


def _is_applied(edge: Edge, shard: int, position: common_pb2.Position | None) -> bool:
    """Tell whether a replica of this process has applied what a cursor says."""
    driver = edge.context.drivers.get(shard)
    if driver is None:
        return False
    return position is None or position.index <= driver.shard.log.applied_index


async def _place(
    edge: Edge, shard: int, position: common_pb2.Position | None, call: Call
) -> str | None:
    """Return where a shard is served whose cursor is not applied here, None for here after all.

    An index that no replica has applied is refused.
    """
    topology, driver = edge.context.topology, edge.context.drivers.get(shard)
    if driver is None:
        is_late = shard in edge.context.repairs
        endpoint = (
            topology.leader_endpoint(shard)
            if is_late
            else topology.endpoint(shard, topology.self_id)
        )
        if endpoint is None or call.is_forwarded:
            raise Elsewhere(shard, endpoint).error()
        return endpoint
    assert position is not None, "without a cursor it begins at an index that is applied here"
    index, held = position.index, driver.shard
    if index >= INDEX_MAX:
        raise invalid("CURSOR_INVALID", f"there is no index {index}")
    try:
        # After a read, the leader has applied all that any replica has.
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


def _make_part(request: pipeline_pb2.WatchRequest, shards: Sequence[int]) -> bytes:
    part = pipeline_pb2.WatchRequest()
    part.CopyFrom(request)
    del part.shards[:]
    part.shards.extend(shards)
    fill_part(part.cursor, request.cursor, shards)
    data: bytes = part.SerializeToString()
    return data


def fill_part(target: common_pb2.Cursor, cursor: common_pb2.Cursor, shards: Sequence[int]) -> None:
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
                endpoint, self._method, request, self._call.client, self._call.metadata
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

    @property
    def is_waiting(self) -> bool:
        """See ``Part``."""
        return not self._messages

    async def fill(self, page: Page) -> None:
        """Put what has come into a message; raises why one of the others has ended."""
        while self._messages and page.has_room(self._messages[0][1]):
            message, size = self._messages.pop(0)
            self._room.release()
            page.pass_on(message, size)
            self._take(message)
        if not self._messages:
            self._raise_ended()

    def _take(self, message: Any) -> None:
        """Note that everything in a message was sent: where to resume."""
        self._positions.update((each.shard, each) for each in message.cursor.positions)

    def _raise_ended(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
                raise Elsewhere(0, None).error()

    def position(self, cursor: common_pb2.Cursor) -> None:
        """Say from where to resume."""
        cursor.positions.extend(self._positions.values())

    async def close(self) -> None:
        """Listen no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _progress_ms(request: pipeline_pb2.WatchRequest) -> int:
    progress_ms = request.progress_ms or PROGRESS_DEFAULT_MS
    if not PROGRESS_MS_MIN <= progress_ms <= PROGRESS_MS_MAX:
        raise invalid("PROGRESS_INVALID", f"a message every {progress_ms} ms")
    return int(progress_ms)
