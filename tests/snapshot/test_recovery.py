"""Restart: from snapshot and log to the state, whatever happened to the snapshots."""

import errno
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from crc32c import crc32c

from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.errors import NoSnapshot, SnapshotAhead, StateMismatch
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.progress import Phase
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.state import hash_text, write_state
from onelog.ual.errors import UnknownVersion
from onelog.ual.manifest import load as load_manifest
from onelog.ual.manifest import save as save_manifest
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import compact_segment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.snapshot.live import LiveShard, Work, put
from tests.snapshot.toys import Toy, toy_drafts
from tests.ual.shards import close_active, drop_before, seal_closed


def worked(disk: SimDisk, seed: int, snapshots: int = 2) -> LiveShard[Projections]:
    """Return a shard of the real router with random work done and snapshots made on the way."""
    live = LiveShard(disk, build_projections)
    work = Work(seed)
    for _ in range(snapshots):
        for _ in range(12):
            live.do(work.group(live.log.last_index + 1))
        live.snapshot()
    for _ in range(6):
        live.do(work.group(live.log.last_index + 1))
    seal_closed(live.log)
    live.log.checkpoint()  # or a restart would not know that the last group was committed
    return live


def reopened(live: LiveShard[Projections]) -> LiveShard[Projections]:
    assert isinstance(live.files, SimDisk)
    return LiveShard(live.files.crash(CrashPolicy.LOST), build_projections)


@pytest.mark.parametrize("seed", range(8))
def test_a_restart_gives_the_state_that_was_lost(seed: int) -> None:
    live = worked(SimDisk(), seed)
    again = reopened(live)
    again.state.router.check()
    again.log.check()
    assert again.state_hash == live.state_hash
    assert again.log.applied_index == live.log.applied_index
    assert again.recovered.snapshot is not None
    newest = live.store.newest
    assert newest is not None
    assert again.recovered.snapshot.record == newest
    assert again.recovered.replayed.entry_count == live.log.applied_index - newest.index


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty", "read"])
def test_a_damaged_snapshot_is_reported_and_the_older_one_used(damage: str) -> None:
    live = worked(SimDisk(), 3)
    older, newest = live.store.records
    disk, path = live.files, live.store.path(newest)
    assert isinstance(disk, SimDisk)
    data = disk.contents(path)
    if damage == "flip":
        disk.flip(path, Random(3).randrange(8 * len(data)))
    elif damage == "remove":
        disk.remove(path)
        disk.sync_directory(path.parent)
    elif damage == "read":
        disk = disk.crash(CrashPolicy.LOST)
        disk.fail("read", errno.EIO, path_contains=newest.file)
    else:
        disk.put(path, data[: len(data) // 2] if damage == "cut" else b"")

    again = LiveShard(disk, build_projections)

    assert again.state_hash == live.state_hash
    assert again.recovered.snapshot is not None
    assert again.recovered.snapshot.record == older
    assert [at.record for at in again.recovered.rejected] == [newest]
    assert newest.file in again.recovered.rejected[0].why
    assert again.store.records == (older,), "a damaged one must not count as one of the two"
    assert disk.list(path.parent) == [older.file]


def test_every_cut_and_every_flipped_bit_falls_back_to_the_older() -> None:
    """Over a whole file of the real router, not only for the format."""
    live = LiveShard(SimDisk(), build_projections)
    live.do([put(b"a", b"1")])
    live.snapshot()
    live.do([put(b"b", b"2")])
    live.snapshot()
    older, newest = live.store.records
    disk, path = live.files, live.store.path(newest)
    assert isinstance(disk, SimDisk)
    data = disk.contents(path)
    damaged = [data[:size] for size in range(len(data))]
    for bit in range(0, 8 * len(data), 3):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        damaged.append(bytes(flipped))
    for content in damaged:
        crashed = disk.crash(CrashPolicy.LOST)
        crashed.put(path, content)
        again = LiveShard(crashed, build_projections)
        assert again.state_hash == live.state_hash
        assert again.recovered.snapshot is not None
        assert again.recovered.snapshot.record == older


def test_with_both_damaged_the_whole_log_is_replayed() -> None:
    live = worked(SimDisk(), 4)
    assert isinstance(live.files, SimDisk)
    for record in live.store.records:
        live.files.flip(live.store.path(record), 800)
    again = reopened(live)
    assert again.state_hash == live.state_hash
    assert again.recovered.snapshot is None
    assert len(again.recovered.rejected) == 2
    assert again.store.records == ()


def shortened(snapshots: int = 3) -> LiveShard[Toy]:
    """Return a shard whose log begins behind index 1."""
    live = LiveShard(SimDisk(), Toy)
    for number in range(snapshots):
        live.do(toy_drafts(30, 100 * number))
        close_active(live.log)
        seal_closed(live.log)
        live.snapshot()
    drop_before(live.log, live.store.keep_from_index)
    assert live.log.first_index > 1
    return live


def test_with_both_damaged_and_the_log_shortened_there_is_nothing_to_start_from() -> None:
    live = shortened()
    disk = live.files
    assert isinstance(disk, SimDisk)
    older, newest = live.store.records
    disk.flip(live.store.path(newest), 999)
    again = LiveShard(disk.crash(CrashPolicy.LOST), Toy)
    assert again.state.payloads == live.state.payloads
    disk.flip(live.store.path(older), 999)
    with pytest.raises(NoSnapshot, match=newest.file):
        LiveShard(disk, Toy)
    assert disk.list(live.paths.snapshots) == [older.file, newest.file], "nothing was removed"


def test_with_both_damaged_and_the_log_compacted_there_is_nothing_to_start_from() -> None:
    live = LiveShard(SimDisk(), Toy)
    for number in range(3):
        live.do(toy_drafts(9, 10 * number))
        close_active(live.log)
        seal_closed(live.log)
        live.snapshot()
    first = live.log.segments.segments[0]
    compact_segment(live.files, first.path, np.array([3, 5], np.uint64))
    assert isinstance(live.files, SimDisk)
    for record in live.store.records:
        live.files.flip(live.store.path(record), 999)
    with pytest.raises(NoSnapshot, match="does not hold the entries 1 to 2"):
        LiveShard(live.files, Toy)


def test_a_snapshot_whose_state_is_not_the_recorded_one_is_not_used() -> None:
    """All its checksums hold; the hash in MANIFEST tells."""
    live = LiveShard(SimDisk(), Toy)
    for number in range(2):
        live.do(toy_drafts(4, 10 * number))
        live.snapshot()
    newest = live.store.records[-1]
    header = SnapshotReader.open(live.files, live.store.path(newest)).header
    live.state.lies = True
    notes = CoveredNotes(1, live.log.notes.select(1, newest.index))
    written = write_state(
        live.files, live.paths.snapshots, header, 1_700_000_002, live.state, notes, free_bytes_min=0
    )
    assert written.path == live.store.path(newest)

    again = LiveShard(live.files, Toy)

    assert again.state.payloads == live.state.payloads
    assert "after loading, MANIFEST says" in again.recovered.rejected[0].why


def test_a_recorded_hash_that_the_log_does_not_lead_to_is_an_alarm() -> None:
    """The fall-back replays past the index and meets the same record: no way is left."""
    live = worked(SimDisk(), 5)
    manifest = load_manifest(live.files, live.paths.manifest)
    assert manifest is not None
    older, newest = manifest.snapshots
    wrong = replace(newest, state_hash="12" * 8)
    save_manifest(live.files, live.paths.manifest, replace(manifest, snapshots=(older, wrong)))
    with pytest.raises(StateMismatch, match=f"at index {newest.index}, MANIFEST says 1212"):
        reopened(live)


def test_a_newer_snapshot_format_is_not_treated_as_damage() -> None:
    live = worked(SimDisk(), 7)
    newest = live.store.newest
    assert newest is not None
    path = live.store.path(newest)
    assert isinstance(live.files, SimDisk)
    data = bytearray(live.files.contents(path))
    data[8] = 2
    data[56:60] = crc32c(data[:56]).to_bytes(4, "little")
    live.files.put(path, bytes(data))
    with pytest.raises(UnknownVersion):
        LiveShard(live.files, build_projections)


def test_a_missing_permission_is_not_treated_as_damage() -> None:
    live = worked(SimDisk(), 7)
    disk = live.files
    assert isinstance(disk, SimDisk)
    newest = live.store.newest
    assert newest is not None
    disk.fail("open", errno.EACCES, path_contains=newest.file)
    with pytest.raises(PermissionError):
        LiveShard(disk, build_projections)


def test_only_committed_entries_are_replayed() -> None:
    live = LiveShard(SimDisk(), Toy)
    live.do(toy_drafts(4, 0))
    live.snapshot()
    live.do(toy_drafts(3, 10))
    committed = list(live.state.payloads)
    live.write(toy_drafts(5, 20))
    live.log.sync()
    assert isinstance(live.files, SimDisk)
    again = LiveShard(live.files.crash(CrashPolicy.LOST), Toy)
    assert again.log.last_index == 12
    # A lost hint costs knowledge of what was committed, never entries.
    assert again.log.applied_index == again.log.commit_index <= 7
    assert again.state.payloads == committed[: len(again.state.payloads)]
    kept = LiveShard(live.files.crash(CrashPolicy.KEPT), Toy)
    assert (kept.log.commit_index, kept.state.payloads) == (7, committed)


def test_entries_up_to_a_snapshot_count_as_committed_without_any_hint() -> None:
    """They were applied when it was made. With the newest damaged, its record still says so."""
    live = LiveShard(SimDisk(), Toy)
    live.do(toy_drafts(4, 0))
    live.snapshot()
    live.do(toy_drafts(4, 10))
    live.snapshot()
    disk = live.files
    assert isinstance(disk, SimDisk)
    manifest = load_manifest(disk, live.paths.manifest)
    assert manifest is not None
    checkpoint = replace(manifest.checkpoint, commit_index=0)
    save_manifest(disk, live.paths.manifest, replace(manifest, checkpoint=checkpoint))
    disk.put(live.paths.hard_state, disk.contents(live.paths.hard_state)[:8192] + bytes(4096))
    for is_damaged in (False, True):
        crashed = disk.crash(CrashPolicy.LOST)
        if is_damaged:
            crashed.flip(live.store.path(live.store.records[1]), 700)
        again = LiveShard(crashed, Toy)
        assert again.log.commit_index == 8
        assert again.state.payloads == live.state.payloads


def test_a_log_that_ends_below_its_snapshot_is_refused() -> None:
    live = LiveShard(SimDisk(), Toy)
    live.do(toy_drafts(4, 0))
    live.snapshot()
    manifest = load_manifest(live.files, live.paths.manifest)
    assert manifest is not None
    record = replace(manifest.snapshots[0], index=9)
    save_manifest(live.files, live.paths.manifest, replace(manifest, snapshots=(record,)))
    with pytest.raises(SnapshotAhead, match="index 9, but the log ends at 4"):
        LiveShard(live.files, Toy)


def _sealed_notes(live: LiveShard[Toy]) -> list[tuple[int, dict[int, list[int]], list[list[int]]]]:
    """Seal everything and return what the files say about streams and voids."""
    close_active(live.log)
    seal_closed(live.log)
    found = []
    for segment in live.log.segments.segments:
        if isinstance(segment, SealedSegment):
            notes = segment.notes()
            streams = {key: value.tolist() for key, value in notes.streams.items()}
            found.append((segment.first_index, streams, notes.voids.tolist()))
    return found


@pytest.mark.parametrize("snapshot_at", range(0, 16, 3))
@pytest.mark.parametrize("damaged", [False, True])
def test_notes_survive_a_restart_from_a_snapshot_inside_an_unsealed_file(
    snapshot_at: int, *, damaged: bool
) -> None:
    """Sealing after the restart gives the streams and voids that it would have given without."""
    undisturbed, restarted = LiveShard(SimDisk(), Toy), LiveShard(SimDisk(), Toy)
    for number in range(18):
        for live in (undisturbed, restarted):
            live.do(toy_drafts(4, 4 * number))
            if number in (snapshot_at // 2, snapshot_at):
                live.snapshot()
            if number == 9:
                seal_closed(live.log)
            live.log.checkpoint()
    disk = restarted.files
    assert isinstance(disk, SimDisk)
    disk = disk.crash(CrashPolicy.KEPT)
    if damaged and len(restarted.store.records) > 1:
        disk.flip(restarted.store.path(restarted.store.records[-1]), 999)

    again = LiveShard(disk, Toy)

    assert again.state.payloads == undisturbed.state.payloads
    assert _sealed_notes(again) == _sealed_notes(undisturbed)
    scans = [
        [entry.index for entry in live.log.scan(1, stream_id=7, skip_voids=True)]
        for live in (again, undisturbed)
    ]
    assert scans[0] == scans[1] != []


def test_a_snapshot_that_lacks_notes_about_unsealed_entries_is_not_used() -> None:
    """As if sealed segments had come unsealed again: the older one has the notes."""
    live = LiveShard(SimDisk(), Toy)
    for number in range(2):
        live.do(toy_drafts(8, 8 * number))
        live.snapshot()
    older, newest = live.store.records
    header = SnapshotReader.open(live.files, live.store.path(newest)).header
    lacking = CoveredNotes(10, live.log.notes.select(10, newest.index))
    write_state(live.files, live.paths.snapshots, header, 1_700_000_002, live.state, lacking)
    manifest = load_manifest(live.files, live.paths.manifest)
    assert manifest is not None
    size = len(live.files.open_read(live.store.path(newest)).read(1 << 20, 0))
    records = (older, replace(newest, size=size))
    save_manifest(live.files, live.paths.manifest, replace(manifest, snapshots=records))

    assert isinstance(live.files, SimDisk)
    again = LiveShard(live.files.crash(CrashPolicy.KEPT), Toy)

    assert "notes from index 10, needed from 1" in again.recovered.rejected[0].why
    assert again.state.payloads == live.state.payloads
    assert _sealed_notes(again) == _sealed_notes(live)


def test_notes_about_sealed_entries_are_not_kept_in_memory() -> None:
    live = shortened(2)
    live.do(toy_drafts(9, 900))
    live.log.checkpoint()
    disk = live.files
    assert isinstance(disk, SimDisk)
    disk.flip(live.store.path(live.store.records[-1]), 999)
    again = LiveShard(disk, Toy)
    sealed = again.log.segments.sealed_index
    assert again.recovered.replayed.entry_count > 30, "it went through sealed segments"
    kept = again.log.notes.select(1, sealed)
    assert (kept.streams, len(kept.voids)) == ({}, 0)
    assert len(again.log.notes.select(sealed + 1, again.log.last_index).streams) == 3


def test_progress_tells_what_a_restart_is_doing() -> None:
    live = worked(SimDisk(), 9)
    steps: list[tuple[Phase, int, int]] = []
    LiveShard(live.files, build_projections, progress=lambda *step: steps.append(step))
    phases = list(dict.fromkeys(phase for phase, _, _ in steps))
    assert phases == [Phase.VERIFY, Phase.LOAD, Phase.REPLAY]
    for phase in phases:
        *_, (_, done, total) = [step for step in steps if step[0] is phase]
        assert done <= total
        if phase is not Phase.LOAD:
            assert done == total


def test_a_restart_changes_nothing_on_disk_before_the_state_is_complete() -> None:
    live = worked(SimDisk(), 10)
    disk = live.files
    assert isinstance(disk, SimDisk)
    disk.flip(live.store.path(live.store.records[-1]), 999)

    def stop(phase: Phase, done: int, total: int) -> None:
        if phase is Phase.REPLAY and done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LiveShard(disk, build_projections, progress=stop)
    assert len(disk.list(live.paths.snapshots)) == 2
    assert hash_text(LiveShard(disk, build_projections).state.router) == live.state_hash
