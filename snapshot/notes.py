"""The notes section: streams and voids of the entries that were not sealed yet.

Which entries are records of which stream, and which are void, is known to apply alone. For sealed
segments it is in the files; for the others it is in memory (``onelog.ual.segments.notes``) and a
replay makes it again. A restart from a snapshot replays only the entries after it, so the notes
of unsealed entries up to the snapshot must come from the snapshot, or sealing them later would lose
them.

``first_index`` is the first index that the notes cover: the one after what was durably sealed when
the snapshot was planned. A log with unsealed entries below it cannot use this snapshot.

The content is a head, the voids, then each stream by ascending id (docs/snapshots.md). A count that
is too large costs no more memory than the section has bytes, and a ``CorruptSection`` says so.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from onelog.projections.codec import SectionReader
from onelog.snapshot.format import SECTION_NOTES
from onelog.ual.segments.notes import ApplyNotes, IndexArray, SegmentNotes

NOTES_VERSION = 1

_HEAD = struct.Struct(
    "<"
    "I"  # version
    "I"  # stream_count
    "Q"  # first_index
    "Q"  # void_count
)
_STREAM = struct.Struct(
    "<"
    "Q"  # stream_id
    "Q"  # record_count
)
_NUMBERS_PER_PIECE = 32_768


@dataclass(frozen=True, slots=True, eq=False)
class CoveredNotes:
    """All notes about the entries from ``first_index`` to the snapshot's index."""

    first_index: int
    notes: SegmentNotes


def encode_notes(covered: CoveredNotes) -> Iterator[bytes]:
    """Yield the content of the section in bounded chunks."""
    notes = covered.notes
    yield _HEAD.pack(NOTES_VERSION, len(notes.streams), covered.first_index, len(notes.voids))
    yield from _encode_numbers(notes.voids.reshape(-1))
    for stream_id, records in sorted(notes.streams.items()):
        yield _STREAM.pack(stream_id, len(records))
        yield from _encode_numbers(records)


def decode_notes(chunks: Iterable[bytes], last_index: int) -> CoveredNotes:
    """Return the notes of a section whose snapshot is at ``last_index``."""
    reader = SectionReader(SECTION_NOTES, chunks)
    version, stream_count, first_index, void_count = reader.fields(_HEAD)
    reader.expect(version == NOTES_VERSION, f"section version {version}")
    covered = last_index + 1 - first_index
    reader.expect(
        first_index >= 1 and covered >= 0,
        f"starts at index {first_index}, the snapshot is at {last_index}",
    )
    reader.expect(void_count <= covered, f"{void_count} voids in {covered} entries")
    voids = _numbers(reader, 2 * void_count).reshape(-1, 2)
    streams: dict[int, IndexArray] = {}
    stream_before = -1
    for _ in range(stream_count):
        stream_id, record_count = reader.fields(_STREAM)
        reader.expect(stream_id > stream_before, f"stream {stream_id} after {stream_before}")
        stream_before = stream_id
        streams[stream_id] = _numbers(reader, record_count)
    reader.finish()
    notes = SegmentNotes(streams, voids)
    try:
        # The same rules as for live notes.
        notes.check(first_index, last_index)
    except AssertionError as error:
        raise reader.corrupt(str(error)) from error
    return CoveredNotes(first_index, notes)


def restore_notes(notes: ApplyNotes, covered: CoveredNotes, above_index: int) -> None:
    """Add the notes of the entries above ``above_index`` to ``notes``, which is empty."""
    for stream_id, records in covered.notes.streams.items():
        for index in records[records > above_index].tolist():
            notes.add_record(stream_id, index)
    for first_index, last_index in covered.notes.voids.tolist():
        if last_index > above_index:
            notes.add_void(max(first_index, above_index + 1), last_index)


def _encode_numbers(numbers: IndexArray) -> Iterator[bytes]:
    for start in range(0, len(numbers), _NUMBERS_PER_PIECE):
        yield numbers[start : start + _NUMBERS_PER_PIECE].astype("<u8").tobytes()


def _numbers(reader: SectionReader, count: int) -> IndexArray:
    """Return the next numbers; no more is allocated than the section has bytes."""
    return np.frombuffer(reader.take(8 * count), "<u8").astype(np.uint64)
