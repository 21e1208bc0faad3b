"""Unsealed segments: the files that the log still appends to, or has closed but not sealed.

Invariants:

* The file is the 64-byte header, then whole groups back to back up to ``end``. Bytes past ``end``
  mean nothing: they are what an interrupted write or an interrupted seal left.
* ``bounds[i]`` is where entry ``first_index + i`` starts and the entry before it ends; the last
  bound is ``end``. ``group_firsts[g]`` is the number (from 0, in this file) of the first entry of
  the file's group ``g``.
* A write goes to ``end`` and moves it only when it succeeded. So a failed write changes nothing.

One thread appends and cuts; any thread reads what was committed. An append makes the arrays longer
and moves ``last_index`` after that; a cut replaces them with shorter arrays. So a reader that takes
an array once finds every committed entry in it, without a lock.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onelog.ual.entry import HEADER, Entry, Group, check_entry
from onelog.ual.entry import HEADER_SIZE as ENTRY_HEADER_SIZE
from onelog.ual.errors import CorruptFile, EntryError
from onelog.ual.files import File, Files
from onelog.ual.log_config import LogConfig
from onelog.ual.segments.format import HEADER_SIZE, SegmentHeader, successor_name, unsealed_name
from onelog.ual.segments.notes import IndexArray
from onelog.ual.segments.sealed import SealedSegment

# How much of the file a scan holds at once, unless one entry is larger.
READ_SIZE = 256 << 10

_TIMESTAMP_AT = 24  # where an entry's header keeps its timestamp_ns


class UnsealedSegment:
    """One ``.flseg.tmp`` file with its offsets in memory.

    ``end`` is the file offset just past the last entry; ``last_proposal`` is the number of the last
    group, one less than ``first_proposal`` while there is none.
    """

    __slots__ = (
        "bounds", "end", "entry_count", "file", "first_index", "first_proposal",
        "first_timestamp_ns", "group_firsts", "header", "last_index", "last_proposal",
        "last_timestamp_ns", "path", "sealed",
    )  # fmt: skip

    def __init__(self, path: Path, file: File, header: SegmentHeader) -> None:
        self.path = path
        self.file = file
        self.header = header
        self.bounds = array("I", (HEADER_SIZE,))
        self.group_firsts = array("I")
        self.end = HEADER_SIZE
        self.entry_count = 0
        self.first_timestamp_ns = 0
        self.last_timestamp_ns = 0
        self.first_index = header.first_index
        self.last_index = header.first_index - 1
        self.first_proposal = header.first_proposal
        self.last_proposal = header.first_proposal - 1
        # The sealed segment that replaced this one; set before the notes of its entries are
        # dropped.
        self.sealed: SealedSegment | None = None

    @classmethod
    def create(cls, files: Files, directory: Path, header: SegmentHeader) -> "UnsealedSegment":
        """Make a new file whose name and header are durable when this returns.

        So a file with bytes after its header had a durable header: a bad one is corruption.
        """
        path = directory / unsealed_name(header.first_index)
        if files.exists(path):
            # Left by a creation that met a full disk; nothing was ever appended to it.
            files.remove(path)
        file = files.open(path, create=True)
        file.write(header.encode(), 0)
        file.sync()
        files.sync_directory(directory)
        return cls(path, file, header)

    @classmethod
    def create_successor(
        cls, files: Files, directory: Path, header: SegmentHeader
    ) -> "UnsealedSegment":
        """Create the next file under a temporary name, because the active one is not synced yet.

        Nothing is durable. The file gets the name in ``path`` when its ``Roll`` has run.
        """
        waiting = directory / successor_name(header.first_index)
        file = files.open(waiting, create=True)
        try:
            file.write(header.encode(), 0)
        except OSError:
            files.remove(waiting)
            raise
        return cls(directory / unsealed_name(header.first_index), file, header)

    @property
    def offsets(self) -> "array[int]":
        """Where each entry starts, as a copy."""
        return self.bounds[:-1]

    def append(self, group: Group) -> None:
        """Write a group at the end; on ``OSError`` the segment is as before."""
        self.file.write(group.data, self.end)
        self.add(group)

    def add(self, group: Group) -> None:
        """Add a group whose bytes are already in the file at ``end``."""
        assert group.first_index == self.last_index + 1, (group.first_index, self.last_index)
        base, count = self.end, self.entry_count
        if not count:
            self.first_timestamp_ns = group.first_timestamp_ns
        self.group_firsts.append(count)
        self.bounds.extend(map(base.__add__, [*group.offsets[1:], len(group.data)]))
        self.end = base + len(group.data)
        self.entry_count = count + len(group.offsets)
        self.last_proposal += 1
        self.last_timestamp_ns = group.last_timestamp_ns
        self.last_index = group.last_index

    def is_outgrown_by(self, group: Group, config: LogConfig) -> bool:
        """Tell whether the file must close before this group."""
        return self.entry_count > 0 and (
            self.end + len(group.data) > config.segment_bytes_max
            or self.entry_count + len(group.offsets) > config.segment_entries_max
            or group.first_timestamp_ns - self.first_timestamp_ns >= config.segment_age_ns_max
        )

    def cut_from(self, index: int) -> None:
        """Drop the entries from ``index`` on, which must start a group, and sync the file."""
        number = index - self.first_index
        group = bisect_left(self.group_firsts, number)
        if number < self.entry_count:
            assert self.group_firsts[group] == number, f"index {index} does not start a group"
        self.file.truncate(self.bounds[number])
        self.file.sync()
        self.last_index = index - 1
        self.bounds = self.bounds[: number + 1]
        self.group_firsts = self.group_firsts[:group]
        self.end, self.entry_count = self.bounds[-1], number
        self.last_proposal = self.first_proposal + group - 1
        if number:
            self.last_timestamp_ns = self._timestamp_ns(number - 1)
        else:
            self.first_timestamp_ns = self.last_timestamp_ns = 0

    def read(self, index: int) -> Entry:
        """Read one entry from the file."""
        return self._checked(self.raw_range(index, index), 0, index)

    def raw_range(self, first_index: int, last_index: int) -> bytes:
        """Return the stored bytes of a range of entries."""
        assert self.first_index <= first_index <= last_index <= self.last_index
        bounds = self.bounds
        start = bounds[first_index - self.first_index]
        end = bounds[last_index - self.first_index + 1]
        data = self.file.read(end - start, start)
        if len(data) != end - start:
            raise CorruptFile(str(self.path), "the file is shorter than what was written", start)
        return data

    def entries(
        self,
        first_index: int,
        last_index: int,
        *,
        types: Collection[int] | None = None,
        records: IndexArray | None = None,
        voids: IndexArray | None = None,
    ) -> Iterator[Entry]:
        """Yield the entries of a range, filtered; holds about ``READ_SIZE`` bytes at a time.

        ``records`` are the only indexes wanted (a stream's), ``voids`` ranges to leave out.
        """
        first_index = max(first_index, self.first_index)
        last_index = min(last_index, self.last_index)
        offsets, base = self.bounds, self.first_index
        keep = _mask(first_index, last_index, records, voids)
        block_first = first_index
        while block_first <= last_index:
            start = offsets[block_first - base]
            # All entries that start within READ_SIZE of the first one.
            number, count = block_first - base, last_index - base + 1
            block_last = base + bisect_right(offsets, start + READ_SIZE, number, count) - 1
            wanted = keep[block_first - first_index : block_last - first_index + 1]
            data = self.raw_range(block_first, block_last) if wanted.any() else b""
            for step in np.flatnonzero(wanted).tolist():
                index = block_first + step
                at = offsets[index - base] - start
                if types is None or int.from_bytes(data[at + 4 : at + 6], "little") in types:
                    yield self._checked(data, at, index)
            block_first = block_last + 1

    def seek_time(self, timestamp_ns: int, last_index: int) -> int | None:
        """Return the first index up to ``last_index`` with at least this timestamp."""
        count = min(last_index, self.last_index) - self.first_index + 1
        number = bisect_left(range(count), timestamp_ns, key=self._timestamp_ns)
        return self.first_index + number if number < count else None

    def proposal_at(self, number: int) -> tuple[int, int]:
        """Return the first and last index of a proposal's group."""
        group = number - self.first_proposal
        assert 0 <= group < len(self.group_firsts), (number, self.first_proposal)
        first = self.group_firsts[group]
        is_last = group + 1 == len(self.group_firsts)
        after = self.entry_count if is_last else self.group_firsts[group + 1]
        return self.first_index + first, self.first_index + after - 1

    def find_proposal(self, index: int) -> int:
        """Return the number of the proposal whose group holds ``index``."""
        return self.first_proposal + bisect_right(self.group_firsts, index - self.first_index) - 1

    def check(self) -> None:
        """Assert the structure's invariants."""
        assert self.last_index - self.first_index + 1 == self.entry_count == len(self.bounds) - 1
        assert list(self.bounds) == sorted(set(self.bounds)), "bounds do not ascend"
        assert self.bounds[0] == HEADER_SIZE
        assert list(self.group_firsts) == sorted(set(self.group_firsts))
        assert bool(self.group_firsts) == bool(self.entry_count)
        assert self.end == self.bounds[-1]
        assert self.last_proposal == self.first_proposal + len(self.group_firsts) - 1
        assert self.end >= HEADER_SIZE + ENTRY_HEADER_SIZE * self.entry_count

    def _checked(self, data: bytes, at: int, index: int) -> Entry:
        try:
            return check_entry(data, at, index)
        except EntryError as error:
            offset = self.bounds[index - self.first_index]
            raise CorruptFile(str(self.path), error.rule, offset) from error

    def _timestamp_ns(self, number: int) -> int:
        data = self.file.read(HEADER.size, self.bounds[number])
        return int.from_bytes(data[_TIMESTAMP_AT : _TIMESTAMP_AT + 8], "little")


def _mask(
    first_index: int, last_index: int, records: IndexArray | None, voids: IndexArray | None
) -> NDArray[np.bool_]:
    """Return for each index of a range whether it passes the filters by notes."""
    count = max(last_index - first_index + 1, 0)
    keep = np.full(count, records is None)
    if records is not None:
        inside = records[(records >= first_index) & (records <= last_index)]
        keep[inside - np.uint64(first_index)] = True
    for first, last in [] if voids is None else voids.tolist():
        keep[max(first - first_index, 0) : max(last - first_index + 1, 0)] = False
    return keep
