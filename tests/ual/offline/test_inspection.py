"""Inspection and offline reading: what is there, also while somebody writes, also when damaged."""

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onelog.ual.entry import Entry
from onelog.ual.errors import (
    CorruptFile,
    DirectoryError,
    IndexDropped,
    IndexInFuture,
    MissingSegment,
    NotADataDirectory,
)
from onelog.ual.manifest import load, save
from onelog.ual.offline.inspect import FileReport, ShardReport, inspect_directory
from onelog.ual.offline.reader import OfflineLog, ReadOnlyFiles, open_offline_log
from onelog.ual.segments.format import tomb_name, unsealed_name
from onelog.ual.segments.sealing import compact_segment
from tests.simulation.disk import SimDisk
from tests.ual.directories import KEPT, STREAM_IDS, Built, built_disk, fork, is_void, stream_of
from tests.ual.shards import make_shard, new_log


@pytest.fixture(scope="module")
def healthy() -> tuple[SimDisk, Built]:
    return built_disk()


def inspect_shard(disk: SimDisk, built: Built, *, count_types: bool = False) -> ShardReport:
    (shard,) = inspect_directory(disk, built.data_dir, count_types=count_types).shards
    return shard


def by_type(entries: list[Entry]) -> dict[str, int]:
    return dict(Counter(f"0x{entry.entry_type:04x}" for entry in entries))


def entries_in(built: Built, report: FileReport) -> list[Entry]:
    assert report.last_index is not None
    return built.entries[report.first_index - 1 : report.last_index]


def read_all(log: OfflineLog, **filters: object) -> list[Entry]:
    first, last = log.resolve_range(None, None, past_commit=True)
    return list(log.entries(first, last, **filters))  # type: ignore[arg-type]


# Reports -----------------------------------------------------------------------------------------


def test_a_report_says_what_was_written(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    report = inspect_directory(disk, built.data_dir)
    assert (report.node_name, report.shard_count, report.partition_count) == ("test", 1, 8)
    assert report.problems == ()
    (shard,) = report.shards
    assert (shard.first_index, shard.last_index) == (1, len(built.entries))
    assert shard.commit_index == built.commit_index
    assert shard.durable_index == len(built.entries)
    assert shard.entry_count == len(built.kept_entries)
    assert (shard.foreign, shard.problems, shard.generation) == ((), (), 0)
    segments = (built.compacted, built.sealed, built.closed, built.active)
    assert [file.name for file in shard.files] == [path.name for path in segments]
    assert shard.size_bytes == sum(len(disk.contents(path)) for path in segments)


def test_a_file_report_agrees_with_the_entries(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    for report in inspect_shard(disk, built, count_types=True).files[1:]:
        entries = entries_in(built, report)
        assert report.entry_count == len(entries)
        assert report.entries_by_type == by_type(entries)
        assert report.entries_by_owner is not None
        assert sum(report.entries_by_owner.values()) == len(entries)
        assert report.first_timestamp_ns == entries[0].timestamp_ns
        assert report.last_timestamp_ns == entries[-1].timestamp_ns
        assert report.proposal_count == sum(entry.group_left == 0 for entry in entries)
        assert report.problem is None


def test_a_sealed_file_tells_streams_and_voids(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    compacted, sealed, closed, _ = inspect_shard(disk, built).files
    indexes = range(sealed.first_index, (sealed.last_index or 0) + 1)
    assert sealed.void_index_count == sum(map(is_void, indexes))
    assert sealed.stream_count == len(STREAM_IDS)
    assert (sealed.is_compacted, sealed.entries_by_type) == (False, None)
    assert (compacted.is_compacted, compacted.entry_count) == (True, len(KEPT))
    assert compacted.proposal_count is None
    assert (closed.kind, closed.stream_count, closed.tail_bytes) == ("unsealed", None, 0)


def test_damage_is_reported_beside_what_can_be_read(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.flip(built.sealed, 8 * 3)
    damaged.flip(built.paths.manifest, 100)
    damaged.flip(built.data_dir / "NODE", 100)
    damaged.put(built.active, disk.contents(built.active) + b"tail")
    damaged.put(built.paths.segments / "notes.txt", b"?")
    damaged.put(built.paths.segments / tomb_name(999), b"")
    damaged.fail("read", errno.EIO, path_contains=built.closed.name, times=float("inf"))
    report = inspect_directory(damaged, built.data_dir)
    assert (report.node_id, report.shard_count, report.has_problems) == (None, 1, True)
    assert report.problems[0].startswith("CORRUPT_FILE: ")
    (shard,) = report.shards
    assert shard.problems[0].startswith("CORRUPT_FILE: ")
    assert shard.foreign == ("notes.txt",)
    problems = {file.name: file.problem for file in shard.files if file.problem}
    assert set(problems) == {built.sealed.name, built.closed.name}
    assert "wrong magic" in (problems[built.sealed.name] or "")
    assert (problems[built.closed.name] or "").startswith("EIO: ")
    tails = {file.name: file.tail_bytes for file in shard.files if file.tail_bytes}
    assert tails == {built.active.name: 4}
    assert [file.kind for file in shard.files if file.is_dropped] == ["tombstone"]


def test_what_is_missing_is_a_problem_and_counts_stay_right(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.paths.hard_state)
    damaged.remove(built.closed)
    (shard,) = inspect_directory(damaged, built.data_dir).shards
    assert shard.voted_term is None
    raft, hole = shard.problems
    assert raft.startswith(f"CORRUPT_FILE: {built.paths.hard_state}: missing")
    assert hole.startswith("MISSING_SEGMENT: ")
    assert "entries 77 to 113" in hole
    assert shard.files[1].name == built.sealed.name
    assert shard.files[1].proposal_count is None, "the next file starts behind the hole"

    damaged = fork(disk)
    damaged.remove(built.compacted)
    damaged.remove(built.paths.manifest)
    (shard,) = inspect_directory(damaged, built.data_dir).shards
    assert shard.problems == (f"CORRUPT_FILE: {built.paths.manifest}: missing beside segments",)

    damaged = fork(disk)
    damaged.flip(built.active, 8 * 70)
    (shard,) = inspect_directory(damaged, built.data_dir).shards
    assert shard.problems == ()
    assert "entries 114 to 117 were durable" in (shard.files[-1].problem or "")


def test_an_empty_log_and_an_unused_shard_are_reported() -> None:
    disk = SimDisk()
    data_dir = make_shard(disk).root.parent
    (unused,) = inspect_directory(disk, data_dir).shards
    assert (unused.first_index, unused.last_index, unused.files) == (1, 0, ())
    assert (unused.voted_term, unused.problems) == (0, ())
    used = SimDisk()
    new_log(used)
    (empty,) = inspect_directory(used, data_dir).shards
    assert (empty.first_index, empty.last_index, len(empty.files)) == (1, 0, 1)
    assert (empty.voted_term, empty.problems) == (0, ())


def test_what_is_not_a_data_directory_or_shard_is_refused(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    with pytest.raises(NotADataDirectory, match="does not exist"):
        inspect_directory(disk, Path("/nowhere"))
    with pytest.raises(DirectoryError, match="shards 0 to 0"):
        inspect_directory(disk, built.data_dir, shard=1)
    with pytest.raises(DirectoryError, match="shards 0 to 0"):
        open_offline_log(disk, built.data_dir, 1)
    disk.put(Path("/foreign/readme"), b"")
    with pytest.raises(NotADataDirectory, match="no SYSTEM file"):
        open_offline_log(disk, Path("/foreign"), 0)


def test_inspection_changes_nothing(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    operations = disk.operations
    inspect_directory(disk, built.data_dir, count_types=True)
    assert disk.operations == operations
    reader = ReadOnlyFiles(disk)
    for change in (
        lambda: reader.open(built.sealed),
        lambda: reader.remove(built.sealed),
        lambda: reader.rename(built.sealed, built.active),
        lambda: reader.make_directory(built.data_dir / "new"),
        lambda: reader.sync_directory(built.data_dir),
        lambda: reader.lock(built.data_dir / "LOCK"),
    ):
        with pytest.raises(OSError, match="Read-only"):
            change()


# Reading -----------------------------------------------------------------------------------------


def test_every_entry_that_is_kept_can_be_read(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    log = open_offline_log(disk, built.data_dir, 0)
    assert read_all(log) == built.kept_entries
    assert log.resolve_range(None, None, past_commit=False) == (1, built.commit_index)


def test_any_range_and_filter_gives_what_a_list_would(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    log = open_offline_log(disk, built.data_dir, 0)
    sealed = log.sealed_index
    for first, last in ((1, 1), (3, 60), (sealed, sealed + 1), (sealed + 5, len(built.entries))):
        inside = [entry for entry in built.kept_entries if first <= entry.index <= last]
        assert list(log.entries(first, last)) == inside
        kinds = {0x0201, 0x0401}
        wanted = [entry for entry in inside if entry.entry_type in kinds]
        assert list(log.entries(first, last, types=kinds)) == wanted
        shown = [entry for entry in inside if entry.index > sealed or not is_void(entry.index)]
        assert list(log.entries(first, last, skip_voids=True)) == shown
        for stream_id in STREAM_IDS:
            records = [
                entry
                for entry in inside
                if stream_of(entry) == stream_id
                and not is_void(entry.index)
                and entry.index <= sealed
            ]
            assert list(log.entries(first, last, stream_id=stream_id)) == records


def test_a_range_outside_the_log_is_refused_by_name(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    log = open_offline_log(disk, built.data_dir, 0)
    end = built.commit_index
    with pytest.raises(IndexInFuture):
        log.resolve_range(end + 1, None, past_commit=False)
    assert log.resolve_range(end + 1, None, past_commit=True)[0] == end + 1
    assert log.resolve_range(5, end + 9, past_commit=False) == (5, end)
    damaged = fork(disk)
    damaged.remove(built.compacted)
    damaged.remove(built.paths.manifest)  # which says that the log should start at 1
    with pytest.raises(IndexDropped):
        open_offline_log(damaged, built.data_dir, 0).resolve_range(1, None, past_commit=False)


def test_reading_stops_at_damage_and_never_passes_over_a_hole(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    first = int(built.sealed.name[:10])
    expected = [entry for entry in built.kept_entries if entry.index < first]
    for flipped_byte, error in ((3, CorruptFile), (100, CorruptFile), (None, MissingSegment)):
        damaged = fork(disk)
        if flipped_byte is None:
            damaged.remove(built.sealed)
        else:
            damaged.flip(built.sealed, 8 * flipped_byte)
        log = open_offline_log(damaged, built.data_dir, 0)
        found: list[Entry] = []
        with pytest.raises(error):
            found.extend(log.entries(1, len(built.entries)))
        assert found == expected


def test_a_log_with_damaged_identity_files_can_still_be_read(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    for path in (built.data_dir / "SYSTEM", built.data_dir / "NODE", built.paths.manifest):
        damaged.flip(path, 100)
    assert read_all(open_offline_log(damaged, built.data_dir, 0)) == built.kept_entries


# While somebody writes ---------------------------------------------------------------------------


class RacingFiles(ReadOnlyFiles):
    """Lets a writer act right after segs/ was listed for the first time."""

    def __init__(self, disk: SimDisk, built: Built, act: Callable[[], None]) -> None:
        super().__init__(disk)
        self.directory = built.paths.segments
        self.act: Callable[[], None] | None = act

    def list(self, path: Path) -> list[str]:
        names = super().list(path)
        if path == self.directory and self.act is not None:
            act, self.act = self.act, None
            act()
        return names


def test_a_file_that_is_sealed_between_listing_and_opening_is_found_again(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    live = fork(disk)
    early = built.paths.segments / unsealed_name(int(built.sealed.name[:10]))
    live.rename(built.sealed, early)
    racing = RacingFiles(live, built, lambda: live.rename(early, built.sealed))
    (shard,) = inspect_directory(racing, built.data_dir).shards
    assert [file.problem for file in shard.files] == [None] * 4
    assert shard.files[1].kind == "sealed"


def test_a_file_that_is_replaced_while_entries_are_read_is_opened_again(
    healthy: tuple[SimDisk, Built],
) -> None:
    """Compaction renames a smaller file over the one that the reader knows."""
    disk, built = healthy
    live = fork(disk)
    log = open_offline_log(live, built.data_dir, 0)
    entries = log.entries(1, len(built.entries))
    found = [next(entries)]
    first, behind = int(built.sealed.name[:10]), int(built.closed.name[:10])
    compact_segment(live, built.sealed, np.array([first + 1, first + 4], np.uint64))
    found += entries
    assert found == [
        entry
        for entry in built.kept_entries
        if not first <= entry.index < behind or entry.index in (first + 1, first + 4)
    ]


def test_a_file_that_is_dropped_while_entries_are_read_ends_the_scan_by_name(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    live = fork(disk)
    log = open_offline_log(live, built.data_dir, 0)
    entries = log.entries(1, len(built.entries))
    next(entries)
    manifest = load(live, built.paths.manifest)
    assert manifest is not None
    third = log.parts[2].segment
    assert third is not None
    checkpoint = replace(
        manifest.checkpoint, first_index=third.first_index, first_proposal=third.first_proposal
    )
    save(live, built.paths.manifest, replace(manifest, checkpoint=checkpoint))
    live.remove(built.compacted)
    live.remove(built.sealed)
    with pytest.raises(IndexDropped):
        list(entries)
