"""Which entries of the log hold blocks that the state refers to.

Blocks come with rising indexes, so the list is ascending by appending. Letting go of one marks its
place; places are closed up when more than half of them are marked, outside of batches, so that
taking back is marking again. Derived data: the columns name the same indexes.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from functools import partial

from onelog.projections.undo import UndoLog

GARBAGE_MAX = 1_024


class Pins:
    """A sorted set of indexes."""

    __slots__ = ("_first", "_gone", "_indexes", "_kept", "_undo")

    def __init__(self, undo: UndoLog) -> None:
        self._undo = undo
        self._indexes = array("Q")
        self._kept = bytearray()
        self._gone = 0
        self._first = 0  # no kept place is before it

    def __len__(self) -> int:
        return len(self._indexes) - self._gone

    def add(self, index: int) -> None:
        """Keep an index that is above all others."""
        assert not self._indexes or index > self._indexes[-1], f"{index} is not the newest"
        self._indexes.append(index)
        self._kept.append(1)
        self._undo.note(self._take_last)

    def remove(self, indexes: Iterable[int]) -> None:
        """Let go of indexes that are kept."""
        for index in indexes:
            place = bisect_left(self._indexes, index)
            assert self._kept[place], f"{index} is not kept"
            self._kept[place] = 0
            self._gone += 1
            self._undo.note(partial(self._keep_again, place))
        self._undo.defer(self._close_up)

    def first(self) -> int | None:
        """Return the lowest index."""
        place = self._kept.find(1, self._first)
        if place < 0:
            return None
        if not self._undo.active:
            self._first = place
        return self._indexes[place]

    def between(self, first_index: int, last_index: int) -> list[int]:
        """Return the indexes from first to last, ascending."""
        indexes, kept = self._indexes, self._kept
        places = range(bisect_left(indexes, first_index), bisect_left(indexes, last_index + 1))
        return [indexes[place] for place in places if kept[place]]

    def load(self, indexes: list[int]) -> None:
        """Take over indexes in any order into an empty set."""
        assert not self._indexes, "only an empty set can be loaded"
        self._indexes = array("Q", sorted(indexes))
        self._kept = bytearray(b"\x01" * len(indexes))

    def memory(self) -> int:
        """Return the bytes held."""
        return 9 * len(self._indexes)

    def check(self, indexes: list[int]) -> None:
        """Assert that exactly these indexes are kept."""
        assert sum(self._kept) == len(self), "indexes are counted wrong"
        assert self.between(0, 2**64 - 2) == sorted(indexes), "other indexes are kept"
        assert self._gone <= len(self) + GARBAGE_MAX, "places are not closed up"

    def _close_up(self) -> None:
        if self._gone > len(self) + GARBAGE_MAX:
            self._indexes = array("Q", self.between(0, 2**64 - 2))
            self._kept = bytearray(b"\x01" * len(self._indexes))
            self._gone = self._first = 0

    def _take_last(self) -> None:
        self._indexes.pop()
        self._kept.pop()

    def _keep_again(self, place: int) -> None:
        self._kept[place] = 1
        self._gone -= 1
        self._first = min(self._first, place)
