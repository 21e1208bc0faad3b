"""The segments of one log as one sequence of entries, sealed or not.

Invariants:

* Segments are in order and touch: each starts where the one before ended, in indexes and in
  proposals. All but the last are sealed or closed.
* A set never changes. The log replaces it as a whole, so a reader that took it keeps a consistent
  view, and files that were deleted since stay readable through it.

Everything here may be called from any thread.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path

from onelog.ual.entry import Entry, Group, check_group
from onelog.ual.errors import CorruptFile, EntryError, IndexDropped, MissingSegment
from onelog.ual.manifest import Base
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment

Segment = SealedSegment | UnsealedSegment | DamagedSegment

# A mapping holds a descriptor, a process has 1,024 of them by default, and a node many logs.
MAPPED_SEGMENTS_MAX = 16


class SegmentSet:
    """An immutable, ordered, gapless sequence of segments."""

    __slots__ = ("_mapped", "notes", "segments")

    def __init__(
        self,
        segments: tuple[Segment, ...],
        notes: ApplyNotes,
        mapped: deque[SealedSegment] | None = None,
    ) -> None:
        self.segments = segments
        self.notes = notes
        self._mapped = deque() if mapped is None else mapped

    def with_segments(self, segments: tuple[Segment, ...]) -> "SegmentSet":
        """Return a set with these segments and the same notes and mappings."""
        return SegmentSet(segments, self.notes, self._mapped)

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
        return self._find(index).read(index)

    def scan(
        self,
        first_index: int,
        last_index: int,
        *,
        types: Collection[int] | None = None,
        stream_id: int | None = None,
        skip_voids: bool = False,
    ) -> Iterator[Entry]:
        """Yield the entries of a range in order, holding no more than a block of them."""
        wanted = None if types is None else frozenset(types)
        for segment in self.segments:
            if segment.last_index < first_index or segment.first_index > last_index:
                continue
            first = max(first_index, segment.first_index)
            last = min(last_index, segment.last_index)
            if isinstance(segment, UnsealedSegment):
                records = voids = None
                if stream_id is not None:
                    records = self.notes.records(stream_id, first, last)
                if skip_voids:
                    voids = self.notes.voids(first, last)
                # Notes are dropped once the file is sealed, and ``sealed`` is set first. So the
                # notes just taken are complete, unless ``sealed`` is set by now.
                if segment.sealed is None:
                    yield from segment.entries(
                        first, last, types=wanted, records=records, voids=voids
                    )
                    continue
                segment = segment.sealed
            sealed = self.readable(segment)
            assert isinstance(sealed, SealedSegment)
            yield from sealed.entries(
                first, last, types=wanted, stream_id=stream_id, skip_voids=skip_voids
            )

    def seek_time(self, timestamp_ns: int, last_index: int) -> int | None:
        """Return the first index up to ``last_index`` with at least this timestamp, if any."""
        for segment in self.segments:
            if not segment.entry_count or segment.last_timestamp_ns < timestamp_ns:
                continue
            readable = self.readable(segment)
            if isinstance(readable, UnsealedSegment):
                index = readable.seek_time(timestamp_ns, last_index)
            else:
                index = readable.seek_time(timestamp_ns)
            # A compacted segment may have lost the entries with its last timestamp.
            if index is not None:
                return index if index <= last_index else None
        return None

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
            raise CorruptFile(str(segment.path), f"proposal {number}: {error}") from error
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

    def _find(self, index: int) -> SealedSegment | UnsealedSegment:
        return self.readable(self.covering(index))

    def _find_proposal(self, number: int) -> SealedSegment | UnsealedSegment:
        segments = self.segments
        at = bisect_right(segments, number, key=lambda segment: segment.first_proposal) - 1
        assert at >= 0, (number, segments[0].first_proposal)
        return self.readable(segments[at])


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
