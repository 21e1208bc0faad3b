"""What the golden files say: fixed inputs, and how our own code makes each file of them.

The segments, MANIFEST and RAFT belong together. Laid out in a directory they are a shard whose log
opens: a compacted segment (entries 1 to 300, six of them left), a sealed one (301 to 308) and an
unsealed one (309 to 311). ``MANIFEST_CUT`` is the same shard in the midst of cutting entry 311.

Entries are written down field by field, so that a test that compares against them does not ask the
codec what the codec should have done.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import numpy as np

from onelog.ual.directory import DataDirectory, Founder, Node, ShardIdentity, System, Topology
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, Entry, Group, encode_group
from onelog.ual.hard_state import HardState, HardStateFile, Hint
from onelog.ual.manifest import Checkpoint, ColdRange, Manifest, SnapshotRecord, save
from onelog.ual.segments.format import (
    ENTRIES_OFFSET,
    FOOTER_SIZE,
    TABLE_NAMES,
    Footer,
    SegmentHeader,
    segment_name,
    unsealed_name,
)
from onelog.ual.segments.notes import ApplyNotes, SegmentNotes
from onelog.ual.segments.sealing import compact_segment, seal_segment
from tests.simulation.disk import SimDisk

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
Marks = Mapping[int, str]


# Entries -----------------------------------------------------------------------------------------

ENTRY = Entry(0x0101, 0, 3, 7, START_NS, 0, b"hello")
GROUP = (
    Entry(0x0401, 0, 3, 8, START_NS + 1, 2, b"a record"),
    Entry(0x0201, FLAG_CONDITIONAL, 3, 9, START_NS + 1, 1, b"\x00\xff"),
    Entry(0x0001, 0, 3, 10, START_NS + 1, 0, b""),
)
ZSTD_PLAIN = b"onelog keeps one log. " * 100  # 2200 bytes


# Segments ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentSample:
    """A segment before it became a file: identity, groups, and what apply noted."""

    header: SegmentHeader
    groups: Sequence[Sequence[Entry]]
    streams: Mapping[int, Sequence[int]]
    voids: Sequence[tuple[int, int]]

    @property
    def entries(self) -> list[Entry]:
        return [entry for group in self.groups for entry in group]

    def notes(self) -> SegmentNotes:
        noted = ApplyNotes()
        for stream_id, indexes in self.streams.items():
            for index in indexes:
                noted.add_record(stream_id, index)
        for first, last in self.voids:
            noted.add_void(first, last)
        return noted.select(self.header.first_index, self.entries[-1].index)


def _long_groups() -> list[tuple[Entry, ...]]:
    """Return entries 1 to 300, three to a group, a tenth of a second between groups."""
    groups = []
    for number in range(100):
        time_ns = START_NS + number * SECOND_NS // 10
        first = 3 * number + 1
        groups.append(
            tuple(
                Entry(0x0401, 0, 1, first + step, time_ns, 2 - step, b"%d" % (first + step))
                for step in range(3)
            )
        )
    return groups


# Distances of more than 127 between the records, so that their varints take two bytes.
BEFORE_COMPACTION = SegmentSample(
    SegmentHeader(shard=0, segment_id=1, first_index=1, first_proposal=1),
    _long_groups(),
    {7: (1, 131, 250, 300), 0x1122334455667788: (202,)},
    ((200, 205), (240, 241)),
)
KEPT_INDEXES = (1, 2, 131, 201, 202, 300)
KEPT_ENTRIES = [entry for entry in BEFORE_COMPACTION.entries if entry.index in KEPT_INDEXES]
KEPT_STREAMS = {7: [1, 131, 300], 0x1122334455667788: [202]}
KEPT_VOIDS = [(201, 202)]
KEPT_TIMES = [  # a row needs a second between it and the row before
    (START_NS, 1),
    (START_NS + 4_300_000_000, 131),
    (START_NS + 6_600_000_000, 201),
    (START_NS + 9_900_000_000, 300),
]

_T10, _T10_5, _T12, _T14 = (
    START_NS + ms * SECOND_NS // 1000 for ms in (10_000, 10_500, 12_000, 14_000)
)
SEALED = SegmentSample(
    SegmentHeader(shard=0, segment_id=2, first_index=301, first_proposal=101),
    (
        (
            Entry(0x0401, 0, 1, 301, _T10, 2, b"one"),
            Entry(0x0401, 0, 1, 302, _T10, 1, b"two"),
            Entry(0x0101, FLAG_CONDITIONAL, 1, 303, _T10, 0, b"refused"),
        ),
        (Entry(0x0401, 0, 1, 304, _T10_5, 0, b"three"),),
        (
            Entry(0x0401, 0, 2, 305, _T12, 1, b"four"),
            Entry(0x0201, 0, 2, 306, _T12, 0, b"refused"),
        ),
        (
            Entry(0x0301, 0, 2, 307, _T14, 1, b"refused"),
            Entry(0x0401, 0, 2, 308, _T14, 0, b""),
        ),
    ),
    {7: (301, 304, 308), 300_000: (302, 305)},
    ((303, 303), (306, 307)),
)
SEALED_TIMES = [(_T10, 301), (_T12, 305), (_T14, 307)]

UNSEALED = SegmentSample(
    SegmentHeader(shard=0, segment_id=3, first_index=309, first_proposal=105),
    (
        (
            Entry(0x0101, 0, 2, 309, START_NS + 15 * SECOND_NS, 1, b"key=value"),
            Entry(0x0001, 0, 2, 310, START_NS + 15 * SECOND_NS, 0, b""),
        ),
        (Entry(0x0401, 0, 2, 311, START_NS + 16 * SECOND_NS, 0, b"last"),),
    ),
    {},
    (),
)

SHARD_ENTRIES = [*KEPT_ENTRIES, *SEALED.entries, *UNSEALED.entries]


# Small files -------------------------------------------------------------------------------------

SYSTEM = System(
    UUID("0f9a1c3e-5b7d-4e2f-8a6b-1c2d3e4f5a6b"),
    Topology(1, 256),
    "2026-01-02T03:04:05Z",
    "lake",
    (
        Founder(UUID("3c5e7a90-1b2d-4f68-8ace-0123456789ab"), "Bern 1", "bern:7500"),
        Founder(UUID("a1b2c3d4-e5f6-4718-8293-a4b5c6d7e8f9"), "Zürich 1", "[fd00::1]:7500"),
    ),
)
# As the first version of the format wrote it, which must stay readable.
SYSTEM_1 = System(SYSTEM.cluster_id, SYSTEM.topology, SYSTEM.created_at)
# A character outside ASCII shows how JSON escapes it.
NODE = Node(UUID("a1b2c3d4-e5f6-4718-8293-a4b5c6d7e8f9"), "Zürich 1", "2026-01-02T03:04:06Z")

MANIFEST = Manifest(
    Checkpoint(
        first_index=1,
        first_proposal=1,
        end_index=311,
        end_proposal=106,
        durable_index=311,
        commit_index=310,
        active_file="0000000309.flseg.tmp",
        generation=0,
    )
)
# Version 2: whose log it is.
MANIFEST_2 = replace(MANIFEST, identity=ShardIdentity(SYSTEM.cluster_id, NODE.node_id, 0))
MANIFEST_CUT = Manifest(
    Checkpoint(
        first_index=1,
        first_proposal=1,
        end_index=310,
        end_proposal=105,
        durable_index=310,
        commit_index=310,
        active_file="0000000309.flseg.tmp",
        generation=1,
    ),
    cut_from_index=311,
    snapshots=(
        SnapshotRecord("0000000200.fsnap", 200, 1, 4096, "00ff" * 16),
        SnapshotRecord("0000000306.fsnap", 306, 2, 5120, "a55a" * 16),
    ),
    cold=(
        ColdRange(1, 150, "0f9a1c3e/00000/1-150.flseg", 900, 0xE3069283),
        ColdRange(151, 300, "0f9a1c3e/00000/151-300.flseg", 1000, 0),
    ),
)

# Two saves: the file is made with term 0 in sequence 1.
HARD_STATE = HardState(2, 2, UUID("a1b2c3d4-e5f6-4718-8293-a4b5c6d7e8f9"))
HINT = Hint(310, 311, 0)


# Making the files --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One golden file: its name, what it is, and how our code makes its bytes."""

    name: str
    title: str
    build: Callable[[], bytes]
    marks: Callable[[bytes], Marks]
    # Another zstd library may pack the same payload into other bytes, which are as good.
    is_reproducible: bool = True


def encode(entries: Sequence[Entry]) -> Group:
    """Encode entries, written down in full, as the group that they are."""
    first = entries[0]
    drafts = [(entry.entry_type, entry.payload, entry.flags) for entry in entries]
    return encode_group(
        drafts, term=first.term, first_index=first.index, timestamp_ns=first.timestamp_ns
    )


def zstd_entry() -> Group:
    draft = (0x0401, ZSTD_PLAIN, 0)
    group = encode_group([draft], term=3, first_index=11, timestamp_ns=START_NS + 2)
    assert group.data[6] == FLAG_ZSTD
    return group


def unsealed_file(sample: SegmentSample) -> bytes:
    return sample.header.encode() + b"".join(encode(group).data for group in sample.groups)


def sealed_file(sample: SegmentSample) -> bytes:
    disk = SimDisk()
    return disk.contents(_seal(disk, sample))


def compacted_file(keep_indexes: Sequence[int]) -> bytes:
    disk = SimDisk()
    path = _seal(disk, BEFORE_COMPACTION)
    compact_segment(disk, path, np.array(keep_indexes, np.uint64))
    return disk.contents(path)


def _seal(disk: SimDisk, sample: SegmentSample) -> Path:
    path = Path("/segs") / unsealed_name(sample.header.first_index)
    data = unsealed_file(sample)
    disk.put(path, data)
    sizes = [len(encode([entry]).data) for entry in sample.entries]
    offsets = np.cumsum([ENTRIES_OFFSET, *sizes])[:-1].tolist()
    return seal_segment(disk, path, sample.header, offsets, len(data), sample.notes())


def directory_file(name: str) -> bytes:
    """Return SYSTEM or NODE as the creation of a data directory writes it."""
    disk, path = SimDisk(), Path("/data")
    DataDirectory.claim(disk, path, NODE).complete(SYSTEM).close()
    return disk.contents(path / name)


def manifest_file(manifest: Manifest) -> bytes:
    disk, path = SimDisk(), Path("/MANIFEST")
    save(disk, path, manifest)
    return disk.contents(path)


def raft_file() -> bytes:
    disk, path = SimDisk(), Path("/RAFT")
    HardStateFile.create(disk, path)
    file = HardStateFile.open(disk, path)
    file.save(HARD_STATE.term, HARD_STATE.vote)
    file.save_hint(HINT.commit_index, HINT.durable_index, HINT.generation)
    return disk.contents(path)


def _entry_marks(data: bytes) -> Marks:
    return {0: "header", 40: "payload"} if len(data) > 40 else {0: "header"}


def _group_marks(_: bytes) -> Marks:
    return _entry_starts(GROUP, 0)


def _entry_starts(entries: Sequence[Entry], offset: int) -> dict[int, str]:
    marks = {}
    for entry in entries:
        marks[offset] = f"entry {entry.index}"
        offset += len(encode([entry]).data)
    return marks


def _unsealed_marks(_: bytes) -> Marks:
    return {0: "header", **_entry_starts(UNSEALED.entries, ENTRIES_OFFSET)}


def _sealed_marks(data: bytes, entries: Sequence[Entry]) -> Marks:
    footer_at = len(data) - FOOTER_SIZE
    footer = Footer.decode("", data[footer_at:], footer_at)
    marks = {0: "header", **_entry_starts(entries, ENTRIES_OFFSET)}
    starts = [(span.position, name) for name, span in zip(TABLE_NAMES, footer.spans, strict=True)]
    for (position, name), (following, _) in pairwise([*starts, (footer_at, "footer")]):
        if position < following:  # an empty table is nowhere
            marks[position] = f"{name} table"
    return {**marks, footer_at: "footer"}


def _text_marks(_: bytes) -> Marks:
    return {}


def _raft_marks(_: bytes) -> Marks:
    return {0: "slot 0, hard state", 4096: "slot 1, hard state", 8192: "slot 2, hint"}


SAMPLES = (
    Sample("entry", "One entry", lambda: encode([ENTRY]).data, _entry_marks),
    Sample("group", "A group of three entries", lambda: encode(GROUP).data, _group_marks),
    Sample(
        "zstd_entry", "An entry with a zstd payload", lambda: zstd_entry().data, _entry_marks, False
    ),
    Sample(
        "unsealed_segment",
        unsealed_name(UNSEALED.header.first_index),
        lambda: unsealed_file(UNSEALED),
        _unsealed_marks,
    ),
    Sample(
        "sealed_segment",
        segment_name(SEALED.header.first_index),
        lambda: sealed_file(SEALED),
        lambda data: _sealed_marks(data, SEALED.entries),
    ),
    Sample(
        "compacted_segment",
        f"{segment_name(1)}, 6 of 300 entries left",
        lambda: compacted_file(KEPT_INDEXES),
        lambda data: _sealed_marks(data, KEPT_ENTRIES),
    ),
    Sample(
        "emptied_segment",
        f"{segment_name(1)}, compacted until no entry was left",
        lambda: compacted_file(()),
        lambda data: _sealed_marks(data, ()),
    ),
    Sample("system", "SYSTEM", lambda: directory_file("SYSTEM"), _text_marks),
    Sample("node", "NODE", lambda: directory_file("NODE"), _text_marks),
    Sample("manifest", "MANIFEST", lambda: manifest_file(MANIFEST), _text_marks),
    Sample(
        "manifest_cut",
        "MANIFEST with the intent of a cut, snapshots and cold ranges",
        lambda: manifest_file(MANIFEST_CUT),
        _text_marks,
    ),
    Sample(
        "manifest_2",
        "MANIFEST that says whose log it is",
        lambda: manifest_file(MANIFEST_2),
        _text_marks,
    ),
    Sample("raft", "RAFT", raft_file, _raft_marks),
)
