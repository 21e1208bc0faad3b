"""Repair: what can be proved is put right, copies are kept, and nothing else is touched."""

import errno
import struct
from dataclasses import replace
from random import Random

import pytest
from crc32c import crc32c

from onelog.ual.errors import DirectoryError, DirectoryInUse, DiskFull, UalError
from onelog.ual.hard_state import HINT_OFFSET, SLOT_SIZE
from onelog.ual.manifest import load
from onelog.ual.offline.repair import apply_repairs, plan_repairs
from onelog.ual.offline.verify import (
    Level,
    RebuildManifest,
    RewriteHardState,
    verify,
)
from onelog.ual.recovery import Cut, Remove
from onelog.ual.segments.format import (
    compacting_name,
    tomb_name,
    unsealed_name,
)
from tests.faults.test_crash_sweep import Workload, contents
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.directories import UNSYNCED_MAX, Built, built_disk, check, fork, tree
from tests.ual.offline.repairs import COPIES, STAMP, apply, plan_for, readable, repaired
from tests.ual.shards import open_shard


@pytest.fixture(scope="module")
def healthy() -> tuple[SimDisk, Built]:
    return built_disk()


def test_a_healthy_directory_needs_no_repair(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    assert plan_for(disk, built) == []


def test_a_torn_tail_is_cut(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.active, disk.contents(built.active) + b"half an entry")
    repaired(damaged, built, Cut)


def test_an_interrupted_seal_is_cut_back(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.closed, disk.contents(built.closed) + bytes(300))
    repaired(damaged, built, Cut)


@pytest.mark.parametrize("name", [compacting_name(1), tomb_name(999), unsealed_name(10**6)])
def test_leftovers_are_removed(healthy: tuple[SimDisk, Built], name: str) -> None:
    disk, built = healthy
    damaged = fork(disk)
    number = len(built.entries) + 1
    name = name.replace(f"{10**6:010d}", f"{number:010d}")
    damaged.put(built.paths.segments / name, b"")
    repaired(damaged, built, Remove)


def test_leftovers_of_small_files_are_removed(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    for path in (built.data_dir / "SYSTEM.tmp", built.paths.root / "MANIFEST.tmp"):
        damaged = fork(disk)
        damaged.put(path, b"half")
        repaired(damaged, built, Remove)


def test_a_damaged_raft_slot_is_written_from_the_good_one(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    good = disk.contents(built.paths.hard_state)
    for byte in (20, SLOT_SIZE + 20, SLOT_SIZE - 1):
        damaged = fork(disk)
        damaged.flip(built.paths.hard_state, 8 * byte)
        repaired(damaged, built, RewriteHardState)
        assert damaged.contents(built.paths.hard_state) == good


def test_a_raft_file_of_the_wrong_size_is_brought_to_size(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    good = disk.contents(built.paths.hard_state)
    for content in (good + b"more", good[: HINT_OFFSET + 10], good[: SLOT_SIZE + 10]):
        damaged = fork(disk)
        damaged.put(built.paths.hard_state, content)
        plan = plan_for(damaged, built)
        assert [type(repair.remedy) for repair in plan] == [RewriteHardState]
        apply(damaged, built, plan)
        assert damaged.contents(built.paths.hard_state)[:HINT_OFFSET] == good[:HINT_OFFSET]
        assert check(damaged, built) == []


def test_a_lost_manifest_is_made_from_the_files(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    before = load(disk, built.paths.manifest)
    assert before is not None
    damaged = fork(disk)
    damaged.flip(built.paths.manifest, 100)
    repaired(damaged, built, RebuildManifest)
    assert load(damaged, built.paths.manifest) == before

    damaged = fork(disk)
    damaged.remove(built.paths.manifest)
    plan = plan_for(damaged, built)
    assert apply(damaged, built, plan) is None, "there was nothing to copy"
    assert load(damaged, built.paths.manifest) == before
    assert check(damaged, built) == []


# What is not done --------------------------------------------------------------------------------


def test_what_needs_a_peer_or_a_backup_is_listed_with_advice(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    for path in (built.data_dir / "SYSTEM", built.data_dir / "NODE", built.closed):
        damaged.flip(path, 8 * 100)
    for byte in (20, SLOT_SIZE + 20):
        damaged.flip(built.paths.hard_state, 8 * byte)
    plan = plan_for(damaged, built)
    assert {repair.reason for repair in plan} == {
        "SYSTEM_DAMAGED",
        "NODE_DAMAGED",
        "ENTRY_DAMAGED",
        "RAFT_LOST",
    }
    assert not any(repair.is_possible for repair in plan)
    assert all(repair.advice for repair in plan)


def test_durable_entries_are_never_cut(healthy: tuple[SimDisk, Built]) -> None:
    """Damage in the last group, which was synced: not a tail, whatever it looks like."""
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.active, disk.contents(built.active)[:-1])
    (repair,) = plan_for(damaged, built)
    assert not repair.is_possible


def test_nothing_is_tidied_in_a_log_that_lacks_a_file(healthy: tuple[SimDisk, Built]) -> None:
    """Who took one file away may have changed others: first it is brought back."""
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.sealed)
    damaged.put(built.active, disk.contents(built.active) + b"tail")
    plan = plan_for(damaged, built)
    assert {repair.reason for repair in plan} == {"MISSING_RANGE", "TORN_TAIL"}
    assert not any(repair.is_possible for repair in plan)


def test_a_tombstone_that_manifest_does_not_know_removes_nothing(
    healthy: tuple[SimDisk, Built],
) -> None:
    """MANIFEST is written before a tombstone: somebody else made this one."""
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.paths.segments / tomb_name(1), b"")
    plan = plan_for(damaged, built)
    assert "MISSING_RANGE" in {repair.reason for repair in plan}
    assert not any(repair.is_possible for repair in plan)


def test_without_any_record_a_torn_tail_is_not_cut(healthy: tuple[SimDisk, Built]) -> None:
    """Neither MANIFEST nor the hint says what was durable."""
    disk, built = healthy
    damaged = fork(disk)
    damaged.flip(built.paths.manifest, 100)
    damaged.flip(built.paths.hard_state, 8 * (HINT_OFFSET + 20))
    damaged.put(built.active, disk.contents(built.active)[:-1])
    plan = plan_for(damaged, built)
    assert {repair.reason for repair in plan} == {"MANIFEST_DAMAGED", "TORN_TAIL"}
    assert not any(repair.is_possible for repair in plan)


def test_manifest_is_not_made_again_where_it_would_forget_snapshots(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    for path in (built.paths.snapshots / "0000000009.fsnap", built.paths.cold_list):
        damaged = fork(disk)
        damaged.flip(built.paths.manifest, 100)
        damaged.put(path, b"kept elsewhere")
        (repair,) = plan_for(damaged, built)
        assert not repair.is_possible
        assert "backup" in repair.advice


def test_nothing_is_touched_that_a_newer_onelog_wrote(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    data = bytearray(disk.contents(built.sealed))
    data[8:10] = struct.pack("<H", 2)
    data[60:64] = struct.pack("<I", crc32c(bytes(data[:32])))
    damaged.put(built.sealed, bytes(data))
    damaged.put(built.active, disk.contents(built.active) + b"tail")
    plan = plan_for(damaged, built)
    assert {repair.reason for repair in plan} == {"UNKNOWN_VERSION", "TORN_TAIL"}
    assert not any(repair.is_possible for repair in plan)


def test_a_directory_in_use_or_changed_is_refused(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.active, disk.contents(built.active) + b"tail")
    plan = plan_for(damaged, built)
    lock = damaged.lock(built.data_dir / "LOCK")
    assert lock is not None
    with pytest.raises(DirectoryInUse):
        apply(damaged, built, plan)
    lock.release()
    damaged.put(built.active, disk.contents(built.active) + b"longer tail")
    before = tree(damaged, built.data_dir)
    with pytest.raises(DirectoryError, match="has changed"):
        apply(damaged, built, plan)
    assert tree(damaged, built.data_dir) == before
    # The lock was let go of.
    apply(damaged, built, plan_for(damaged, built))


def test_a_full_disk_ends_the_repair_before_anything_is_changed(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.active, disk.contents(built.active) + b"tail")
    before = tree(damaged, built.data_dir)
    damaged.capacity = sum(map(len, before.values())) + 2
    with pytest.raises(DiskFull):
        apply(damaged, built, plan_for(damaged, built))
    assert tree(damaged, built.data_dir) == before
    damaged.capacity = None
    damaged.fail("write", errno.ENOSPC, path_contains="repair-")
    with pytest.raises(OSError, match="No space"):
        apply(damaged, built, plan_for(damaged, built))
    assert before.items() <= tree(damaged, built.data_dir).items()


# Crashes -----------------------------------------------------------------------------------------


def test_repair_of_a_crashed_log_is_what_opening_makes_of_it() -> None:
    """At every kind of crash, repair and recovery agree, and repair leaves nothing to do."""
    seed = 6
    crashes = Random(seed)
    disk = SimDisk(page_size=256, tear_writes=True)
    workload = Workload(disk, seed)
    data_dir = workload.paths.root.parent
    repairs = 0

    def crash_here(operation: str) -> None:
        nonlocal repairs
        crash_seed = crashes.getrandbits(32)
        if crash_seed % 3:
            return
        policy = crashes.choice([CrashPolicy.LOST, CrashPolicy.RANDOM, CrashPolicy.RANDOM])
        crashed = disk.crash(policy, Random(crash_seed))
        opened, _ = open_shard(fork(crashed), workload.paths)
        try:
            plan = plan_repairs(crashed, data_dir, unsynced_bytes_max=UNSYNCED_MAX)
            assert all(repair.is_possible for repair in plan), plan
            if plan:
                repairs += 1
                apply_repairs(crashed, data_dir, plan, STAMP, unsynced_bytes_max=UNSYNCED_MAX)
            left = verify(crashed, data_dir, unsynced_bytes_max=UNSYNCED_MAX)
            assert {finding.level for finding in left} <= {Level.NOTE}, left
            log, found = open_shard(crashed, workload.paths)
            assert found.actions == []
            assert contents(log) == contents(opened)
        except BaseException as error:
            error.add_note(f"seed {seed}, {operation}, {policy}, crash seed {crash_seed}")
            raise

    disk.after_operation = crash_here
    for _ in range(150):
        workload.step()
    assert repairs > 30


def test_a_repair_interrupted_anywhere_can_be_done_again(healthy: tuple[SimDisk, Built]) -> None:
    """Everything at once, crashed after every operation; what was copied may be there twice."""
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.active, disk.contents(built.active) + b"tail")
    damaged.put(built.paths.segments / compacting_name(1), b"")
    damaged.flip(built.sealed, 8 * (len(disk.contents(built.sealed)) - 100))
    damaged.flip(built.paths.hard_state, 8 * 20)
    damaged.flip(built.paths.manifest, 100)
    plan = plan_for(damaged, built)
    assert len(plan) == 5
    working = fork(damaged)
    points = 0

    def crash_here(operation: str) -> None:
        nonlocal points
        points += 1
        for policy in CrashPolicy:
            crashed = working.crash(policy, Random(points))
            again = plan_for(crashed, built)
            assert all(repair.is_possible for repair in again), (operation, policy, again)
            if again:
                apply_repairs(
                    crashed, built.data_dir, again, "again", unsynced_bytes_max=UNSYNCED_MAX
                )
            assert check(crashed, built) == [], (operation, policy)
            assert readable(crashed, built) == built.kept_entries

    working.after_operation = crash_here
    apply(working, built, plan)
    assert points > 40


def test_a_failing_disk_ends_a_repair_with_an_error_and_the_copies_stay(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.active, disk.contents(built.active) + b"tail")
    damaged.fail("truncate", errno.EIO)
    with pytest.raises((OSError, UalError)):
        apply(damaged, built, plan_for(damaged, built))
    assert list(tree(damaged, COPIES).values()) == [b"tail"]
    assert plan_for(damaged, built) != []


def test_a_repair_says_what_it_is_about(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.active, disk.contents(built.active) + b"tail")
    (repair,) = plan_for(damaged, built)
    end = len(disk.contents(built.active))
    assert repair.description.startswith(f"cut 4 bytes from offset {end} on")
    assert replace(repair, remedy=None).is_possible is False
