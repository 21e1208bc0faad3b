"""Which message is next: priorities, age, tenants.

A queue's ready messages wait per tenant and priority, oldest first. A lease asks the tenants in
turn (by name, after the one served last); a tenant has one message in its turn, or as many as its
weight. Inside a tenant a lease takes the head of the priority whose rank is lowest: the rank is the
priority itself, or with ageing the time since which the message waits plus ``priority *
ageing_ns``. A message keeps its rank while it waits, whatever the time is, so nothing has to be
sorted again as time passes; and one that waits long enough outranks every newer one.

A level holds what came in order as two arrays (16 bytes a message), and what came back later
(after a lease, a delay, a redrive) in a heap. Both may hold outdated entries: a message that was
cancelled, purged or leased meanwhile, or that must wait for its message group. They are dropped
when the next message is looked up; ``is_next`` tells which are outdated. An entry holds the waiting
time too, so that a message that left and came back does not match its old entry. So which entries
are in here is not state; which message is next is a function of the state alone.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from onelog.projections.limits import U64_MAX
from onelog.projections.queue.limits import PRIORITY_MAX
from onelog.projections.queue.table import PRIORITY_SHIFT, READY

IsNext = Callable[[int, int, int], bool]
"""Whether message (id, since_ns, priority) is ready with that time and priority, and is next."""

ENTRY_SIZE = 17  # bytes of an entry in the arrays
LATE_SIZE = 60  # bytes of one in the heap
TENANT_SIZE = 600

TRIM_ROWS = 512
_SHIFT = 64
_NONE = (1 << 128) - 1  # above every entry


class Level:
    """Messages of one tenant and priority, in the order of (since_ns, id)."""

    __slots__ = (
        "head",
        "ids",
        "last_id",
        "last_ns",
        "late",
        "meta",
        "near_block",
        "near_row",
        "priority",
        "since",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.meta = READY | priority << PRIORITY_SHIFT  # of a plain message that waits here
        self.ids = array("Q")
        self.since = array("Q")
        self.head = 0  # entries before it are removed
        self.near_block = self.near_row = 0  # where the last lease ended, as a hint
        self.late: list[int] = []
        self.last_ns = 0
        self.last_id = 0

    def push(self, message_id: int, since_ns: int) -> None:
        """Add an entry."""
        if (since_ns, message_id) > (self.last_ns, self.last_id):
            self.last_ns, self.last_id = since_ns, message_id
            self.ids.append(message_id)
            self.since.append(since_ns)
        else:
            heappush(self.late, since_ns << _SHIFT | message_id)

    def first(self, priority: int, is_next: IsNext) -> tuple[int, int] | None:
        """Return (since_ns, id) of the first message, dropping outdated entries before it."""
        late = self.late
        while late and not is_next(late[0] & U64_MAX, late[0] >> _SHIFT, priority):
            heappop(late)
        ids, since = self.ids, self.since
        while self.head < len(ids) and not is_next(ids[self.head], since[self.head], priority):
            self.skip()
        found: list[tuple[int, int]] = []
        if self.head < len(self.ids):
            found.append((self.since[self.head], self.ids[self.head]))
        if late:
            found.append((late[0] >> _SHIFT, late[0] & U64_MAX))
        return min(found, default=None)

    def pop(self, count: int) -> tuple["array[int]", "array[int]"]:
        """Remove up to ``count`` entries, in order; return ids and times.

        A message occurs twice if a rollback restored it.
        """
        ids, since, late = array("Q"), array("Q"), self.late
        while len(ids) < count:
            key = _NONE
            if self.head < len(self.ids):
                key = self.since[self.head] << _SHIFT | self.ids[self.head]
            if late and late[0] <= key:
                key = heappop(late)
            elif key != _NONE:
                self.skip()
            else:
                break
            ids.append(key & U64_MAX)
            since.append(key >> _SHIFT)
        return ids, since

    def skip(self, count: int = 1) -> None:
        """Drop the first entries of the arrays."""
        self.head += count
        if self.head >= TRIM_ROWS and self.head * 2 >= len(self.ids):
            self.trim()

    def trim(self) -> None:
        """Free the space of removed entries."""
        del self.ids[: self.head]
        del self.since[: self.head]
        self.head = 0

    def check(self) -> None:
        """Assert the order of the arrays."""
        entries = list(zip(self.since[self.head :], self.ids[self.head :], strict=True))
        assert entries == sorted(entries), "a level out of order"
        if entries:
            assert entries[-1] <= (self.last_ns, self.last_id), "a level's end"
        ordered = list(self.late)
        heapify(ordered)
        assert ordered == self.late, "a heap that is none"


class Tenant:
    """The levels of one tenant."""

    __slots__ = ("levels", "priorities")

    def __init__(self) -> None:
        self.levels: list[Level | None] = [None] * (PRIORITY_MAX + 1)
        self.priorities: list[int] = []  # of the levels with entries, ascending

    def level(self, priority: int) -> Level:
        """Return the level of a priority; the caller adds entries to it."""
        level = self.levels[priority]
        if level is None:
            level = self.levels[priority] = Level(priority)
            insort(self.priorities, priority)
        return level

    def turn(self, ageing_ns: int, is_next: IsNext) -> Level | None:
        """Return the level that is next, None if there is none.

        The level has entries, of which the first may be outdated.
        """
        priorities, levels = self.priorities, self.levels
        while priorities:
            level = levels[priorities[0]]
            assert level is not None
            if ageing_ns and len(priorities) > 1:
                best = self._lowest_rank(ageing_ns, is_next)
                if best is not None:
                    return best
            elif level.late or level.head < len(level.ids):
                return level
            else:
                self._close(priorities[0])
        return None

    def _lowest_rank(self, ageing_ns: int, is_next: IsNext) -> Level | None:
        """Return the level whose first message has the lowest rank; close those without any."""
        best: tuple[int, int] | None = None
        for priority in tuple(self.priorities):
            level = self.levels[priority]
            assert level is not None
            first = level.first(priority, is_next)
            if first is None:
                self._close(priority)
                continue
            # Of two messages with one rank, the one with the more urgent priority.
            rank = first[0] + priority * ageing_ns, priority
            best = rank if best is None else min(best, rank)
        return None if best is None else self.levels[best[1]]

    def _close(self, priority: int) -> None:
        self.levels[priority] = None
        self.priorities.remove(priority)


class ReadyMessages:
    """All ready messages of a queue that may be next."""

    __slots__ = ("_tenants", "active", "outdated_count", "plain")

    def __init__(self) -> None:
        self.plain = Tenant()  # messages without a tenant: the one whose name is empty
        self._tenants: dict[bytes, Tenant] = {b"": self.plain}
        self.active: list[bytes] = []  # names of tenants with entries, ascending
        self.outdated_count = 0  # a lower bound of the outdated entries

    def push(self, message_id: int, since_ns: int, priority: int, tenant: bytes) -> None:
        """Add a message that may be next."""
        waiting = self._tenants.get(tenant)
        level = None if waiting is None else waiting.levels[priority]
        if level is None:
            level = self.open_level(priority, tenant)
        if since_ns > level.last_ns:
            level.last_ns = since_ns
            level.last_id = message_id
            level.ids.append(message_id)
            level.since.append(since_ns)
        else:
            level.push(message_id, since_ns)

    def open_level(self, priority: int, tenant: bytes) -> Level:
        """Return the level of a tenant and priority; the caller adds entries to it."""
        waiting = self._tenants.get(tenant)
        if waiting is None:
            waiting = self._tenants[tenant] = Tenant()
        if not waiting.priorities:
            at = bisect_left(self.active, tenant)
            if at == len(self.active) or self.active[at] != tenant:
                self.active.insert(at, tenant)
        return waiting.level(priority)

    def turn(
        self, after: bytes, ageing_ns: int, is_next: IsNext, *, stays: bool = False
    ) -> tuple[Level, bytes, bool] | None:
        """Return the level that is next and its tenant, the first one after ``after``.

        ``stays``: the turn of ``after`` is not over, if it has messages.

        The level has entries, of which the first may be outdated. The third value is whether this
        level stays next until it has no entries any more.
        """
        names = self.active
        if len(names) == 1 and not ageing_ns:
            tenant = self._tenants[names[0]]
            level = tenant.levels[tenant.priorities[0]] if tenant.priorities else None
            if level is not None and (level.head < len(level.ids) or level.late):
                return level, names[0], True
        while names:
            at = bisect_left(names, after) if stays else bisect_right(names, after)
            if at == len(names):
                at = 0
            name = names[at]
            tenant = self._tenants[name]
            level = tenant.turn(ageing_ns, is_next)
            if level is not None:
                is_alone = len(names) == 1 and (not ageing_ns or len(tenant.priorities) == 1)
                return level, name, is_alone
            del names[at]
            if name:
                del self._tenants[name]
        return None

    def in_turn(self, first: bytes, count: int) -> tuple[list[bytes], list[Level], int]:
        """Return tenants and levels that take turns, ``first`` first, and for how many rounds.

        They do as long as each has entries in order, and for ``count`` entries at most.
        The first has at least one.
        """
        at = bisect_left(self.active, first)
        names = self.active[at:] + self.active[:at]
        levels: list[Level] = []
        rounds = -(-count // len(names))
        for name in names[:count]:
            tenant = self._tenants[name]
            level = tenant.levels[tenant.priorities[0]] if tenant.priorities else None
            left = 0 if level is None or level.late else len(level.ids) - level.head
            if level is None or not left:
                rounds = 1
                break
            levels.append(level)
            rounds = min(rounds, left)
        return names[: len(levels)], levels, rounds

    def next(
        self, after: bytes, ageing_ns: int, is_next: IsNext, *, stays: bool = False
    ) -> int | None:
        """Return the id of the message that is next, None if there is none."""
        while (found := self.turn(after, ageing_ns, is_next, stays=stays)) is not None:
            level = found[0]
            first = level.first(level.priority, is_next)
            if first is not None:
                return first[1]
        return None

    def memory(self) -> int:
        """Return the bytes held."""
        size = TENANT_SIZE * len(self._tenants)
        for tenant in self._tenants.values():
            for priority in tenant.priorities:
                level = tenant.levels[priority]
                assert level is not None
                size += len(level.ids) * ENTRY_SIZE + len(level.late) * LATE_SIZE + TENANT_SIZE
        return size

    def entries(self) -> set[tuple[int, int, int, bytes]]:
        """Return all entries as (id, since_ns, priority, tenant), for ``check``."""
        found = set()
        for name, tenant in self._tenants.items():
            assert tenant.priorities == [p for p, level in enumerate(tenant.levels) if level]
            assert not tenant.priorities or name in self.active, f"tenant {name!r} sleeps"
            for priority in tenant.priorities:
                level = tenant.levels[priority]
                assert level is not None
                level.check()
                for at in range(level.head, len(level.ids)):
                    found.add((level.ids[at], level.since[at], priority, name))
                for entry in level.late:
                    found.add((entry & U64_MAX, entry >> _SHIFT, priority, name))
        assert self.active == sorted(set(self.active)), "tenants out of order"
        return found
