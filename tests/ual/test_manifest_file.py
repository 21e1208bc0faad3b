"""MANIFEST that is replaced beside everything else: the log goes on, and nothing is lost for it."""

import errno
from collections.abc import Callable
from threading import Thread

import pytest

from onelog.ual.errors import DiskFull, LogFailed
from onelog.ual.jobs import ManifestJob
from onelog.ual.log import Log
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import (
    append_one,
    drop_before,
    fill,
    make_shard,
    new_log,
    open_shard,
    seal_closed,
)


def sealed_log(disk: SimDisk) -> Log:
    """Return a log with some sealed segments."""
    log = new_log(disk)
    fill(log, 80)
    log.sync()
    log.mark_committed(log.last_index)
    log.mark_applied(log.last_index)
    assert seal_closed(log) > 2
    return log


def drop_two(log: Log) -> ManifestJob:
    """Begin to let go of two segments."""
    job = log.drop_begin(log.segments.segments[2].first_index)
    assert job is not None
    assert len(job.segments) == 2
    return job


def first_index_after(disk: SimDisk) -> int:
    """Return where the log begins if the power is lost now."""
    return open_shard(disk.crash(CrashPolicy.LOST), make_shard(disk))[0].first_index


def test_the_log_goes_on_while_a_prefix_is_dropped() -> None:
    disk = SimDisk()
    log = sealed_log(disk)
    first = log.segments.segments[2].first_index
    job = drop_two(log)
    assert log.first_index == first
    assert first_index_after(disk) == 1, "nothing is decided yet"

    append_one(log)
    log.sync()
    durable = log.durable_index
    job.run()
    assert first_index_after(disk) == first
    log.manifest_file.finish(job)
    log.check()

    assert [disk.exists(each.path) for each in job.segments] == [False, False]
    again, found = open_shard(disk.crash(CrashPolicy.LOST), make_shard(disk))
    assert (again.first_index, again.last_index, found.actions) == (first, durable, [])


@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.truncate_from(append_one(log)),
        lambda log: drop_before(log, log.segments.segments[1].first_index),
        Log.checkpoint,
        Log.close,
    ],
    ids=["a cut", "another drop", "a checkpoint", "the end"],
)
@pytest.mark.parametrize("has_run", [False, True])
def test_who_changes_the_manifest_next_finishes_the_change_before(
    act: Callable[[Log], object], *, has_run: bool
) -> None:
    disk = SimDisk()
    log = sealed_log(disk)
    first = log.segments.segments[2].first_index
    job = drop_two(log)
    if has_run:
        job.run()
    act(log)
    assert job.is_decided
    kept = log.first_index, log.last_index
    assert kept[0] >= first

    job.run()
    log.manifest_file.finish(job)
    again, found = open_shard(disk.crash(CrashPolicy.KEPT), make_shard(disk))
    assert (again.first_index, again.last_index) == kept
    assert found.actions == []


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_full_disk_gives_back_what_was_to_be_dropped(*, is_settled: bool) -> None:
    """Also if somebody else has met the full disk: the one who dropped hears of it."""
    disk = SimDisk()
    log = sealed_log(disk)
    manifest = log.manifest
    job = drop_two(log)
    append_one(log)
    disk.fail("write", errno.ENOSPC, path_contains="MANIFEST")
    if is_settled:
        log.manifest_file.settle()
    job.run()
    with pytest.raises(DiskFull):
        log.manifest_file.finish(job)
    log.check()
    assert (log.first_index, log.manifest) == (1, manifest)
    assert log.segments.read(1).index == 1

    assert drop_before(log, log.segments.segments[2].first_index) == 2


def test_a_file_that_cannot_be_removed_ends_the_log() -> None:
    disk = SimDisk()
    log = sealed_log(disk)
    job = drop_two(log)
    disk.fail("remove", errno.EIO, path_contains=".flseg")
    job.run()
    assert job.is_decided
    with pytest.raises(LogFailed):
        log.manifest_file.finish(job)
    with pytest.raises(LogFailed):
        append_one(log)


def test_who_runs_a_job_that_another_thread_runs_waits_until_it_is_done() -> None:
    disk = SimDisk()
    log = sealed_log(disk)
    job = drop_two(log)
    seen: list[bool] = []

    def look() -> None:
        job.run()
        seen.append(not disk.exists(job.segments[-1].path))

    other = Thread(target=look)

    def in_the_midst(_operation: str) -> None:
        disk.after_operation = None
        other.start()
        other.join(0.2)
        assert seen == []

    disk.after_operation = in_the_midst
    job.run()
    other.join()
    assert seen == [True]
    log.manifest_file.finish(job)
