"""Apply notes: streams and voids of the entries that are not sealed yet.

Offsets, sparse and time tables follow from an entry's bytes; which stream it is a record of, and
whether it was refused, only apply knows. Apply records both here. Sealing writes the notes of its
range to the file, and then they are dropped; after a restart a replay makes them again.

Invariants:

* The indexes of a stream ascend strictly. Void ranges ascend and never touch: ``[3, 4]`` and
  ``[5, 6]`` are kept as ``[3, 6]``.
* No stream is kept without a record.

One thread writes (``add_*``, ``forget_through``, ``cut_from``), any number read, without a lock:

* The arrays that readers see only grow at the end, or have the last void's end moved up. To shorten
  one, the writer replaces it with a new array, so a position that a reader has looked up in an
  array stays valid in that array.
* Readers copy by slicing, which the interpreter does in one step. They never take a buffer of a
  live array: a buffer would make the writer's next ``append`` fail with ``BufferError``.
* A void is published by its first index, added after its last: a reader that finds the first
  finds the last.

So a reader sees the notes as they were at some moment of its call. That is recent enough, because
the log never reads them above the applied index.
"""

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.uint64]


def _no_voids() -> IndexArray:
    return np.empty((0, 2), np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentNotes:
    """The notes of one segment's range: what its streams and voids tables are made of."""

    streams: dict[int, IndexArray] = field(default_factory=dict)  # ascending, never empty
    voids: IndexArray = field(default_factory=_no_voids)  # rows of first and last, inclusive

    def check(self, first_index: int, last_index: int) -> None:
        """Assert the structure: it is written to disk as it is and trusted from then on."""
        for stream_id, records in self.streams.items():
            assert len(records), f"stream {stream_id} without a record"
            assert records[0] >= first_index, (stream_id, records[0], first_index)
            assert records[-1] <= last_index, (stream_id, records[-1], last_index)
            assert (records[1:] > records[:-1]).all(), f"records of stream {stream_id} descend"
        if not len(self.voids):
            return
        firsts, lasts = self.voids[:, 0], self.voids[:, 1]
        assert (firsts <= lasts).all(), "a void ends before it starts"
        assert firsts[0] >= first_index, (firsts[0], first_index)
        assert lasts[-1] <= last_index, (lasts[-1], last_index)
        assert (firsts[1:] > lasts[:-1] + np.uint64(1)).all(), "voids touch or descend"


def clip_voids(voids: IndexArray, first_index: int, last_index: int) -> IndexArray:
    """Return the parts of ascending void ranges that are between two indexes."""
    start = np.searchsorted(voids[:, 1], np.uint64(first_index), "left")
    end = np.searchsorted(voids[:, 0], np.uint64(last_index), "right")
    return voids[start:end].clip(np.uint64(first_index), np.uint64(last_index))


class _Voids(NamedTuple):
    """Parallel arrays of ranges; replaced together where they get shorter."""

    firsts: "array[int]"
    lasts: "array[int]"


class ApplyNotes:
    """The notes of all unsealed entries of one log."""

    __slots__ = ("_records", "_voids")

    def __init__(self) -> None:
        self._records: dict[int, array[int]] = {}
        self._voids = _Voids(array("Q"), array("Q"))

    def add_record(self, stream_id: int, index: int) -> None:
        """Note that the entry is a record of the stream.

        This runs for each record written: ``select`` asserts the order, not this.
        """
        records = self._records.get(stream_id)
        if records is None:
            self._records[stream_id] = array("Q", (index,))
        else:
            records.append(index)

    def add_void(self, first_index: int, last_index: int) -> None:
        """Note that apply refused these entries: they are in the log, but not data."""
        assert first_index <= last_index, (first_index, last_index)
        firsts, lasts = self._voids
        if lasts:
            assert first_index > lasts[-1], (first_index, lasts[-1])
            if first_index == lasts[-1] + 1:
                lasts[-1] = last_index
                return
        lasts.append(last_index)
        firsts.append(first_index)

    def records(self, stream_id: int, first_index: int, last_index: int) -> IndexArray:
        """Return the stream's records from ``first_index`` to ``last_index``, both included."""
        records = self._records.get(stream_id)
        if records is None:
            return np.empty(0, np.uint64)
        return _between(records, first_index, last_index)

    def is_void(self, index: int) -> bool:
        """Tell whether apply refused the entry."""
        firsts, lasts = self._voids
        at = bisect_right(firsts, index) - 1
        return at >= 0 and index <= lasts[at]

    def voids(self, first_index: int, last_index: int) -> IndexArray:
        """Return the void ranges between two indexes, clipped to them."""
        voids = self._voids
        firsts = np.array(voids.firsts[:], np.uint64)
        lasts = np.array(voids.lasts[: len(firsts)], np.uint64)
        return clip_voids(np.column_stack((firsts, lasts)), first_index, last_index)

    def select(self, first_index: int, last_index: int) -> SegmentNotes:
        """Return the notes of a range, for a segment that holds exactly that range."""
        streams: dict[int, IndexArray] = {}
        # list() takes the items in one step; the writer may add a stream while this loop runs.
        for stream_id, live in list(self._records.items()):
            records = _between(live, first_index, last_index)
            if len(records):
                streams[stream_id] = records
        notes = SegmentNotes(streams, self.voids(first_index, last_index))
        notes.check(first_index, last_index)
        return notes

    def forget_through(self, last_index: int) -> None:
        """Drop what is noted up to ``last_index``: a sealed file holds it now."""
        for stream_id, records in list(self._records.items()):
            if records[-1] <= last_index:
                del self._records[stream_id]
            elif records[0] <= last_index:
                self._records[stream_id] = records[bisect_right(records, last_index) :]
        firsts, lasts = self._voids
        gone = bisect_right(lasts, last_index)
        firsts, lasts = firsts[gone:], lasts[gone:]
        if firsts:
            firsts[0] = max(firsts[0], last_index + 1)
        self._voids = _Voids(firsts, lasts)

    def cut_from(self, index: int) -> None:
        """Drop what is noted from ``index`` on: those entries were cut from the log."""
        for stream_id, records in list(self._records.items()):
            if records[0] >= index:
                del self._records[stream_id]
            elif records[-1] >= index:
                self._records[stream_id] = records[: bisect_left(records, index)]
        firsts, lasts = self._voids
        left = bisect_left(firsts, index)
        firsts, lasts = firsts[:left], lasts[:left]
        if lasts:
            lasts[-1] = min(lasts[-1], index - 1)
        self._voids = _Voids(firsts, lasts)


def _between(live: "array[int]", first_index: int, last_index: int) -> IndexArray:
    """Copy a range out of an array that another thread may be appending to."""
    copy = live[bisect_left(live, first_index) : bisect_right(live, last_index)]
    return np.array(copy, np.uint64)
