"""A data directory with one file of every kind a healthy log has, for the offline tools' tests."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from onelog.ual.directory import ShardPaths
from onelog.ual.entry import Entry
from onelog.ual.files import Files
from onelog.ual.offline.verify import Finding, verify
from onelog.ual.segments.format import segment_name
from onelog.ual.segments.sealing import compact_segment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import SMALL, make_shard, open_shard, seal_closed

SECOND = 1_000_000_000
START_NS = 1_767_225_600 * SECOND  # 2026-01-01
TYPES = (0x0101, 0x0201, 0x0401)
STREAM_IDS = (7, 1 << 40)
KEPT = (2, 3, 11, 20)  # what compaction leaves of the first segment
UNSYNCED_MAX = SMALL.unsynced_bytes_max


@dataclass(frozen=True, slots=True)
class Built:
    """What was written, and where."""

    data_dir: Path
    paths: ShardPaths
    entries: list[Entry]  # as they were appended; index i at position i - 1
    commit_index: int
    compacted: Path
    sealed: Path
    closed: Path  # unsealed, with a successor
    active: Path

    @property
    def files(self) -> list[Path]:
        """Every file with content."""
        small = [self.data_dir / "SYSTEM", self.data_dir / "NODE"]
        segments = [self.compacted, self.sealed, self.closed, self.active]
        return [*small, self.paths.manifest, self.paths.hard_state, *segments]

    @property
    def kept_entries(self) -> list[Entry]:
        """What can be read: all but what compaction dropped."""
        last_compacted = int(self.sealed.name[:10]) - 1
        return [
            entry for entry in self.entries if entry.index > last_compacted or entry.index in KEPT
        ]


def is_void(index: int) -> bool:
    return index % 7 == 0 or index % 7 == 1


def stream_of(entry: Entry) -> int | None:
    return None if entry.entry_type != 0x0401 else STREAM_IDS[entry.index % 2]


def build_directory(files: Files, data_dir: Path = Path("/data"), seed: int = 1) -> Built:
    """Write four segments: compacted, sealed, closed and active; commit and apply half of them."""
    rng = Random(seed)
    paths = make_shard(files, data_dir)
    log, _ = open_shard(files, paths)
    entries: list[Entry] = []
    names: list[str] = []
    while len(names) < 4:
        term = 1 + len(entries) // 30
        drafts = [
            (rng.choice(TYPES), rng.choice((b"", b"text", b"x" * 1500, rng.randbytes(9))), 0)
            for _ in range(rng.randint(1, 4))
        ]
        time_ns = max(log.last_timestamp_ns, START_NS) + rng.choice((0, SECOND // 2, SECOND))
        group = log.append(drafts, term=term, timestamp_ns=time_ns)
        log.sync()
        names = [name for name in files.list(paths.segments) if "flseg" in name]
        indexes = range(group.first_index, group.last_index + 1)
        entries += [log.segments.read(index) for index in indexes]
    third = int(names[2][:10])
    log.mark_committed(third + 3)
    for entry in entries[: third - 1]:
        stream_id = stream_of(entry)
        if is_void(entry.index):
            log.notes.add_void(entry.index, entry.index)
        elif stream_id is not None:
            log.notes.add_record(stream_id, entry.index)
    log.mark_applied(third - 1)
    assert seal_closed(log) == 2
    log.sync()
    log.close()
    sealed = [paths.segments / segment_name(int(name[:10])) for name in names[:2]]
    compact_segment(files, sealed[0], np.array(KEPT, np.uint64))
    return Built(
        data_dir,
        paths,
        entries,
        log.commit_index,
        *sealed,
        *(paths.segments / name for name in names[2:]),
    )


def copied(built: Built, data_dir: Path) -> Built:
    """Copy a directory on the real disk, and say where its parts are now."""
    shutil.copytree(built.data_dir, data_dir)

    def moved(path: Path) -> Path:
        return data_dir / path.relative_to(built.data_dir)

    own = built.paths
    paths = ShardPaths(
        root=moved(own.root),
        segments=moved(own.segments),
        snapshots=moved(own.snapshots),
        manifest=moved(own.manifest),
        hard_state=moved(own.hard_state),
        cold_list=moved(own.cold_list),
        identity=own.identity,
    )
    segments = map(moved, (built.compacted, built.sealed, built.closed, built.active))
    return Built(data_dir, paths, built.entries, built.commit_index, *segments)


def built_disk(seed: int = 1) -> tuple[SimDisk, Built]:
    """Build on a simulated disk and let everything settle, the hint as well."""
    disk = SimDisk()
    built = build_directory(disk, seed=seed)
    for path in built.files:
        disk.put(path, disk.contents(path))
    return disk, built


def fork(disk: SimDisk) -> SimDisk:
    """Return a disk with the same files, to be damaged."""
    return disk.crash(CrashPolicy.KEPT)


def check(files: Files, built: Built) -> list[Finding]:
    """Verify with the limit that the log was written with."""
    return verify(files, built.data_dir, unsynced_bytes_max=UNSYNCED_MAX)


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def tree(disk: SimDisk, path: Path) -> dict[Path, bytes]:
    """Return every file below a directory."""
    files: dict[Path, bytes] = {}
    for name in disk.list(path):
        child = path / name
        try:
            files |= tree(disk, child)
        except NotADirectoryError:
            files[child] = disk.contents(child)
    return files
