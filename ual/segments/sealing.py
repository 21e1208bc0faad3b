"""Sealing and compaction: how a segment gets its final bytes.

Sealing adds tables and a footer to an unsealed file whose entries are all committed and applied.
The order matters:

1. Every entry is read back and verified, including its checksum. From here on the checksum of the
   whole file covers the bytes, and it must not cover a bit that rotted since the append.
2. Tables and footer are written after the entries, then the summary into the header.
3. The file is synced, renamed to ``.flseg``, and the directory is synced.

A crash before the rename leaves an unsealed file with its entries and identity untouched; bytes
after the entries are meaningless there, and sealing starts again. A crash after it leaves a whole
sealed file, under one name or the other until the directory is synced. A failed write is undone as
far as the disk allows: a seal that met a full disk must not keep it full.

Compaction rewrites a sealed segment with only the entries that must be kept. The caller decides
which (retention, and never at or above Raft's start). The new file is written as ``.flseg.new``,
synced, and renamed over the old one. A crash leaves the old file or the new one, whole, and perhaps
a ``.flseg.new`` that is never opened; the next compaction of the segment, or recovery, removes it.
A failed write removes it at once: compaction is there to free a full disk. Entries keep their bytes
and checksums, and the segment keeps its range: neighbours still touch, and a reader can distinguish
a dropped entry from one that never existed. Readers that hold the old mapping keep reading the old
bytes; a ``SealedSegment`` that maps the file again notices that it was replaced.

``sealed_image`` is the one place that knows the order of the parts of a file. Repair uses it, too.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from onelog.ual.entry import FLAGS_KNOWN, OWNER_COUNT_MAX
from onelog.ual.entry import HEADER_SIZE as ENTRY_HEADER_SIZE
from onelog.ual.errors import CorruptFile
from onelog.ual.files import File, Files, sync_new_name
from onelog.ual.segments import tables
from onelog.ual.segments.format import (
    ENTRIES_END_MAX,
    ENTRIES_OFFSET,
    SPARSE_ROW_SIZE,
    SUMMARY_OFFSET,
    SUMMARY_SIZE,
    TABLE_NAMES,
    TIME_ROW_SIZE,
    Footer,
    SegmentHeader,
    TableSpan,
    aligned,
    compacting_name,
    segment_name,
)
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.tables import Indexes, are_in, join_entries


@dataclass(frozen=True, slots=True)
class SealedImage:
    """The bytes of a sealed file before and after its entries."""

    header: bytes  # at 0
    tail: bytes  # right after the entries: tables and footer with padding between


def seal_segment(
    files: Files,
    path: Path,
    header: SegmentHeader,
    offsets: Sequence[int] | NDArray[np.uint32],
    entries_end: int,
    notes: SegmentNotes,
) -> Path:
    """Seal the unsealed file at ``path``; return its new path.

    ``offsets`` are where the entries start in the file, ``entries_end`` is where the last one
    ends; bytes after that are dropped. Damage is ``CorruptFile`` and leaves the file as it
    is. The entries are held in memory while this runs.
    """
    assert len(offsets) > 0, "an empty segment is not sealed"
    assert entries_end <= ENTRIES_END_MAX, entries_end
    starts = np.asarray(offsets, np.uint32)
    file = files.open(path)
    data = memoryview(file.read(entries_end, 0))
    if len(data) != entries_end:
        raise CorruptFile(str(path), f"ends before the entries do, at {entries_end}", len(data))
    if SegmentHeader.decode_identity(str(path), data) != header.identity():
        raise CorruptFile(str(path), "the header is not the one that was written", 0)
    headers = _verified_headers(str(path), data, starts, header.first_index)
    complete = replace(
        header,
        last_index=int(headers["index"][-1]),
        first_timestamp_ns=int(headers["timestamp_ns"][0]),
        last_timestamp_ns=int(headers["timestamp_ns"][-1]),
        entry_count=len(headers),
    )
    image = sealed_image(complete, data[ENTRIES_OFFSET:], starts, notes)
    _write_image(file, image, entries_end)
    sealed_path = path.with_name(segment_name(header.first_index))
    files.rename(path, sealed_path)
    sync_new_name(files, path.parent)
    return sealed_path


def sealed_image(
    header: SegmentHeader,
    entries: bytes | memoryview,
    offsets: NDArray[np.uint32],
    notes: SegmentNotes,
) -> SealedImage:
    """Lay out the sealed file of these entries, which the caller has verified.

    ``entries`` are the bytes from file offset 64 on, ``offsets`` count from the file's start. The
    header's summary must be complete; if it covers more indexes than there are entries, the
    result is a compacted segment.
    """
    assert len(offsets) == header.entry_count, (len(offsets), header.entry_count)
    notes.check(header.first_index, header.last_index)
    headers = tables.gather_headers(entries, offsets - np.uint32(ENTRIES_OFFSET))
    indexes, timestamps_ns = headers["index"], headers["timestamp_ns"]
    sparse = tables.encode_sparse(indexes, offsets)
    time = tables.encode_time(timestamps_ns, indexes)
    contents = (
        (tables.encode_offsets(offsets), len(offsets)),
        (tables.encode_indexes(indexes), len(indexes)) if header.is_compacted else (b"", 0),
        (sparse, len(sparse) // SPARSE_ROW_SIZE),
        (time, len(time) // TIME_ROW_SIZE),
        (tables.encode_streams(notes, header.first_index), len(notes.streams)),
        (tables.encode_voids(notes), len(notes.voids)),
    )
    parts: list[bytes] = []
    spans: dict[str, TableSpan] = {}
    entries_end = end = ENTRIES_OFFSET + len(entries)
    for name, (content, row_count) in zip(TABLE_NAMES, contents, strict=True):
        position = aligned(end)
        parts += (bytes(position - end), content)
        spans[name] = TableSpan(position, len(content), row_count, crc32c(content))
        end = position + len(content)
    parts.append(bytes(aligned(end) - end))
    before_footer = b"".join(parts)
    header_data = header.encode()
    owners = np.bincount(headers["entry_type"] >> np.uint16(8), minlength=OWNER_COUNT_MAX)
    footer = Footer(
        **spans,
        owner_counts=tuple(owners.tolist()),
        entries_end=entries_end,
        header_crc=crc32c(header_data),
        file_crc=0,  # follows from all the rest, and is put in below
    )
    file_crc = crc32c(entries, crc32c(header_data))
    file_crc = crc32c(footer.encode_unfinished(), crc32c(before_footer, file_crc))
    return SealedImage(header_data, before_footer + replace(footer, file_crc=file_crc).encode())


def _verified_headers(
    path: str, data: memoryview, starts: NDArray[np.uint32], first_index: int
) -> NDArray[np.void]:
    """Gather the headers of entries that fill ``data``; raise for the first that breaks a rule."""
    assert starts[0] == ENTRIES_OFFSET, starts[0]
    assert starts[-1] <= len(data) - ENTRY_HEADER_SIZE, (starts[-1], len(data))
    ends = np.append(starts[1:], np.uint32(len(data)))
    assert (ends > starts).all(), "offsets do not ascend"
    headers = tables.gather_headers(data, starts)
    bad = tables.first_bad_checksum(data, starts, ends, headers["crc"])
    if bad is not None:
        raise CorruptFile(path, "checksum", int(starts[bad]))
    times, left = headers["timestamp_ns"], headers["group_left"].astype(np.int64)
    expected = np.arange(len(starts), dtype=np.uint64) + np.uint64(first_index)
    # Within a group it counts down by one; after a group any number starts the next.
    counted = np.append(True, (left[:-1] == 0) | (left[1:] == left[:-1] - 1))
    sizes = headers["payload_len"].astype(np.int64) + ENTRY_HEADER_SIZE
    for rule, holds in (
        ("the entry does not end where the next one starts", starts + sizes == ends),
        ("an index is not the one that belongs here", headers["index"] == expected),
        ("the timestamp is before the last one", np.append(True, times[1:] >= times[:-1])),
        ("group_left does not count down", counted),
        ("unknown owner", headers["entry_type"] < OWNER_COUNT_MAX << 8),
        ("unknown flags", headers["flags"] <= FLAGS_KNOWN),
    ):
        if not holds.all():
            raise CorruptFile(path, rule, int(starts[np.argmin(holds)]))
    if left[-1] != 0:
        raise CorruptFile(path, "the last group is not closed", int(starts[-1]))
    return headers


def _write_image(file: File, image: SealedImage, entries_end: int) -> None:
    try:
        if file.size() > entries_end:
            # Left by a seal that failed, or space that was allocated ahead.
            file.truncate(entries_end)
        file.write(image.tail, entries_end)
        summary = image.header[SUMMARY_OFFSET : SUMMARY_OFFSET + SUMMARY_SIZE]
        file.write(summary, SUMMARY_OFFSET)
        file.sync()
    except OSError:
        # The entries are durable already and stay; the summary means nothing in an unsealed file.
        with suppress(OSError):
            file.truncate(entries_end)
        raise


# Compaction


def compact_segment(files: Files, path: Path, keep_indexes: Indexes) -> SealedSegment:
    """Rewrite the sealed file at ``path`` with just these entries; return it opened.

    ``keep_indexes`` ascend and are all in the segment; there may be none. If it is all of them,
    the file is left as it is. Nothing calls it yet: it is for compaction, which drops entries that
    no state needs from old segments.
    """
    segment = SealedSegment.open(files, path)
    assert (keep_indexes[1:] > keep_indexes[:-1]).all(), "indexes do not ascend"
    # The bytes get a new checksum, which must not cover bytes that the old one rejects.
    segment.check_file()
    starts, ends = segment.locate(keep_indexes)
    if len(keep_indexes) == segment.entry_count:
        return segment
    sizes = ends - starts
    offsets = (ENTRIES_OFFSET + np.cumsum(sizes) - sizes).astype(np.uint32)
    entries = join_entries(segment.mapped_bytes(), starts, ends)
    header = replace(segment.header, entry_count=len(keep_indexes))
    notes = reduce_notes(segment.notes(), keep_indexes)
    image = sealed_image(header, entries, offsets, notes)
    new_path = path.with_name(compacting_name(header.first_index))
    _write_file(files, new_path, (image.header, entries, image.tail))
    files.rename(new_path, path)
    sync_new_name(files, path.parent)
    return SealedSegment.open(files, path)


def reduce_notes(notes: SegmentNotes, keep_indexes: Indexes) -> SegmentNotes:
    """Return the notes of the entries that are kept.

    A void shrinks to its first and last kept entry. Dropped entries in between were void as well,
    so the range stays correct.
    """
    streams: dict[int, Indexes] = {}
    for stream_id, records in notes.streams.items():
        kept = records[are_in(records, keep_indexes)]
        if len(kept):
            streams[stream_id] = kept
    firsts = np.searchsorted(keep_indexes, notes.voids[:, 0], "left")
    ends = np.searchsorted(keep_indexes, notes.voids[:, 1], "right")
    left = ends > firsts
    voids = np.column_stack((keep_indexes[firsts[left]], keep_indexes[ends[left] - 1]))
    return SegmentNotes(streams, voids)


def _write_file(files: Files, path: Path, parts: tuple[bytes, ...]) -> None:
    if files.exists(path):
        files.remove(path)
    try:
        file = files.open(path, create=True)
        offset = 0
        for part in parts:
            file.write(part, offset)
            offset += len(part)
        file.sync()
    except OSError:
        with suppress(OSError):
            files.remove(path)
        raise
