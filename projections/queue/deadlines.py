"""Deadlines of messages, as packed numbers.

A queue may hold a deadline for each of a million messages, too many for the objects of
projections/deadlines.py (200 bytes each). Deadlines of one kind mostly come in ascending order, as
the ends of leases of one length do; they are kept in a run of two arrays (17 bytes each). The
others are one number each (time, message, kind) in a heap. A deadline that is cancelled elsewhere
than at the head of its run is noted in ``_gone`` until it comes up or there are more gone than live
ones. So no message has to be looked up here. Invariants:

* runs and heap together hold each live deadline once and each gone one once; a run ascends;
* there are at most as many gone keys as live ones, plus GARBAGE_MAX.

``Wakeups`` finds the queue that has something due first. A queue's entry there may be too
early, never too late: it is corrected when it comes up.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile

from onelog.projections.limits import U64_MAX
from onelog.projections.queue.limits import GARBAGE_MAX

LEASE_ENDS = 1
DELAY_ENDS = 2
TTL_ENDS = 3
_KINDS = (LEASE_ENDS, DELAY_ENDS, TTL_ENDS)

RUN_SIZE = 17  # bytes of a deadline in a run
KEY_SIZE = 56  # bytes of one in the heap: a number of 128 bits and its place in a list
GONE_SIZE = 116  # bytes of a key in the set

_TRIM_ROWS = 512
_TIME_SHIFT = 72
_ID_SHIFT = 8


def pack_deadline(deadline_ns: int, message_id: int, kind: int) -> int:
    """Return the number that stands for a deadline; they sort by time, then by message."""
    return deadline_ns << _TIME_SHIFT | message_id << _ID_SHIFT | kind


def unpack_deadline(key: int) -> tuple[int, int, int]:
    """Return time, message and kind."""
    return key >> _TIME_SHIFT, key >> _ID_SHIFT & U64_MAX, key & 0xFF


class Run:
    """Deadlines of one kind in the order of (time, message)."""

    __slots__ = ("head", "ids", "kind", "times")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.times = array("Q")
        self.ids = array("Q")
        self.head = 0  # deadlines before it are removed

    def __len__(self) -> int:
        return len(self.ids) - self.head

    def trim(self) -> None:
        """Free the space of removed deadlines, once that is worthwhile."""
        if self.head >= _TRIM_ROWS and self.head * 2 >= len(self.ids):
            del self.times[: self.head], self.ids[: self.head]
            self.head = 0

    def keys(self) -> Iterator[int]:
        """Iterate over the packed deadlines; the run must not change meanwhile."""
        for at in range(self.head, len(self.ids)):
            yield pack_deadline(self.times[at], self.ids[at], self.kind)

    def drop(self, gone: set[int]) -> None:
        """Drop the keys in ``gone``."""
        kept = [unpack_deadline(key) for key in self.keys() if key not in gone]
        self.times = array("Q", [time_ns for time_ns, _, _ in kept])
        self.ids = array("Q", [message_id for _, message_id, _ in kept])
        self.head = 0


class PackedDeadlines:
    """The deadlines of one queue's messages."""

    __slots__ = ("_count", "_gone", "_heap", "_runs")

    def __init__(self) -> None:
        self._count = 0  # of live ones
        self._runs = {kind: Run(kind) for kind in _KINDS}
        self._heap: list[int] = []
        self._gone: set[int] = set()

    def __len__(self) -> int:
        return self._count

    def add(self, deadline_ns: int, message_id: int, kind: int) -> None:
        """Add a deadline that does not exist yet."""
        self._count += 1
        gone = self._gone
        if gone:
            key = pack_deadline(deadline_ns, message_id, kind)
            if key in gone:
                gone.remove(key)
                return
        run = self._runs[kind]
        times, ids = run.times, run.ids
        if run.head < len(ids):
            last_ns = times[-1]
            if deadline_ns < last_ns or (deadline_ns == last_ns and message_id < ids[-1]):
                heappush(self._heap, pack_deadline(deadline_ns, message_id, kind))
                return
        times.append(deadline_ns)
        ids.append(message_id)

    def cancel(self, deadline_ns: int, message_id: int, kind: int) -> None:
        """Remove an existing deadline; most are the first of their run."""
        self._count -= 1
        run = self._runs[kind]
        head, ids, gone = run.head, run.ids, self._gone
        if head < len(ids) and ids[head] == message_id and run.times[head] == deadline_ns:
            run.head = head + 1
            if head >= _TRIM_ROWS:
                run.trim()
            if not gone:
                return
            self._drop_gone_heads(run)
        else:
            key = pack_deadline(deadline_ns, message_id, kind)
            if self._heap and self._heap[0] == key:
                heappop(self._heap)
            else:
                gone.add(key)
        if len(gone) > self._count + GARBAGE_MAX:
            self._drop_gone()

    def add_all(self, deadline_ns: int, ids: "array[int]", kind: int) -> None:
        """Add one deadline for messages whose ids ascend."""
        run = self._runs[kind]
        last = (run.times[-1], run.ids[-1]) if len(run) else (0, 0)
        if self._gone or (deadline_ns, ids[0]) <= last:
            for message_id in ids:
                self.add(deadline_ns, message_id, kind)
        else:
            run.times.extend(array("Q", (deadline_ns,)) * len(ids))
            run.ids.extend(ids)
            self._count += len(ids)

    def cancel_all(self, times: "array[int]", ids: "array[int]", kind: int) -> None:
        """Remove existing deadlines; most are the first of their run."""
        run = self._runs[kind]
        start, stop = run.head, run.head + len(ids)
        if not self._gone and run.ids[start:stop] == ids and run.times[start:stop] == times:
            run.head = stop
            run.trim()
            self._count -= len(ids)
        else:
            for deadline_ns, message_id in zip(times, ids, strict=True):
                self.cancel(deadline_ns, message_id, kind)

    def first(self) -> int | None:
        """Return the earliest time."""
        heap, gone = self._heap, self._gone
        while heap and heap[0] in gone:
            gone.remove(heappop(heap))
        times = [heap[0] >> _TIME_SHIFT] if heap else []
        for run in self._runs.values():
            self._drop_gone_heads(run)
            if len(run):
                times.append(run.times[run.head])
        return min(times, default=None)

    def due(self, now_ns: int, limit: int) -> list[int]:
        """Return up to ``limit`` keys due at or before now, earliest first; nothing is removed."""
        gone = self._gone
        end = pack_deadline(now_ns + 1, 0, 0)
        found: list[int] = []
        for run in self._runs.values():
            ordered = takewhile(end.__gt__, run.keys())
            found += islice((key for key in ordered if key not in gone), limit)
        popped: list[int] = []
        while self._heap and len(popped) < limit and self._heap[0] < end:
            key = heappop(self._heap)
            if key in gone:
                gone.remove(key)
            else:
                popped.append(key)
        for key in popped:
            heappush(self._heap, key)
        return sorted(found + popped)[:limit]

    def memory(self) -> int:
        """Return the bytes held."""
        in_runs = sum(len(run.ids) for run in self._runs.values())
        return in_runs * RUN_SIZE + len(self._heap) * KEY_SIZE + len(self._gone) * GONE_SIZE

    def check(self, expected: Iterable[int]) -> None:
        """Assert the invariants of this file, and that the live keys are the expected ones."""
        keys = list(self._heap)
        for run in self._runs.values():
            ordered = list(run.keys())
            assert ordered == sorted(ordered), "a run is out of order"
            keys += ordered
        assert sorted(set(keys)) == sorted(keys), "a deadline twice"
        assert self._gone <= set(keys), "a gone key that is not here"
        assert sorted(set(keys) - self._gone) == sorted(expected), "wrong deadlines"
        assert len(self) == len(keys) - len(self._gone), "the count of deadlines"
        assert len(self._gone) <= len(self) + GARBAGE_MAX, "too much garbage"

    def _drop_gone_heads(self, run: Run) -> None:
        gone = self._gone
        while gone and run.head < len(run.ids):
            key = pack_deadline(run.times[run.head], run.ids[run.head], run.kind)
            if key not in gone:
                break
            gone.remove(key)
            run.head += 1
        run.trim()

    def _drop_gone(self) -> None:
        gone = self._gone
        for run in self._runs.values():
            run.drop(gone)
        self._heap = [key for key in self._heap if key not in gone]
        heapify(self._heap)
        gone.clear()


class Wakeups:
    """Which queue has something due first; ``find_first`` returns a queue's true first time."""

    __slots__ = ("_find_first", "_heap", "times")

    def __init__(self, find_first: Callable[[int], int | None]) -> None:
        self._find_first = find_first
        self.times: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def note(self, queue: int, time_ns: int) -> None:
        """Note that the queue has something due at ``time_ns``."""
        known_ns = self.times.get(queue)
        if known_ns is None or time_ns < known_ns:
            self.times[queue] = time_ns
            heappush(self._heap, (time_ns, queue))
            if len(self._heap) > 2 * len(self.times) + GARBAGE_MAX:
                self._heap = [(time, each) for each, time in self.times.items()]
                heapify(self._heap)

    def forget(self, queue: int) -> None:
        """Remove a deleted queue."""
        self.times.pop(queue, None)

    def first(self) -> int | None:
        """Return the earliest time of all queues."""
        heap = self._heap
        while heap:
            time_ns, queue = heap[0]
            if self.times.get(queue) != time_ns:
                heappop(heap)
                continue
            true_ns = self._find_first(queue)
            if true_ns == time_ns:
                return time_ns
            heappop(heap)
            del self.times[queue]
            if true_ns is not None:
                self.note(queue, true_ns)
        return None

    def until(self, now_ns: int) -> list[int]:
        """Return the queues that may have something due, ascending."""
        return sorted(queue for queue, time_ns in self.times.items() if time_ns <= now_ns)

    def check(self, queues: Iterable[int]) -> None:
        """Assert that no queue wakes up too late."""
        for queue in queues:
            true_ns = self._find_first(queue)
            if true_ns is not None:
                assert self.times.get(queue, U64_MAX) <= true_ns, f"queue {queue} oversleeps"
        held = set(self._heap)
        assert all((time, queue) in held for queue, time in self.times.items())
