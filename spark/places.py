"""Finds the shards in a path that a user gives: a data directory, or a copy of segments.

Accepted are:

* the data directory of a node or of one of its workers (docs/formats.md), which has SYSTEM;
* the directory of a node with several workers, which has ``worker-0``, ``worker-1``, …;
* a copy of the segments of one shard: ``*.flseg`` files;
* a copy of several shards: directories ``00000``, ``00001``, … with ``*.flseg`` files in them, or
  in their ``segs``.

A copy needs no MANIFEST, and does not tell which cluster it belongs to. Its sealed files are read;
unsealed ones only if MANIFEST and a snapshot are beside them, as in a data directory.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from onelog.ual.directory import SYSTEM_NAME, ShardPaths, read_system, shard_paths
from onelog.ual.errors import DirectoryError, NotADataDirectory
from onelog.ual.offline.reader import ReadOnlyFiles
from onelog.ual.segments.format import HEADER_SIZE, SegmentHeader, SegmentKind, parse_segment_name

_SHARD_NAME = re.compile(r"[0-9]{5}")
_WORKER_NAME = re.compile(r"worker-([0-9]{1,3})")
_SEGMENTS = "segs"


@dataclass(frozen=True, slots=True)
class Places:
    """The shards of a path; ``cluster_id`` is empty if the path does not tell it."""

    cluster_id: str
    shard_count: int
    shards: dict[int, ShardPaths]


def find_places(reader: ReadOnlyFiles, path: Path) -> Places:
    """Return where the shards are; ``NotADataDirectory`` for anything that is not accepted."""
    if not reader.exists(path):
        raise NotADataDirectory(f"{path} does not exist; give the path of a data directory")
    try:
        names = set(reader.list(path))
    except NotADirectoryError as error:
        raise NotADataDirectory(f"{path} is a file; give the path of a data directory") from error
    if SYSTEM_NAME in names:
        system = read_system(reader, path)
        count = system.topology.shards
        shards = {shard: shard_paths(path, shard) for shard in range(count)}
        return Places(str(system.cluster_id), count, shards)
    workers = {int(found[1]): name for name in names if (found := _WORKER_NAME.fullmatch(name))}
    if workers:
        return _of_workers(reader, path, workers)
    copies = _copies(reader, path, names)
    if not copies:
        raise NotADataDirectory(
            f"{path} is no data directory and has no segments: there is neither {SYSTEM_NAME} nor "
            "worker-0 nor *.flseg in it"
        )
    return Places("", max(copies) + 1, copies)


def _of_workers(reader: ReadOnlyFiles, path: Path, workers: dict[int, str]) -> Places:
    """Find each shard at its worker: its number modulo the number of workers."""
    systems = {number: read_system(reader, path / name) for number, name in workers.items()}
    if sorted(workers) != list(range(len(workers))):
        raise DirectoryError(f"{path} lacks a worker's directory: there are {sorted(workers)}")
    if len({(system.cluster_id, system.topology) for system in systems.values()}) > 1:
        raise DirectoryError(f"the workers' directories in {path} are of different clusters")
    system = systems[0]
    count = system.topology.shards
    shards = {
        shard: shard_paths(path / workers[shard % len(workers)], shard) for shard in range(count)
    }
    return Places(str(system.cluster_id), count, shards)


def _copies(reader: ReadOnlyFiles, path: Path, names: set[str]) -> dict[int, ShardPaths]:
    shard = _find_shard(reader, path, names)
    if shard is not None:
        return {shard: _bare(path)}
    found: dict[int, ShardPaths] = {}
    for name in sorted(names):
        if not _SHARD_NAME.fullmatch(name):
            continue
        inside = set(reader.list(path / name))
        if _SEGMENTS in inside:
            found[int(name)] = shard_paths(path, int(name))
        elif _find_shard(reader, path / name, inside) is not None:
            found[int(name)] = _bare(path / name)
    return found


def _find_shard(reader: ReadOnlyFiles, path: Path, names: set[str]) -> int | None:
    """Return the shard in the header of the first sealed file; None if there is no such file."""
    for name in sorted(names):
        parsed = parse_segment_name(name)
        if parsed is not None and parsed[1] is SegmentKind.SEALED:
            data = reader.open_read(path / name).read(HEADER_SIZE, 0)
            return SegmentHeader.decode_identity(str(path / name), data).shard
    return None


def _bare(path: Path) -> ShardPaths:
    return ShardPaths(
        root=path,
        segments=path,
        snapshots=path / "snaps",
        manifest=path / "MANIFEST",
        hard_state=path / "RAFT",
        cold_list=path / "cold.fcold",
    )
