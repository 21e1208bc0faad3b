"""``onelog log repair`` of MANIFEST and snapshots: verify, repair, verify, and the same state."""

from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.proof import VERIFIERS, find_snapshots
from onelog.snapshot.recovery import recover_state
from onelog.snapshot.state import hash_text
from onelog.snapshot.store import SnapshotStore
from onelog.ual.directory import ShardIdentity, ShardPaths
from onelog.ual.errors import ForeignShard
from onelog.ual.files import Files
from onelog.ual.manifest import Manifest, load, save
from onelog.ual.offline.repair import Repair, apply_repairs, plan_repairs
from onelog.ual.offline.verify import Finding, Level, RebuildManifest, SetAside, verify
from tests.node.replica.group import IDS, Group
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.snapshot.live import DATA, SMALL, LiveShard, Work
from tests.ual.shards import close_active, drop_before, make_directory, open_shard, seal_closed

STAMP = "20260101T000000Z"
UNSYNCED_MAX = SMALL.unsynced_bytes_max


def lived(*, is_trimmed: bool = True) -> LiveShard[Projections]:
    """A shard with two snapshots, entries after them, and a log that begins at the older one."""
    live = LiveShard(SimDisk(), build_projections, config=SMALL)
    work = Work(3)
    for _ in range(2):
        for _ in range(25):
            live.do(work.group(live.log.last_index + 1))
        close_active(live.log)
        seal_closed(live.log)
        live.snapshot()
    for _ in range(5):
        live.do(work.group(live.log.last_index + 1))
    if is_trimmed:
        assert drop_before(live.log, live.store.keep_from_index)
        assert live.log.first_index > 1
    live.log.close()
    return live


def disk_of(live: LiveShard[Projections]) -> SimDisk:
    assert isinstance(live.files, SimDisk)
    return live.files


def findings(files: Files) -> list[Finding]:
    return verify(
        files,
        DATA,
        unsynced_bytes_max=UNSYNCED_MAX,
        verifiers=VERIFIERS,
        find_snapshots=find_snapshots,
    )


def plan_for(files: Files) -> list[Repair]:
    return plan_repairs(
        files,
        DATA,
        unsynced_bytes_max=UNSYNCED_MAX,
        verifiers=VERIFIERS,
        find_snapshots=find_snapshots,
    )


def repair(files: Files, plan: list[Repair], stamp: str = STAMP) -> Path | None:
    return apply_repairs(
        files,
        DATA,
        plan,
        stamp,
        unsynced_bytes_max=UNSYNCED_MAX,
        verifiers=VERIFIERS,
        find_snapshots=find_snapshots,
    )


def errors(files: Files) -> list[str]:
    return [each.reason for each in findings(files) if each.level is not Level.NOTE]


def state_after(files: Files, paths: ShardPaths) -> str:
    """Return the hash of the state at the end of the log, as a start finds it.

    How far it was committed was in MANIFEST alone; a leader would say it again.
    """
    log, _ = open_shard(files, paths, SMALL)
    log.mark_committed(log.last_index)
    store = SnapshotStore.open(files, paths, log)
    return hash_text(recover_state(files, 0, log, store, build_projections).state.router)


def without_base(manifest: Manifest | None) -> Manifest:
    """Leave out the snapshot that the log follows: a leader may refer to it, but need not."""
    assert manifest is not None
    return replace(manifest, base=None)


@pytest.mark.parametrize("is_trimmed", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_lost_manifest_lists_the_snapshots_that_are_there(
    *, is_there: bool, is_trimmed: bool
) -> None:
    live = lived(is_trimmed=is_trimmed)
    disk, paths = disk_of(live), live.paths
    before = load(disk, paths.manifest)
    assert before is not None
    assert len(before.snapshots) == 2
    if is_there:
        disk.flip(paths.manifest, 100)
    else:
        disk.remove(paths.manifest)
    assert errors(disk) == ["MANIFEST_DAMAGED" if is_there else "MANIFEST_MISSING"]
    (planned,) = plan_for(disk)
    assert isinstance(planned.remedy, RebuildManifest)
    assert all(each.file in planned.description for each in before.snapshots)
    repair(disk, [planned])
    after = disk.crash(CrashPolicy.LOST)
    assert errors(after) == []
    assert without_base(load(after, paths.manifest)) == before
    assert state_after(after, paths) == live.state_hash


def test_a_manifest_that_was_made_anew_gets_its_snapshots_back() -> None:
    live = lived()
    disk, paths = disk_of(live), live.paths
    before = load(disk, paths.manifest)
    assert before is not None
    save(disk, paths.manifest, replace(before, snapshots=()))
    assert set(errors(disk)) == {"UNLISTED_SNAPSHOT"}
    repair(disk, plan_for(disk))
    assert errors(disk) == []
    assert without_base(load(disk, paths.manifest)) == before


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_snapshot_is_renamed_and_the_state_is_the_same(number: int) -> None:
    live = lived()
    disk, paths = disk_of(live), live.paths
    damaged = live.store.path(live.store.records[number])
    kept = live.store.records[1 - number]
    if number == 0:
        # The log begins at the older one, but the newer one has everything before its own index.
        assert kept.index >= live.log.first_index
    disk.flip(damaged, 8 * 200)
    content = disk.contents(damaged)
    assert errors(disk) == ["CORRUPT_SNAPSHOT"]
    (planned,) = plan_for(disk)
    assert isinstance(planned.remedy, SetAside)
    repair(disk, [planned])
    after = disk.crash(CrashPolicy.LOST)
    assert errors(after) == []
    assert after.contents(damaged.with_name(f"{damaged.name}.{STAMP}.damaged")) == content
    manifest = load(after, paths.manifest)
    assert manifest is not None
    assert manifest.snapshots == (kept,)
    assert state_after(after, paths) == live.state_hash
    assert after.contents(damaged.with_name(f"{damaged.name}.{STAMP}.damaged")) == content


def test_a_missing_snapshot_is_found_and_leaves_manifest() -> None:
    live = lived()
    disk, paths = disk_of(live), live.paths
    disk.remove(live.store.path(live.store.records[1]))
    assert errors(disk) == ["SNAPSHOT_MISSING"]
    repair(disk, plan_for(disk))
    assert errors(disk) == []
    assert state_after(disk, paths) == live.state_hash


def test_manifest_and_a_snapshot_are_repaired_together() -> None:
    live = lived()
    disk, paths = disk_of(live), live.paths
    older, newer = live.store.records
    disk.flip(live.store.path(newer), 8 * 200)
    disk.flip(paths.manifest, 100)
    assert set(errors(disk)) == {"CORRUPT_SNAPSHOT", "MANIFEST_DAMAGED"}
    repair(disk, plan_for(disk))
    assert errors(disk) == []
    manifest = load(disk, paths.manifest)
    assert manifest is not None
    assert manifest.snapshots == (older,)
    assert state_after(disk, paths) == live.state_hash


def test_what_alone_leads_to_the_state_stays_where_it_is() -> None:
    """Without it nothing is left to rebuild the state from: a peer or a backup has to help."""
    live = lived()
    disk, paths = disk_of(live), live.paths
    for record in live.store.records:
        disk.flip(live.store.path(record), 8 * 200)
    plan = plan_for(disk)
    assert [each.is_possible for each in plan] == [False, False]
    assert all("peer" in each.advice for each in plan)

    disk.flip(paths.manifest, 100)
    plan = plan_for(disk)
    assert {each.reason for each in plan} == {"CORRUPT_SNAPSHOT", "MANIFEST_DAMAGED"}
    assert not any(each.is_possible for each in plan)

    live = lived()
    disk = disk_of(live)
    for record in live.store.records:
        disk.remove(live.store.path(record))
    assert not any(each.is_possible for each in plan_for(disk))
    manifest = load(disk, paths.manifest)
    assert manifest is not None
    save(disk, paths.manifest, Manifest(manifest.checkpoint, identity=manifest.identity))
    (planned,) = plan_for(disk)
    assert (planned.reason, planned.is_possible) == ("NO_SNAPSHOT", False)


def test_a_log_that_lost_its_end_gets_no_manifest_that_forgets_it() -> None:
    """A snapshot proves that the entries up to it were durable, though nothing else says so."""
    live = lived()
    disk, paths = disk_of(live), live.paths
    disk.remove(paths.manifest)
    hint = bytearray(disk.contents(paths.hard_state))
    hint[8192:12288] = bytes(4096)
    disk.put(paths.hard_state, bytes(hint))
    newest = live.store.records[1].index
    for segment in live.log.segments.segments:
        if segment.last_index >= newest:
            disk.remove(segment.path)
    plan = plan_for(disk)
    assert "MISSING_END" in {each.reason for each in plan}
    assert not any(each.is_possible for each in plan)


def test_the_base_of_a_snapshot_that_a_peer_sent_is_found_again() -> None:
    """Nothing of the log before it is here: its number, term and time are in the snapshot."""
    group = Group()
    group.fall_behind(None)
    node = group.join(IDS[3])
    group.until(lambda: node.shard.log.base is not None)
    node.shard.log.close()
    paths = node.shard.shipping._paths
    before = load(node.disk, paths.manifest)
    assert before is not None
    assert before.base is not None
    disk = node.disk.crash(CrashPolicy.KEPT)
    for path in [paths.segments / name for name in disk.list(paths.segments)]:
        if path.name.endswith(".flseg"):  # as if the leader had kept nothing
            disk.remove(path)
    first_index = before.base.index + 1
    point = replace(
        before.checkpoint, first_index=first_index, first_proposal=before.base.proposal + 1
    )
    end = max(point.end_index, before.base.index)
    save(disk, paths.manifest, replace(before, checkpoint=replace(point, end_index=end)))
    expected, _ = open_shard(disk.crash(CrashPolicy.KEPT), paths)
    disk.remove(paths.manifest)
    repair(disk, plan_for(disk))
    assert errors(disk) == []
    log, _ = open_shard(disk, paths)
    assert log.base == before.base
    assert (log.last_term, log.last_timestamp_ns) == (
        expected.last_term,
        expected.last_timestamp_ns,
    )


def test_a_repair_that_is_interrupted_anywhere_can_be_done_again() -> None:
    live = lived()
    disk, paths = disk_of(live), live.paths
    older, newer = live.store.records
    damaged = live.store.path(newer)
    disk.flip(damaged, 8 * 200)
    content = disk.contents(damaged)
    points = 0
    for is_manifest_damaged in (False, True):
        working = disk.crash(CrashPolicy.KEPT)
        if is_manifest_damaged:
            working.flip(paths.manifest, 100)
        plan = plan_for(working)

        def crash_here(operation: str, working: SimDisk = working) -> None:
            nonlocal points
            points += 1
            for policy in CrashPolicy:
                crashed = working.crash(policy, Random(points))
                again = plan_for(crashed)
                assert all(each.is_possible for each in again), (operation, policy, again)
                if again:
                    repair(crashed, again, "again")
                assert errors(crashed) == [], (operation, policy)
                manifest = load(crashed, paths.manifest)
                assert manifest is not None
                assert manifest.snapshots == (older,)
                aside = [
                    name for name in crashed.list(paths.snapshots) if name.endswith(".damaged")
                ]
                assert [crashed.contents(paths.snapshots / name) for name in aside] == [content]
                assert state_after(crashed, paths) == live.state_hash

        working.after_operation = crash_here
        repair(working, plan)
        working.after_operation = None
    assert points > 20


# Copied directories


OTHERS = (
    ShardIdentity(UUID(int=1), UUID(int=2), 1),
    ShardIdentity(UUID(int=1), UUID(int=9), 0),
    ShardIdentity(UUID(int=9), UUID(int=2), 0),
)


@pytest.mark.parametrize("theirs", OTHERS, ids=["shard", "node", "cluster"])
def test_a_directory_of_another_shard_node_or_cluster_is_left_alone(theirs: ShardIdentity) -> None:
    live = lived()
    disk, paths = disk_of(live), live.paths
    manifest = load(disk, paths.manifest)
    assert manifest is not None
    assert manifest.identity == ShardIdentity(UUID(int=1), UUID(int=2), 0)
    save(disk, paths.manifest, replace(manifest, identity=theirs))
    disk.put(paths.segments / "0000000001.flseg.cmp", b"a leftover")
    disk.flip(live.store.path(live.store.records[1]), 8 * 200)
    before = {path: disk.contents(path) for path in (paths.manifest, paths.hard_state)}

    with pytest.raises(ForeignShard, match=f"is of {theirs}, but this is {manifest.identity}"):
        open_shard(disk, paths)
    assert {path: disk.contents(path) for path in before} == before
    assert "FOREIGN_SHARD" in errors(disk)
    plan = plan_for(disk)
    assert not any(each.is_possible for each in plan)
    (why,) = (each for each in plan if each.reason == "FOREIGN_SHARD")
    assert str(theirs) in why.description
    assert "copied" in why.advice


def test_a_directory_of_an_older_onelog_gets_its_identity_when_it_is_opened() -> None:
    live = lived()
    disk, paths = disk_of(live), live.paths
    manifest = load(disk, paths.manifest)
    assert manifest is not None
    save(disk, paths.manifest, replace(manifest, identity=None))
    assert errors(disk) == []
    open_shard(disk, paths)
    opened = load(disk, paths.manifest)
    assert opened is not None
    assert opened.identity == manifest.identity
    assert make_directory(disk, DATA).shard_path(0).identity == manifest.identity
