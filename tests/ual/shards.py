"""A shard directory on any ``Files``, and logs on it, for tests."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

from onelog.ual.directory import DataDirectory, Node, ShardPaths, System, Topology
from onelog.ual.entry import Group, check_group
from onelog.ual.files import Files
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import Survey, open_hard_state, open_log
from tests.simulation.disk import SimDisk

SECOND = 1_000_000_000
CREATED_AT = "2026-01-01T00:00:00Z"
CLUSTER_ID = UUID(int=1)
NODE = Node(UUID(int=2), "test", CREATED_AT)
ONE_SHARD = Topology(shards=1, partitions=8)

# Small enough that a short workload closes, wraps and syncs often.
SMALL = LogConfig(
    ring_bytes=4096,
    segment_bytes_max=2000,
    segment_entries_max=40,
    unsynced_bytes_max=700,
    free_bytes_min=0,
)


def make_directory(
    files: Files,
    path: Path,
    topology: Topology = ONE_SHARD,
    *,
    cluster_id: UUID = CLUSTER_ID,
    node: Node = NODE,
) -> DataDirectory:
    """Open a data directory as a server does; create it if it is empty or missing."""
    claim = DataDirectory.claim(files, path, node)
    try:
        return claim.complete(claim.system or System(cluster_id, topology, CREATED_AT))
    except BaseException:
        claim.close()
        raise


def make_shard(files: Files, path: Path = Path("/data")) -> ShardPaths:
    """Create a data directory with one shard and return the shard's paths."""
    directory = make_directory(files, path)
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


def close_active(log: Log) -> None:
    """Close the active file, synced to its end, and begin the next one."""
    log.close_aged(1 << 63)
    log.sync()


def seal_closed(log: Log) -> int:
    """Seal every closed file that is applied; return the number of files."""
    count = 0
    while (job := log.seal_begin()) is not None:
        job.run()
        log.seal_finish(job)
        count += 1
    return count


def drop_before(log: Log, index: int) -> int:
    """Delete the sealed files that end before ``index``; return the number of files."""
    job = log.drop_begin(index)
    if job is None:
        return 0
    job.run()
    log.manifest_file.finish(job)
    return len(job.segments)


def check_groups(data: bytes | memoryview, first_index: int) -> Iterator[Group]:
    """Verify and yield every group of ``data``, which must hold whole groups and nothing else."""
    offset = time_ns = 0
    while offset < len(data):
        group = check_group(data, offset, first_index, time_ns)
        yield group
        offset += len(group.data)
        first_index = group.last_index + 1
        time_ns = group.last_timestamp_ns
