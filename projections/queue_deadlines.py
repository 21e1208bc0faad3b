"""Deadlines of messages, as packed numbers.

A queue may hold a deadline for each of a million messages, so they are not the objects of
deadlines.py (200 bytes each) but one number each (56 bytes): time, message, kind. Those that come
in ascending order, as the ends of leases of one length do, stand in a run; the others in a heap.
What is cancelled is noted in ``_gone`` until it comes up or there is more of it than of the rest;
so nothing here has to look a message up. Invariants:

* run and heap together hold each live key once and each gone key once; the run ascends;
* there are at most as many gone keys as live ones, plus GARBAGE_MAX.

``Wakeups`` tells which of many queues has something due first. A queue's entry there may be too
early, never too late: it is corrected when it comes up.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile

from projections.limits import U64_MAX
from projections.queue_limits import GARBAGE_MAX

LEASE_ENDS = 1
DELAY_ENDS = 2
TTL_ENDS = 3

KEY_SIZE = 56  # bytes of one key: a number of 128 bits and its place in a list
GONE_SIZE = 72  # bytes of a key in the set, beside the number itself

TIME_SHIFT = 72
ID_SHIFT = 8


def pack_deadline(deadline_ns: int, message_id: int, kind: int) -> int:
    """Return the number that stands for a deadline; they sort by time, then by message."""
    return deadline_ns << TIME_SHIFT | message_id << ID_SHIFT | kind


def unpack_deadline(key: int) -> tuple[int, int, int]:
    """Return time, message and kind."""
    return key >> TIME_SHIFT, key >> ID_SHIFT & U64_MAX, key & 0xFF


class PackedDeadlines:
    """The deadlines of one queue's messages."""

    __slots__ = ("_gone", "_heap", "_run")

    def __init__(self) -> None:
        self._run: deque[int] = deque()
        self._heap: list[int] = []
        self._gone: set[int] = set()

    def __len__(self) -> int:
        return len(self._run) + len(self._heap) - len(self._gone)

    def add(self, key: int) -> None:
        """Add a deadline that is not here."""
        gone, run = self._gone, self._run
        if gone and key in gone:
            gone.remove(key)
        elif not run or key > run[-1]:
            run.append(key)
        else:
            heappush(self._heap, key)

    def cancel(self, key: int) -> None:
        """Take away a deadline that is here."""
        run, heap = self._run, self._heap
        if run and run[0] == key:
            run.popleft()
            return
        if heap and heap[0] == key:
            heappop(heap)
            return
        gone = self._gone
        gone.add(key)
        if len(gone) > len(run) + len(heap) - len(gone) + GARBAGE_MAX:
            self._run = deque(kept for kept in run if kept not in gone)
            self._heap = [kept for kept in heap if kept not in gone]
            heapify(self._heap)
            gone.clear()

    def first(self) -> int | None:
        """Return the earliest time."""
        run, heap, gone = self._run, self._heap, self._gone
        if gone:
            while run and run[0] in gone:
                gone.remove(run.popleft())
            while heap and heap[0] in gone:
                gone.remove(heappop(heap))
        if run and not (heap and heap[0] < run[0]):
            return run[0] >> TIME_SHIFT
        return heap[0] >> TIME_SHIFT if heap else None

    def due(self, now_ns: int, limit: int) -> list[int]:
        """Return up to ``limit`` keys with a time at or before now, earliest first; they stay."""
        gone = self._gone
        ordered = takewhile(lambda key: key >> TIME_SHIFT <= now_ns, self._run)
        found = list(islice((key for key in ordered if key not in gone), limit))
        popped: list[int] = []
        while self._heap and len(popped) < limit and self._heap[0] >> TIME_SHIFT <= now_ns:
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
        return (len(self._run) + len(self._heap)) * KEY_SIZE + len(self._gone) * GONE_SIZE

    def check(self, expected: Iterable[int]) -> None:
        """Assert the invariants of this file, and that the live keys are the expected ones."""
        assert list(self._run) == sorted(self._run), "the run is out of order"
        keys = [*self._run, *self._heap]
        assert sorted(set(keys)) == sorted(keys), "a deadline twice"
        assert self._gone <= set(keys), "a gone key that is not here"
        assert sorted(set(keys) - self._gone) == sorted(expected), "wrong deadlines"
        assert len(self._gone) <= len(self) + GARBAGE_MAX, "too much garbage"


class Wakeups:
    """Which queue has something due first; ``first_of`` tells a queue's true first time."""

    __slots__ = ("_first_of", "_heap", "times")

    def __init__(self, first_of: Callable[[int], int | None]) -> None:
        self._first_of = first_of
        self.times: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def note(self, queue: int, time_ns: int) -> None:
        """Something of the queue is due at ``time_ns``."""
        known_ns = self.times.get(queue)
        if known_ns is None or time_ns < known_ns:
            self.times[queue] = time_ns
            heappush(self._heap, (time_ns, queue))
            if len(self._heap) > 2 * len(self.times) + GARBAGE_MAX:
                self._heap = [(time, each) for each, time in self.times.items()]
                heapify(self._heap)

    def forget(self, queue: int) -> None:
        """The queue is gone."""
        self.times.pop(queue, None)

    def first(self) -> int | None:
        """Return the earliest time of all queues."""
        heap = self._heap
        while heap:
            time_ns, queue = heap[0]
            if self.times.get(queue) != time_ns:
                heappop(heap)
                continue
            true_ns = self._first_of(queue)
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
            true_ns = self._first_of(queue)
            if true_ns is not None:
                assert self.times.get(queue, U64_MAX) <= true_ns, f"queue {queue} oversleeps"
        held = set(self._heap)
        assert all((time, queue) in held for queue, time in self.times.items())
