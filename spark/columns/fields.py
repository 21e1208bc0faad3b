"""Reads the same layout in many payloads at once, a field at a time, by numpy.

A ``Fields`` holds a cursor into each payload. Each read returns one field of all payloads and moves
all cursors. ``where`` limits a read to the payloads that have the field; the others keep their
position and get 0 or an empty span. Positions are those of the buffer that all payloads share.

The payloads were applied, so they are complete. A field that crosses the end of its payload means
damage and raises ``CorruptPayload``. Nothing outside a payload is ever read.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onelog.ual.errors import CorruptPayload

PREFIX_VERSION = 1
PREFIX_SESSION = 0x01
SESSION_BYTES = 24

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Spans(NamedTuple):
    """Where one field of each payload is in the shared buffer; ``end`` is excluded."""

    start: Numbers
    end: Numbers

    @property
    def size(self) -> Numbers:
        """The size of each in bytes."""
        return self.end - self.start

    def take(self, rows: NDArray[Any] | slice) -> "Spans":
        """Return those of some payloads."""
        return Spans(self.start[rows], self.end[rows])


class Fields:
    """A cursor into each of many payloads of one layout."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: NDArray[np.uint8], start: Numbers, end: Numbers) -> None:
        self.data = data
        self.at = start.copy()
        self.end = end

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: NDArray[Any]) -> "Fields":
        """Return copies of some cursors, which continue at their positions."""
        return Fields(self.data, self.at[rows], self.end[rows])

    def prefix(self) -> Spans:
        """Read the prefix that every payload has; return the namespaces."""
        version, flags = self.u8(), self.u8()
        if (version != PREFIX_VERSION).any() or (flags > PREFIX_SESSION).any():
            raise CorruptPayload("a payload's prefix has an unknown version or flag")
        namespace = self.bytes8()
        self.skip(SESSION_BYTES, flags == PREFIX_SESSION)
        return namespace

    def u8(self, where: Mask | None = None) -> NDArray[np.uint8]:
        """Read one byte of each."""
        return self._number("<u1", where)

    def u16(self, where: Mask | None = None) -> NDArray[np.uint16]:
        """Read a number of 2 bytes."""
        return self._number("<u2", where)

    def u32(self, where: Mask | None = None) -> NDArray[np.uint32]:
        """Read a number of 4 bytes."""
        return self._number("<u4", where)

    def u64(self, where: Mask | None = None) -> NDArray[np.uint64]:
        """Read a number of 8 bytes."""
        return self._number("<u8", where)

    def i64(self, where: Mask | None = None) -> NDArray[np.int64]:
        """Read a signed number of 8 bytes."""
        return self._number("<i8", where)

    def bytes8(self, where: Mask | None = None) -> Spans:
        """Read a one-byte size and that many bytes."""
        return self.fixed(self.u8(where).astype(np.int64))

    def bytes16(self, where: Mask | None = None) -> Spans:
        """Read a two-byte size and that many bytes."""
        return self.fixed(self.u16(where).astype(np.int64))

    def bytes32(self, where: Mask | None = None) -> Spans:
        """Read a four-byte size and that many bytes."""
        return self.fixed(self.u32(where).astype(np.int64))

    def fixed(self, sizes: Numbers) -> Spans:
        """Read ``sizes[i]`` bytes of payload ``i``."""
        start = self.at
        self.at = start + sizes
        if (self.at > self.end).any() or (sizes < 0).any():
            raise CorruptPayload("a field crosses the end of its payload")
        return Spans(start, self.at)

    def rest(self) -> Spans:
        """Read everything up to the end of each payload."""
        start, self.at = self.at, self.end.copy()
        return Spans(start, self.end)

    def skip(self, size: int, where: Mask | None = None) -> None:
        """Skip a field of ``size`` bytes."""
        step = np.int64(size)
        self.fixed(np.full(len(self.at), step) if where is None else where * step)

    def each(self, counts: NDArray[Any]) -> Iterator[tuple[NDArray[np.intp], "Fields"]]:
        """Yield the payloads that have a first item, then those that have a second, and so on.

        ``counts`` has the number of items in each payload. Each step yields the numbers of the
        payloads and cursors into them; the caller reads one item of each. After the last step the
        cursors of this object are behind the items.
        """
        at = self.at.copy()
        rows = np.flatnonzero(counts)
        part = self.take(rows)
        done = 0
        while len(rows):
            yield rows, part
            at[rows] = part.at
            done += 1
            left = np.flatnonzero(counts[rows] > done)
            if len(left) < len(rows):
                rows, part = rows[left], part.take(left)
        self.at = at

    def finish(self) -> None:
        """Refuse payloads in which something follows the last field."""
        if (self.at != self.end).any():
            raise CorruptPayload("bytes after the last field of a payload")

    def _number(self, dtype: str, where: Mask | None) -> NDArray[Any]:
        kind = np.dtype(dtype)
        at = self.at if where is None else self.at[where]
        ends = self.end if where is None else self.end[where]
        if (at + kind.itemsize > ends).any():
            raise CorruptPayload("a field crosses the end of its payload")
        values = gather(self.data, at, kind)
        if where is None:
            self.at = self.at + kind.itemsize
            return values
        spread = np.zeros(len(self.at), kind)
        spread[where] = values
        self.at = self.at + where * np.int64(kind.itemsize)
        return spread


def gather(data: NDArray[np.uint8], at: NDArray[Any], kind: "np.dtype[Any]") -> NDArray[Any]:
    """Return the numbers of a type at some positions of a buffer, whatever their alignment."""
    count = len(data) - kind.itemsize + 1
    if not len(at):
        return np.empty(0, kind)
    # An array with one overlapping item at every byte, so that numpy gathers by position.
    everywhere: NDArray[Any] = np.ndarray((count,), kind, data, strides=(1,))
    found: NDArray[Any] = everywhere[at]
    return found


def ragged(starts: Numbers, counts: Numbers, step: int = 1) -> Numbers:
    """Return ``counts[i]`` positions from ``starts[i]`` on, ``step`` apart, for each ``i``."""
    before = np.cumsum(counts) - counts
    everywhere = np.arange(int(counts.sum()), dtype=np.int64) * step
    found: Numbers = everywhere + np.repeat(starts - before * step, counts)
    return found


def sum_each(values: NDArray[Any], counts: Numbers) -> Numbers:
    """Return the sums of the first ``counts[0]`` values, of the next ``counts[1]``, and so on."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    ends = np.cumsum(counts)
    found: Numbers = sums[ends] - sums[ends - counts]
    return found


def side_by_side(starts: Numbers, counts: Numbers, sizes: NDArray[Any]) -> Numbers:
    """Return where each item starts: ``counts[i]`` items follow each other from ``starts[i]`` on.

    ``sizes`` are the bytes of all items, in order.
    """
    before = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=before[1:])
    firsts = np.cumsum(counts) - counts
    found: Numbers = before[:-1] + np.repeat(starts - before[firsts], counts)
    return found
