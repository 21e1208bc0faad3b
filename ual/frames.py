"""Frames: the stored bytes of a range of entries, for readers of large parts of the log.

A frame is a copy of a piece of one segment file, with the offset of each entry and the void ranges
in it. Bounds come from the segment's tables, headers are gathered.

* A frame holds applied entries only, which are committed and never cut again.
* It covers ``first_index`` to ``last_index`` without a gap: a missing entry was compacted away, or
  belongs to an owner that was not asked for. The next frame begins at ``last_index + 1``.
* It has at most ``bytes_max`` bytes of the file, or one entry that is larger, and at most
  ``voids_max`` ranges: the work for one is bounded.
* Index and size of each entry are compared with the tables. The bytes are verified as well, also of
  entries that are filtered out by owner, which no reader will see: by the checksum of a sealed
  file, once when a reader comes to it (``Checked``), which is a tenth of the work; else, and in a
  damaged file, by the checksum of each entry. A frame ends before the first damaged entry; one that
  would begin with it is ``EntriesDamaged``. Readers verify what they get, too, but damage that only
  they have met would not be repaired before the scrub comes by.

Any thread may read. The bytes are copied by numpy before anything looks at them, which lets other
threads run: if a page of a mapped file must be read from disk, the event loop does not wait.
"""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onelog.ual.entry import HEADER_SIZE
from onelog.ual.errors import CorruptFile, EntriesDamaged, IndexDropped
from onelog.ual.log import Log
from onelog.ual.segments.chain import Segment, SegmentSet
from onelog.ual.segments.notes import IndexArray, clip_voids
from onelog.ual.segments.sealed import DamagedSegment, MappedFile, SealedSegment
from onelog.ual.segments.tables import first_bad_checksum, gather_headers, join_entries
from onelog.ual.segments.unsealed import UnsealedSegment

FRAME_BYTES_MAX = 1 << 20
FRAME_VOIDS_MAX = 8_192

Bounds = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The entries of a range, as stored; see the module."""

    first_index: int
    last_index: int
    offsets: NDArray[np.uint32]  # where each entry starts in ``data``
    voids: IndexArray  # rows of first and last index, inside of the frame
    data: bytes | memoryview


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Some entries of a file, back to back."""

    path: Path
    position: int  # in the file
    bounds: Bounds  # where each starts in ``data``, and where the last one ends
    indexes: IndexArray
    last_index: int  # all entries up to here are in the piece, or are gone
    data: memoryview


class Checked:
    """The sealed file that a reader of frames is in, if its checksum was right at first."""

    __slots__ = ("_segment",)

    def __init__(self) -> None:
        self._segment: SealedSegment | None = None

    def covers(self, segments: SegmentSet, segment: SealedSegment) -> bool:
        """Tell whether the checksum of a file is right; compare it when the reader comes there."""
        if self._segment is segment:
            return True
        try:
            segment.compare_file()
        except CorruptFile as error:
            segments.report(error)
            return False
        self._segment = segment
        return True


def read_frame(
    log: Log,
    first_index: int,
    last_index: int,
    checked: Checked | None = None,
    *,
    owners: Collection[int] = (),
    bytes_max: int = FRAME_BYTES_MAX,
    voids_max: int = FRAME_VOIDS_MAX,
) -> Frame:
    """Return the next frame of a range, which must be applied; ``owners``: empty for all."""
    # In this order: a log that continues after a peer's snapshot replaces its segments first. In
    # the other order, entries of the old segments that were never applied could count as applied.
    applied_index = log.applied_index
    segments = log.segments
    assert first_index <= last_index <= applied_index, (first_index, last_index, applied_index)
    if first_index < segments.first_index:
        raise IndexDropped(first_index, segments.first_index, applied_index)
    segment = segments.covering(first_index)
    last_index = min(last_index, segment.last_index)
    if isinstance(segment, UnsealedSegment):
        voids = segments.notes.voids(first_index, last_index)
        # Notes are dropped once the file is sealed, and ``sealed`` is set first: see
        # SegmentSet.scan.
        if segment.sealed is None:
            last_index = _with_voids(voids, voids_max, last_index)
            try:
                piece = _unsealed_piece(segment, first_index, last_index, bytes_max)
            except CorruptFile as error:
                segments.report(error)
                raise EntriesDamaged(error, first_index, last_index) from error
            return _frame(segments, piece, first_index, voids, owners, is_checked=False)
        segment = segment.sealed
    try:
        sealed, mapping = _mapped(segments, segment)
    except CorruptFile as error:
        segments.report(error)
        raise EntriesDamaged(error, first_index, last_index) from error
    voids = clip_voids(sealed.voids, first_index, last_index)
    last_index = _with_voids(voids, voids_max, last_index)
    if owners and not any(sealed.owner_counts[owner] for owner in owners):
        piece = _empty_piece(sealed, last_index)
    else:
        piece = _sealed_piece(sealed, mapping, first_index, last_index, bytes_max)
    is_checked = (
        checked is not None
        and not isinstance(segment, DamagedSegment)
        and checked.covers(segments, sealed)
    )
    return _frame(segments, piece, first_index, voids, owners, is_checked=is_checked)


def _with_voids(voids: IndexArray, voids_max: int, last_index: int) -> int:
    """Return the last index of a frame that has at most ``voids_max`` void ranges."""
    return last_index if len(voids) <= voids_max else int(voids[voids_max, 0]) - 1


def _mapped(segments: SegmentSet, segment: Segment) -> tuple[SealedSegment, MappedFile]:
    """Return a segment, or what compaction made of it, with its mapping."""
    while True:
        if isinstance(segment, DamagedSegment):
            sealed = segments.opened(segment)
        else:
            readable = segments.readable(segment)
            assert isinstance(readable, SealedSegment)
            sealed = readable
        try:
            return sealed, sealed.mapped()
        except FileNotFoundError:
            # The mapping was evicted for another reader's, and then the file was replaced or
            # removed: the next iteration opens the new one, or raises.
            continue


def _empty_piece(segment: SealedSegment, last_index: int) -> _Piece:
    nothing = np.empty(0, np.uint64)
    return _Piece(segment.path, 0, np.zeros(1, np.int64), nothing, last_index, memoryview(b""))


def _sealed_piece(
    segment: SealedSegment, mapping: MappedFile, first_index: int, last_index: int, bytes_max: int
) -> _Piece:
    offsets, indexes = mapping.offsets, mapping.indexes
    if indexes is None:
        first, end = first_index - segment.first_index, last_index - segment.first_index + 1
    else:
        first = int(np.searchsorted(indexes, np.uint64(first_index), "left"))
        end = int(np.searchsorted(indexes, np.uint64(last_index), "right"))
    if first == end:
        return _empty_piece(segment, last_index)
    # Where each row ends is where the next one starts: the first that ends too late is found
    # without touching the rows in between. The limit has the type of the table, or numpy would
    # convert the table.
    limit = np.uint32(min(int(offsets[first]) + bytes_max, 0xFFFF_FFFF))
    stop = first + int(np.searchsorted(offsets[first + 1 : end], limit, "right"))
    if stop == end - 1 and _find_end(segment, offsets, stop) <= limit:
        stop = end
    stop = max(stop, first + 1)
    position, after = int(offsets[first]), _find_end(segment, offsets, stop - 1)
    bounds = np.append(offsets[first:stop], np.uint32(after)).astype(np.int64) - position
    if indexes is None:
        expected = np.arange(first, stop).astype(np.uint64) + np.uint64(segment.first_index)
        following = segment.first_index + stop
    else:
        expected = indexes[first:stop]
        following = int(indexes[stop]) if stop < end else last_index + 1
    covered = last_index if stop == end else following - 1
    data = _copy(mapping.view, position, after - position)
    return _Piece(segment.path, position, bounds, expected, covered, data)


def _find_end(segment: SealedSegment, offsets: NDArray[np.uint32], row: int) -> int:
    return int(offsets[row + 1]) if row + 1 < segment.entry_count else segment.footer.entries_end


def _unsealed_piece(
    segment: UnsealedSegment, first_index: int, last_index: int, bytes_max: int
) -> _Piece:
    live, base = segment.bounds, segment.first_index
    first, count = first_index - base, last_index - base + 1
    position = live[first]
    # A bound is where an entry ends and the next one starts.
    stop = max(bisect_right(live, position + bytes_max, first + 1, count + 1) - 1, first + 1)
    # A slice, never a buffer of the live array: see ual/segments/notes.py.
    bounds = np.array(live[first : stop + 1], np.int64) - position
    indexes = np.arange(stop - first).astype(np.uint64) + np.uint64(first_index)
    data = memoryview(segment.raw_range(first_index, base + stop - 1))
    return _Piece(segment.path, position, bounds, indexes, base + stop - 1, data)


def _copy(view: memoryview, position: int, size: int) -> memoryview:
    """Copy bytes of a mapped file without holding up other threads."""
    copied = np.empty(size, np.uint8)
    copied[:] = np.frombuffer(view, np.uint8, size, position)
    return copied.data


def _frame(
    segments: SegmentSet,
    piece: _Piece,
    first_index: int,
    voids: IndexArray,
    owners: Collection[int],
    *,
    is_checked: bool,
) -> Frame:
    """Return the entries of a piece that belong to ``owners``, up to the first damaged one."""
    headers: NDArray[Any] = gather_headers(piece.data, piece.bounds[:-1])
    damage = _find_damage(piece, headers, is_checked=is_checked)
    if damage is not None:
        row, error = damage
        segments.report(error)
        index = int(piece.indexes[row])
        if index == first_index:
            raise EntriesDamaged(error, index, index)
        piece, headers = _cut(piece, row), headers[:row]
    starts, ends, data = piece.bounds[:-1], piece.bounds[1:], piece.data
    voids = clip_voids(voids, first_index, piece.last_index)
    if owners:
        keep = np.isin(headers["entry_type"] >> np.uint16(8), list(owners))
        if not keep.all():
            starts, ends = starts[keep], ends[keep]
            joined = join_entries(data, starts, ends)
            offsets = (np.cumsum(ends - starts) - (ends - starts)).astype("<u4")
            return Frame(first_index, piece.last_index, offsets, voids, joined)
    return Frame(first_index, piece.last_index, starts.astype("<u4"), voids, data)


def _find_damage(
    piece: _Piece, headers: NDArray[Any], *, is_checked: bool
) -> tuple[int, CorruptFile] | None:
    """Return the first row of a piece that is not what was written, and what is wrong with it."""
    starts, ends = piece.bounds[:-1], piece.bounds[1:]
    sizes = headers["payload_len"].astype(np.int64) + HEADER_SIZE
    holds = (headers["index"] == piece.indexes) & (starts + sizes == ends)
    count = len(holds) if holds.all() else int(np.argmin(holds))
    rule = "the tables differ from the entry"
    if not is_checked:
        row = first_bad_checksum(piece.data, starts[:count], ends[:count], headers["crc"][:count])
        if row is not None:
            count, rule = row, "checksum"
    if count == len(holds):
        return None
    offset = piece.position + int(piece.bounds[count])
    return count, CorruptFile(str(piece.path), rule, offset)


def _cut(piece: _Piece, row: int) -> _Piece:
    """Return what is before a row; everything between the two was compacted away."""
    bounds = piece.bounds[: row + 1]
    last_index = int(piece.indexes[row]) - 1
    data = piece.data[: int(bounds[-1])]
    return replace(
        piece, bounds=bounds, indexes=piece.indexes[:row], last_index=last_index, data=data
    )
