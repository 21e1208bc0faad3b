"""The hot ring: the newest entries of the log, in memory, O(1) by index.

A fixed anonymous map holds the stored bytes of entries back to back and wraps around; a fixed
array holds where each entry starts. Positions never wrap: they count all bytes ever appended, so
an overwritten slot cannot be mistaken for a live one. Invariants:

* ``first_index <= index < next_index`` are exactly the entries that can be read.
* ``starts[i]`` is set for every readable ``i`` and for ``next_index``: an entry ends where the
  next one starts.
* ``next position - position of first_index <= size_bytes``, and there is always a free slot.

One thread appends; any thread reads. The writer moves ``first_index`` up *before* it overwrites,
and a reader checks ``first_index`` again *after* it copied, so overwritten bytes are never
returned. A group that does not fit empties the ring: its entries are read from the segment.
"""

import mmap
from array import array
from bisect import bisect_left

from onelog.ual.entry import Group

SIZE_BYTES_MIN = 4096

# One slot per this many bytes. Entries smaller than this on average are bounded by slots, larger
# ones by bytes; the array then costs an eighth of the ring.
BYTES_PER_SLOT = 64


class HotRing:
    """A fixed amount of memory with the newest entries of one log."""

    __slots__ = ("_buffer", "_mask", "_position", "_starts", "first_index", "next_index", "size")

    def __init__(self, size_bytes: int, next_index: int) -> None:
        assert size_bytes >= SIZE_BYTES_MIN, size_bytes
        self.size = size_bytes
        self._buffer = mmap.mmap(-1, size_bytes)
        slots = 1 << (size_bytes // BYTES_PER_SLOT).bit_length()
        self._mask = slots - 1
        self._starts = array("Q", bytes(8 * slots))
        self._position = 0
        self.first_index = next_index
        self.next_index = next_index

    def append(self, group: Group) -> None:
        """Add the next group, overwriting the oldest entries."""
        assert group.first_index == self.next_index, (group.first_index, self.next_index)
        data, offsets = group.data, group.offsets
        size, count = len(data), len(offsets)
        if size > self.size or count >= self._mask:
            self.clear(group.last_index + 1)
            return
        self._make_room(size, count)
        position = self._position
        self._copy_in(data, position % self.size)
        starts, mask = self._starts, self._mask
        slot = self.next_index & mask
        absolute = array("Q", map(position.__add__, offsets))
        absolute.append(position + size)  # where the entry after this group will start
        fitting = len(starts) - slot
        starts[slot : slot + count + 1] = absolute[:fitting]
        if count + 1 > fitting:
            starts[: count + 1 - fitting] = absolute[fitting:]
        self._position = position + size
        self.next_index += count

    def read(self, index: int) -> bytes | None:
        """Return the stored bytes of an entry, or None when the ring does not hold it."""
        return self.read_range(index, index)

    def read_range(self, first_index: int, last_index: int) -> bytes | None:
        """Return the stored bytes of a range of entries, or None unless the ring holds it all."""
        if not self.first_index <= first_index <= last_index < self.next_index:
            return None
        starts, mask, size = self._starts, self._mask, self.size
        start = starts[first_index & mask]
        length = starts[(last_index + 1) & mask] - start
        start %= size
        end = start + length
        if end <= size:
            data = self._buffer[start:end]
        else:
            data = self._buffer[start:] + self._buffer[: end - size]
        # The writer may have overtaken this read between two bytecodes.
        return data if first_index >= self.first_index else None

    def clear(self, next_index: int) -> None:
        """Forget every entry; the next group starts at ``next_index``."""
        self.first_index = next_index
        self.next_index = next_index
        self._starts[next_index & self._mask] = self._position

    def check(self) -> None:
        """Assert the structure's invariants."""
        assert self.first_index <= self.next_index, (self.first_index, self.next_index)
        assert self.next_index - self.first_index <= self._mask, "no free slot"
        positions = [
            self._starts[index & self._mask]
            for index in range(self.first_index, self.next_index + 1)
        ]
        assert positions == sorted(set(positions)), "starts do not ascend"
        assert positions[-1] == self._position, (positions[-1], self._position)
        assert positions[-1] - positions[0] <= self.size, "more bytes than the ring holds"

    def _make_room(self, size: int, count: int) -> None:
        """Move ``first_index`` past everything that the next write will overwrite."""
        starts, mask = self._starts, self._mask
        oldest_kept = self._position + size - self.size
        first = max(self.first_index, self.next_index + count - mask)
        if starts[first & mask] < oldest_kept:
            live = range(first, self.next_index)
            first += bisect_left(live, oldest_kept, key=lambda index: starts[index & mask])
        self.first_index = first

    def _copy_in(self, data: bytes, start: int) -> None:
        fitting = self.size - start
        if len(data) <= fitting:
            self._buffer[start : start + len(data)] = data
        else:
            self._buffer[start:] = data[:fitting]
            self._buffer[: len(data) - fitting] = data[fitting:]
