"""Cutting a range of the log out as a sealed file of its own, to be given to another replica.

Where segments begin and end differs between replicas, so ranges are asked for by index and come in
pieces. A piece is the image of a sealed segment: a whole sealed file as it is, or made of a part
of a segment, sealed or not, with the streams and voids of just those entries. Who takes it verifies
it by the rules of any sealed file (ual/segments/check.py) and may put it into a directory as it is.

Nothing is handed out that was not verified when it was cut. Damage is ``CorruptFile``, and a
range that was asked for wrongly is ``RangeNotWhole``.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from crc32c import crc32c

from onelog.ual.errors import CorruptFile, RangeNotWhole
from onelog.ual.files import Files
from onelog.ual.segments import tables
from onelog.ual.segments.chain import Segment
from onelog.ual.segments.check import check_sealed
from onelog.ual.segments.compaction import reduce_notes
from onelog.ual.segments.format import ENTRIES_OFFSET, FOOTER_SIZE, SegmentHeader
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import sealed_image
from onelog.ual.segments.tables import Offsets
from onelog.ual.segments.unsealed import UnsealedSegment


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A sealed file in memory, or mapped."""

    first_index: int
    last_index: int
    data: memoryview

    @property
    def tag(self) -> int:
        """A number that tells two pieces of the same range apart: its footer has all checksums."""
        return crc32c(self.data[-FOOTER_SIZE:])


def cut_piece(
    files: Files,
    segment: Segment,
    first_index: int,
    last_index: int,
    proposal: int,
    notes: SegmentNotes,
) -> Piece:
    """Return the entries of a range within one segment as a sealed file.

    The range begins and ends with a group. ``proposal`` is the number of its first one, which only
    counts where the segment cannot tell; ``notes`` are those of the range if it is not sealed.
    """
    assert segment.first_index <= first_index <= last_index <= segment.last_index
    if isinstance(segment, UnsealedSegment):
        parts = _of_unsealed(segment, first_index, last_index, notes)
    else:
        # Opened again: what was checked when it was opened first may have rotted since.
        segment = SealedSegment.open(files, segment.path)
        segment.check_file()
        if (first_index, last_index) == (segment.first_index, segment.last_index):
            return Piece(first_index, last_index, segment.mapped_bytes())
        parts = _of_sealed(segment, first_index, last_index, proposal)
    image = memoryview(b"".join(parts))
    _, problems = check_sealed(segment.path.with_name("piece"), image, segment.header.shard)
    if problems:  # not of the file, which was just verified
        raise RangeNotWhole(first_index, last_index, problems[0].rule)
    return Piece(first_index, last_index, image)


def _of_unsealed(
    segment: UnsealedSegment, first_index: int, last_index: int, notes: SegmentNotes
) -> tuple[bytes, bytes, bytes]:
    entries = segment.raw_range(first_index, last_index)
    at = first_index - segment.first_index
    bounds = np.array(segment.bounds[at : last_index - segment.first_index + 1], np.uint32)
    header = replace(
        segment.header,
        first_index=first_index,
        first_proposal=segment.proposal_of(first_index),
        last_index=last_index,
    )
    return _image(segment.path, header, entries, bounds - bounds[0], notes)


def _of_sealed(
    segment: SealedSegment, first_index: int, last_index: int, proposal: int
) -> tuple[bytes, bytes, bytes]:
    indexes = segment.columns(first_index, last_index).index
    starts, ends = segment.locate(indexes)
    entries = bytes(segment.mapped_bytes()[int(starts[0]) : int(ends[-1])]) if len(starts) else b""
    if first_index == segment.first_index:
        proposal = segment.first_proposal
    elif not segment.is_compacted:
        numbers = range(segment.first_proposal, segment.first_proposal + segment.proposal_count())
        at = bisect_left(numbers, first_index, key=lambda number: segment.proposal_at(number)[0])
        if at == len(numbers) or segment.proposal_at(numbers[at])[0] != first_index:
            raise RangeNotWhole(first_index, last_index, "it begins inside one")
        proposal = numbers[at]
    header = replace(
        segment.header, first_index=first_index, first_proposal=proposal, last_index=last_index
    )
    offsets = (starts - starts[0] if len(starts) else starts).astype(np.uint32)
    notes = reduce_notes(segment.notes(), indexes)
    return _image(segment.path, header, entries, offsets, notes)


def _image(
    path: Path, header: SegmentHeader, entries: bytes, offsets: Offsets, notes: SegmentNotes
) -> tuple[bytes, bytes, bytes]:
    """Seal entries in memory; times of a range that lost its ends to compaction stay in order."""
    times_ns = tables.gather_headers(entries, offsets)["timestamp_ns"]
    complete = replace(
        header,
        entry_count=len(offsets),
        first_timestamp_ns=int(times_ns[0]) if len(offsets) else header.last_timestamp_ns,
    )
    if not complete.is_compacted:
        complete = replace(complete, last_timestamp_ns=int(times_ns[-1]))
    try:
        image = sealed_image(complete, entries, offsets + np.uint32(ENTRIES_OFFSET), notes)
    except AssertionError as error:
        raise CorruptFile(str(path), f"its notes do not fit its entries: {error}") from error
    return image.header, entries, image.tail
