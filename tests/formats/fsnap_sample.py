"""The golden snapshot: what it says, and how our code makes it.

``python -m tests.formats.fsnap_sample`` writes tests/formats/fsnap/snapshot.hex again: for a format
that was changed on purpose, together with its version and docs/snapshots.md.
"""

from pathlib import Path

from onelog.projections.kv.commands import Delete, Put, encode_command
from onelog.projections.shard_state import build_projections
from onelog.projections.system.commands import HoldSet, SessionOpen
from onelog.projections.system.commands import encode_command as encode_system
from onelog.snapshot.format import SnapshotHeader
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.state import write_state
from onelog.ual.entry import TYPE_NOOP, Draft, Entry, decode_entries, encode_group
from onelog.ual.segments.notes import ApplyNotes
from tests.formats.golden import golden_path, render_hex
from tests.simulation.disk import SimDisk

NAME = "fsnap/snapshot"
# Of the entries but the last, written when the system section had version 1 and no holds.
NAME_BEFORE_HOLDS = "fsnap/snapshot_1"
# Of the same entries, written when the stream section had version 1 and no filters of groups.
NAME_BEFORE_FILTERS = "fsnap/snapshot_2"
# Of the same entries, written when the system section had version 2 and no fingerprints, and the
# queue section version 1 and no weights of tenants.
NAME_BEFORE_FINGERPRINTS = "fsnap/snapshot_3"
START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
CREATED_S = 1_700_000_100
SNAPS = Path("/snaps")
PATH = SNAPS / "0000000007-1700000100.fsnap"
PATH_BEFORE_HOLDS = SNAPS / "0000000006-1700000100.fsnap"
HEADER = SnapshotHeader(shard=2, index=7, term=3, proposal=3, timestamp_ns=START_NS + 2 * SECOND_NS)
# What the log was told about the entries behind 1, which were not sealed; the streams are made up.
NOTES_FROM_INDEX = 2
VOIDS = [[4, 4]]
STREAMS = {7: [2, 5], 0x1122334455667788: [3]}


def entries() -> list[Entry]:
    """Return the log that leads to the state: three groups."""
    groups = [
        (0, [Draft(TYPE_NOOP, b"")]),
        (
            1,
            [
                encode_command(Put(b"greeting", b"hello"), "default"),
                encode_system(SessionOpen(60 * SECOND_NS)),
            ],
        ),
        (
            2,
            [
                Draft(0x0101, b"\x09"),
                encode_command(Put(b"greeting", b"hello again", ttl_ns=90 * SECOND_NS), "default"),
                encode_command(Delete(b"nothing"), "default"),
                encode_system(HoldSet("export", False, 2, 60 * SECOND_NS, 1 << 20)),
            ],
        ),
    ]
    found: list[Entry] = []
    for number, (seconds, drafts) in enumerate(groups, 1):
        group = encode_group(
            drafts,
            term=number,
            first_index=len(found) + 1,
            timestamp_ns=START_NS + seconds * SECOND_NS,
        )
        found += decode_entries(group.data)
    return found


def build() -> bytes:
    """Return the file as our code writes it."""
    disk = SimDisk()
    disk.make_directory(SNAPS)
    router = build_projections(ApplyNotes()).router
    for entry in entries():
        router.apply(entry)
    notes = ApplyNotes()
    for stream_id, records in STREAMS.items():
        for index in records:
            notes.add_record(stream_id, index)
    for first, last in VOIDS:
        notes.add_void(first, last)
    covered = CoveredNotes(NOTES_FROM_INDEX, notes.select(NOTES_FROM_INDEX, HEADER.index))
    return disk.contents(write_state(disk, SNAPS, HEADER, CREATED_S, router, covered).path)


def marks(data: bytes) -> dict[int, str]:
    """Return what starts where."""
    disk = SimDisk()
    disk.put(PATH, data)
    found = {0: "header", len(data) - 16: "footer"}
    for span in SnapshotReader.open(disk, PATH).sections:
        kind = span.header.section_type
        found[span.offset - 24] = f"header of section 0x{kind:02x}"
        found[span.offset] = f"content of section 0x{kind:02x}"
    return found


def render() -> str:
    data = build()
    return render_hex(PATH.name, data, marks(data))


if __name__ == "__main__":
    golden_path(NAME).write_text(render(), "ascii")
