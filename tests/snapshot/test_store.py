"""Which snapshots are kept, and what happens to the others."""

import errno
from itertools import pairwise
from random import Random

import pytest

from onelog.projections.shard_state import build_projections
from onelog.snapshot.errors import NoSnapshot, NotDurable, StateMismatch
from onelog.snapshot.store import (
    KEPT_MAX,
    KEPT_MIN,
    PAST_PARTS,
    PAST_S_MAX,
    RESERVE_BYTES,
    KeepConfig,
    choose_kept,
)
from onelog.ual.errors import DiskFull
from onelog.ual.manifest import load as load_manifest
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.snapshot.live import SECOND, LiveShard, accept, put
from tests.snapshot.toys import Toy, toy_drafts
from tests.ual.shards import close_active, drop_before, seal_closed


def shard_with(count: int) -> LiveShard[Toy]:
    """Return a shard with so many snapshots made."""
    live = LiveShard(SimDisk(), Toy)
    for number in range(count):
        live.do(toy_drafts(3, 10 * number))
        live.snapshot()
    return live


def test_the_last_two_are_kept_and_the_log_from_the_older() -> None:
    live = shard_with(4)
    assert [record.index for record in live.store.records] == [9, 12]
    names = live.files.list(live.paths.snapshots)
    assert names == [record.file for record in live.store.records]
    assert live.store.keep_from_index == 10


def test_with_one_snapshot_the_whole_log_is_kept() -> None:
    """Nothing would stand in for it if it were damaged."""
    live = shard_with(1)
    assert live.store.newest is not None
    assert live.store.keep_from_index == 1
    assert shard_with(0).store.keep_from_index == 1


def test_what_is_kept_is_durable() -> None:
    live = shard_with(3)
    assert isinstance(live.files, SimDisk)
    again = LiveShard(live.files.crash(CrashPolicy.LOST), Toy)
    assert again.store.records == live.store.records
    assert again.recovered.rejected == ()
    assert again.state.payloads == live.state.payloads


def test_a_snapshot_that_differs_from_the_live_state_is_an_alarm_and_not_kept() -> None:
    live = shard_with(1)
    live.do(toy_drafts(2, 50))
    result, capture = live.build()
    with pytest.raises(StateMismatch) as caught:
        accept(live.log, live.store, result.record, "00" * 8)
    assert caught.value.index == capture.index
    assert [record.index for record in live.store.records] == [3]
    assert len(live.files.list(live.paths.snapshots)) == 1
    live.snapshot()
    assert [record.index for record in live.store.records] == [3, 5]


def test_a_snapshot_that_was_overtaken_is_removed() -> None:
    """While it was being built, a newer one arrived from elsewhere."""
    live = shard_with(1)
    live.do(toy_drafts(2, 50))
    slow, capture = live.build()
    live.do(toy_drafts(2, 60))
    newer = live.snapshot().record
    assert not accept(live.log, live.store, slow.record, capture.state_hash)
    assert [record.index for record in live.store.records] == [3, 7]
    assert not accept(live.log, live.store, newer, live.state_hash), "it is kept already"
    names = [record.file for record in live.store.records]
    assert live.files.list(live.paths.snapshots) == names


def test_a_snapshot_above_what_is_durable_is_refused() -> None:
    live = shard_with(0)
    live.write(toy_drafts(3, 0))
    live.commit()
    with pytest.raises(NotDurable):
        live.build()
    live.log.sync()
    live.snapshot()


def test_the_manifest_knows_that_the_snapshotted_entries_were_durable() -> None:
    """Otherwise damage below a snapshot could pass for a torn tail and be cut."""
    live = shard_with(1)
    manifest = load_manifest(live.files, live.paths.manifest)
    assert manifest is not None
    assert manifest.checkpoint.durable_index >= manifest.snapshots[-1].index
    assert manifest.checkpoint.commit_index >= manifest.snapshots[-1].index


def test_leftovers_are_removed_at_open_and_foreign_files_are_not() -> None:
    live = shard_with(2)
    disk, snaps = live.files, live.paths.snapshots
    assert isinstance(disk, SimDisk)
    kept = disk.list(snaps)
    disk.put(snaps / "0000000099-5.fsnap.tmp", b"a killed builder's")
    disk.put(snaps / "0000000003-5.fsnap", b"never listed")
    disk.put(snaps / "notes.txt", b"somebody's")
    again = LiveShard(disk.crash(CrashPolicy.KEPT), Toy)
    assert again.files.list(snaps) == [*kept, "notes.txt"]
    assert isinstance(again.files, SimDisk)
    assert again.files.crash(CrashPolicy.LOST).list(snaps) == [*kept, "notes.txt"]


@pytest.mark.parametrize("is_empty", [False, True])
def test_snapshots_are_not_removed_when_it_is_the_manifest_that_was_lost(*, is_empty: bool) -> None:
    """They may be all that is left of the beginning of the log."""
    live = LiveShard(SimDisk(), Toy)
    for number in range(2):
        live.do(toy_drafts(3, 10 * number))
        close_active(live.log)
        seal_closed(live.log)
        live.snapshot()
    drop_before(live.log, live.log.last_index if is_empty else live.store.keep_from_index)
    assert live.log.first_index > 1
    snaps = live.files.list(live.paths.snapshots)
    live.files.remove(live.paths.manifest)
    disk = live.files
    assert isinstance(disk, SimDisk)
    with pytest.raises(NoSnapshot, match="MANIFEST lists none"):
        LiveShard(disk, Toy)
    assert disk.list(live.paths.snapshots) == snaps


def test_the_real_router_is_snapshotted_and_kept() -> None:
    live = LiveShard(SimDisk(), build_projections)
    for number in range(5):
        live.do([put(b"a", b"%d" % number), put(b"b%d" % number, b"x" * 700)])
        live.snapshot()
    again = LiveShard(live.files, build_projections)
    assert again.state_hash == live.state_hash
    assert again.recovered.snapshot is not None
    assert again.recovered.replayed.entry_count == 0
    again.state.router.check()
    assert again.state.kv.get("default", b"a") == live.state.kv.get("default", b"a")


def test_a_snapshot_that_a_full_disk_kept_from_being_listed_leaves_nothing() -> None:
    """And what was kept before is kept still: also what a trim goes by."""
    live = shard_with(2)
    disk, before = live.files, live.store.records
    assert isinstance(disk, SimDisk)
    live.do(toy_drafts(2, 50))
    result, capture = live.build()
    job = live.store.accept_begin(result.record, capture.state_hash)
    assert job is not None
    assert live.store.newest == result.record
    disk.fail("write", errno.ENOSPC, path_contains="MANIFEST")
    job.run()
    with pytest.raises(DiskFull):
        live.log.manifest_file.finish(job)
    assert live.store.records == before
    assert disk.list(live.paths.snapshots) == [record.file for record in before]
    live.snapshot()
    assert live.store.newest.index == result.record.index


def test_the_next_snapshot_does_not_count_on_one_that_a_full_disk_refuses_meanwhile() -> None:
    live = shard_with(2)
    disk, before = live.files, live.store.records
    assert isinstance(disk, SimDisk)
    live.do(toy_drafts(2, 50))
    result, capture = live.build()
    assert live.store.accept_begin(result.record, capture.state_hash) is not None
    live.do(toy_drafts(2, 60))
    newer, capture = live.build()
    disk.fail("write", errno.ENOSPC, path_contains="MANIFEST")
    assert accept(live.log, live.store, newer.record, capture.state_hash)
    assert live.store.records == (before[-1], newer.record)
    names = [record.file for record in live.store.records]
    assert disk.list(live.paths.snapshots) == names
    assert LiveShard(disk.crash(CrashPolicy.LOST), Toy).recovered.rejected == ()


# More than two, for reads of the past


def test_as_many_snapshots_are_kept_as_the_setting_says_and_the_log_from_the_oldest() -> None:
    live = LiveShard(SimDisk(), Toy, keep=KeepConfig(snapshots_min=4))
    for number in range(6):
        live.do(toy_drafts(3, 10 * number))
        live.snapshot()
    assert [record.index for record in live.store.records] == [9, 12, 15, 18]
    assert live.store.keep_from_index == 10
    again = LiveShard(live.files, Toy)
    assert len(again.store.records) == 4, "opening with another setting drops nothing"
    again.do(toy_drafts(3, 60))
    again.snapshot()
    assert [record.index for record in again.store.records] == [18, 21]
    assert live.files.list(live.paths.snapshots) == [each.file for each in again.store.records]


@pytest.mark.parametrize("seed", range(20))
def test_the_past_never_gets_shorter_than_the_setting_and_snapshots_stay_few(seed: int) -> None:
    """Whatever the rhythm: one after the other for a while, then none for long."""
    rng = Random(seed)
    age_s = rng.choice((1, 7, 100, 3600))
    keep = KeepConfig(snapshots_min=rng.choice((2, 3, 9)), past_s_min=age_s)
    times = [0]
    made: list[int] = []
    for _ in range(400):
        pause_s = rng.choice((0.0, 0.001, age_s / 50, age_s / 8, age_s / 3, age_s * 2))
        times.append(times[-1] + int(pause_s * SECOND))
        made.append(times[-1])
        times = [times[at] for at in choose_kept(times, keep)]
        old_ns = made[-1] - keep.past_ns
        assert times[0] <= old_ns or times[0] == 0, "nothing leads to what is younger"
        assert times[-keep.snapshots_min :] == [0, *made][-keep.snapshots_min :]
        assert len(times) <= PAST_PARTS + 1 + keep.snapshots_min
        # And the first one is not much older than it must be: its successor was not dropped.
        gaps = [late - early for early, late in pairwise(times)]
        longest = max(late - early for early, late in pairwise((0, *made)))
        assert max(gaps) <= keep.past_ns // PAST_PARTS + longest


def test_the_log_is_whole_until_a_snapshot_is_as_old_as_the_past_that_is_kept() -> None:
    """A group is a second after the one before it."""
    live = LiveShard(SimDisk(), Toy, keep=KeepConfig(past_s_min=30))
    for number in range(30):
        live.do(toy_drafts(3, 10 * number))
        live.snapshot()
        assert live.store.keep_from_index == 1, "what is younger than 30 s would be gone"
    for number in range(30, 90):
        live.do(toy_drafts(3, 10 * number))
        live.snapshot()
        close_active(live.log)
        seal_closed(live.log)
        drop_before(live.log, live.store.keep_from_index)
        first = live.store.records[0]
        assert live.store.log_time_ns(first) <= live.log.last_timestamp_ns - 30 * SECOND
        assert live.log.first_index <= first.index + 1
    assert live.log.first_index > 1
    assert live.store.log_time_ns(first) >= live.log.last_timestamp_ns - 40 * SECOND
    assert len(live.store.records) <= PAST_PARTS + 3


def test_the_past_gives_way_when_the_disk_is_short_and_comes_back() -> None:
    disk = SimDisk()
    live = LiveShard(disk, Toy, keep=KeepConfig(snapshots_min=5, past_s_min=3600))
    for number in range(6):
        live.do(toy_drafts(3, 10 * number))
        live.snapshot()
    assert len(live.store.records) == 6
    assert (live.store.keep_from_index, live.store.give_way_begin()) == (1, None)
    disk.capacity = RESERVE_BYTES - (1 << 20)
    assert live.store.keep_from_index == live.store.records[-2].index + 1
    job = live.store.give_way_begin()
    assert job is not None
    job.run()
    live.log.manifest_file.finish(job)
    assert len(live.store.records) == KEPT_MIN
    assert disk.list(live.paths.snapshots) == [each.file for each in live.store.records]
    assert live.store.give_way_begin() is None
    live.do(toy_drafts(3, 60))
    live.snapshot()
    assert len(live.store.records) == KEPT_MIN
    disk.capacity = 2 * RESERVE_BYTES
    live.do(toy_drafts(3, 70))
    live.snapshot()
    assert len(live.store.records) == KEPT_MIN + 1


def test_a_snapshot_whose_header_is_damaged_stands_in_for_no_older_one() -> None:
    live = LiveShard(SimDisk(), Toy, keep=KeepConfig(past_s_min=3))
    for number in range(6):
        live.do(toy_drafts(3, 10 * number))
        live.snapshot()
    assert isinstance(live.files, SimDisk)
    kept = live.store.records
    live.files.put(live.store.path(kept[1]), b"damaged")
    again = LiveShard(live.files, Toy, keep=KeepConfig(past_s_min=3))
    assert again.store.log_time_ns(kept[1]) == 0
    again.do(toy_drafts(3, 70), term=1)
    again.snapshot()
    first = again.store.records[0]
    assert 0 < again.store.log_time_ns(first) <= again.log.last_timestamp_ns - 3 * SECOND


@pytest.mark.parametrize(
    ("count", "age_s"), [(1, 0), (KEPT_MAX + 1, 0), (2, -1), (2, PAST_S_MAX + 1)]
)
def test_what_cannot_be_kept_is_refused(count: int, age_s: float) -> None:
    with pytest.raises(ValueError, match="are kept"):
        KeepConfig(snapshots_min=count, past_s_min=age_s)


def test_what_the_oldest_kept_state_refers_to_is_kept_in_the_log() -> None:
    """Also after it is released. After a restart it is not known: then nothing is dropped."""
    keep = KeepConfig(past_s_min=5)
    live = LiveShard(SimDisk(), Toy, keep=keep)
    for number in range(20):
        live.do(toy_drafts(3, 10 * number))
        live.snapshot(needed_from=4 if number < 10 else 3 * number)
        close_active(live.log)
        seal_closed(live.log)
        oldest = live.store.records[0]
        if live.log.first_index > 1 or live.store.keep_from_index > 1:
            assert live.store.keep_from_index == min(
                oldest.index + 1, live.store.needed_from(oldest)
            )
        drop_before(live.log, live.store.keep_from_index)
        assert live.log.first_index <= (4 if oldest.index <= 30 else oldest.index)
    assert live.log.first_index > 4
    first_index = live.log.first_index
    again = LiveShard(live.files, Toy, keep=keep)
    assert again.store.keep_from_index == first_index
