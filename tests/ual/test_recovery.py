"""Torn or corrupt: the same damage is a harmless tail or a loss, depending on what is known."""

from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from crc32c import crc32c

from onelog.ual.directory import ShardPaths
from onelog.ual.errors import CorruptFile, DataError, ForeignShard, MissingSegment, UnknownVersion
from onelog.ual.hard_state import HardStateFile
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import load as load_manifest
from onelog.ual.manifest import save as save_manifest
from onelog.ual.recovery import Cut, Remove
from onelog.ual.segments.format import SegmentHeader
from onelog.ual.segments.sealed import SealedSegment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import close_active, make_shard, open_shard, seal_closed

CONFIG = LogConfig(
    ring_bytes=4096, segment_bytes_max=1200, unsynced_bytes_max=600, free_bytes_min=0
)
ONE_FILE = LogConfig(ring_bytes=4096, unsynced_bytes_max=600, free_bytes_min=0)
ENTRY_SIZE = 60


def make_log(entries: int, config: LogConfig = CONFIG) -> tuple[SimDisk, ShardPaths, Log]:
    """Write entries of 60 bytes, one to a group, synced as they go, and never checkpointed."""
    disk = SimDisk(page_size=64)
    paths = make_shard(disk)
    log, _ = open_shard(disk, paths, config)
    for number in range(entries):
        log.append([(0x0101, Random(number).randbytes(20), 0)], term=1, timestamp_ns=number)
    return disk, paths, log


def forget_hint(disk: SimDisk, paths: ShardPaths) -> None:
    """A hint is never synced: the power may take it."""
    raft = bytearray(disk.contents(paths.hard_state))
    raft[8192:] = bytes(4096)
    disk.put(paths.hard_state, bytes(raft))


def active(paths: ShardPaths, first_index: int = 1) -> Path:
    return paths.segments / f"{first_index:010d}.flseg.tmp"


def damage(disk: SimDisk, path: Path, index: int) -> None:
    disk.flip(path, (64 + (index - 1) * ENTRY_SIZE + 50) * 8)


def test_damage_in_the_unsynced_window_is_a_tail_and_the_bytes_are_counted() -> None:
    disk, paths, _ = make_log(20, ONE_FILE)
    forget_hint(disk, paths)
    damage(disk, active(paths), 12)

    log, found = open_shard(disk, paths, ONE_FILE)

    assert log.last_index == 11
    (cut,) = found.actions
    assert isinstance(cut, Cut)
    assert (cut.size, cut.size_before) == (64 + 11 * ENTRY_SIZE, 64 + 20 * ENTRY_SIZE)
    assert "torn" in cut.why


def test_what_stood_behind_a_torn_write_never_comes_back() -> None:
    """The next entry may have the lost one's size; the one after that would then fit again."""
    disk, paths, _ = make_log(20, ONE_FILE)
    forget_hint(disk, paths)
    damage(disk, active(paths), 12)
    log, _ = open_shard(disk, paths, ONE_FILE)
    log.append([(0x0101, b"n" * 20, 0)], term=1, timestamp_ns=11)
    log.sync()

    again, _ = open_shard(disk.crash(CrashPolicy.LOST), paths, ONE_FILE)
    assert again.last_index == 12


def test_an_intact_entry_far_behind_the_damage_proves_corruption() -> None:
    """More than that is never unsynced, so what is damaged had been synced."""
    disk, paths, _ = make_log(30, ONE_FILE)
    forget_hint(disk, paths)
    damage(disk, active(paths), 12)

    with pytest.raises(CorruptFile, match="intact entry at offset") as caught:
        open_shard(disk, paths, ONE_FILE)
    assert caught.value.offset == 64 + 11 * ENTRY_SIZE


def test_damage_at_or_below_the_durable_index_of_the_hint_is_corruption() -> None:
    disk, paths, log = make_log(20, ONE_FILE)
    log.sync()
    damage(disk, active(paths), 20)

    with pytest.raises(CorruptFile, match="entries 20 to 20 were durable"):
        open_shard(disk, paths, ONE_FILE)


def test_damage_below_the_checkpoint_is_corruption_without_any_hint() -> None:
    disk, paths, log = make_log(20, ONE_FILE)
    log.sync()
    log.checkpoint()
    forget_hint(disk, paths)
    damage(disk, active(paths), 20)

    with pytest.raises(CorruptFile, match="were durable"):
        open_shard(disk, paths, ONE_FILE)


def test_a_hint_from_before_a_cut_is_not_believed() -> None:
    """It speaks of entries that were cut since; what replaced them was never synced."""
    disk, paths, log = make_log(20, ONE_FILE)
    log.sync()
    old_hint = disk.contents(paths.hard_state)
    log.truncate_from(11)
    log.append([(0x0101, b"new" * 7, 0)], term=2, timestamp_ns=50)
    disk.put(paths.hard_state, old_hint)
    disk.flip(active(paths), (64 + 10 * ENTRY_SIZE + 50) * 8)

    again, _ = open_shard(disk, paths, ONE_FILE)
    assert again.last_index == 10


def test_damage_in_a_file_with_a_successor_is_corruption() -> None:
    """The next file is created only after this one was synced to its end."""
    disk, paths, _ = make_log(40)
    forget_hint(disk, paths)
    damage(disk, active(paths), 17)

    with pytest.raises(CorruptFile, match="damaged"):
        open_shard(disk, paths, CONFIG)


def test_a_bad_header_is_a_torn_creation_only_if_nothing_follows_it() -> None:
    disk, paths, log = make_log(5, ONE_FILE)
    close_active(log)
    empty = active(paths, 6)
    disk.put(empty, disk.contents(empty)[:40])
    again, found = open_shard(disk, paths, ONE_FILE)
    assert found.actions == [Remove(empty, "created by a crash before its header was written")]
    assert again.last_index == 5

    disk.flip(active(paths), 100)
    with pytest.raises(CorruptFile, match="header checksum"):
        open_shard(disk, paths, ONE_FILE)


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_missing_file_is_named_with_its_range(victim: int) -> None:
    disk, paths, log = make_log(70)
    log.sync()
    log.mark_committed(45)
    log.mark_applied(45)
    seal_closed(log)
    log.close()
    parts = log.segments.segments
    gone = parts[victim]
    assert len(parts) == 4
    assert isinstance(parts[1], SealedSegment)
    disk.remove(gone.path)

    with pytest.raises(MissingSegment) as caught:
        open_shard(disk, paths, CONFIG)
    assert (caught.value.first_index, caught.value.last_index) == (
        gone.first_index,
        gone.last_index,
    )


def test_a_missing_manifest_is_made_again() -> None:
    disk, paths, log = make_log(70)
    log.sync()
    log.mark_committed(45)
    log.mark_applied(45)
    seal_closed(log)
    log.close()
    disk.remove(paths.manifest)

    again, _ = open_shard(disk, paths, CONFIG)

    manifest = load_manifest(disk, paths.manifest)
    assert manifest is not None
    assert manifest.checkpoint.end_index == again.last_index == 70
    assert again.commit_index == 45


def test_a_stale_checkpoint_is_brought_up_to_date() -> None:
    disk, paths, log = make_log(10)
    log.sync()
    log.checkpoint()
    stale = load_manifest(disk, paths.manifest)
    assert stale is not None
    for number in range(50):
        log.append([(0x0101, b"x" * 20, 0)], term=1, timestamp_ns=100 + number)
    log.close()
    save_manifest(disk, paths.manifest, stale)

    open_shard(disk, paths, CONFIG)

    fresh = load_manifest(disk, paths.manifest)
    assert fresh is not None
    assert (stale.checkpoint.end_index, fresh.checkpoint.end_index) == (10, 60)


def test_only_unsealed_files_are_scanned() -> None:
    """Opening must not read a terabyte of sealed entries."""
    disk, paths, log = make_log(400)
    log.sync()
    log.mark_committed(log.last_index)
    log.mark_applied(log.last_index)
    seal_closed(log)
    log.close()
    sealed = [part for part in log.segments.segments if isinstance(part, SealedSegment)]
    disk.bytes_mapped = 0

    open_shard(disk, paths, CONFIG)

    assert len(sealed) > 15
    unsealed_bytes = len(disk.contents(log.segments.segments[-1].path))
    assert disk.bytes_mapped <= unsealed_bytes


def test_foreign_names_are_left_alone_and_reported() -> None:
    disk, paths, _ = make_log(3)
    disk.put(paths.segments / "notes.txt", b"mine")
    _, found = open_shard(disk, paths, CONFIG)
    assert found.foreign == ["notes.txt"]
    assert disk.contents(paths.segments / "notes.txt") == b"mine"


def test_names_sort_as_numbers() -> None:
    """Beyond ten digits the names get longer, and text order would mix them up."""
    disk = SimDisk()
    paths = make_shard(disk)
    first = 10**10 - 20
    HardStateFile.open(disk, paths.hard_state)
    header = SegmentHeader(0, 1, first, 1)
    disk.put(active(paths, first), header.encode())
    log, _ = open_shard(disk, paths, CONFIG)
    for number in range(40):
        log.append([(0x0101, b"x" * 20, 0)], term=1, timestamp_ns=number)
    log.sync()
    names = disk.list(paths.segments)
    assert names == sorted(names)
    assert len(names) > 1

    again, _ = open_shard(disk, paths, CONFIG)
    assert (again.first_index, again.last_index) == (first, first + 39)


def test_a_segment_of_another_shard_is_refused() -> None:
    """Its indexes may fit; its entries belong to other keys."""
    disk, paths, _ = make_log(3, ONE_FILE)
    other = SegmentHeader(1, 1, 1, 1).encode()
    disk.put(active(paths), other + disk.contents(active(paths))[64:])

    with pytest.raises(ForeignShard, match="is of shard 1, but this is shard 0"):
        open_shard(disk, paths, ONE_FILE)


def test_an_unknown_version_is_refused_and_nothing_is_changed() -> None:
    disk, paths, _ = make_log(3, ONE_FILE)
    data = bytearray(disk.contents(active(paths)))
    data[8:10] = (2).to_bytes(2, "little")
    data[60:64] = crc32c(bytes(data[:32])).to_bytes(4, "little")
    disk.put(active(paths), bytes(data))

    with pytest.raises(UnknownVersion, match="upgrade"):
        open_shard(disk, paths, ONE_FILE)
    assert disk.contents(active(paths)) == bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_any_flipped_bit_in_a_shard_is_a_named_error_or_a_harmless_tail(seed: int) -> None:
    """Whatever is flipped, no wrong entry is ever returned."""
    disk, paths, log = make_log(40)
    log.sync()
    log.mark_committed(20)
    log.mark_applied(20)
    seal_closed(log)
    log.close()
    expected = {i: log.segments.read(i) for i in range(1, 41)}
    rng = Random(seed)
    targets = [paths.segments / name for name in disk.list(paths.segments)]
    targets.append(paths.manifest)
    for _ in range(60):
        damaged = disk.crash(CrashPolicy.LOST)
        target = rng.choice(targets)
        damaged.flip(target, rng.randrange(len(disk.contents(target)) * 8))
        try:
            again, _ = open_shard(damaged, paths, CONFIG)
            for index in range(1, again.last_index + 1):
                assert again.segments.read(index) == expected[index]
            for part in again.segments.segments:
                if isinstance(part, SealedSegment):
                    part.check_file()
        except DataError:
            continue
        # What was flipped is in no byte that means anything: the summary of an unsealed header.
        assert target.name.endswith(".tmp")
        assert again.last_index == 40


def test_a_crash_during_recovery_is_recovered_from() -> None:
    """Recovery tidies; stopped anywhere in between, the next one finishes the same work."""
    disk, paths, log = make_log(40)
    log.mark_committed(20)
    log.mark_applied(20)
    seal_closed(log)
    log.append([(0x0101, b"torn" * 10, 0)] * 3, term=1, timestamp_ns=99)
    rng = Random(4)
    crashed = disk.crash(CrashPolicy.RANDOM, rng)
    reference, _ = open_shard(crashed.crash(CrashPolicy.KEPT), paths, CONFIG)
    outcomes: list[SimDisk] = []
    crashed.after_operation = lambda _: outcomes.append(crashed.crash(CrashPolicy.RANDOM, rng))
    open_shard(crashed, paths, CONFIG)
    crashed.after_operation = None

    assert len(outcomes) > 5
    for outcome in outcomes:
        again, _ = open_shard(outcome, paths, CONFIG)
        assert again.last_index == reference.last_index
        assert list(again.segments.scan(1, again.last_index)) == list(
            reference.segments.scan(1, reference.last_index)
        )


def test_the_vote_survives_beside_the_log() -> None:
    """Log and hard state share the RAFT file: a hint must never disturb a vote."""
    disk, paths, _ = make_log(3)
    state = HardStateFile.open(disk, paths.hard_state)
    state.save(7, UUID(int=5))
    log, _ = open_shard(disk, paths, CONFIG)
    log.append([(0x0101, b"x", 0)], term=7, timestamp_ns=99)
    log.sync()

    again = HardStateFile.open(disk.crash(CrashPolicy.LOST), paths.hard_state)
    assert (again.term, again.vote) == (7, UUID(int=5))
