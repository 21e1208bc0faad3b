"""SYSTEM and NODE: which cluster a data directory belongs to, and which node.

Both are written once and checked in full whenever they are read (``ual/json_file.py``). What they
say never changes, so the values here are frozen; docs/formats.md has the fields.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from onelog.ual.errors import CorruptFile, DirectoryError
from onelog.ual.files import Files
from onelog.ual.json_file import Fields, read_json_file, write_json_file

SYSTEM_VERSION = 2  # 1 had no founders, no name and no workers
NODE_VERSION = 1

SHARDS_DEFAULT = 4
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
    """How keys are spread. Fixed when a cluster is created; see ``ual/routing.py``."""

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
    """One of the nodes that a cluster began with; ``address`` is of its peer service."""

    node_id: UUID
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class System:
    """What SYSTEM says. ``worker`` is which of a node's worker processes the directory is of."""

    cluster_id: UUID
    topology: Topology
    created_at: str
    cluster_name: str = ""
    founders: tuple[Founder, ...] = ()  # in the order of their ids
    worker: int = 0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Node:
    """What NODE says. ``node_id`` is the node's name in Raft; ``name`` is for people."""

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
