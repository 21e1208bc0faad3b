"""Rebuilding a damaged sealed segment, if the result can be proved.

Offsets, indexes, sparse and time tables, the footer and most of the header follow from the entries.
Streams and voids do not (apply made them), so they must be intact, and so must every entry.

A rebuilt file is accepted only with proof that it is the file that was sealed. Whatever had to be
guessed (a header field, where a table ended) is one candidate among few, and a candidate counts
only if one of two witnesses, written when the segment was sealed, agrees with it:

* the checked part of the footer, which holds the checksums of header, tables and counts;
* the checksum of the whole file.

So damage in two places, one of them not derived, gives no result, never a wrong file.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from crc32c import crc32c

from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.segments import tables
from onelog.ual.segments.check import EntryWalk, entry_problem, walk_entries
from onelog.ual.segments.format import (
    END_MAGIC,
    ENTRIES_OFFSET,
    FOOTER_FILE_CRC_OFFSET,
    FOOTER_SIZE,
    HEADER_SIZE,
    STREAM_ROW_SIZE,
    SUMMARY_OFFSET,
    SUMMARY_SIZE,
    TABLE_ALIGNMENT,
    VOID_ROW_SIZE,
    Footer,
    SegmentHeader,
    TableSpan,
    parse_segment_name,
)
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealing import SealedImage, sealed_image
from onelog.ual.segments.tables import StreamTable, Table

_SEGMENT_ID = slice(12, 16)  # in the header
_FIRST_PROPOSAL = slice(24, 32)
_ENTRY_COUNT_AT = 56
_FILE_CRC = slice(FOOTER_FILE_CRC_OFFSET, FOOTER_FILE_CRC_OFFSET + 4)  # in the footer
_STREAM_POSITION_AT = 12  # in a row of the streams table
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True, eq=False)
class RebuiltSegment:
    """The parts of a rebuilt file; joined, they are the file."""

    parts: tuple[bytes, memoryview, bytes]


def rebuild_sealed(path: Path, data: memoryview, shard: int) -> RebuiltSegment | None:
    """Return the sealed file that ``data`` was before it was damaged, if that can be proved."""
    named = parse_segment_name(path.name)
    if named is None or len(data) < HEADER_SIZE + FOOTER_SIZE:
        return None
    stored_footer = bytes(data[-FOOTER_SIZE:])
    footer = _readable_footer(path, stored_footer, len(data))
    if footer is not None and not ENTRIES_OFFSET <= footer.entries_end <= len(data):
        return None
    end_max = len(data) if footer is None else footer.entries_end
    walk = walk_entries(data, end_max, intact_only=True)
    if footer is not None and walk.end != footer.entries_end:
        return None
    for header in _headers(path, data, walk, named[0], shard):
        if entry_problem(data, walk, header) is not None:
            continue
        for notes in _notes(path, data, walk, header, footer):
            entries = data[ENTRIES_OFFSET : walk.end]
            image = sealed_image(header, entries, walk.starts, notes)
            if _is_proved(image, stored_footer):
                return RebuiltSegment((image.header, entries, image.tail))
    return None


def _is_proved(image: SealedImage, stored_footer: bytes) -> bool:
    footer = image.tail[-FOOTER_SIZE:]
    return (
        footer[:FOOTER_FILE_CRC_OFFSET] == stored_footer[:FOOTER_FILE_CRC_OFFSET]
        or footer[_FILE_CRC] == stored_footer[_FILE_CRC]
    )


def _readable_footer(path: Path, stored: bytes, file_size: int) -> Footer | None:
    """Decode the footer if its own checksum holds, even if the end mark is damaged."""
    with suppress(CorruptFile):
        marked = stored[: -len(END_MAGIC)] + END_MAGIC
        return Footer.decode(str(path), marked, file_size - FOOTER_SIZE)
    return None


def _headers(
    path: Path, data: memoryview, walk: EntryWalk, first_index: int, shard: int
) -> Iterator[SegmentHeader]:
    """Yield candidates for the header: as stored, or with fields that follow from the rest."""
    name, stored = str(path), bytes(data[:HEADER_SIZE])
    try:
        identity = SegmentHeader.decode_identity(name, stored)
    except UnknownVersion:
        return
    except CorruptFile:
        identity = SegmentHeader(
            shard,
            int.from_bytes(stored[_SEGMENT_ID], "little"),
            first_index,
            int.from_bytes(stored[_FIRST_PROPOSAL], "little"),
        )
    as_encoded = identity.encode()
    # The count follows from the entries. The range and times of a compacted segment do not: they
    # are those of the segment before, and stand here or nowhere.
    summary = stored[SUMMARY_OFFSET:_ENTRY_COUNT_AT] + _U32.pack(len(walk.starts))
    with suppress(CorruptFile):
        yield SegmentHeader.decode(
            name,
            as_encoded[:SUMMARY_OFFSET] + summary + as_encoded[SUMMARY_OFFSET + SUMMARY_SIZE :],
        )
    if len(walk.starts):
        times = walk.headers["timestamp_ns"]
        yield replace(
            identity,
            last_index=int(walk.headers["index"][-1]),
            first_timestamp_ns=int(times[0]),
            last_timestamp_ns=int(times[-1]),
            entry_count=len(walk.starts),
        )


def _notes(
    path: Path, data: memoryview, walk: EntryWalk, header: SegmentHeader, footer: Footer | None
) -> Iterator[SegmentNotes]:
    """Yield the streams and voids, or candidates for them if the ends of the tables are lost."""
    if footer is not None:
        with suppress(CorruptFile):
            footer.check(str(path), header, header.encode(), len(data))
            yield _decode_notes(path, data, header, footer.streams, footer.voids)
        return
    empty = sealed_image(header, data[ENTRIES_OFFSET : walk.end], walk.starts, SegmentNotes())
    footer_offset = len(data) - FOOTER_SIZE
    laid_out = Footer.decode(str(path), empty.tail[-FOOTER_SIZE:], footer_offset)
    start = laid_out.streams.position
    # The last table ends at the footer. The longest run of rows that could be voids comes first:
    # bytes of the streams table that look like one are rare.
    for count in range(_void_rows_max(data[:footer_offset], start, header), -1, -1):
        voids_at = footer_offset - count * VOID_ROW_SIZE
        voids = _span(data, voids_at, footer_offset, count)
        for padding in range(TABLE_ALIGNMENT):
            end = voids_at - padding
            if end < start or any(data[end:voids_at]):
                break
            streams = _streams_span(data, start, end)
            if streams is not None:
                with suppress(CorruptFile):
                    yield _decode_notes(path, data, header, streams, voids)


def _decode_notes(
    path: Path, data: memoryview, header: SegmentHeader, streams: TableSpan, voids: TableSpan
) -> SegmentNotes:
    def table(name: str, span: TableSpan) -> Table:
        return Table(str(path), name, span, data[span.position : span.end])

    return SegmentNotes(
        StreamTable(table("streams", streams), header).all_records(),
        tables.decode_voids(table("voids", voids), header),
    )


def _span(data: memoryview, start: int, end: int, count: int) -> TableSpan:
    return TableSpan(start, end - start, count, crc32c(data[start:end]))


def _streams_span(data: memoryview, start: int, end: int) -> TableSpan | None:
    """Read the number of streams from where the first one's records begin, behind all rows."""
    if start == end:
        return _span(data, start, end, 0)
    if end - start <= STREAM_ROW_SIZE:
        return None
    position = data[start + _STREAM_POSITION_AT : start + STREAM_ROW_SIZE]
    count, rest = divmod(int.from_bytes(position, "little"), STREAM_ROW_SIZE)
    if rest or not count or count * (STREAM_ROW_SIZE + 1) > end - start:
        return None
    return _span(data, start, end, count)


def _void_rows_max(data: memoryview, start: int, header: SegmentHeader) -> int:
    """Return how many rows before the end of ``data`` ascend within the segment, as voids do."""
    count = max((len(data) - start) // VOID_ROW_SIZE, 0)
    rows = np.frombuffer(data[len(data) - count * VOID_ROW_SIZE :], tables.VOID_DTYPE)
    firsts, lasts = rows["first_index"], rows["last_index"]
    good = (firsts <= lasts) & (firsts >= header.first_index) & (lasts <= header.last_index)
    good[:-1] &= firsts[1:] > lasts[:-1]
    return count if good.all() else count - 1 - int(np.flatnonzero(~good)[-1])
