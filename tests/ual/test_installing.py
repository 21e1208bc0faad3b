"""An install, crashed after every file operation: the old log or the new one, whole."""

from pathlib import Path
from random import Random

import pytest

from onelog.ual.directory import ShardPaths
from onelog.ual.entry import Draft
from onelog.ual.errors import DiskFull
from onelog.ual.install import Installation, install
from onelog.ual.log import Log
from onelog.ual.manifest import Base, SnapshotRecord
from onelog.ual.offline.verify import Finding, Level, verify
from onelog.ual.segments.format import SegmentHeader, received_name
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import SealedSegment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import (
    close_active,
    fill,
    make_shard,
    open_shard,
    seal_closed,
    settle,
    settle_to,
)

HASH = "00"


def source() -> Log:
    """A longer log that begins as ``fill`` with the same seed does."""
    disk = SimDisk()
    log, _ = open_shard(disk, make_shard(disk))
    fill(log, 60)
    settle(log)
    close_active(log)
    seal_closed(log)
    return log


def receive(theirs: Log, disk: SimDisk, paths: ShardPaths, from_index: int) -> list[SegmentHeader]:
    """Copy the other's segments from one that begins at ``from_index`` on."""
    headers = []
    for segment in theirs.segments.segments:
        if isinstance(segment, SealedSegment) and segment.first_index >= from_index:
            file = disk.open(paths.segments / received_name(segment.first_index), create=True)
            file.write(bytes(segment.mapped_bytes()), 0)
            file.sync()
            headers.append(segment.header)
    return headers


def installation(theirs: Log, headers: list[SegmentHeader], keep_through: int) -> Installation:
    base = Base(theirs.last_index, theirs.last_proposal, theirs.last_term, theirs.last_timestamp_ns)
    record = SnapshotRecord("0000000001-1.fsnap", base.index, base.term, 1, HASH)
    return Installation(base, record, keep_through, headers)


def behind(theirs: Log, *, sealed: bool) -> tuple[SimDisk, ShardPaths, Log, int]:
    """A log that has the other's first segments, sealed or not, and a tail of its own."""
    disk = SimDisk(page_size=64, tear_writes=True)
    paths = make_shard(disk)
    log, _ = open_shard(disk, paths)
    first = theirs.segments.segments[0]
    for number in range(1, 30):
        group = theirs.segments.proposal(number)
        if group.last_index > first.last_index + 5:
            break
        log.append_group(group)
    settle_to(log, first.last_index)
    if sealed:
        seal_closed(log)
    log.append([Draft(0x0101, b"mine alone")], term=1, timestamp_ns=log.last_timestamp_ns)
    log.sync()
    keep_through = log.segments.sealed_index
    assert keep_through == (first.last_index if sealed else 0)
    return disk, paths, log, keep_through


def errors(disk: SimDisk) -> list[Finding]:
    """What the offline check finds, but for the snapshot, of which there is only the record."""
    found = [each for each in verify(disk, Path("/data")) if each.level is Level.ERROR]
    return [each for each in found if "fsnap" not in str(each.path)]


def content(log: Log) -> list[bytes]:
    return [entry.payload for entry in log.segments.scan(log.first_index, log.last_index)]


@pytest.mark.parametrize("case", ["keeps its own", "replaces all", "begins later", "is empty"])
def test_a_crash_after_any_operation_leaves_the_old_log_or_the_new_one(case: str) -> None:
    theirs = source()
    disk, paths, log, keep_through = behind(theirs, sealed=case == "keeps its own")
    segments = theirs.segments.segments
    from_index = keep_through + 1
    if case == "begins later":
        from_index = segments[2].first_index
    elif case == "is empty":
        from_index = theirs.last_index + 1
    headers = receive(theirs, disk, paths, from_index)
    new = installation(theirs, headers, keep_through)
    before = (log.last_index, content(log), None)
    expected = [
        entry.payload for entry in theirs.segments.scan(max(1, from_index), theirs.last_index)
    ]
    if keep_through:
        expected = content(log)[:keep_through] + expected
    after = (theirs.last_index, expected, new.base)
    seen = set()
    rng = Random(5)

    def crash(operation: str) -> None:
        for policy in (CrashPolicy.LOST, CrashPolicy.KEPT, CrashPolicy.RANDOM, CrashPolicy.RANDOM):
            crashed = disk.crash(policy, Random(rng.getrandbits(32)))
            assert not errors(crashed), (operation, policy)
            again, _ = open_shard(crashed, paths)
            found = (again.last_index, content(again), again.base)
            assert found in (before, after), (operation, policy)
            seen.add(found == after)
            names = crashed.list(paths.segments)
            assert not [name for name in names if name.endswith(".recv")], (operation, names)
            second, survey = open_shard(crashed.crash(CrashPolicy.LOST), paths)
            assert (second.last_index, content(second), second.base) == found
            assert not survey.actions
            again.check()

    disk.after_operation = crash
    install(log, disk, paths, new, ApplyNotes())
    disk.after_operation = None

    assert seen == {True, False}
    assert (log.last_index, content(log), log.base) == after
    log.check()
    assert (log.last_term, log.last_timestamp_ns) == (theirs.last_term, theirs.last_timestamp_ns)
    group = log.append([Draft(0x0101, b"next")], term=2, timestamp_ns=log.last_timestamp_ns)
    log.sync()
    assert log.proposals.durable == new.base.proposal + 1
    left = disk.crash(CrashPolicy.LOST)
    assert not errors(left)
    again, _ = open_shard(left, paths)
    assert again.last_index == group.last_index
    assert again.proposals.data(new.base.proposal + 1) == group.data


def test_a_full_disk_leaves_everything_as_it_was() -> None:
    theirs = source()
    disk, paths, log, keep_through = behind(theirs, sealed=True)
    headers = receive(theirs, disk, paths, keep_through + 1)
    before = content(log)
    disk.capacity = 0

    with pytest.raises(DiskFull):
        install(log, disk, paths, installation(theirs, headers, keep_through), ApplyNotes())

    disk.capacity = None
    assert content(log) == before
    log.append([Draft(0x0101, b"goes on")], term=1, timestamp_ns=log.last_timestamp_ns)
    log.sync()
    install(log, disk, paths, installation(theirs, headers, keep_through), ApplyNotes())
    assert log.last_index == theirs.last_index


def test_an_empty_active_file_behind_what_stays_is_in_nobodys_way() -> None:
    theirs = source()
    disk = SimDisk()
    paths = make_shard(disk)
    log, _ = open_shard(disk, paths)
    first = theirs.segments.segments[0]
    number = 1
    while log.last_index < first.last_index:
        log.append_group(theirs.segments.proposal(number))
        number += 1
    close_active(log)
    settle_to(log, first.last_index)
    seal_closed(log)
    assert log.segments.sealed_index == log.segments.segments[-1].last_index == first.last_index
    headers = receive(theirs, disk, paths, first.last_index + 1)

    install(log, disk, paths, installation(theirs, headers, first.last_index), ApplyNotes())

    assert content(log) == content(theirs)
