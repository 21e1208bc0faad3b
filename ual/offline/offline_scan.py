"""The entries of one file as an offline reader wants them: all that is intact before any damage.

A server refuses a sealed file whose checksum fails. Somebody who looks at a damaged directory wants
to see what is left: where the checksum of the file or of a block fails, entries are read one by
one, each by its own checksum, and the error comes when the damaged one is reached, with its number.
What is returned therefore does not depend on how many entries were asked for.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from onelog.ual.entry import Entry
from onelog.ual.errors import CorruptFile
from onelog.ual.segments.chain import Segment
from onelog.ual.segments.damaged import DamagedSegment
from onelog.ual.segments.sealed import ENTRIES_CHECKED_SINGLY_MAX, SealedSegment
from onelog.ual.segments.tables import Indexes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a scan asks for."""

    types: Collection[int] | None
    stream_id: int | None
    skip_voids: bool
    is_limited: bool  # the scan may end early, so no more is read ahead than a block


def scan_segment(
    segment: Segment, first_index: int, last_index: int, wanted: Wanted
) -> Iterator[Entry]:
    """Yield the wanted entries of a range that lies within one file."""
    if isinstance(segment, SealedSegment):
        try:
            yield from _scan_sealed(segment, first_index, last_index, wanted)
        finally:
            segment.unmap()
    elif isinstance(segment, DamagedSegment):
        segment.refuse()
    elif wanted.stream_id is None:
        yield from segment.entries(first_index, last_index, types=wanted.types)


def _scan_sealed(
    segment: SealedSegment, first_index: int, last_index: int, wanted: Wanted
) -> Iterator[Entry]:
    """Yield entries up to the first damaged one, however many were asked for."""
    is_long = last_index - first_index >= ENTRIES_CHECKED_SINGLY_MAX
    if is_long and not wanted.is_limited:
        try:
            segment.check_file()
        except CorruptFile:
            pass  # each entry has a checksum of its own, which tells where the damage is
        else:
            yield from _filtered(segment, first_index, last_index, wanted)
            return
    indexes = _indexes_left(segment, first_index, last_index, wanted.stream_id)
    for start in range(0, len(indexes), ENTRIES_CHECKED_SINGLY_MAX):
        block = indexes[start : start + ENTRIES_CHECKED_SINGLY_MAX]
        try:
            found = list(_filtered(segment, int(block[0]), int(block[-1]), wanted))
        except CorruptFile as error:
            yield from _up_to_damage(segment, block, wanted, error)
        else:
            yield from found


def _filtered(
    segment: SealedSegment, first_index: int, last_index: int, wanted: Wanted
) -> Iterator[Entry]:
    return segment.entries(
        first_index,
        last_index,
        types=wanted.types,
        stream_id=wanted.stream_id,
        skip_voids=wanted.skip_voids,
    )


def _indexes_left(
    segment: SealedSegment, first_index: int, last_index: int, stream_id: int | None
) -> Indexes | range:
    """Return the indexes of a range that the file has, or has of a stream."""
    if stream_id is not None:
        indexes = segment.stream_records(stream_id)
    elif segment.is_compacted:
        table = segment.footer.indexes
        view = segment.mapped_bytes()  # its tables were compared with their checksums
        indexes = np.frombuffer(view, "<u8", segment.entry_count, table.position)
    else:
        return range(first_index, last_index + 1)
    return indexes[(indexes >= first_index) & (indexes <= last_index)]


def _up_to_damage(
    segment: SealedSegment, indexes: Indexes | range, wanted: Wanted, damage: CorruptFile
) -> Iterator[Entry]:
    """Yield the entries of a block one by one, and raise at the damaged one, with its number."""
    for index in map(int, indexes):
        try:
            entry = segment.read(index)
        except CorruptFile as error:
            rule = f"entry {index} is damaged: {error.rule}"
            raise CorruptFile(error.path, rule, error.offset) from error
        if wanted.types is not None and entry.entry_type not in wanted.types:
            continue
        if not (wanted.skip_voids and segment.is_void(index)):
            yield entry
    raise damage
