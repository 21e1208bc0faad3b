"""Exchange of ranges between replicas: cut pieces out of the log, join them into one segment.

Segments begin and end at different indexes on each replica, so ranges are asked for by index and
come in pieces. A piece is the image of a sealed segment: a whole sealed file, or one made from a
part of a segment, sealed or not, with the streams and voids of just those entries. The receiver
verifies it by the rules of any sealed file (ual/segments/check.py) and may store it as it is.
Nothing is sent that was not verified when it was cut. Damage is ``CorruptFile``, and a request for
a range that begins or ends inside a group is ``RangeNotWhole``.

``join_pieces`` makes one sealed segment of the pieces of a range, to replace a damaged one.
Together the pieces must be exactly the range of that segment. Each is verified by the rules of a
sealed file, then against the one before: indexes, groups, terms and times continue without a step
back. The result has the streams and voids of all pieces, and the identity of the replaced segment.
"""

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from crc32c import crc32c

from onelog.ual.errors import CorruptFile, RangeNotWhole
from onelog.ual.files import Files
from onelog.ual.segments import tables
from onelog.ual.segments.chain import Segment
from onelog.ual.segments.check import check_sealed, walk_entries
from onelog.ual.segments.format import (
    ENTRIES_OFFSET,
    FOOTER_SIZE,
    HEADER_SIZE,
    Footer,
    SegmentHeader,
    TableSpan,
    compacting_name,
)
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.sealing import reduce_notes, sealed_image
from onelog.ual.segments.tables import Indexes, Offsets, StreamTable, Table
from onelog.ual.segments.unsealed import UnsealedSegment


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A sealed file in memory, or mapped."""

    first_index: int
    last_index: int
    data: memoryview

    @property
    def tag(self) -> int:
        """A number that distinguishes two pieces of the same range: the crc of all checksums."""
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

    The range begins and ends with a group. ``proposal`` is the number of its first one, used only
    if the segment does not know it; ``notes`` are those of the range if it is not sealed.
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
    if problems:  # of the range, because the file was just verified
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
        first_proposal=segment.find_proposal(first_index),
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
    """Seal entries in memory; a compacted range keeps times that fit its neighbours."""
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


# Joining


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A sealed file in parts, and the values for comparison with its neighbours."""

    header: SegmentHeader
    parts: tuple[bytes, bytes, bytes]
    offsets: Offsets  # of the entries, in the middle part
    proposal_count: int | None  # None: compaction has dropped some
    term_last: int


def join_pieces(segment: DamagedSegment, pieces: Sequence[bytes], shard: int) -> Joined:
    """Return one sealed file of a segment's range; raise ``CorruptFile`` if a piece is wrong."""
    path = segment.path
    entries: list[memoryview] = []
    offsets: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
    streams: dict[int, list[Indexes]] = {}
    voids: list[Indexes] = []
    headers: list[SegmentHeader] = []
    size, term, count = 0, 0, 0
    whole = True
    for piece in pieces:
        data = memoryview(piece)
        part, problems = check_sealed(Path("piece"), data, shard)
        if part is None or problems:
            raise CorruptFile(str(path), f"a piece of it: {problems[0].rule}", problems[0].offset)
        header = SegmentHeader.decode(str(path), bytes(data[:HEADER_SIZE]))
        _check_place(path, segment, headers, header)
        if part.terms is not None:
            if part.terms[0] < term:
                raise CorruptFile(str(path), f"term {part.terms[0]} after {term}")
            term = part.terms[1]
        if part.proposal_count is None:
            whole = False
        else:
            count += part.proposal_count
        footer_at = len(data) - FOOTER_SIZE
        footer = Footer.decode(str(path), bytes(data[footer_at:]), footer_at)
        walk = walk_entries(data, footer.entries_end)
        entries.append(data[ENTRIES_OFFSET : walk.end])
        offsets.append((walk.starts + np.uint32(size)).astype(np.uint32))
        size += walk.end - ENTRIES_OFFSET
        _add_notes(path, data, header, footer, streams, voids)
        headers.append(header)
    if not headers or headers[-1].last_index != segment.last_index:
        raise CorruptFile(str(path), "the pieces end before the range does")
    complete = replace(
        segment.header,
        last_index=segment.last_index,
        first_timestamp_ns=headers[0].first_timestamp_ns,
        last_timestamp_ns=headers[-1].last_timestamp_ns,
        entry_count=sum(len(each) for each in offsets),
    )
    content = b"".join(entries)
    notes = SegmentNotes(
        {stream_id: np.concatenate(records) for stream_id, records in streams.items()},
        _merged(voids),
    )
    places = np.concatenate(offsets)
    image = sealed_image(complete, content, places, notes)
    parts = (image.header, content, image.tail)
    _, problems = check_sealed(Path("piece"), memoryview(b"".join(parts)), shard)
    if problems:
        raise CorruptFile(str(path), f"joined: {problems[0].rule}", problems[0].offset)
    return Joined(complete, parts, places, count if whole else None, term)


def compare_intact(segment: DamagedSegment, joined: Joined) -> None:
    """Raise ``CorruptFile`` if the copy differs from what is intact in the damaged file."""
    opened = segment.opened
    if opened is None or opened.is_compacted or joined.proposal_count is None:
        return  # nothing can be read, or entries have no common places
    try:
        unreadable = opened.find_unreadable()
        indexes = np.arange(opened.first_index, opened.last_index + 1, dtype=np.uint64)
        starts, _ = opened.locate(indexes)
        ours = tables.gather_headers(opened.mapped_bytes(), starts)
    except (CorruptFile, FileNotFoundError):
        return  # a table is damaged, or the file is lost: no entry is found
    theirs = tables.gather_headers(joined.parts[1], joined.offsets - np.uint32(ENTRIES_OFFSET))
    same = (ours["crc"] == theirs["crc"]) & (ours["term"] == theirs["term"])
    for first, last in unreadable:
        same[first - opened.first_index : last + 1 - opened.first_index] = True
    if not same.all():
        index = opened.first_index + int(np.argmin(same))
        raise CorruptFile(str(segment.path), f"entry {index} is intact here, and differs there")


def write_joined(files: Files, segment: DamagedSegment, joined: Joined) -> Path:
    """Write the file beside the damaged one, synced except for its name; return its path."""
    path = segment.path.with_name(compacting_name(segment.first_index))
    if files.exists(path):
        files.remove(path)
    try:
        file = files.open(path, create=True)
        offset = 0
        for part in joined.parts:
            file.write(part, offset)
            offset += len(part)
        file.sync()
    except OSError:
        with suppress(OSError):
            files.remove(path)
        raise
    return path


def _check_place(
    path: Path, segment: DamagedSegment, before: list[SegmentHeader], header: SegmentHeader
) -> None:
    """Check that a piece begins where the one before ended, with a later group and time."""
    if not before:
        if (header.first_index, header.first_proposal) != (
            segment.first_index,
            segment.first_proposal,
        ):
            rule = f"begins at {header.first_index}, proposal {header.first_proposal}"
            raise CorruptFile(str(path), rule)
        return
    last = before[-1]
    if (
        header.first_index != last.last_index + 1
        or header.first_proposal <= last.first_proposal
        or header.first_timestamp_ns < last.last_timestamp_ns
    ):
        rule = f"a piece at {header.first_index} after one that ends at {last.last_index}"
        raise CorruptFile(str(path), rule)


def _add_notes(
    path: Path,
    data: memoryview,
    header: SegmentHeader,
    footer: Footer,
    streams: dict[int, list[Indexes]],
    voids: list[Indexes],
) -> None:
    def table(name: str, span: TableSpan) -> Table:
        return Table(str(path), name, span, data[span.position : span.end])

    found = StreamTable(table("streams", footer.streams), header).all_records()
    for stream_id, records in found.items():
        streams.setdefault(stream_id, []).append(records)
    voids.append(tables.decode_voids(table("voids", footer.voids), header))


def _merged(voids: list[Indexes]) -> Indexes:
    """Join void ranges that the end of a piece divided."""
    rows = np.concatenate(voids).tolist()
    merged: list[list[int]] = []
    for first, last in rows:
        if merged and first == merged[-1][1] + 1:
            merged[-1][1] = last
        else:
            merged.append([first, last])
    return np.array(merged, np.uint64).reshape(-1, 2)
