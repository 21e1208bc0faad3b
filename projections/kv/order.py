"""The ordered index of a namespace: its keys, sorted, built when somebody asks for order.

Most keys are never scanned, so writing a key does not pay for sorting it. Until the first scan
there is no index at all. After it, new keys wait in ``pending`` and are merged by the next scan.
Measured at a million keys on a busy machine where a dict put takes 0.5 µs: a SortedDict costs
4.9 µs on each new key; the pending list 0.4 µs, and 4 to 17 µs more only if a scan follows. The
first scan sorts for 1.2 s, or 0.1 s where a snapshot was loaded, since that is in order already.

Keys that are gone for good stay in the index as garbage: whoever walks it asks the records
anyway. Invariants: every key of the records is in the sorted list or pending, unless nothing is
built; garbage is at most half of the keys plus GARBAGE_MAX, or the index is dropped and rebuilt.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from sortedcontainers import SortedList  # type: ignore[import-untyped]

GARBAGE_MAX = 1_024


class OrderedKeys:
    """Keys of ``records`` in order, merged lazily."""

    __slots__ = ("_garbage_count", "_records", "_sorted", "pending")

    def __init__(self, records: Mapping[bytes, object]) -> None:
        self._records = records
        self._sorted: Any = None  # SortedList[bytes]; the library has no types
        self.pending: list[bytes] | None = None  # None until built; the put path appends to it
        self._garbage_count = 0

    def add(self, key: bytes) -> None:
        """Take note of a key that is new in the records."""
        if self.pending is not None:
            self.pending.append(key)

    def removed(self) -> None:
        """Take note that a key left the records."""
        if self.pending is None:
            return
        self._garbage_count += 1
        if self._garbage_count > len(self._records) // 2 + GARBAGE_MAX:
            self._sorted = self.pending = None
            self._garbage_count = 0

    def walk(
        self, start: bytes, end: bytes | None, *, reverse: bool = False, end_included: bool = False
    ) -> Iterator[bytes]:
        """Yield the keys from ``start`` to ``end`` (None: the last key), in order.

        The records must not change while the iterator is in use.
        """
        keys = self._merged()
        records = self._records
        for key in keys.irange(start, end, (True, end_included), reverse):
            if key in records:
                yield key

    def memory(self) -> int:
        """Return the bytes that the index holds besides the keys themselves."""
        if self.pending is None:
            return 0
        # The list of sublists costs a pointer per key and some slack at each sublist's end.
        return len(self._sorted) * 9 + sys.getsizeof(self.pending)

    def check(self) -> None:
        """Assert the invariants of this file."""
        if self.pending is None:
            assert self._sorted is None, "keys are pending nowhere"
            return
        known = set(self._sorted) | set(self.pending)
        assert known >= self._records.keys(), "the index misses a key"
        assert len(known) - len(self._records) <= self._garbage_count, "unknown garbage"
        assert all(a < b for a, b in zip(self._sorted, self._sorted[1:], strict=False))

    def _merged(self) -> Any:
        if self.pending is None:
            self._sorted = SortedList(self._records)
            self.pending = []
        elif self.pending:
            fresh = sorted(set(self.pending))
            if self._garbage_count:  # a key may have gone and come back
                fresh = [key for key in fresh if key not in self._sorted]
            self._sorted.update(fresh)
            self.pending.clear()
        return self._sorted
