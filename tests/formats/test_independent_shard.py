"""A reader that was written from docs/formats.md agrees with the log about whole directories."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onelog.ual.directory import ShardPaths
from onelog.ual.entry import FLAG_ZSTD
from onelog.ual.files import DiskFiles
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import Manifest, save
from onelog.ual.recovery import Cut
from onelog.ual.segments.format import compacting_name, tomb_name
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import compact_segment
from tests.formats import samples
from tests.formats.golden import load_golden
from tests.formats.independent_shard import read_shard
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import drop_before, make_shard, open_shard, seal_closed

SEED = 20260102
# Several rows of the sparse table in each segment.
LOG_CONFIG = LogConfig(
    ring_bytes=1 << 16, segment_bytes_max=1 << 20, segment_entries_max=600, free_bytes_min=0
)


def plain(entries: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return entries of either reader as tuples; the fields have the same order in both."""
    return [tuple(entry) for entry in entries]


def put_shard(root: Path, manifest: str) -> None:
    segments = root / "segs"
    segments.mkdir(parents=True)
    (root / "MANIFEST").write_bytes(load_golden(manifest))
    (root / "RAFT").write_bytes(load_golden("raft"))
    (segments / "0000000001.flseg").write_bytes(load_golden("compacted_segment"))
    (segments / "0000000301.flseg").write_bytes(load_golden("sealed_segment"))
    (segments / "0000000309.flseg.tmp").write_bytes(load_golden("unsealed_segment"))


def test_it_reads_the_golden_files_as_one_log_up_to_the_commit_index(tmp_path: Path) -> None:
    put_shard(tmp_path, "manifest")

    shown, segments = read_shard(tmp_path)

    assert plain(shown) == plain(samples.SHARD_ENTRIES[:-1])
    assert [segment.last_index for segment in segments] == [300, 308, 311]


def test_it_refuses_the_directory_of_another_shard(tmp_path: Path) -> None:
    put_shard(tmp_path, "manifest_2")
    ours = samples.MANIFEST_2.identity
    assert ours is not None
    cluster_id, node_id = str(ours.cluster_id), str(ours.node_id)

    shown, _ = read_shard(tmp_path, (cluster_id, node_id, 0))
    assert plain(shown) == plain(samples.SHARD_ENTRIES[:-1])
    for other in ((cluster_id, node_id, 1), (cluster_id, cluster_id, 0), (node_id, node_id, 0)):
        with pytest.raises(ValueError, match="another shard"):
            read_shard(tmp_path, other)


def test_entries_of_an_interrupted_cut_do_not_count(tmp_path: Path) -> None:
    put_shard(tmp_path, "manifest_cut")

    _, segments = read_shard(tmp_path)

    assert segments[-1].last_index == 310


def tear_last_entry(root: Path) -> None:
    path = root / "segs" / "0000000309.flseg.tmp"
    path.write_bytes(path.read_bytes()[:-1])


def put_older_manifest(root: Path, generation: int) -> None:
    """Write a MANIFEST without entry 311, which the hint says is durable."""
    checkpoint = replace(
        samples.MANIFEST.checkpoint,
        end_index=310,
        end_proposal=105,
        durable_index=310,
        generation=generation,
    )
    save(DiskFiles(), root / "MANIFEST", Manifest(checkpoint))


def test_a_durable_entry_that_is_gone_is_refused(tmp_path: Path) -> None:
    put_shard(tmp_path, "manifest")
    tear_last_entry(tmp_path)

    with pytest.raises(ValueError, match="entry 311 was durable"):
        read_shard(tmp_path)


def test_an_entry_that_only_the_hint_knows_to_be_durable_is_missed_too(tmp_path: Path) -> None:
    put_shard(tmp_path, "manifest")
    tear_last_entry(tmp_path)
    put_older_manifest(tmp_path, generation=0)

    with pytest.raises(ValueError, match="entry 311 was durable"):
        read_shard(tmp_path)


def test_a_hint_of_another_generation_promises_nothing(tmp_path: Path) -> None:
    put_shard(tmp_path, "manifest")
    tear_last_entry(tmp_path)
    put_older_manifest(tmp_path, generation=1)

    _, segments = read_shard(tmp_path)

    assert segments[-1].last_index == 310


def test_a_segment_that_is_gone_is_refused(tmp_path: Path) -> None:
    put_shard(tmp_path, "manifest")
    (tmp_path / "segs" / "0000000301.flseg").unlink()

    with pytest.raises(ValueError, match="no entry 301"):
        read_shard(tmp_path)


def make_log(tmp_path: Path) -> tuple[ShardPaths, Log]:
    """Make a log on the real disk."""
    files = DiskFiles()
    paths = make_shard(files, tmp_path / "data")
    log, _ = open_shard(files, paths, LOG_CONFIG)
    return paths, log


def fill_log(log: Log, rng: Random, group_count: int) -> SimpleNamespace:
    """Append, apply and seal as a server would; return what apply noted."""
    noted = SimpleNamespace(streams={}, voids=set())
    for _ in range(group_count):
        drafts = [
            (rng.choice((0x0001, 0x0101, 0x0201, 0x0401)), _payload(rng), rng.choice((0, 2)))
            for _ in range(rng.randint(1, 6))
        ]
        time_ns = log.last_timestamp_ns + rng.choice((0, 1, 300_000_000, 2_000_000_000))
        group = log.append(drafts, term=log.last_term + (rng.random() < 0.01), timestamp_ns=time_ns)
        for index in range(group.first_index, group.last_index + 1):
            if rng.random() < 0.1:
                log.notes.add_void(index, index)
                noted.voids.add(index)
            elif rng.random() < 0.3:
                stream_id = rng.choice((1, 2, 1 << 40))
                log.notes.add_record(stream_id, index)
                noted.streams.setdefault(stream_id, []).append(index)
        log.mark_committed(group.last_index)
        log.mark_applied(group.last_index)
    log.sync()
    seal_closed(log)
    return noted


def _payload(rng: Random) -> bytes:
    # Now and then one that is compressed.
    return b"onelog " * 300 if rng.random() < 0.02 else rng.randbytes(rng.randrange(40))


def test_it_agrees_with_the_log_about_a_directory_on_disk(tmp_path: Path) -> None:
    paths, log = make_log(tmp_path)
    noted = fill_log(log, Random(SEED), 800)
    log.append([(0x0401, b"not committed", 0)], term=9, timestamp_ns=log.last_timestamp_ns)
    log.close()

    shown, segments = read_shard(paths.root)

    sealed = [part for part in log.segments.segments if isinstance(part, SealedSegment)]
    assert len(sealed) >= 3
    assert plain(shown) == plain(log.scan(1)), f"seed {SEED}"
    assert {entry.flags & FLAG_ZSTD for entry in shown} == {0, FLAG_ZSTD}
    assert segments[-1].entries[-1].payload == b"not committed"
    voids = {
        index
        for segment in segments
        for first, last in segment.voids
        for index in range(first, last + 1)
    }
    last_sealed = sealed[-1].last_index
    assert voids == {index for index in noted.voids if index <= last_sealed}
    for stream_id, indexes in noted.streams.items():
        found = [index for segment in segments for index in segment.streams.get(stream_id, [])]
        assert found == [index for index in indexes if index <= last_sealed]


def test_it_agrees_with_the_log_after_a_drop_a_cut_and_a_compaction(tmp_path: Path) -> None:
    paths, log = make_log(tmp_path)
    rng = Random(SEED)
    fill_log(log, rng, 800)
    committed = log.commit_index
    for payload in (b"stays", b"is cut"):
        log.append([(0x0401, payload, 0)], term=log.last_term, timestamp_ns=log.last_timestamp_ns)
    log.truncate_from(committed + 2)
    second = log.segments.segments[1]
    drop_before(log, second.first_index)
    log.close()
    assert isinstance(second, SealedSegment)
    kept = sorted(rng.sample(range(second.first_index, second.last_index + 1), 300))
    compact_segment(DiskFiles(), second.path, np.array(kept, np.uint64))
    # What interrupted work may leave, and what is not ours.
    (paths.segments / compacting_name(second.first_index)).write_bytes(b"half")
    (paths.segments / tomb_name(1)).touch()
    (paths.segments / "notes.txt").write_bytes(b"somebody else's")

    shown, segments = read_shard(paths.root)

    reopened, _ = open_shard(DiskFiles(), paths, LOG_CONFIG)
    assert plain(shown) == plain(reopened.scan(reopened.first_index)), f"seed {SEED}"
    assert [entry.index for entry in segments[0].entries] == kept
    assert segments[-1].entries[-1].payload == b"stays"
    assert segments[-1].last_index == reopened.last_index == committed + 1


def test_a_torn_tail_on_disk_ends_where_the_log_ends_it(tmp_path: Path) -> None:
    paths, log = make_log(tmp_path)
    fill_log(log, Random(SEED), 50)
    log.close()
    active = paths.segments / log.manifest.checkpoint.active_file
    whole = active.read_bytes()
    entry = whole[64:120]
    active.write_bytes(whole + entry)

    shown, segments = read_shard(paths.root)

    reopened, found = open_shard(DiskFiles(), paths, LOG_CONFIG)
    (cut,) = found.actions
    assert isinstance(cut, Cut)
    assert cut.size_before - cut.size == len(entry)
    assert plain(shown) == plain(reopened.scan(1))
    assert segments[-1].last_index == reopened.last_index


def write_out(disk: SimDisk, source: Path, target: Path) -> None:
    """Write a shard of the simulated disk to the real one."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "segs").mkdir(parents=True)
    for name in disk.list(source):
        if name not in ("segs", "snaps"):
            (target / name).write_bytes(disk.contents(source / name))
    for name in disk.list(source / "segs"):
        (target / "segs" / name).write_bytes(disk.contents(source / "segs" / name))


def test_after_a_crash_anywhere_it_reads_the_log_that_recovery_makes(tmp_path: Path) -> None:
    """The crash stories of the document are complete: its steps find what recovery finds."""
    disk, rng = SimDisk(tear_writes=True), Random(SEED)
    paths = make_shard(disk)
    log, _ = open_shard(disk, paths)
    left_behind: set[str] = set()

    def crash(operation: str) -> None:
        for policy in (CrashPolicy.KEPT, CrashPolicy.RANDOM):
            crashed = disk.crash(policy, rng)
            write_out(crashed, paths.root, tmp_path / "shard")

            shown, segments = read_shard(tmp_path / "shard")

            reopened, found = open_shard(crashed, paths)
            left_behind.update(action.why.partition(":")[0] for action in found.actions)
            assert plain(shown) == plain(reopened.scan(reopened.first_index)), (operation, policy)
            last_index = segments[-1].last_index if segments else reopened.first_index - 1
            assert last_index == reopened.last_index, (operation, policy)

    disk.after_operation = crash
    for _ in range(2):
        fill_log(log, rng, 14)
        start = log.commit_index + 1
        for _ in range(25):  # enough for another file, which a cut removes
            draft = (0x0401, rng.randbytes(40), 0)
            log.append([draft], term=log.last_term, timestamp_ns=log.last_timestamp_ns)
        log.truncate_from(start)
        drop_before(log, log.segments.segments[1].first_index)
    log.close()

    assert disk.operations > 100
    assert left_behind >= {
        "a torn write",
        "an interrupted seal",
        "an interrupted cut",
        "an interrupted change to the next file",
        "begun behind something that was not synced and is gone",
        "dropped from the log",
        "the tombstone of a dropped segment",
    }
