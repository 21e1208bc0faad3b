"""Every rule of a sealed segment, checked on the bytes of one file.

A reader trusts a sealed file step by step and stops at the first thing that is wrong. This module
is for ``verify``: it trusts nothing, continues after a damaged table, and reports every problem.
The last check is a comparison: the file must be, byte for byte, what sealing makes of its entries,
streams and voids. So a wrong table, count or padding is always found, even if all checksums agree.

Nothing here reads a file or raises for bad bytes; a ``Problem`` has the offset and the rule.
"""

import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from onelog.ual.entry import FLAGS_KNOWN, GROUP_ENTRIES_MAX, OWNER_COUNT_MAX, PAYLOAD_SIZE_MAX
from onelog.ual.entry import HEADER_SIZE as ENTRY_HEADER_SIZE
from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.segments import tables
from onelog.ual.segments.format import (
    ENTRIES_OFFSET,
    FOOTER_FILE_CRC_OFFSET,
    FOOTER_SIZE,
    HEADER_SIZE,
    SUMMARY_OFFSET,
    TABLE_NAMES,
    Footer,
    SegmentHeader,
    TableSpan,
    parse_segment_name,
)
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealing import sealed_image
from onelog.ual.segments.tables import Offsets, StreamTable, Table

_PAYLOAD_LEN_AT = 32  # in an entry's header
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule. ``reason`` is stable, ``rule`` is for people."""

    reason: str
    rule: str
    offset: int | None = None

    @staticmethod
    def of(reason: str, error: CorruptFile) -> "Problem":
        """Make a problem of a decoder's error."""
        return Problem(reason, error.rule, error.offset)


@dataclass(frozen=True, slots=True)
class Part:
    """The ends of a segment file, for comparison with its neighbours."""

    path: Path
    first_index: int
    last_index: int  # one less than the first where there is no entry yet
    first_proposal: int
    proposal_count: int | None  # None: not known, or compaction has dropped some
    terms: tuple[int, int] | None  # of the first and the last entry that are left
    timestamps_ns: tuple[int, int] | None


@dataclass(frozen=True, slots=True, eq=False)
class EntryWalk:
    """The entries that follow the header, back to back."""

    starts: Offsets
    headers: NDArray[np.void]
    end: int  # where the last one ends

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each entry ends."""
        return np.append(self.starts[1:].astype(np.int64), self.end)[: len(self.starts)]


def check_sealed(path: Path, data: memoryview, shard: int) -> tuple[Part | None, list[Problem]]:
    """Check the sealed file ``data``; without a ``Part``, not even its range is known."""
    name = str(path)
    if len(data) < HEADER_SIZE + FOOTER_SIZE:
        return None, [Problem("TOO_SHORT", f"{len(data)} bytes are no sealed segment", 0)]
    try:
        header, footer = _decode_frame(name, data)
    except UnknownVersion as error:
        return None, [Problem(error.reason, f"format version {error.version}", 0)]
    except CorruptFile as error:
        at_start = error.offset is not None and error.offset < HEADER_SIZE
        return None, [Problem.of("HEADER_DAMAGED" if at_start else "FOOTER_DAMAGED", error)]
    problems = identity_problems(path, header, shard)
    notes, table_problems = _check_tables(name, data, header, footer)
    problems += table_problems
    walk = walk_entries(data, footer.entries_end)
    problem = entry_problem(data, walk, header)
    if problem is None and walk.end != footer.entries_end:
        rule = f"no entry ends at {footer.entries_end}, where the entries end"
        problem = Problem("ENTRY_DAMAGED", rule, walk.end)
    if problem is not None:
        problems.append(problem)
    if not problems and notes is not None:
        problems += _compare(data, header, walk, notes)
    return _part(path, header, walk if problem is None else None), problems


def identity_problems(path: Path, header: SegmentHeader, shard: int) -> list[Problem]:
    """Compare a header with the name and shard of its file."""
    problems: list[Problem] = []
    named = parse_segment_name(path.name)
    if named is not None and named[0] != header.first_index:
        problems.append(
            Problem("WRONG_NAME", f"the header says first index {header.first_index}", 0)
        )
    if header.shard != shard:
        problems.append(Problem("WRONG_SHARD", f"belongs to shard {header.shard}", 0))
    return problems


def walk_entries(data: memoryview, end_max: int, *, intact_only: bool = False) -> EntryWalk:
    """Step from entry to entry by their lengths, up to ``end_max``.

    With ``intact_only`` the walk also ends at the first entry whose checksum fails: for a file
    that no longer says where its entries end.
    """
    starts: list[int] = []
    offset = ENTRIES_OFFSET
    while offset + ENTRY_HEADER_SIZE <= end_max:
        (payload_len,) = _U32.unpack_from(data, offset + _PAYLOAD_LEN_AT)
        end = offset + ENTRY_HEADER_SIZE + payload_len
        if end > end_max:
            break
        if intact_only and crc32c(data[offset + 4 : end]) != _U32.unpack_from(data, offset)[0]:
            break
        starts.append(offset)
        offset = end
    found = np.array(starts, np.uint32)
    return EntryWalk(found, tables.gather_headers(data, found), offset)


def entry_problem(data: memoryview, walk: EntryWalk, header: SegmentHeader) -> Problem | None:
    """Return the first entry that breaks a rule of ``header``'s segment, and which."""
    headers, last_index = walk.headers, np.uint64(header.last_index)
    bad = tables.first_bad_checksum(data, walk.starts, walk.ends, headers["crc"])
    index, time = headers["index"], headers["timestamp_ns"]
    term, left = headers["term"], headers["group_left"].astype(np.int64)
    # The distance to the next entry; more than one if compaction dropped entries in between. The
    # next entry continues the group if the group reaches that far. A descending index wraps
    # around and is reported below.
    steps = index[1:] - index[:-1]
    open_before = headers["group_left"][:-1] >= steps
    starts_group = np.append(True, ~open_before)[: len(index)]
    rules = [
        ("flags are not known", headers["flags"] <= FLAGS_KNOWN),
        ("owner is not known", headers["entry_type"] < OWNER_COUNT_MAX << 8),
        ("payload_len is above the limit", headers["payload_len"] <= PAYLOAD_SIZE_MAX),
        ("timestamp is before the last one", _after_first(time[1:] >= time[:-1], index)),
        ("term is below the last one", _after_first(term[1:] >= term[:-1], index)),
        (
            "term changes within a group",
            _after_first(~open_before | (term[1:] == term[:-1]), index),
        ),
        (
            "group_left does not count down",
            _after_first(~open_before | (left[1:] == left[:-1] - steps.astype(np.int64)), index),
        ),
        ("group_left is above the limit", ~starts_group | (left < GROUP_ENTRIES_MAX)),
        ("group_left goes past the segment", headers["group_left"] <= last_index - index),
    ]
    if header.is_compacted:
        inside = (index >= header.first_index) & (index <= header.last_index)
        in_time = (time >= header.first_timestamp_ns) & (time <= header.last_timestamp_ns)
        rules += [
            ("index does not ascend", _after_first(index[1:] > index[:-1], index)),
            ("index is outside the segment", inside),
            ("timestamp is outside the segment", in_time),
        ]
    else:
        dense = np.arange(len(index), dtype=np.uint64) + np.uint64(header.first_index)
        rules.append(("index is not the one that belongs here", index == dense))
    broken = [(int(np.argmin(holds)), rule) for rule, holds in rules if not holds.all()]
    if bad is not None:
        broken.insert(0, (bad, "checksum"))
    if not broken:
        return None
    row, rule = min(broken, key=lambda item: item[0])
    at = int(walk.starts[row])
    return Problem("ENTRY_DAMAGED", f"entry {int(index[row])} at offset {at}: {rule}", at)


def _after_first(holds: NDArray[np.bool_], index: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Turn a comparison of neighbours into one for each entry: the first has nothing before it."""
    return np.append(True, holds)[: len(index)]


def _decode_frame(name: str, data: memoryview) -> tuple[SegmentHeader, Footer]:
    header_data = data[:HEADER_SIZE]
    SegmentHeader.decode_identity(name, header_data)
    footer_offset = len(data) - FOOTER_SIZE
    footer = Footer.decode(name, data[footer_offset:], footer_offset)
    if crc32c(header_data) != footer.header_crc:
        raise CorruptFile(name, "header checksum in the footer", 0)
    header = SegmentHeader.decode(name, header_data)
    footer.check(name, header, header_data, len(data))
    return header, footer


def _check_tables(
    name: str, data: memoryview, header: SegmentHeader, footer: Footer
) -> tuple[SegmentNotes | None, list[Problem]]:
    """Check each table by itself; return streams and voids, if both tables are good."""

    def table(table_name: str, span: TableSpan) -> Table:
        return Table(name, table_name, span, data[span.position : span.end])

    def derived(table_name: str, span: TableSpan) -> None:
        checked = table(table_name, span)
        if table_name == "offsets":
            tables.decode_offsets(checked, footer.entries_end)
        elif table_name == "indexes":
            tables.decode_indexes(checked, header)
        elif table_name == "sparse":
            tables.decode_sparse(checked, header, footer.entries_end)
        else:
            tables.decode_time(checked, header)

    problems: list[Problem] = []
    for table_name, span in zip(TABLE_NAMES[:4], footer.spans[:4], strict=True):
        try:
            derived(table_name, span)
        except CorruptFile as error:
            problems.append(Problem.of("TABLE_DAMAGED", error))
    streams = voids = None
    try:
        streams = StreamTable(table("streams", footer.streams), header).all_records()
    except CorruptFile as error:
        problems.append(Problem.of("NOTES_DAMAGED", error))
    try:
        voids = tables.decode_voids(table("voids", footer.voids), header)
    except CorruptFile as error:
        problems.append(Problem.of("NOTES_DAMAGED", error))
    if streams is None or voids is None:
        return None, problems
    return SegmentNotes(streams, voids), problems


def _compare(
    data: memoryview, header: SegmentHeader, walk: EntryWalk, notes: SegmentNotes
) -> list[Problem]:
    """Compare the file with what sealing makes of its parts, each of which is good by itself."""
    index, time = walk.headers["index"], walk.headers["timestamp_ns"]
    if header.is_compacted:
        for stream_id, records in notes.streams.items():
            if not np.isin(records, index).all():
                rule = f"streams table: a record of stream {stream_id} is no entry"
                return [Problem("NOTES_DAMAGED", rule)]
        if not np.isin(notes.voids, index).all():
            return [Problem("NOTES_DAMAGED", "voids table: a range does not end at an entry")]
    else:
        header = replace(header, first_timestamp_ns=int(time[0]), last_timestamp_ns=int(time[-1]))
    image = sealed_image(header, data[ENTRIES_OFFSET : walk.end], walk.starts, notes)
    if data[:HEADER_SIZE] != image.header:
        return [Problem("HEADER_DAMAGED", "the summary differs from the entries", SUMMARY_OFFSET)]
    tail = data[walk.end :]
    if tail == image.tail:
        return []
    if (
        tail[: -FOOTER_SIZE + FOOTER_FILE_CRC_OFFSET]
        == image.tail[: -FOOTER_SIZE + FOOTER_FILE_CRC_OFFSET]
    ):
        return [Problem("FILE_CHECKSUM", "checksum of the file")]
    size = min(len(tail), len(image.tail))
    differ = np.frombuffer(tail[:size], np.uint8) != np.frombuffer(image.tail[:size], np.uint8)
    at = walk.end + (int(np.argmax(differ)) if differ.any() else size)
    return [Problem("TABLE_DAMAGED", "a table differs from what follows from the entries", at)]


def _part(path: Path, header: SegmentHeader, walk: EntryWalk | None) -> Part:
    """Return what is known of the segment; without a walk, its entries are not trusted."""
    terms = groups = None
    if walk is not None and not header.is_compacted:
        groups = int(np.count_nonzero(walk.headers["group_left"] == 0))
    if walk is not None and len(walk.headers):
        terms = int(walk.headers["term"][0]), int(walk.headers["term"][-1])
    return Part(
        path,
        header.first_index,
        header.last_index,
        header.first_proposal,
        groups,
        terms,
        (header.first_timestamp_ns, header.last_timestamp_ns),
    )
