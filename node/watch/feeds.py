"""Sources and feeds: how the events of a shard reach the watchers and tails of this process.

See node/watch/watch.py for the whole. Here: a ``Source`` for each shard turns applied entries into
events once and hands them to live feeds; a ``Feed`` is one watcher in one shard, live or reading
the log. A tail of streams is a feed as well, which reads the log in its own way
(node/services/stream_tail.py).

What the log holds and the live state has forgotten is asked of a state of the past, in a task
(node/watch/past.py): the other shards of a watcher continue meanwhile.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence, Set
from typing import Any, Protocol

from onelog.errors import OutOfRange
from onelog.node.edge.shards import Edge, invalid, parse_namespace
from onelog.node.edge.waits import Wake
from onelog.node.public_errors import damaged
from onelog.node.replica.driver import ShardDriver
from onelog.node.watch.events import Event, make_events, took_effect
from onelog.node.watch.past import PastEvents, PastReader
from onelog.projections.result import Result
from onelog.projections.shard_state import Projections
from onelog.ual.entry import OWNER_KV, OWNER_QUEUE, OWNER_SYSTEM, Entry, Unreadable
from onelog.ual.errors import IndexDropped
from onelog.v1 import common_pb2, log_pb2, pipeline_pb2

# What waits for one watcher that does not keep up; beyond it, it reads the log.
BUFFER_EVENTS_MAX = 1_024
BUFFER_BYTES_MAX = 1 << 20
# What one message holds, and one read of the log.
PAGE_EVENTS_MAX = 512
PAGE_BYTES_MAX = 1 << 20
READ_ENTRIES_MAX = 2_048
FILTERS_MAX = 100

_log = logging.getLogger("onelog.node.watch")

# The owners of all models; also those that have no events yet.
EVERYBODY = frozenset(int(owner) for owner in log_pb2.Owner.values())

# One object for each choice of owners, of which there are few: thousands of watchers share them.
_OWNERS: dict[frozenset[int], frozenset[int]] = {}
_NO_NAMES: frozenset[Any] = frozenset()

Wanted = tuple[str, int, bytes]
"""Namespace, owner (0: any) and name of what somebody wants to hear of."""


class Interest(Protocol):
    """Which events a watcher wants."""

    exact: Set[Wanted]  # names, of which it may be all events or some
    is_exact: bool  # whether it is about these names only
    owners: frozenset[int]

    def fits(self, event: Any) -> bool:
        """Tell whether an event is wanted."""


class Filters:
    """The filters of a watcher."""

    __slots__ = ("_prefixes", "exact", "is_all", "is_exact", "owners")

    def __init__(self, filters: Sequence[pipeline_pb2.WatchFilter]) -> None:
        if len(filters) > FILTERS_MAX:
            raise invalid("LIMIT_INVALID", f"{len(filters)} filters, limit {FILTERS_MAX}")
        exact: list[Wanted] = []
        prefixes: list[Wanted] = []
        for each in filters:
            wanted = parse_namespace(each.namespace), int(each.owner), each.name
            if wanted[1] not in log_pb2.Owner.values():
                raise invalid("OWNER_INVALID", f"there is no owner {wanted[1]}")
            if each.name and not each.is_prefix:
                exact.append(wanted)
            else:
                prefixes.append(wanted)
        self.exact: Set[Wanted] = frozenset(exact) if exact else _NO_NAMES
        self._prefixes = tuple(prefixes)
        self.is_exact = bool(filters) and not prefixes
        self.is_all = not filters
        owners = frozenset(wanted[1] for wanted in (*exact, *prefixes))
        is_any = self.is_all or OWNER_SYSTEM in owners
        self.owners = EVERYBODY if is_any else _OWNERS.setdefault(owners, owners)

    def fits(self, event: Event) -> bool:
        """Tell whether the watcher wants an event."""
        if self.is_all:
            return True
        for owner in (event.owner, OWNER_SYSTEM):
            if (event.namespace, owner, event.name) in self.exact:
                return True
        return any(
            namespace == event.namespace
            and owner in (event.owner, OWNER_SYSTEM)
            and event.name.startswith(name)
            for namespace, owner, name in self._prefixes
        )


class Page:
    """One message on its way; what it holds is ``items``, and ``size`` the bytes of it, at most.

    A single item of any size goes in: the events of one entry, with the key's previous value, fit
    into a message. Several go in up to PAGE_BYTES_MAX. (A tail that reads the log
    may end with a record that goes beyond that, which fits as well.)
    """

    def __init__(self, message: Any, items: Any) -> None:
        self.message = message
        self.items = items
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more goes in."""
        return len(self.items) >= PAGE_EVENTS_MAX or self.size >= PAGE_BYTES_MAX

    def has_room(self, size: int) -> bool:
        """Tell whether something of a size goes in."""
        return not self.items or (not self.is_full and self.size + size <= PAGE_BYTES_MAX)

    def add(self, shard: int, event: Any) -> None:
        """Put an event in."""
        raise NotImplementedError

    def pass_on(self, message: Any, size: int) -> None:
        """Put in what another process has sent."""
        self.items.extend(self.get_items(message))
        self.size += size

    @staticmethod
    def get_items(message: Any) -> Any:
        """Return what a message of another process holds."""
        raise NotImplementedError


class EventPage(Page):
    """A message to a watcher."""

    def __init__(self, *, with_previous: bool) -> None:
        message = pipeline_pb2.WatchResponse()
        super().__init__(message, message.events)
        self._with_previous = with_previous

    def add(self, shard: int, event: Event) -> None:
        """See ``Page``."""
        target = self.items.add()
        target.shard = shard
        event.fill(target, with_previous=self._with_previous)
        self.size += event.size

    @staticmethod
    def get_items(message: pipeline_pb2.WatchResponse) -> Any:
        """See ``Page``."""
        return message.events


class Source:
    """The events of one shard, for the watchers of this process."""

    def __init__(self, driver: ShardDriver, edge: Edge) -> None:
        self.number = driver.number
        self.driver = driver
        self.edge = edge
        self.head = 0  # the last entry that was handed to live feeds
        self._shard = driver.shard
        self._loop = asyncio.get_running_loop()
        self._feeds: set[Feed] = set()
        self._exact: dict[Wanted, set[Feed]] = {}
        self._others: set[Feed] = set()
        self._groups: deque[tuple[list[Entry], list[Result]]] = deque()
        self._is_scheduled = False

    @property
    def feed_count(self) -> int:
        """The number of watchers and tails."""
        return len(self._feeds)

    @property
    def applied_index(self) -> int:
        """The last entry that was applied."""
        return self._shard.log.applied_index

    @property
    def projections(self) -> Projections:
        """The live state."""
        return self._shard.projections

    @property
    def first_index(self) -> int:
        """The first entry that is kept."""
        return self._shard.log.first_index

    def make_events(self, entry: Entry, owners: frozenset[int]) -> list[Event]:
        """Return the events of an entry that took effect, of some models."""
        return make_events(self.projections, entry, owners)

    def add(self, feed: "Feed") -> None:
        """Add a watcher."""
        if not self._feeds:
            self.head = self.applied_index
            self._shard.listeners.append(self._on_applied)
        self._feeds.add(feed)
        if feed.filters.is_exact:
            for wanted in feed.filters.exact:
                self._exact.setdefault(wanted, set()).add(feed)
        else:
            self._others.add(feed)

    def remove(self, feed: "Feed") -> None:
        """Remove a watcher."""
        if feed not in self._feeds:
            return
        self._feeds.discard(feed)
        self._others.discard(feed)
        for wanted in feed.filters.exact:
            feeds = self._exact.get(wanted)
            if feeds is not None:
                feeds.discard(feed)
                if not feeds:
                    del self._exact[wanted]
        if not self._feeds:
            self._shard.listeners.remove(self._on_applied)
            self._groups.clear()

    async def read(self, first_index: int) -> tuple[list[Entry], int, Unreadable | None]:
        """Return entries that took effect, and up to where that is all.

        That is before what cannot be read, which is returned as well if nothing is before it.
        """
        log, last_index = self._shard.log, self.applied_index
        if first_index < log.first_index:
            raise IndexDropped(first_index, log.first_index, last_index)

        def read() -> tuple[list[Entry], int, Unreadable | None]:
            entries: list[Entry] = []
            size = 0
            for entry in log.scan_readable(first_index, last_index, skip_voids=True):
                if isinstance(entry, Unreadable):
                    return entries, entry.first_index - 1, None if entries else entry
                entries.append(entry)
                size += len(entry.payload)
                if len(entries) >= READ_ENTRIES_MAX or size >= PAGE_BYTES_MAX:
                    return entries, entry.index, None
            return entries, last_index, None

        return await self._loop.run_in_executor(self.edge.readers, read)

    def _on_applied(self, entries: list[Entry], results: list[Result]) -> None:
        """Take a group from apply; the work is done later, outside of Raft's."""
        self._groups.append((entries, results))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        """Hand the events of one group to those who want them, then let others run."""
        self._is_scheduled = False
        if not self._groups:
            return
        entries, results = self._groups.popleft()
        live = {feed for feed in self._feeds if feed.is_live}
        if entries[0].index != self.head + 1:
            # The state came from a peer, so entries are missing: readers of the log see how many.
            for feed in live:
                feed.fall_behind()
        elif live:
            try:
                self._deliver_all(entries, results, live)
            except Exception as error:  # noqa: BLE001 - the next reader of the log meets it again
                _log.error("events of index %d: %s", entries[0].index, error, exc_info=error)
                for feed in live:
                    feed.fall_behind()
        self.head = entries[-1].index
        if self._groups:
            self._is_scheduled = True
            self._loop.call_soon(self._hand_out)

    def _deliver_all(self, entries: list[Entry], results: list[Result], live: "set[Feed]") -> None:
        owners = frozenset[int]().union(*(feed.filters.owners for feed in live))
        # Entries of any owner may change keys, and those of the system make messages expire.
        is_any = OWNER_KV in owners or OWNER_QUEUE in owners
        for entry, result in zip(entries, results, strict=True):
            if (is_any or entry.owner in owners) and took_effect(entry, result):
                self._deliver(self.make_events(entry, owners))

    def _deliver(self, events: list[Event]) -> None:
        if len(events) == 1 and not self._others:
            # The usual case: an entry makes one event, and tails name their streams exactly.
            event = events[0]
            namespace, name, exact = event.namespace, event.name, self._exact
            if (namespace, OWNER_SYSTEM, name) not in exact:
                for feed in exact.get((namespace, event.owner, name), ()):
                    if feed.filters.fits(event):
                        feed.take(events)
                return
        wanted: dict[Feed, list[Event]] = {}
        for event in events:
            feeds = [feed for feed in self._others if feed.filters.fits(event)]
            if self._exact:
                for owner in (event.owner, OWNER_SYSTEM):
                    named = self._exact.get((event.namespace, owner, event.name), ())
                    feeds += [feed for feed in named if feed.filters.fits(event)]
            for feed in dict.fromkeys(feeds):
                wanted.setdefault(feed, []).append(event)
        for feed, its in wanted.items():
            feed.take(its)


def get_source(edge: Edge, shard: int) -> Source:
    """Return the events of a shard of this process, which all who follow it share."""
    found: Source | None = edge.sources.get(shard)
    if found is None:
        found = edge.sources[shard] = Source(edge.replica(shard), edge)
    return found


class Feed:
    """One watcher in one shard; ``wake`` is set when there is something for it.

    Invariant: events up to ``_cursor`` were sent, and ``_sent`` more of the entry behind it; what
    is buffered follows. While the past is read nothing is buffered, and the feed is not live.

    There are thousands, most of them idle: an idle one has no buffer, and no reader of the past.
    """

    __slots__ = (
        "_buffer", "_count", "_cursor", "_past", "_reading", "_sent", "_size", "_source", "_wake",
        "_with_previous", "filters", "is_live",
    )  # fmt: skip

    def __init__(
        self,
        source: Source,
        filters: Interest,
        cursor: int,
        sent: int,
        wake: Wake,
        *,
        with_previous: bool = False,
    ) -> None:
        self.filters = filters
        self.is_live = False
        self._source = source
        self._wake = wake
        self._cursor = cursor
        self._sent = sent
        self._buffer: deque[PastEvents] | None = None
        self._count = self._size = 0
        self._with_previous = with_previous
        self._past: PastReader | None = None
        self._reading: asyncio.Task[list[PastEvents]] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to send before the next entry."""
        return self.is_live and not self._buffer

    @property
    def is_waiting(self) -> bool:
        """Whether there is nothing to send before it wakes its watcher."""
        return self.is_idle or (self._reading is not None and not self._reading.done())

    def position(self, cursor: common_pb2.Cursor) -> None:
        """Say from where to resume."""
        if self.is_idle:
            self._cursor = max(self._cursor, self._source.head)
        target = cursor.positions.add()
        target.shard = self._source.number
        target.index = self._cursor
        target.events_sent = self._sent

    def take(self, events: list[Event]) -> None:
        """Buffer the events of an entry, or fall back to reading the log from there."""
        index = events[0].index
        if not self.is_live or index <= self._cursor:
            return
        if self._with_previous and not _settle(events):
            self.fall_behind()
            return
        count, size = len(events), events[0].size
        if count > 1:
            size = sum(event.size for event in events)
        if self._buffer and (
            self._count + count > BUFFER_EVENTS_MAX or self._size + size > BUFFER_BYTES_MAX
        ):
            self.is_live = False
            return
        if self._buffer is None:
            self._buffer = deque()
        self._buffer.append((index, events, size))
        self._count += count
        self._size += size
        self._wake.set()

    def fall_behind(self) -> None:
        """Read the log from where the watcher is."""
        self.is_live = False
        self._wake.set()

    async def close(self) -> None:
        """Unsubscribe."""
        if self._reading is not None:
            self._reading.cancel()
        self._source.remove(self)

    async def fill(self, page: Page) -> None:
        """Put what is next into a message: what is buffered, else a page of the log."""
        if self._reading is not None:
            if not self._reading.done():
                return
            self._take_past(self._reading.result())
        buffer = self._buffer
        while buffer and not page.is_full:
            index, events, size = buffer[0]
            if not self._put(page, index, events):
                return
            buffer.popleft()
            self._count -= len(events)
            self._size -= size
        if not buffer:
            self._buffer = None
        if buffer or page.is_full or self.is_live:
            return
        source = self._source
        if self._cursor < source.head or self._cursor < source.applied_index:
            await self.read_on(page)
        if self._cursor >= source.head and self._reading is None:
            self.is_live = True

    async def read_on(self, page: Page) -> None:
        """Put what the log holds behind the cursor into a message, and move the cursor."""
        source = self._source
        entries, last_index, damage = await source.read(self._cursor + 1)
        if damage is not None and not self.await_repair((damage,)):
            raise damaged(damage)  # an event that is left out would be missing silently
        owners, fits = self.filters.owners, self.filters.fits
        for position, entry in enumerate(entries):
            try:
                events = [each for each in source.make_events(entry, owners) if fits(each)]
            except OutOfRange:
                events = None
            if events is None or (self._with_previous and not _settle(events)):
                self._read_past(entries[position:], last_index)
                return
            if not self._put(page, entry.index, events) or page.is_full:
                return
        self._cursor = max(self._cursor, last_index)

    def await_repair(self, entries: Sequence[Unreadable]) -> bool:
        """Continue when damaged entries were repaired; False: nobody has a copy of them."""
        repair = self._source.driver.shard.shipping.repair
        repair.take_met()
        if repair.holds(entries) and not repair.is_pending(entries):
            return False
        self._reading = asyncio.create_task(self._until_repaired(entries))
        self._reading.add_done_callback(self._on_past_read)
        return True

    async def _until_repaired(self, entries: Sequence[Unreadable]) -> list[PastEvents]:
        await self._source.edge.until_repaired(self._source.number, entries, float("inf"))
        return []

    def _read_past(self, entries: Sequence[Entry], last_index: int) -> None:
        """Begin to ask the past what entries did; ``fill`` continues when it is known."""

        def is_enough(count: int, size: int) -> bool:
            return count >= BUFFER_EVENTS_MAX or size >= BUFFER_BYTES_MAX

        if self._past is None:
            self._past = PastReader(self._source, self.filters, with_previous=self._with_previous)
        self._reading = asyncio.create_task(self._past.read(entries, last_index, is_enough))
        self._reading.add_done_callback(self._on_past_read)

    def _on_past_read(self, task: "asyncio.Task[list[PastEvents]]") -> None:
        if not task.cancelled():
            task.exception()  # or asyncio complains where the watcher has gone meanwhile
        self._wake.set()

    def _take_past(self, found: list[PastEvents]) -> None:
        self._reading = None
        if self._buffer is None:
            self._buffer = deque()
        self._buffer.extend(found)
        self._count += sum(len(events) for _, events, _ in found)
        self._size += sum(size for _, _, size in found)

    def _put(self, page: Page, index: int, events: list[Event]) -> bool:
        """Put the events of an entry into a message; tell whether all of them went in."""
        if self._cursor < index - 1:
            self._cursor = index - 1
            self._sent = 0
        for event in events[self._sent :]:
            if not page.has_room(event.size):
                return False
            page.add(self._source.number, event)
            self._sent += 1
        self._cursor, self._sent = index, 0
        return True


def _settle(events: Sequence[Event]) -> bool:
    """Look up the values before; tell whether all are known."""
    return all(event.settle(with_previous=True) for event in events)
