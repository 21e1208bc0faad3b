"""Compaction: a sealed segment is rewritten with only the entries that must be kept.

The new file is made beside the old one as ``.flseg.new``, synced, and renamed over it. A crash
leaves the old file or the new one, whole, and perhaps a ``.flseg.new`` that nobody opens; the
next compaction of the segment, or recovery, removes it. A failed write removes it at once:
compaction is what frees a full disk, it must not fill it.

Entries keep their bytes, so their checksums stay what they were when they were appended. The
range of the segment stays, too: neighbours still touch, and a reader can tell an entry that was
dropped from one that never was. Which entries may go is the caller's business (retention, and
never at or above Raft's start).

Readers that hold the old mapping go on with the old bytes. A ``SealedSegment`` that has to map the
file again notices that it was replaced (see ual/segments/sealed.py).
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from onelog.ual.files import Files, sync_new_name
from onelog.ual.segments.format import ENTRIES_OFFSET, compacting_name
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import sealed_image
from onelog.ual.segments.tables import Indexes, are_in, join_entries


def compact_segment(files: Files, path: Path, keep_indexes: Indexes) -> SealedSegment:
    """Rewrite the sealed file at ``path`` with just these entries; return it opened.

    ``keep_indexes`` ascend and are all in the segment; there may be none. Where it is all of them,
    the file is left as it is.
    """
    segment = SealedSegment.open(files, path)
    assert (keep_indexes[1:] > keep_indexes[:-1]).all(), "indexes do not ascend"
    # Its bytes get a new checksum: what the old one does not vouch for must not pass.
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
    """Return what the notes say about the entries that are kept.

    A void shrinks to its first and last kept entry. What was dropped in between was void as well,
    so the range says nothing wrong.
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
