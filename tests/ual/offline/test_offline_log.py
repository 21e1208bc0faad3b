"""The offline reader on a damaged directory: all that is intact, and never less in silence."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from onelog.ual.entry import Entry
from onelog.ual.errors import CorruptFile, DataError, IndexInFuture, MissingSegment
from onelog.ual.manifest import load, save
from onelog.ual.offline.inspect import inspect_directory
from onelog.ual.offline.reader import NotCommitted, OfflineLog, ReadOnlyFiles, open_offline_log
from onelog.ual.offline.verify import Level
from onelog.ual.segments.sealed import ENTRIES_CHECKED_SINGLY_MAX, SealedSegment
from tests.faults.test_crash_sweep import Workload
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.directories import KEPT, Built, built_disk, check, fork
from tests.ual.shards import SMALL, append_one, make_shard, open_shard, seal_closed, settle

LONG = 3 * ENTRIES_CHECKED_SINGLY_MAX  # entries of the long segment: more than a block or two


@pytest.fixture(scope="module")
def healthy() -> tuple[SimDisk, Built]:
    return built_disk()


@pytest.fixture(scope="module")
def long_disk() -> tuple[SimDisk, Path]:
    """A sealed segment that is checked by the checksum of the file, and an active one."""
    disk = SimDisk()
    paths = make_shard(disk)
    config = replace(SMALL, segment_bytes_max=1 << 20, segment_entries_max=LONG)
    log, _ = open_shard(disk, paths, config)
    for number in range(LONG + 1):
        append_one(log, f"entry {number + 1}".encode())
        log.sync()
    settle(log)
    assert seal_closed(log) == 1
    log.close()
    return disk, paths.root.parent


def read_until_error(
    log: OfflineLog, first: int, last: int, limit: int | None = None
) -> tuple[list[Entry], Exception | None]:
    found: list[Entry] = []
    try:
        found.extend(entry for entry in log.entries(first, last, limit=limit))
    except (DataError, OSError) as error:
        return found, error
    return found, None


def only_loss(log: OfflineLog) -> tuple[int, int, DataError | OSError]:
    (loss,) = log.losses
    return loss.first_index, loss.last_index, loss.error


class RacingFiles(ReadOnlyFiles):
    """Lets a writer act right before segs/ is listed for the first time."""

    def __init__(self, disk: SimDisk, built: Built, act: Callable[[], None]) -> None:
        super().__init__(disk)
        self.directory = built.paths.segments
        self.act: Callable[[], None] | None = act

    def list(self, path: Path) -> list[str]:
        if path == self.directory and self.act is not None:
            act, self.act = self.act, None
            act()
        return super().list(path)


def first_of(path: Path) -> int:
    return int(path.name[:10])


# What was promised -------------------------------------------------------------------------------


def test_a_healthy_log_and_a_torn_tail_are_no_loss(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    assert open_offline_log(disk, built.data_dir, 0).losses == ()
    torn = fork(disk)
    torn.put(built.active, disk.contents(built.active) + b"half an entry")
    assert open_offline_log(torn, built.data_dir, 0).losses == ()


def test_a_lost_start_is_named_and_the_rest_can_be_read(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.compacted)
    log = open_offline_log(damaged, built.data_dir, 0)
    first, last, error = only_loss(log)
    assert (first, last) == (1, first_of(built.sealed) - 1)
    assert isinstance(error, MissingSegment)
    found, stopped_by = read_until_error(log, *log.resolve_range(None, None, past_commit=True))
    assert found == built.entries[last:]
    assert stopped_by is None, "the caller asks loss_within"
    assert log.loss_within(None, None) is not None
    assert log.loss_within(last + 1, None) is None
    asked_for = read_until_error(log, *log.resolve_range(1, 5, past_commit=True))
    assert asked_for == ([], error)


def test_a_lost_end_is_named_and_the_rest_can_be_read(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.active)
    log = open_offline_log(damaged, built.data_dir, 0)
    first, last, error = only_loss(log)
    assert (first, last) == (first_of(built.active), len(built.entries))
    found, stopped_by = read_until_error(log, *log.resolve_range(None, None, past_commit=True))
    assert (found, stopped_by) == ([e for e in built.kept_entries if e.index < first], error)


def test_a_committed_end_that_is_lost_is_not_taken_for_the_end(
    healthy: tuple[SimDisk, Built],
) -> None:
    """What is known to be committed must not shrink to what happens to be there."""
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.active)
    damaged.remove(built.closed)
    log = open_offline_log(damaged, built.data_dir, 0)
    assert log.resolve_range(None, None, past_commit=False) == (1, built.commit_index)
    _, error = read_until_error(log, 1, built.commit_index)
    assert isinstance(error, MissingSegment)
    assert (error.first_index, error.last_index) == (first_of(built.closed), len(built.entries))


def test_a_log_whose_files_are_all_lost_is_not_an_empty_one(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    for path in (built.compacted, built.sealed, built.closed, built.active):
        damaged.remove(path)
    log = open_offline_log(damaged, built.data_dir, 0)
    assert only_loss(log)[:2] == (1, len(built.entries))
    found, error = read_until_error(log, *log.resolve_range(None, None, past_commit=False))
    assert found == []
    assert isinstance(error, MissingSegment)


def test_a_hole_is_named_once_and_reading_behind_it_works(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.closed)
    log = open_offline_log(damaged, built.data_dir, 0)
    first, last, error = only_loss(log)
    assert (first, last) == (first_of(built.closed), first_of(built.active) - 1)
    assert read_until_error(log, first - 3, last + 2) == (
        built.entries[first - 4 : first - 1],
        error,
    )
    assert read_until_error(log, first + 2, last + 2) == ([], error)
    assert read_until_error(log, last + 1, last + 2) == (built.entries[last : last + 2], None)


@pytest.mark.parametrize("name", ["closed", "active"])
def test_damage_in_durable_unsealed_entries_is_a_loss_with_its_offset(
    healthy: tuple[SimDisk, Built], name: str
) -> None:
    disk, built = healthy
    path: Path = getattr(built, name)
    damaged = fork(disk)
    damaged.flip(path, 8 * (len(disk.contents(path)) - 1))
    log = open_offline_log(damaged, built.data_dir, 0)
    first, last, error = only_loss(log)
    expected_last = first_of(built.active) - 1 if name == "closed" else len(built.entries)
    assert last == expected_last
    assert isinstance(error, CorruptFile)
    assert error.path == str(path)
    assert error.offset is not None
    assert f"entries {first} to {last}" in error.rule
    start = first_of(built.sealed)
    assert read_until_error(log, start, last) == (built.entries[start - 1 : first - 1], error)


def test_a_file_that_cannot_be_opened_is_a_loss_even_where_nothing_was_promised(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.paths.manifest)
    damaged.remove(built.paths.hard_state)
    damaged.flip(built.active, 8 * 3)
    log = open_offline_log(damaged, built.data_dir, 0)
    assert log.durable_index == 0
    assert only_loss(log)[0] == first_of(built.active)


@pytest.mark.parametrize("is_of_another_shard", [True, False])
def test_a_file_of_another_place_is_not_read_as_part_of_the_log(
    healthy: tuple[SimDisk, Built], *, is_of_another_shard: bool
) -> None:
    disk, built = healthy
    moved = fork(disk)
    if is_of_another_shard:
        (moved_dir, shard) = (built.data_dir, 1)
        for path in (built.compacted, built.active):
            target = built.data_dir / "00001" / "segs" / path.name
            moved.put(target, disk.contents(path))
        log = OfflineLog(moved, moved_dir, shard)
        assert ["belongs to shard 0" in str(file.error) for file in log.files] == [True, True]
        return
    wrong = built.active.with_name("0000000120.flseg.tmp")
    moved.rename(built.active, wrong)
    log = open_offline_log(moved, built.data_dir, 0)
    assert f"first index {first_of(built.active)}" in str(log.files[-1].error)


def test_after_a_crash_nothing_is_lost_that_opening_would_find() -> None:
    """What a crash leaves is no loss, whatever it is; the reader and recovery agree."""
    seed = 11
    crashes = Random(seed)
    disk = SimDisk(page_size=256, tear_writes=True)
    workload = Workload(disk, seed)
    tails = 0

    def crash_here(operation: str) -> None:
        nonlocal tails
        crash_seed = crashes.getrandbits(32)
        if crash_seed % 3:
            return
        policy = crashes.choice(list(CrashPolicy))
        crashed = disk.crash(policy, Random(crash_seed))
        log = OfflineLog(crashed, workload.paths.root.parent, 0)
        where = (seed, operation, policy, crash_seed)
        assert log.losses == (), where
        report = inspect_directory(crashed, workload.paths.root.parent)
        assert not report.has_problems, (where, report)
        tails += any(file.tail_bytes for file in log.files)
        found, _ = read_until_error(log, *log.resolve_range(None, None, past_commit=True))
        opened, _ = open_shard(crashed, workload.paths)
        assert [entry.index for entry in found][-1:] in ([], [opened.last_index]), where

    disk.after_operation = crash_here
    for _ in range(100):
        workload.step()
    assert tails > 5


def test_the_reader_sees_a_loss_exactly_where_verify_sees_an_error_between_files(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    segments = (built.compacted, built.sealed, built.closed, built.active)
    for removed in range(1, 16):
        damaged = fork(disk)
        for number, path in enumerate(segments):
            if removed >> number & 1:
                damaged.remove(path)
        findings = [item for item in check(damaged, built) if item.level is Level.ERROR]
        losses = open_offline_log(damaged, built.data_dir, 0).losses
        named = [f"no file holds entries {at.first_index} to {at.last_index}" for at in losses]
        assert [item.message for item in findings] == named, removed


# Files that come and go --------------------------------------------------------------------------


def test_a_cut_while_the_files_are_listed_is_no_loss(healthy: tuple[SimDisk, Built]) -> None:
    """MANIFEST is read first; a cut lowers what it promises, then shortens the files."""
    disk, built = healthy
    live = fork(disk)

    def cut() -> None:
        opened, _ = open_shard(live, built.paths)
        opened.truncate_from(first_of(built.active))

    log = OfflineLog(RacingFiles(live, built, cut), built.data_dir, 0)
    assert log.losses == ()
    assert log.last_index == first_of(built.active) - 1


# Damaged entries of sealed files -----------------------------------------------------------------


def offset_of(disk: SimDisk, path: Path, index: int) -> int:
    starts, _ = SealedSegment.open(disk, path).locate(np.array([index], np.uint64))
    return int(starts[0])


@pytest.mark.parametrize("index", [1, 100, 256, 257, 600, LONG])
@pytest.mark.parametrize("limit", [None, 10**6])
def test_everything_before_a_damaged_entry_is_read_and_the_entry_is_named(
    long_disk: tuple[SimDisk, Path], index: int, limit: int | None
) -> None:
    disk, data_dir = long_disk
    damaged = fork(disk)
    path = data_dir / "00000" / "segs" / "0000000001.flseg"
    offset = offset_of(disk, path, index)
    damaged.flip(path, 8 * (offset + 42))  # in the payload
    log = open_offline_log(damaged, data_dir, 0)
    for first in {1, max(index - 300, 1), max(index - 10, 1), index}:
        found, error = read_until_error(log, first, LONG + 1, limit)
        assert [entry.index for entry in found] == list(range(first, index))
        assert isinstance(error, CorruptFile)
        assert (error.path, error.offset) == (str(path), offset)
        assert f"entry {index} is damaged" in error.rule
    if index < LONG:
        behind, error = read_until_error(log, index + 1, LONG + 1, limit)
        assert ([entry.index for entry in behind], error) == ([*range(index + 1, LONG + 2)], None)


def test_a_limit_is_part_of_what_is_read(long_disk: tuple[SimDisk, Path]) -> None:
    disk, data_dir = long_disk
    damaged = fork(disk)
    path = data_dir / "00000" / "segs" / "0000000001.flseg"
    damaged.flip(path, 8 * (offset_of(disk, path, 21) + 42))
    log = open_offline_log(damaged, data_dir, 0)
    found, error = read_until_error(log, 1, LONG, 20)
    assert (len(found), error) == (20, None)
    found, error = read_until_error(log, 1, LONG, 21)
    assert (len(found), type(error)) == (20, CorruptFile)
    typed = list(log.entries(1, LONG, types={0x0101}, limit=5))
    assert [entry.index for entry in typed] == [1, 2, 3, 4, 5]


def test_what_compaction_left_is_read_up_to_the_damage_with_any_filter(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.flip(built.compacted, 8 * (offset_of(disk, built.compacted, KEPT[2]) + 30))
    log = open_offline_log(damaged, built.data_dir, 0)
    for limit in (None, 50):
        found, error = read_until_error(log, 1, 38, limit)
        assert [entry.index for entry in found] == list(KEPT[:2])
        assert f"entry {KEPT[2]} is damaged" in str(error)
    damaged = fork(disk)
    first = first_of(built.sealed)
    bad = next(e.index for e in built.entries[first + 9 :] if e.entry_type == 0x0401)
    damaged.flip(built.sealed, 8 * (offset_of(disk, built.sealed, bad) + 30))
    log, whole = (open_offline_log(at, built.data_dir, 0) for at in (damaged, disk))
    for filters in ({"types": {0x0401}}, {"stream_id": 7}, {"skip_voids": True}):
        expected = list(whole.entries(first, bad - 1, **filters))
        found = []
        with suppress(CorruptFile):  # or it is no record of that stream
            found.extend(log.entries(first, bad, **filters))
        assert found == expected


# Ranges ------------------------------------------------------------------------------------------


def test_what_is_there_and_not_committed_is_told_from_what_is_not_there(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    log = open_offline_log(disk, built.data_dir, 0)
    committed, end = built.commit_index, len(built.entries)
    expected = f"entries {committed + 1} to {end} are in the log, .*--all"
    with pytest.raises(NotCommitted, match=expected) as caught:
        log.resolve_range(committed + 2, None, past_commit=False)
    assert caught.value.reason == IndexInFuture.reason
    with pytest.raises(IndexInFuture, match=f"index {end + 1} is outside"):
        log.resolve_range(end + 1, None, past_commit=False)


def test_without_system_the_shards_that_are_there_can_be_read(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.data_dir / "SYSTEM")
    log = open_offline_log(damaged, built.data_dir, 0)
    assert list(log.entries(1, len(built.entries))) == built.kept_entries
    (finding,) = check(damaged, built)
    assert finding.advice in str(log.system_error)
    (problem,) = inspect_directory(damaged, built.data_dir).problems
    assert finding.advice in problem


def test_a_recorded_drop_makes_a_missing_start_no_loss(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    dropped = fork(disk)
    manifest = load(dropped, built.paths.manifest)
    assert manifest is not None
    first = first_of(built.sealed)
    segment = SealedSegment.open(dropped, built.sealed)
    checkpoint = replace(
        manifest.checkpoint, first_index=first, first_proposal=segment.first_proposal
    )
    save(dropped, built.paths.manifest, replace(manifest, checkpoint=checkpoint))
    dropped.remove(built.compacted)
    log = open_offline_log(dropped, built.data_dir, 0)
    assert (log.losses, log.first_index) == ((), first)
