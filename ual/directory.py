"""The data directory: which process may use it, which node and cluster it belongs to.

::

    {data_dir}/
      LOCK        held by the one process that uses the directory
      NODE        JSON: which node this is
      SYSTEM      JSON: which cluster this is, who founded it, and how its keys are spread
      00000/      shard 0
        MANIFEST  RAFT  cold.fcold  segs/  snaps/

A node with several worker processes has one such directory per worker, ``worker-0``, ``worker-1``,
…, inside a directory that holds only LOCK and NODE.

Invariants:

* NODE and SYSTEM are written once and checked in full at every read (``ual/json_file.py``);
  docs/formats.md has the fields. What they say never changes, so the values here are frozen.
* SYSTEM is the last file that creation writes. A directory with SYSTEM is complete.
* Shards, partitions, cluster and node never change. A start that asks for others is refused:
  keys would be looked for in the wrong shard, or a node would use the votes of another.
* Only the owner has access to the directory and its files. What others can reach when a server
  opens it is taken from them (``Claim.narrowed``), or the server does not start.
* A directory that is removed or replaced under a running server ends it (``check_in_place``).
* The directory of a shard is that of one shard of one node: its MANIFEST and its segments say so,
  and a copy from elsewhere is refused (``ForeignShard``).
* Every other file of the directory is opened only while LOCK is held, except by offline readers
  that do not ask for the lock.

Creation has two steps, because a node must say who it is (``claim`` writes NODE) before it knows
who founds the cluster with it (``Claim.complete`` writes SYSTEM). A crash during or between the
steps leaves a directory without SYSTEM that holds only NODE and shards without a log; the next
start completes it. Data without SYSTEM is never the result of a crash. It is refused, because a new
SYSTEM could assign the data to another cluster. A shard that has lost its directories or its RAFT,
which it has from its creation, is refused too: an empty replica that keeps its name would vote a
second time, and count for entries that it has lost.

This module reads no clock and no random numbers: callers pass ids and times in.
"""

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from uuid import UUID

from onelog.ual.errors import (
    CorruptFile,
    DirectoryError,
    DirectoryExposed,
    DirectoryInUse,
    DirectoryLost,
    NotADataDirectory,
    TopologyMismatch,
)
from onelog.ual.files import FileLock, Files
from onelog.ual.hard_state import HardStateFile
from onelog.ual.json_file import Fields, read_json_file, write_json_file

SYSTEM_VERSION = 2  # 1 had no founders, no name and no workers
NODE_VERSION = 1

SHARDS_DEFAULT = 4  # of a cluster; a node by itself has one
SHARDS_MAX = 65_535  # a segment's header has two bytes for the shard
PARTITIONS_DEFAULT = 256
PARTITIONS_MAX = 65_536
NODE_NAME_SIZE_MAX = 255
CREATED_AT_SIZE_MAX = 64
CLUSTER_NAME_SIZE_MAX = 255
FOUNDERS_MAX = 255
ADDRESS_SIZE_MAX = 512
WORKERS_MAX = 256

NODE_NAME = "NODE"
SYSTEM_NAME = "SYSTEM"

_NODE_ADVICE = (
    "restore it from a backup, or remove this node from the cluster and add it as a new one "
    "with an empty directory"
)
SYSTEM_ADVICE = "restore it from a backup, or copy it from another node of the same cluster"


@dataclass(frozen=True, slots=True)
class Topology:
    """How keys are spread. Fixed when a cluster is created; see ``onelog/routing.py``."""

    shards: int = SHARDS_DEFAULT
    partitions: int = PARTITIONS_DEFAULT

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= SHARDS_MAX:
            raise DirectoryError(f"{self.shards} shards: choose 1 to {SHARDS_MAX}")
        if not self.shards <= self.partitions <= PARTITIONS_MAX:
            raise DirectoryError(
                f"{self.partitions} partitions for {self.shards} shards: "
                f"choose {self.shards} to {PARTITIONS_MAX}, or a shard would stay empty"
            )


@dataclass(frozen=True, slots=True, order=True)
class Founder:
    """A node that founded the cluster; ``address`` is that of its peer service."""

    node_id: UUID
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class System:
    """The content of SYSTEM. ``worker`` is the number of the worker that owns the directory."""

    cluster_id: UUID
    topology: Topology
    created_at: str
    cluster_name: str = ""
    founders: tuple[Founder, ...] = ()  # in the order of their ids
    worker: int = 0
    workers: int = 1

    def uses(self, shard: int) -> bool:
        """Whether the worker of this directory has the shard; the others' stay empty."""
        return shard % self.workers == self.worker


@dataclass(frozen=True, slots=True)
class Node:
    """The content of NODE. ``node_id`` is the node's name in Raft; ``name`` is for people."""

    node_id: UUID
    name: str
    created_at: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= NODE_NAME_SIZE_MAX or not self.name.isprintable():
            raise DirectoryError(
                f"node name {self.name[:80]!r}: choose 1 to {NODE_NAME_SIZE_MAX} printable "
                "characters"
            )


def write_system(files: Files, path: Path, system: System) -> None:
    """Write the SYSTEM file of the data directory at ``path``."""
    write_json_file(
        files,
        path / SYSTEM_NAME,
        {
            "version": SYSTEM_VERSION,
            "cluster_id": str(system.cluster_id),
            "cluster_name": system.cluster_name,
            "shards": system.topology.shards,
            "partitions": system.topology.partitions,
            "worker": system.worker,
            "workers": system.workers,
            "founders": [
                {"node_id": str(each.node_id), "name": each.name, "address": each.address}
                for each in system.founders
            ],
            "created_at": system.created_at,
        },
    )


def write_node(files: Files, path: Path, node: Node) -> None:
    """Write the NODE file of the data directory at ``path``."""
    write_json_file(
        files,
        path / NODE_NAME,
        {
            "version": NODE_VERSION,
            "node_id": str(node.node_id),
            "name": node.name,
            "created_at": node.created_at,
        },
    )


def read_system(files: Files, path: Path) -> System:
    """Read the SYSTEM file of the data directory at ``path``."""
    fields = _read(files, path / SYSTEM_NAME, SYSTEM_VERSION, SYSTEM_ADVICE)
    names = ["version", "cluster_id", "shards", "partitions", "created_at"]
    is_old = fields.integer("version") == 1
    fields.only(*names, *(() if is_old else ("cluster_name", "founders", "worker", "workers")))
    shards = fields.integer("shards", minimum=1, maximum=SHARDS_MAX)
    system = System(
        fields.uuid("cluster_id"),
        Topology(shards, fields.integer("partitions", minimum=shards, maximum=PARTITIONS_MAX)),
        fields.text("created_at", size_max=CREATED_AT_SIZE_MAX),
    )
    if is_old:
        return system
    workers = fields.integer("workers", minimum=1, maximum=WORKERS_MAX)
    founders = tuple(
        Founder(
            row.uuid("node_id"),
            row.text("name", size_max=NODE_NAME_SIZE_MAX),
            row.text("address", size_max=ADDRESS_SIZE_MAX, size_min=0),
        )
        for row in fields.rows("founders", count_max=FOUNDERS_MAX)
    )
    if [each.node_id for each in founders] != sorted({each.node_id for each in founders}):
        fields.refuse("field founders names a node twice or out of order")
    return replace(
        system,
        cluster_name=fields.text("cluster_name", size_max=CLUSTER_NAME_SIZE_MAX, size_min=0),
        founders=founders,
        worker=fields.integer("worker", maximum=workers - 1),
        workers=workers,
    )


def read_node(files: Files, path: Path) -> Node:
    """Read the NODE file of the data directory at ``path``."""
    fields = _read(files, path / NODE_NAME, NODE_VERSION, _NODE_ADVICE)
    fields.only("version", "node_id", "name", "created_at")
    name = fields.text("name", size_max=NODE_NAME_SIZE_MAX)
    if not name.isprintable():
        fields.refuse("field name has characters that cannot be printed")
    return Node(
        fields.uuid("node_id"), name, fields.text("created_at", size_max=CREATED_AT_SIZE_MAX)
    )


def _read(files: Files, path: Path, version_max: int, advice: str) -> Fields:
    if not files.exists(path):
        raise CorruptFile(str(path), f"missing; {advice}")
    try:
        return Fields(str(path), read_json_file(files, path, version_max))
    except CorruptFile as error:
        raise CorruptFile(error.path, f"{error.rule}; {advice}", error.offset) from error


# Directory

LOCK_NAME = "LOCK"
_CREATION_NAMES = frozenset(
    (LOCK_NAME, NODE_NAME, f"{NODE_NAME}.tmp", SYSTEM_NAME, f"{SYSTEM_NAME}.tmp")
)
_SHARD_NAME = re.compile(r"[0-9]{5}")
_WORKER_NAME = re.compile(r"worker-[0-9]{1,3}")
_IGNORED_NAMES = frozenset(("lost+found",))  # in the root of a freshly made file system
_NOT_OURS_TO_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS)


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """Which shard of which node of which cluster a directory holds; MANIFEST says it."""

    cluster_id: UUID
    node_id: UUID
    shard: int

    def __str__(self) -> str:
        return f"shard {self.shard} of node {self.node_id} in cluster {self.cluster_id}"


@dataclass(frozen=True, slots=True)
class ShardPaths:
    """The paths of one shard's files."""

    root: Path
    segments: Path
    snapshots: Path
    manifest: Path
    hard_state: Path
    cold_list: Path
    identity: ShardIdentity | None = None  # what MANIFEST must say, where that is known


def shard_paths(path: Path, shard: int) -> ShardPaths:
    """Return the paths of a shard in the data directory ``path``."""
    root = path / f"{shard:05d}"
    return ShardPaths(
        root=root,
        segments=root / "segs",
        snapshots=root / "snaps",
        manifest=root / "MANIFEST",
        hard_state=root / "RAFT",
        cold_list=root / "cold.fcold",
    )


class Claim:
    """A locked directory with a NODE, and with a SYSTEM if it was completed before."""

    __slots__ = ("_files", "_lock", "narrowed", "node", "path", "system")

    def __init__(
        self,
        files: Files,
        path: Path,
        node: Node,
        system: System | None,
        lock: FileLock,
        narrowed: Sequence[Path] = (),
    ) -> None:
        self.path = path
        self.narrowed = narrowed  # what others had access to until now
        self.node = node
        self.system = system
        self._files = files
        self._lock: FileLock | None = lock

    def complete(self, system: System) -> "DataDirectory":
        """Write SYSTEM if it is missing, and return the opened directory, which now owns LOCK."""
        assert self._lock is not None, "closed"
        if self.system is None:
            _create(self._files, self.path, system, self.node)
            self.system = system
        assert self.system == system, "SYSTEM never changes"
        lock, self._lock = self._lock, None
        return DataDirectory(self.path, system, self.node, lock)

    def close(self) -> None:
        """Release LOCK; does nothing after ``complete``."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class DataDirectory:
    """An opened data directory; holds LOCK until ``close``."""

    __slots__ = ("_lock", "node", "path", "system")

    def __init__(self, path: Path, system: System, node: Node, lock: FileLock | None) -> None:
        self.path = path
        self.system = system
        self.node = node
        self._lock = lock

    @classmethod
    def claim(cls, files: Files, path: Path, node: Node, *, of_workers: bool = False) -> Claim:
        """Lock the directory for a server, and write NODE if there is none.

        An existing NODE stays. ``of_workers``: this is the parent of the workers' directories.
        """
        _refuse_foreign(files, path, of_workers=of_workers)
        files.make_directory(path)
        lock = _lock(files, path)
        try:
            _refuse_foreign(files, path, of_workers=of_workers)
            narrowed = _restrict(files, path)
            system = None
            if files.exists(path / SYSTEM_NAME):
                system = read_system(files, path)
                _refuse_missing_shards(files, path, system)
                # A start that was killed may have left SYSTEM in the page cache only. If the power
                # failed later, the data written from now on would be left without SYSTEM.
                files.sync_directory(path)
            if system is not None or files.exists(path / NODE_NAME):
                node = read_node(files, path)
            else:
                _sync_parents(files, path)
                write_node(files, path, node)
        except BaseException:
            lock.release()
            raise
        return Claim(files, path, node, system, lock, narrowed)

    @classmethod
    def open_existing(cls, files: Files, path: Path, *, lock: bool) -> "DataDirectory":
        """Open a directory for an offline tool: nothing is created or repaired.

        Without ``lock`` a server may be writing at the same time. Shard directories are not
        checked: a tool that looks for damage must be able to start.
        """
        if not files.exists(path):
            raise NotADataDirectory(f"{path} does not exist; give the path of a data directory")
        names = _list(files, path)
        if SYSTEM_NAME not in names:
            if NODE_NAME in names:
                raise NotADataDirectory(
                    f"{path} has a {NODE_NAME} file but no {SYSTEM_NAME} file; if its creation was "
                    "interrupted start the server once, otherwise restore the file from a backup"
                )
            raise NotADataDirectory(
                f"{path} has no {SYSTEM_NAME} file; give the path of a data directory"
            )
        held = _lock(files, path) if lock else None
        try:
            return cls(path, read_system(files, path), read_node(files, path), held)
        except BaseException:
            if held is not None:
                held.release()
            raise

    def shard_path(self, shard: int) -> ShardPaths:
        """Return the paths of the files of ``shard``."""
        assert 0 <= shard < self.system.topology.shards, shard
        identity = ShardIdentity(self.system.cluster_id, self.node.node_id, shard)
        return replace(shard_paths(self.path, shard), identity=identity)

    def check_in_place(self, files: Files) -> None:
        """Raise ``DirectoryLost`` if it was removed or replaced since it was opened."""
        if self._lock is not None and not self._lock.is_in_place():
            raise DirectoryLost(str(self.path))
        for shard in range(self.system.topology.shards):
            segments = self.shard_path(shard).segments
            if not files.exists(segments):
                raise DirectoryLost(str(segments))

    def close(self) -> None:
        """Release LOCK; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def __enter__(self) -> "DataDirectory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def require_data(files: Files, path: Path) -> None:
    """Refuse a directory in which no database was ever founded."""
    if not files.exists(path / SYSTEM_NAME):
        raise NotADataDirectory(
            f"{path} holds no database, and node.require_data forbids to make a new one: mount its "
            "volume or restore it from a backup; to begin anew, start once without --require-data"
        )


def _create(files: Files, path: Path, system: System, node: Node) -> None:
    """Write the files of a new directory; each step is durable before the next begins."""
    if not files.exists(path / NODE_NAME):
        write_node(files, path, node)
    for shard in range(system.topology.shards):
        paths = shard_paths(path, shard)
        files.make_directory(paths.root)
        files.make_directory(paths.segments)
        files.make_directory(paths.snapshots)
        if system.uses(shard):
            HardStateFile.create(files, paths.hard_state)
        else:
            files.sync_directory(paths.root)
    files.sync_directory(path)
    _sync_parents(files, path)
    write_system(files, path, system)


def _sync_parents(files: Files, path: Path) -> None:
    """Make the name of the data directory durable, and the names of all directories above it.

    All of them, because an earlier start may have made some and died before it synced them. A
    parent that cannot be opened or synced (no permission, a read-only image with a volume
    mounted in it) was not made by us and needs no sync.
    """
    for parent in path.parents:
        try:
            files.sync_directory(parent)
        except OSError as error:
            if error.errno not in _NOT_OURS_TO_SYNC:
                raise


def _lock(files: Files, path: Path) -> FileLock:
    lock = files.lock(path / LOCK_NAME)
    if lock is None:
        raise DirectoryInUse(f"another process is using {path}; stop it first")
    return lock


def _restrict(files: Files, path: Path) -> Sequence[Path]:
    try:
        return files.restrict(path)
    except PermissionError as error:
        raise DirectoryExposed(
            f"others have access to {error.filename or path}, which this process does not own and "
            "cannot take from them; choose a directory inside of it, or change its owner"
        ) from error


def _list(files: Files, path: Path) -> list[str]:
    try:
        return files.list(path)
    except NotADirectoryError as error:
        raise NotADataDirectory(f"{path} is a file; choose a directory") from error


def _refuse_foreign(files: Files, path: Path, *, of_workers: bool = False) -> None:
    """Refuse a path that is not a data directory, not empty and not an interrupted creation."""
    if not files.exists(path):
        return
    names = set(_list(files, path)) - _IGNORED_NAMES
    worker_names = {name for name in names if _WORKER_NAME.fullmatch(name)}
    if of_workers and SYSTEM_NAME in names:
        raise TopologyMismatch(
            f"{path} is of a node with one worker; the number of workers is fixed when a cluster "
            "is created: ask for 1, or start with an empty directory"
        )
    if SYSTEM_NAME in names:
        return
    if of_workers:
        names -= worker_names
    elif worker_names:
        raise TopologyMismatch(
            f"{path} is of a node with several workers; the number of workers is fixed when a "
            "cluster is created: ask for the same number, or start with an empty directory"
        )
    shard_names = {name for name in names if _SHARD_NAME.fullmatch(name)}
    if names - _CREATION_NAMES - shard_names or (shard_names and NODE_NAME not in names):
        raise NotADataDirectory(
            f"{path} holds files that are not onelog's; choose an empty directory"
        )
    for name in sorted(shard_names):
        if not _is_unused(files, shard_paths(path, int(name))):
            raise CorruptFile(
                str(path / SYSTEM_NAME), f"missing, but {name} holds data; {SYSTEM_ADVICE}"
            )


def _is_unused(files: Files, shard: ShardPaths) -> bool:
    """Return whether a shard directory holds no more than creation puts there."""
    directories = {shard.segments.name, shard.snapshots.name}
    names = set(_list(files, shard.root))
    hard_state = shard.hard_state.name
    if names - directories - {hard_state, f"{hard_state}.tmp"}:
        return False
    if hard_state in names and not HardStateFile.is_new(files, shard.hard_state):
        return False
    return not any(_list(files, shard.root / name) for name in names & directories)


def _refuse_missing_shards(files: Files, path: Path, system: System) -> None:
    for shard in range(system.topology.shards):
        paths = shard_paths(path, shard)
        needed = [paths.root, paths.segments, paths.snapshots]
        if system.uses(shard):
            needed.append(paths.hard_state)
        for each in needed:
            if not files.exists(each):
                raise CorruptFile(
                    str(each),
                    "missing; mount its volume or restore it from a backup, or remove this node "
                    "from the cluster and add it as a new one with an empty directory",
                )
