"""The segments of one log as one sequence of entries, sealed or not.

Invariants:

* Segments are in order and touch: each starts where the one before ended, in indexes and in
  proposals. All but the last are sealed or closed.
* A set never changes. The log replaces it as a whole, so a reader that took it keeps a consistent
  view, and files that were deleted since stay readable through it.
* Damage is never passed over silently: a read of a damaged entry raises ``EntriesDamaged``, and
  ``scan_readable`` puts ``Unreadable`` in its place. Entries beside it, whose own checksums hold,
  are read even if the file as a whole is set aside.
* Each reader that meets damage leaves it in ``met``, whichever thread it is on and whatever becomes
  of its error; who repairs segments takes it from there.

Everything here may be called from any thread.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from onelog.ual.entry import Entry, Group, Unreadable, check_group
from onelog.ual.errors import (
    CorruptFile,
    EntriesDamaged,
    EntryError,
    IndexDropped,
    MissingSegment,
)
from onelog.ual.manifest import Base
from onelog.ual.segments.notes import ApplyNotes, IndexArray, clip_voids
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.tables import Indexes, are_in
from onelog.ual.segments.unsealed import UnsealedSegment

Segment = SealedSegment | UnsealedSegment | DamagedSegment

# A mapping holds a descriptor, a process has 1,024 of them by default, and a node many logs.
MAPPED_SEGMENTS_MAX = 16
# Damage that waits to be handled; what does not fit is met again.
MET_MAX = 64


class SegmentSet:
    """An immutable, ordered, gapless sequence of segments."""

    __slots__ = ("_mapped", "met", "notes", "segments")

    def __init__(
        self,
        segments: tuple[Segment, ...],
        notes: ApplyNotes,
        mapped: deque[SealedSegment] | None = None,
        met: deque[CorruptFile] | None = None,
    ) -> None:
        self.segments = segments
        self.notes = notes
        self.met = deque[CorruptFile](maxlen=MET_MAX) if met is None else met
        self._mapped = deque() if mapped is None else mapped

    def with_segments(self, segments: tuple[Segment, ...]) -> "SegmentSet":
        """Return a set with these segments and the same notes, mappings and damage."""
        return SegmentSet(segments, self.notes, self._mapped, self.met)

    @property
    def first_index(self) -> int:
        """The first index that is kept."""
        return self.segments[0].first_index

    @property
    def last_index(self) -> int:
        """The last index that was written."""
        return self.segments[-1].last_index

    @property
    def sealed_index(self) -> int:
        """The last index in a sealed file; one less than the first if no file is sealed."""
        sealed = [
            part.last_index for part in self.segments if not isinstance(part, UnsealedSegment)
        ]
        return sealed[-1] if sealed else self.first_index - 1

    def last_term_and_time(self, base: Base | None = None) -> tuple[int, int]:
        """Return term and timestamp of the last entry; zeros for an empty log without a base."""
        for segment in reversed(self.segments):
            if base is not None and segment.last_index <= base.index:
                return base.term, base.timestamp_ns
            if segment.entry_count:
                if isinstance(segment, DamagedSegment):
                    segment.refuse()
                last = segment.read(segment.last_index)
                return last.term, last.timestamp_ns
        return 0, 0

    def read(self, index: int) -> Entry:
        """Read one entry of the set from its file."""
        segment = self.covering(index)
        try:
            if isinstance(segment, DamagedSegment):
                return self.opened(segment).read(index)
            return self.readable(segment).read(index)
        except CorruptFile as error:
            damage = EntriesDamaged(error, index, index)
            self.report(damage)
            raise damage from error

    def scan(
        self,
        first_index: int,
        last_index: int,
        *,
        stream_id: int | None = None,
        skip_voids: bool = False,
    ) -> Iterator[Entry]:
        """Yield the entries of a range in order, holding no more than a block of them."""
        wanted = _Wanted(stream_id, skip_voids)
        found = self._scan(first_index, last_index, wanted, passes_damage=False)
        return cast("Iterator[Entry]", found)

    def scan_readable(
        self,
        first_index: int,
        last_index: int,
        *,
        stream_id: int | None = None,
        skip_voids: bool = False,
    ) -> Iterator[Entry | Unreadable]:
        """Yield the entries of a range in order, and in its place what cannot be read."""
        wanted = _Wanted(stream_id, skip_voids)
        return self._scan(first_index, last_index, wanted, passes_damage=True)

    def seek_time(self, timestamp_ns: int, last_index: int) -> int | None:
        """Return the first index up to ``last_index`` with at least this timestamp, if any.

        If damage hides it, the first that may be it: nothing that is as new is before.
        """
        for segment in self.segments:
            if not segment.entry_count or segment.last_timestamp_ns < timestamp_ns:
                continue
            index: int | None
            try:
                readable = self.readable(segment)
                if isinstance(readable, UnsealedSegment):
                    index = readable.seek_time(timestamp_ns, last_index)
                else:
                    index = readable.seek_time(timestamp_ns)
            except CorruptFile as error:
                self.report(error)
                index = self._seek_singly(segment, timestamp_ns)
            # A compacted segment may have lost the entries with its last timestamp.
            if index is not None:
                return index if index <= last_index else None
        return None

    def report(self, damage: CorruptFile) -> None:
        """Leave damage that a reader has met to who repairs it."""
        self.met.append(damage)

    def proposal_range(self, number: int) -> tuple[int, int]:
        """Return the first and last index of a proposal's group."""
        return self._find_proposal(number).proposal_at(number)

    def proposal(self, number: int) -> Group:
        """Read and verify the group of a proposal."""
        segment = self._find_proposal(number)
        first_index, last_index = segment.proposal_at(number)
        data = segment.raw_range(first_index, last_index)
        try:
            group = check_group(data, 0, first_index)
        except EntryError as error:
            damage = CorruptFile(str(segment.path), f"proposal {number}: {error}")
            self.report(damage)
            raise damage from error
        assert group.last_index == last_index, (number, group.last_index, last_index)
        return group

    def with_replaced(self, old: Segment, new: Segment) -> "SegmentSet":
        """Return the set with one segment replaced."""
        return self.with_segments(tuple(new if part is old else part for part in self.segments))

    def after(self, segment: Segment) -> Segment:
        """Return the next segment; ``segment`` is not the last."""
        return self.segments[self.segments.index(segment) + 1]

    def check(self) -> None:
        """Assert that the segments touch, and each one's own structure."""
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            assert before.last_index + 1 == after.first_index, (before.path, after.path)
        for segment in self.segments:
            if isinstance(segment, UnsealedSegment):
                segment.check()

    def covering(self, index: int) -> Segment:
        """Return the segment that an index of the set belongs to, readable or not."""
        segments = self.segments
        at = bisect_right(segments, index, key=lambda segment: segment.first_index) - 1
        assert at >= 0, (index, self.first_index)
        assert index <= segments[at].last_index, (index, segments[at].last_index)
        return segments[at]

    def readable(self, segment: Segment) -> SealedSegment | UnsealedSegment:
        """Return the segment with its file mapped, or its compacted replacement.

        The number of mapped files is bounded: the one mapped first is unmapped first.
        """
        if isinstance(segment, DamagedSegment):
            segment.refuse()
        if isinstance(segment, UnsealedSegment) or segment.is_mapped:
            return segment
        try:
            try:
                segment.mapped_bytes()
            except FileNotFoundError:
                segment = segment.reopen()
                segment.mapped_bytes()
        except FileNotFoundError as error:
            first, last = segment.first_index, segment.last_index
            raise IndexDropped(first, last + 1, self.last_index) from error
        self._mapped.append(segment)
        while len(self._mapped) > MAPPED_SEGMENTS_MAX:
            self._mapped.popleft().unmap()
        return segment

    def _scan(
        self, first_index: int, last_index: int, wanted: "_Wanted", *, passes_damage: bool
    ) -> Iterator[Entry | Unreadable]:
        for segment in self.segments:
            at = first = max(first_index, segment.first_index)
            last = min(last_index, segment.last_index)
            if first > last:
                continue
            try:
                for entry in self._scan_part(segment, first, last, wanted):
                    yield entry
                    at = entry.index + 1
            except CorruptFile as error:
                self.report(error)
                for each in self._read_singly(segment, at, last, wanted):
                    if isinstance(each, Unreadable):
                        damage = EntriesDamaged(error, *each)
                        self.report(damage)
                        if not passes_damage:
                            raise damage from error
                    yield each

    def _scan_part(
        self, segment: Segment, first: int, last: int, wanted: "_Wanted"
    ) -> Iterator[Entry]:
        stream_id, skip_voids = wanted
        if isinstance(segment, UnsealedSegment):
            notes = self._take_notes(segment, first, last, wanted)
            if notes is not None:
                return segment.entries(first, last, records=notes[0], voids=notes[1])
            assert segment.sealed is not None
            segment = segment.sealed
        sealed = self.readable(segment)
        assert isinstance(sealed, SealedSegment)
        return sealed.entries(first, last, stream_id=stream_id, skip_voids=skip_voids)

    def _take_notes(
        self, segment: UnsealedSegment, first: int, last: int, wanted: "_Wanted"
    ) -> tuple[IndexArray | None, IndexArray | None] | None:
        """Return records and voids of a part that is not sealed; None if it is by now."""
        records = voids = None
        if wanted.stream_id is not None:
            records = self.notes.records(wanted.stream_id, first, last)
        if wanted.skip_voids:
            voids = self.notes.voids(first, last)
        # Notes are dropped once the file is sealed, and ``sealed`` is set first. So the notes just
        # taken are complete, unless ``sealed`` is set by now.
        return (records, voids) if segment.sealed is None else None

    def _read_singly(
        self, segment: Segment, first: int, last: int, wanted: "_Wanted"
    ) -> Iterator[Entry | Unreadable]:
        """Yield the entries of a damaged part that can be read, and in its place what cannot."""
        if first > last:
            return
        try:
            readable, indexes = self._list_wanted(segment, first, last, wanted)
        except CorruptFile:
            yield Unreadable(first, last)
            return
        bad: Unreadable | None = None
        for index in indexes:
            try:
                try:
                    entry = readable.read(index)
                except FileNotFoundError:
                    # Repaired or compacted meanwhile: the name has another file.
                    assert isinstance(readable, SealedSegment)
                    readable = readable.reopen()
                    entry = readable.read(index)
            except CorruptFile:
                bad = Unreadable(index if bad is None else bad.first_index, index)
                continue
            if bad is not None:
                yield bad
                bad = None
            yield entry
        if bad is not None:
            yield bad

    def _list_wanted(
        self, segment: Segment, first: int, last: int, wanted: "_Wanted"
    ) -> tuple[SealedSegment | UnsealedSegment, list[int]]:
        """Return what entries of a damaged part are read from, and which of them are wanted."""
        indexes = np.arange(first, last + 1, dtype=np.uint64)
        if isinstance(segment, UnsealedSegment):
            notes = self._take_notes(segment, first, last, wanted)
            if notes is not None:
                return segment, _select(indexes, *notes)
            assert segment.sealed is not None
            segment = segment.sealed
        if isinstance(segment, DamagedSegment):
            opened = self.opened(segment)
        else:
            readable = self.readable(segment)
            assert isinstance(readable, SealedSegment)
            opened = readable
        records = None if wanted.stream_id is None else opened.stream_records(wanted.stream_id)
        voids = opened.voids if wanted.skip_voids else None
        return opened, _select(opened.present(indexes), records, voids)

    def _seek_singly(self, segment: Segment, timestamp_ns: int) -> int | None:
        """Return the first entry of a damaged segment that is, or may be, as new as a time."""
        hidden: int | None = None  # the first of those before it that cannot be read
        everything = _Wanted(None, skip_voids=False)
        first, last = segment.first_index, segment.last_index
        for each in self._read_singly(segment, first, last, everything):
            if isinstance(each, Unreadable):
                hidden = each.first_index if hidden is None else hidden
            elif each.timestamp_ns >= timestamp_ns:
                return each.index if hidden is None else hidden
            else:
                hidden = None
        return hidden

    def opened(self, segment: DamagedSegment) -> SealedSegment:
        """Return the file of a damaged segment, for reads of single entries."""
        if segment.opened is None:
            segment.refuse()
        opened = self.readable(segment.opened)
        assert isinstance(opened, SealedSegment)
        return opened

    def _find_proposal(self, number: int) -> SealedSegment | UnsealedSegment:
        segments = self.segments
        at = bisect_right(segments, number, key=lambda segment: segment.first_proposal) - 1
        assert at >= 0, (number, segments[0].first_proposal)
        return self.readable(segments[at])


class _Wanted(NamedTuple):
    """Which entries of a range a reader wants: of one stream, with voids or without."""

    stream_id: int | None
    skip_voids: bool


def _select(indexes: Indexes, records: IndexArray | None, voids: IndexArray | None) -> list[int]:
    """Return those of some consecutive indexes that are a stream's records, and no voids."""
    if records is not None:
        indexes = indexes[are_in(indexes, records)]
    if voids is not None and len(indexes):
        for first, last in clip_voids(voids, int(indexes[0]), int(indexes[-1])).tolist():
            indexes = indexes[(indexes < first) | (indexes > last)]
    found: list[int] = indexes.tolist()
    return found


def check_touching(directory: Path, segments: Collection[Segment], first_index: int) -> None:
    """Refuse a log with a hole or an overlap: somebody removed, added or renamed a file."""
    expected = first_index
    for segment in segments:
        if segment.first_index > expected:
            raise MissingSegment(str(directory), expected, segment.first_index - 1)
        if segment.first_index < expected:
            rule = f"starts at {segment.first_index}, but the one before ends at {expected - 1}"
            raise CorruptFile(str(segment.path), rule)
        expected = segment.last_index + 1
    for before, after in pairwise(segments):
        # Each proposal has at least one entry, so both numbers bound each other.
        proposals = after.first_proposal - before.first_proposal
        if not 1 <= proposals <= after.first_index - before.first_index:
            rule = f"starts with proposal {after.first_proposal} after {before.first_proposal}"
            raise CorruptFile(str(after.path), rule, 0)
    for segment in segments:
        if not 1 <= segment.first_proposal <= segment.first_index:
            rule = f"proposal {segment.first_proposal} at index {segment.first_index}"
            raise CorruptFile(str(segment.path), rule, 0)
