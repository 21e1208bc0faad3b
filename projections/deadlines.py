"""Deadlines: which of many ids is due first.

A heap with lazy deletion beside a dict of scheduled ids. Postponing (the common case: a lease
kept alive, a key touched) only changes the dict; the outdated heap entry is corrected when it
comes up. Invariants:

* for each scheduled id the heap holds an entry at or before its deadline;
* the heap has at most twice as many entries as there are ids, plus GARBAGE_MAX.

The heap's layout depends on history, its answers do not: equal deadlines are ordered by id.
"""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

GARBAGE_MAX = 1_024

Id = TypeVar("Id", int, bytes)


class Deadlines(Generic[Id]):
    """Ids with a deadline each, ordered by deadline and then by id."""

    __slots__ = ("_heap", "_scheduled")

    def __init__(self) -> None:
        self._scheduled: dict[Id, int] = {}
        self._heap: list[tuple[int, Id]] = []

    def __len__(self) -> int:
        return len(self._scheduled)

    def get(self, item: Id) -> int | None:
        """Return the deadline of ``item``, if it has one."""
        return self._scheduled.get(item)

    def schedule(self, item: Id, deadline_ns: int) -> None:
        """Set or change the deadline of ``item``."""
        before = self._scheduled.get(item)
        self._scheduled[item] = deadline_ns
        if before is None or deadline_ns < before:
            heappush(self._heap, (deadline_ns, item))
            self._drop_garbage()

    def cancel(self, item: Id) -> None:
        """Forget the deadline of ``item``, which must have one."""
        del self._scheduled[item]
        self._drop_garbage()

    def first(self) -> int | None:
        """Return the earliest deadline."""
        heap = self._heap
        while heap:
            deadline_ns, item = heap[0]
            actual_ns = self._scheduled.get(item)
            if actual_ns == deadline_ns:
                return deadline_ns
            heappop(heap)
            if actual_ns is not None and actual_ns > deadline_ns:
                heappush(heap, (actual_ns, item))
        return None

    def due(self, now_ns: int, limit: int) -> list[tuple[int, Id]]:
        """Return up to ``limit`` (deadline, id) with deadline <= now, earliest first.

        They stay scheduled: only an applied entry may remove them.
        """
        found: list[tuple[int, Id]] = []
        while len(found) < limit:
            first_ns = self.first()
            if first_ns is None or first_ns > now_ns:
                break
            entry = heappop(self._heap)
            if not found or found[-1] != entry:  # shortening and postponing can leave duplicates
                found.append(entry)
        for entry in found:
            heappush(self._heap, entry)
        return found

    def check(self) -> None:
        """Assert the invariants of this file."""
        earliest: dict[Id, int] = {}
        for deadline_ns, item in self._heap:
            earliest[item] = min(deadline_ns, earliest.get(item, deadline_ns))
        for item, deadline_ns in self._scheduled.items():
            assert item in earliest, f"{item!r} has no heap entry"
            assert earliest[item] <= deadline_ns, f"{item!r} comes up after its deadline"
        assert len(self._heap) <= 2 * len(self._scheduled) + GARBAGE_MAX

    def _drop_garbage(self) -> None:
        if len(self._heap) > 2 * len(self._scheduled) + GARBAGE_MAX:
            self._heap = [(deadline_ns, item) for item, deadline_ns in self._scheduled.items()]
            heapify(self._heap)
