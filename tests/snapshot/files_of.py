"""Snapshot files made of plain bytes, for tests of the format."""

from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from onelog.snapshot.format import SnapshotHeader
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.writer import write_snapshot
from tests.simulation.disk import SimDisk

SNAPS = Path("/snaps")
HEADER = SnapshotHeader(shard=3, index=1234, term=5, proposal=77, timestamp_ns=10**18)
CREATED_S = 1_700_000_000

section_maps = st.dictionaries(
    st.sampled_from((0, 1, 2, 4, 15, 16)), st.binary(max_size=40), max_size=4
)


def write(sections: Mapping[int, bytes], disk: SimDisk | None = None) -> tuple[SimDisk, Path]:
    """Write a snapshot whose sections are cut into pieces of seven bytes."""
    disk = SimDisk() if disk is None else disk
    disk.make_directory(SNAPS)
    content = [
        (kind, [data[at : at + 7] for at in range(0, len(data), 7)])
        for kind, data in sorted(sections.items())
    ]
    return disk, write_snapshot(disk, SNAPS, HEADER, CREATED_S, content).path


def read(disk: SimDisk, path: Path) -> dict[int, bytes]:
    """Verify a snapshot and return its sections."""
    reader = SnapshotReader.open(disk, path)
    reader.verify()
    return {kind: b"".join(reader.chunks(kind)) for kind in reader.section_types}
