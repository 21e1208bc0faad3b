"""The log through its public calls: what goes in comes out, in order, once, from every tier."""

import sys
import threading
from pathlib import Path
from random import Random

import pytest

from onelog.ual.entry import Entry, check_group, encode_group
from onelog.ual.errors import GroupTooLarge, IndexDropped, IndexInFuture, LogFailed
from onelog.ual.files import DiskFiles
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.segments.sealed import SealedSegment
from tests.simulation.disk import SimDisk
from tests.ual.shards import (
    SECOND,
    SMALL,
    append_one,
    close_active,
    drop_before,
    fill,
    make_shard,
    new_log,
    open_shard,
    seal_closed,
    settle,
)


def test_every_tier_gives_the_same_entries() -> None:
    """Ring, active file, closed files and sealed files hold one sequence."""
    log = new_log()
    payloads = fill(log, 60)
    settle(log)

    def read_all() -> list[bytes]:
        return [log.read(index).payload for index in range(1, log.last_index + 1)]

    assert read_all() == payloads
    assert seal_closed(log) > 2
    assert read_all() == payloads
    assert [entry.payload for entry in log.scan(1)] == payloads
    assert [entry.index for entry in log.scan(5, 20)] == list(range(5, 21))
    log.check()


def test_nothing_above_the_commit_index_is_read() -> None:
    log = new_log()
    fill(log, 10)
    log.mark_committed(4)

    assert [entry.index for entry in log.scan(1)] == [1, 2, 3, 4]
    with pytest.raises(IndexInFuture) as caught:
        log.read(5)
    assert (caught.value.index, caught.value.last_index) == (5, 4)
    assert log.seek_time(log.last_timestamp_ns) is None


def test_scans_filter_by_type_stream_and_void_in_every_tier() -> None:
    log = new_log()
    rng = Random(5)
    expected: dict[str, list[int]] = {"stream": [], "valid": []}
    for _ in range(120):
        kind = rng.choice([0x0101, 0x0201, 0x0401])
        index = append_one(log, rng.randbytes(15), kind)
        void = rng.random() < 0.3
        if void:
            log.notes.add_void(index, index)
        elif kind == 0x0401:
            log.notes.add_record(rng.choice([7, 8]), index)
            expected["stream"] += [index] if index in log.notes.records(7, index, index) else []
        expected["valid"] += [] if void else [index]
    settle(log)
    closed = len(log.segments.segments)
    for _ in range(2):
        assert [e.index for e in log.scan(1, stream_id=7)] == expected["stream"]
        assert [e.index for e in log.scan(1, skip_voids=True)] == expected["valid"]
        seal_closed(log)  # all but the active file; the second round reads sealed tables
    assert closed > 3
    assert isinstance(log.segments.segments[-2], SealedSegment)


def test_a_filtered_scan_ends_where_apply_has_come_to() -> None:
    """Past that point nobody knows yet which entries are records, or void."""
    log = new_log()
    fill(log, 10)
    log.mark_committed(8)
    log.mark_applied(5)

    assert [entry.index for entry in log.scan(1, skip_voids=True)] == [1, 2, 3, 4, 5]
    assert [entry.index for entry in log.scan(1)][-1] == 8


def test_a_scan_that_began_before_a_seal_still_knows_its_streams() -> None:
    """Sealing forgets the notes in memory; a reader must not lose records by that."""
    log = new_log()
    for _ in range(60):
        log.notes.add_record(7, append_one(log, b"r" * 30, 0x0401))
    settle(log)
    expected = list(range(1, 61))

    scan = log.scan(1, stream_id=7)
    first = next(scan).index
    seal_closed(log)

    assert [first, *(entry.index for entry in scan)] == expected


def test_seek_time_agrees_with_a_loop() -> None:
    log = new_log()
    rng = Random(9)
    now = 10 * SECOND
    for _ in range(150):
        now += rng.choice([0, 0, 1, SECOND // 2, 3 * SECOND])
        log.append([(0x0101, b"p" * 10, 0)] * rng.randint(1, 3), term=1, timestamp_ns=now)
    settle(log)
    seal_closed(log)
    times = [(entry.timestamp_ns, entry.index) for entry in log.scan(1)]
    for wanted in [0, now, now + 1, *(rng.randrange(now + SECOND) for _ in range(200))]:
        expected = next((index for time_ns, index in times if time_ns >= wanted), None)
        assert log.seek_time(wanted) == expected


def test_proposals_are_read_by_number() -> None:
    log = new_log()
    fill(log, 50)
    settle(log)
    seal_closed(log)

    assert log.last_proposal == 50
    entries: list[Entry] = []
    for number in range(1, 51):
        data = log.proposals.data(number)
        first, last = log.proposals.indexes(number)
        group = check_group(data, 0, first)
        assert group.last_index == last
        assert data == log.segments.proposal(number).data
        entries += list(log.scan(first, last))
    assert entries == list(log.scan(1))


@pytest.mark.parametrize(
    ("config", "closes_after"),
    [
        (LogConfig(4096, segment_bytes_max=300, free_bytes_min=0), 3),
        (LogConfig(4096, segment_entries_max=4, free_bytes_min=0), 4),
        (LogConfig(4096, segment_age_ns_max=5 * SECOND, free_bytes_min=0), 5),
    ],
)
def test_a_segment_closes_by_size_by_entries_and_by_age(
    config: LogConfig, closes_after: int
) -> None:
    log = new_log(config=config)
    while len(log.segments.segments) == 1:
        log.append([(0x0101, b"p" * 30, 0)], term=1, timestamp_ns=log.last_timestamp_ns + SECOND)
    assert log.last_index - 1 == closes_after


def test_an_idle_segment_is_closed_by_age_and_an_empty_one_is_not() -> None:
    log = new_log()
    hour = SMALL.segment_age_ns_max
    log.append([(0x0101, b"x", 0)], term=1, timestamp_ns=SECOND)

    log.close_aged(hour)
    assert len(log.segments.segments) == 1
    log.close_aged(hour + SECOND)
    assert len(log.segments.segments) == 2
    log.close_aged(10 * hour)
    assert len(log.segments.segments) == 2


def test_only_applied_segments_are_sealed() -> None:
    log = new_log()
    fill(log, 60)
    log.sync()
    boundary = log.segments.segments[0].last_index
    log.mark_committed(log.last_index)

    log.mark_applied(boundary - 1)
    assert seal_closed(log) == 0
    log.mark_applied(boundary)
    assert seal_closed(log) == 1


def test_a_sync_covers_what_was_appended_before_it_began() -> None:
    log = new_log()
    append_one(log)
    job = log.sync_begin()
    append_one(log)
    job.run()
    log.sync_finish(job)

    assert (log.durable_index, log.proposals.durable) == (1, 1)
    log.sync()
    assert log.durable_index == 2


def test_a_sync_from_before_a_cut_covers_nothing() -> None:
    """Index 2 is another entry now: the old sync says nothing about it."""
    log = new_log()
    append_one(log, b"first")
    append_one(log, b"old")
    job = log.sync_begin()
    log.truncate_from(2)
    append_one(log, b"new")
    job.run()
    log.sync_finish(job)

    assert log.durable_index == 1


def test_a_group_fills_while_a_slow_sync_is_in_flight() -> None:
    disk = SimDisk()
    log = new_log(disk)
    append_one(log)
    started, release = threading.Event(), threading.Event()

    def wait(_: str) -> None:
        started.set()
        assert release.wait(10)

    disk.before_sync = wait
    job = log.sync_begin()
    thread = threading.Thread(target=job.run)
    thread.start()
    assert started.wait(10)
    append_one(log)
    append_one(log)
    assert (log.last_index, log.durable_index) == (3, 0)
    disk.before_sync = None
    release.set()
    thread.join(10)
    log.sync_finish(job)
    assert log.durable_index == 1


def test_never_more_than_the_limit_is_unsynced() -> None:
    log = new_log()
    for _ in range(100):
        append_one(log, b"p" * 100)
        assert log.unsynced_bytes <= SMALL.unsynced_bytes_max


def test_a_group_that_recovery_could_not_judge_is_refused() -> None:
    log = new_log()
    with pytest.raises(GroupTooLarge):
        append_one(log, Random(1).randbytes(SMALL.unsynced_bytes_max))
    assert log.last_index == 0


def test_a_cut_removes_the_suffix_and_the_log_goes_on() -> None:
    log = new_log()
    fill(log, 60)
    index = log.proposals.indexes(20)[0]
    generation = log.generation

    log.truncate_from(index)

    log.check()
    assert (log.last_index, log.last_proposal, log.durable_index) == (index - 1, 19, index - 1)
    assert log.generation == generation + 1
    log.append([(0x0101, b"other", 0)], term=2, timestamp_ns=log.last_timestamp_ns)
    settle(log)
    assert log.read(index).payload == b"other"
    assert log.last_term == 2


def test_a_cut_inside_a_group_or_below_the_commit_index_is_a_programming_error() -> None:
    log = new_log()
    log.append([(0x0101, b"x", 0)] * 3, term=1, timestamp_ns=0)
    with pytest.raises(AssertionError, match="does not start a group"):
        log.truncate_from(2)
    log.mark_committed(3)
    with pytest.raises(AssertionError):
        log.truncate_from(1)
    assert log.manifest.cut_from_index is None


def test_a_dropped_prefix_is_gone_and_said_so() -> None:
    disk = SimDisk()
    log = new_log(disk)
    fill(log, 60)
    settle(log)
    seal_closed(log)
    held = log.scan(1)
    next(held)
    target = log.segments.segments[2].first_index

    assert drop_before(log, target + 1) == 2

    assert log.first_index == target
    with pytest.raises(IndexDropped):
        log.read(1)
    with pytest.raises(IndexDropped):
        log.scan(target - 1)
    names = disk.list(Path("/data/00000/segs"))
    assert not [name for name in names if name.endswith(".tomb")]
    # A scan that began before goes on as far as its files are open, and says where it stopped.
    with pytest.raises(IndexDropped):
        list(held)


def test_the_last_entry_is_never_dropped() -> None:
    log = new_log()
    fill(log, 20)
    settle(log)
    close_active(log)
    seal_closed(log)

    drop_before(log, log.last_index + 1)

    assert log.segments.segments[0].last_index == log.last_index
    assert log.last_timestamp_ns > 0


def test_a_log_reopens_on_a_real_disk_where_it_stopped(tmp_path: Path) -> None:
    files = DiskFiles()
    paths = make_shard(files, tmp_path / "data")
    log, _ = open_shard(files, paths)
    payloads = fill(log, 80)
    settle(log)
    seal_closed(log)
    log.close()
    with pytest.raises(LogFailed, match="closed"):
        append_one(log)

    again, found = open_shard(files, paths)
    assert found.actions == []
    assert again.commit_index == again.last_index == len(payloads)
    assert [entry.payload for entry in again.scan(1)] == payloads
    assert (again.last_term, again.last_proposal) == (1, 80)


def test_readers_in_other_threads_see_whole_entries_while_the_log_changes(tmp_path: Path) -> None:
    """Appends, closes, seals and drops go on; a read returns the right entry or says dropped."""
    files = DiskFiles()
    log, _ = open_shard(files, make_shard(files, tmp_path / "data"))
    done = threading.Event()
    problems: list[BaseException] = []
    reads = [0, 0]

    def expected(index: int) -> bytes:
        return index.to_bytes(8, "little") * 5

    def read(number: int) -> None:
        rng = Random(number)
        try:
            while not done.is_set():
                last = log.commit_index
                if not last:
                    continue
                index = rng.randint(max(1, log.first_index), last)
                try:
                    if number:
                        for entry in log.scan(index, index + 50, skip_voids=True):
                            assert entry.payload == expected(entry.index)
                    else:
                        assert log.read(index).payload == expected(index)
                except IndexDropped:
                    continue
                reads[number] += 1
        except BaseException as error:  # noqa: BLE001 - reported by the test below
            problems.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # or each write and sync waits for two readers to have their turn
    try:
        for thread in threads:
            thread.start()
        for _ in range(400):
            drafts = [(0x0101, expected(log.last_index + at), 0) for at in range(1, 4)]
            log.append(drafts, term=1, timestamp_ns=0)
            settle(log)
            seal_closed(log)
            if log.last_index > 300:
                drop_before(log, log.last_index - 200)
    finally:
        done.set()
        for thread in threads:
            thread.join(10)
        sys.setswitchinterval(interval_s)
    assert not problems
    assert min(reads) > 0


def test_a_reader_of_segments_that_are_replaced_stops_at_what_was_committed_in_them() -> None:
    """An install replaces the segments, then moves the indexes: a reader may be in between."""

    class Installing(Log):
        """The indexes move right after a reader has taken the old segments."""

        def __getattribute__(self, name: str) -> object:
            found: object = super().__getattribute__(name)
            if name == "segments":
                self.commit_index = self.applied_index = self.last_index
            return found

    log = new_log()
    fill(log, 2)
    settle(log)
    committed, time_ns = log.last_index, log.last_timestamp_ns
    fill(log, 1)
    log.__class__ = Installing

    assert log.seek_time(time_ns + 1) is None

    log.commit_index = log.applied_index = committed
    assert [entry.index for entry in log.scan(1)][-1] == committed


def test_a_job_that_never_ran_makes_nothing_durable() -> None:
    log = new_log()
    append_one(log)
    with pytest.raises(AssertionError, match="did not run"):
        log.sync_finish(log.sync_begin())
    assert log.durable_index == 0


def test_what_recovery_would_refuse_is_not_written() -> None:
    """An unknown owner or flag would cost everything that is written behind it."""
    log = new_log()
    for draft in [(0x1001, b"x", 0), (0x0101, b"x", 4)]:
        with pytest.raises(AssertionError):
            log.append([draft], term=1, timestamp_ns=0)
    append_one(log)
    older = encode_group([(0x0101, b"x", 0)], term=1, first_index=2, timestamp_ns=0)
    log.last_timestamp_ns = 5
    with pytest.raises(AssertionError):
        log.append_group(older)
    assert log.last_index == 1


def test_a_segment_is_sealed_by_one_job_at_a_time() -> None:
    log = new_log()
    fill(log, 60)
    settle(log)
    job = log.seal_begin()
    assert job is not None
    assert log.seal_begin() is None
    job.run()
    log.seal_finish(job)
    assert log.seal_begin() is not None
