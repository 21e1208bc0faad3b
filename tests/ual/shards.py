"""A shard directory on any ``Files``, and logs on it, for tests."""

from pathlib import Path
from uuid import UUID

from ual.directory import DataDirectory, ShardPaths, Topology
from ual.files import Files
from ual.log import Log
from ual.log_config import LogConfig
from ual.opening import open_hard_state, open_log
from ual.recovery import Survey

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
