"""A shard directory on any ``Files``, and logs on it, for tests."""

from pathlib import Path
from random import Random
from uuid import UUID

from onelog.ual.directory import DataDirectory, ShardPaths, Topology
from onelog.ual.files import Files
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import Survey, open_hard_state, open_log
from tests.simulation.disk import SimDisk

SECOND = 1_000_000_000

# Small enough that a short workload closes, wraps and syncs often.
SMALL = LogConfig(
    ring_bytes=4096,
    segment_bytes_max=2000,
    segment_entries_max=40,
    unsynced_bytes_max=700,
    free_bytes_min=0,
)


def make_shard(files: Files, path: Path = Path("/data")) -> ShardPaths:
    """Create a data directory with one shard and return the shard's paths."""
    directory = DataDirectory.open_or_create(
        files,
        path,
        topology=Topology(shards=1, partitions=8),
        node_name="test",
        cluster_id=UUID(int=1),
        node_id=UUID(int=2),
        created_at="2026-01-01T00:00:00Z",
    )
    directory.close()
    return directory.shard_path(0)


def open_shard(files: Files, paths: ShardPaths, config: LogConfig = SMALL) -> tuple[Log, Survey]:
    """Open the shard's log as a new process would."""
    hard_state = open_hard_state(files, paths)
    return open_log(files, paths, hard_state, shard=0, config=config)


def new_log(disk: SimDisk | None = None, config: LogConfig = SMALL) -> Log:
    """Make a log in an empty shard."""
    disk = disk or SimDisk()
    return open_shard(disk, make_shard(disk), config)[0]


def fill(log: Log, count: int, size: int = 20, seed: int = 1) -> list[bytes]:
    """Append ``count`` groups of one to three entries, a second apart; return the payloads."""
    rng = Random(seed)
    payloads = []
    for _ in range(count):
        group = [rng.randbytes(size) for _ in range(rng.randint(1, 3))]
        log.append(
            [(0x0101, payload, 0) for payload in group],
            term=1,
            timestamp_ns=log.last_timestamp_ns + SECOND,
        )
        payloads += group
    return payloads


def settle(log: Log) -> None:
    """Sync, commit and apply everything."""
    settle_to(log, log.last_index)


def settle_to(log: Log, index: int) -> None:
    """Sync everything; commit and apply up to ``index``."""
    log.sync()
    log.mark_committed(index)
    log.mark_applied(index)


def append_one(log: Log, payload: bytes = b"x", entry_type: int = 0x0101) -> int:
    """Append a group of one entry; return its index."""
    log.append([(entry_type, payload, 0)], term=1, timestamp_ns=log.last_timestamp_ns)
    return log.last_index
