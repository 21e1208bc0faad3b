"""Disks that are full, broken or lying: clear errors, an intact log, and work goes on after."""

import errno
import math
from pathlib import Path
from random import Random

import pytest

from onelog.ual.errors import DiskFull, LogFailed, TooManyOpenFiles
from onelog.ual.log_config import LogConfig
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import (
    append_one,
    close_active,
    drop_before,
    fill,
    make_shard,
    new_log,
    open_shard,
    seal_closed,
    settle,
    settle_to,
)


def test_below_the_minimum_of_free_space_appends_are_refused_and_reads_go_on() -> None:
    disk = SimDisk()
    paths = make_shard(disk)
    disk.capacity = 60_000
    config = LogConfig(4096, segment_bytes_max=900, free_bytes_min=25_000)
    log, _ = open_shard(disk, paths, config)
    payloads: list[bytes] = []

    def fill_up() -> None:
        while True:
            payloads.extend(fill(log, 1))

    with pytest.raises(DiskFull, match="must stay free"):
        fill_up()
    settle(log)
    seal_closed(log)  # what the minimum is kept for

    assert len(payloads) > 50
    assert [entry.payload for entry in log.scan(1)] == payloads
    disk.capacity = None
    assert append_one(log) == len(payloads) + 1


@pytest.mark.parametrize("room", range(0, 400, 13))
def test_a_disk_that_fills_in_the_midst_of_anything_keeps_the_log_intact(room: int) -> None:
    """Appending, closing, sealing and MANIFEST each meet ENOSPC at some of these rooms."""
    disk = SimDisk()
    log = new_log(disk)
    payloads = fill(log, 25)
    used = sum(len(disk.contents(p)) for p in _all_files(disk, Path("/data")))
    disk.capacity = used + room
    refused = 0
    for _ in range(20):
        for act in (
            lambda: payloads.extend(fill(log, 1)),
            lambda: settle(log),
            lambda: seal_closed(log),
            lambda: close_active(log),
            log.checkpoint,
        ):
            before = log.last_index
            try:
                act()
            except DiskFull:
                refused += 1
                assert log.last_index == before
        log.check()
    assert refused
    disk.capacity = None
    payloads += fill(log, 3)
    settle(log)
    seal_closed(log)
    log.checkpoint()
    assert [entry.payload for entry in log.scan(1)] == payloads

    crashed = disk.crash(CrashPolicy.LOST)
    reopened, _ = open_shard(crashed, make_shard(crashed))
    assert [e.payload for e in reopened.scan(1)] == payloads[: reopened.commit_index]
    assert reopened.last_index == len(payloads)


def test_a_full_disk_during_a_cut_either_cuts_or_leaves_the_log() -> None:
    for after in range(3):
        disk = SimDisk()
        log = new_log(disk)
        fill(log, 30)
        index = log.proposals.indexes(10)[0]
        disk.fail("write", errno.ENOSPC, path_contains="MANIFEST", after=after)
        try:
            log.truncate_from(index)
        except DiskFull:
            assert log.last_index in (index - 1, log.segments.segments[-1].last_index)
        log.check()
        # An intent that could not be cleared must be cleared before the next entry is written.
        fill(log, 3, seed=2)
        log.sync()
        crashed = disk.crash(CrashPolicy.LOST)
        reopened, _ = open_shard(crashed, make_shard(crashed))
        assert reopened.last_index == log.last_index


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_write_or_sync_ends_the_log_until_it_is_opened_again(operation: str) -> None:
    disk = SimDisk()
    log = new_log(disk)
    fill(log, 3)
    settle(log)
    safe = log.durable_index
    disk.fail(operation, errno.EIO, path_contains=".flseg")  # type: ignore[arg-type]

    def write_through() -> None:
        append_one(log)
        log.sync()

    with pytest.raises(LogFailed):
        write_through()
    with pytest.raises(LogFailed, match="open the log again"):
        append_one(log)
    assert log.read(safe).index == safe  # reads go on

    disk.heal()
    crashed = disk.crash(CrashPolicy.LOST)
    reopened, _ = open_shard(crashed, make_shard(crashed))
    assert reopened.last_index >= safe


def test_a_disk_that_lies_about_syncs_is_found_out_or_loses_only_a_tail() -> None:
    """Nothing can be promised on such a disk, but nothing is invented either."""
    disk = SimDisk()
    log = new_log(disk)
    payloads = fill(log, 10)
    settle(log)
    disk.lie_about_sync = True
    payloads += fill(log, 3)
    settle(log)

    crashed = disk.crash(CrashPolicy.LOST)
    crashed.lie_about_sync = False
    reopened, _ = open_shard(crashed, make_shard(crashed))
    entries = [reopened.segments.read(i).payload for i in range(1, reopened.last_index + 1)]
    assert entries == payloads[: len(entries)]
    assert len(entries) >= 10


@pytest.mark.parametrize("operation", ["write", "create"])
def test_a_segment_that_could_not_be_created_does_not_outlive_a_cut(operation: str) -> None:
    """What is left of it must not be taken for the end of a file that goes on growing."""
    disk = SimDisk()
    paths = make_shard(disk)
    log, _ = open_shard(disk, paths)
    for _ in range(8):
        append_one(log, b"x" * 60)
    settle_to(log, 4)
    disk.fail(operation, errno.ENOSPC, path_contains="seg")  # type: ignore[arg-type]
    with pytest.raises(DiskFull):
        close_active(log)
    disk.heal()
    log.truncate_from(6)
    for _ in range(9):
        append_one(log, b"y" * 60)
    log.sync()

    again, _ = open_shard(disk.crash(CrashPolicy.LOST), paths)
    assert again.last_index == log.last_index == 14


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_process_without_descriptors_is_refused_like_a_full_disk_and_goes_on(
    number: int,
) -> None:
    """A new segment, a seal and MANIFEST each open a file; entries go to one that is open."""
    disk = SimDisk()
    paths = make_shard(disk)
    config = LogConfig(4096, segment_bytes_max=900, free_bytes_min=0)
    log, _ = open_shard(disk, paths, config)
    payloads = fill(log, 3)
    close_active(log)
    disk.fail("create", number, times=math.inf)
    disk.fail("open", number, times=math.inf)

    def fill_up() -> None:
        while True:
            payloads.extend(fill(log, 1))

    with pytest.raises(TooManyOpenFiles, match="ulimit"):
        fill_up()
    assert isinstance(log.guard.refusal, TooManyOpenFiles)
    settle(log)
    for act in (lambda: seal_closed(log), lambda: close_active(log), log.checkpoint):
        with pytest.raises(TooManyOpenFiles):
            act()
    assert [entry.payload for entry in log.scan(1)] == payloads
    disk.heal()
    payloads += fill(log, 3)
    assert log.guard.refusal is None
    settle(log)
    seal_closed(log)

    again, _ = open_shard(disk.crash(CrashPolicy.LOST), paths)
    assert again.last_index == len(payloads)


@pytest.mark.parametrize("operation", ["sync", "rename", "sync_directory"])
def test_a_change_to_the_next_file_that_fails_ends_the_log_and_loses_nothing(
    operation: str,
) -> None:
    """Entries stand in the new file already, and nobody was told that they are safe."""
    disk = SimDisk()
    paths = make_shard(disk)
    log, _ = open_shard(disk, paths)
    fill(log, 3)
    settle(log)
    while len(log.segments.segments) == 1:
        append_one(log, b"x" * 60)
    disk.fail(operation, errno.ENOSPC, path_contains="seg")  # type: ignore[arg-type]
    before = log.durable_index
    with pytest.raises(LogFailed):
        log.sync()
    with pytest.raises(LogFailed):
        append_one(log)
    assert log.durable_index == before < log.last_index
    disk.heal()

    for policy in CrashPolicy:
        again, _ = open_shard(disk.crash(policy, Random(1)), paths)
        assert before <= again.last_index <= log.last_index
        append_one(again)
    killed, _ = open_shard(disk.crash(CrashPolicy.KEPT), paths)
    assert killed.last_index == log.last_index


@pytest.mark.parametrize("seed", range(40))
def test_a_refused_group_never_comes_back(seed: int) -> None:
    """Part of it was written; the undo must be durable before something else takes its place."""
    disk = SimDisk(page_size=64)
    paths = make_shard(disk)
    config = LogConfig(4096, unsynced_bytes_max=5000, free_bytes_min=0)
    log, _ = open_shard(disk, paths, config)
    append_one(log, b"s" * 24)
    log.sync()
    disk.fail("write", errno.ENOSPC, path_contains="flseg")
    with pytest.raises(DiskFull):
        log.append(
            [(0x0101, letter * 24, 0) for letter in (b"A", b"B")] + [(0x0101, b"C" * 200, 0)],
            term=1,
            timestamp_ns=0,
        )
    disk.heal()
    for payload in (b"1" * 24, b"2" * 24, b"3" * 8):
        append_one(log, payload)

    again, _ = open_shard(disk.crash(CrashPolicy.RANDOM, Random(seed)), paths, config)
    found = [again.segments.read(i).payload for i in range(1, again.last_index + 1)]
    assert found == [b"s" * 24, b"1" * 24, b"2" * 24, b"3" * 8][: len(found)]


def test_a_manifest_that_may_or_may_not_be_durable_ends_the_log() -> None:
    """The rename is done and its sync failed: going on as if the old one had stayed loses data."""
    disk = SimDisk()
    log = new_log(disk)
    fill(log, 10)
    disk.fail("sync_directory", errno.ENOSPC, path_contains="00000")
    with pytest.raises(LogFailed):
        log.truncate_from(log.proposals.indexes(5)[0])
    with pytest.raises(LogFailed):
        append_one(log)


def test_a_full_disk_does_not_keep_a_prefix_from_being_dropped() -> None:
    disk = SimDisk()
    log = new_log(disk)
    fill(log, 80)
    settle(log)
    seal_closed(log)
    start = log.segments.segments[2].first_index

    disk.fail("write", errno.ENOSPC, path_contains="MANIFEST")
    with pytest.raises(DiskFull):
        drop_before(log, start)
    assert log.first_index == 1
    assert log.segments.read(1).index == 1

    disk.fail("create", errno.ENOSPC, path_contains=".tomb")
    assert drop_before(log, start) == 2
    assert log.first_index == start


def _all_files(disk: SimDisk, path: Path) -> list[Path]:
    found: list[Path] = []
    for name in disk.list(path):
        child = path / name
        try:
            found += _all_files(disk, child)
        except NotADirectoryError:
            found.append(child)
    return found
