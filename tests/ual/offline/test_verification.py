"""Verification: everything that is wrong is found, nothing else is, and one file hides no other."""

import ast
import errno
import os
import re
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from onelog.cluster.errors import StateDiverged
from onelog.node.errors import MemberRemoved, ShardDamaged
from onelog.snapshot import errors as snapshot_errors
from onelog.ual import errors
from onelog.ual.errors import DirectoryError, NotADataDirectory
from onelog.ual.files import Files
from onelog.ual.hard_state import SLOT_SIZE
from onelog.ual.manifest import load, save
from onelog.ual.offline.reader import ReadOnlyFiles
from onelog.ual.offline.verify import Finding, Level, verify
from onelog.ual.segments.format import (
    compacting_name,
    segment_name,
    tomb_name,
    unsealed_name,
)
from tests.faults.test_crash_sweep import Workload
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.directories import UNSYNCED_MAX, Built, built_disk, check, fork, only
from tests.ual.shards import open_shard

ROOT = Path(__file__).parents[3]
FLIPS_PER_FILE = int(os.environ.get("VERIFY_FLIPS", "80"))
HARMLESS = {Level.TAIL, Level.LEFTOVER, Level.NOTE}


@pytest.fixture(scope="module")
def healthy() -> tuple[SimDisk, Built]:
    return built_disk()


def test_every_reason_is_in_the_operators_table_and_nothing_else_is() -> None:
    """The table in docs/operations.md, the errors, and what the checks have in their source."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("## Error reasons")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    told = {reason for cell in rows for reason in re.findall(r"`([A-Z_0-9]+)`", cell)}
    modules = (errors, snapshot_errors)
    classes = [
        item for module in modules for item in vars(module).values() if isinstance(item, type)
    ]
    raised = {item.reason for item in classes if issubclass(item, errors.UalError)}
    of_the_command = {"USAGE", "INTERNAL", "OS_ERROR"}
    of_replicas = {StateDiverged.reason, MemberRemoved.reason, ShardDamaged.reason}
    of_snapshots = {"UNLISTED_SNAPSHOT"}
    command = (ROOT / "onelog" / "cli" / "main.py").read_text()
    assert all(reason in command for reason in of_the_command)
    written: set[str] = set()
    for name in ("offline/verify", "segments/check"):
        tree = ast.parse((ROOT / "ual" / f"{name}.py").read_text())
        strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        written |= {value for value in strings if isinstance(value, str) and value.isupper()}
    names = {value for value in written if re.fullmatch(r"[A-Z]+(_[A-Z]+)+|[A-Z]{7,}", value)}
    assert "MISSING_RANGE" in names
    expected = raised | (names - {"MANIFEST"}) | of_the_command | of_snapshots | of_replicas
    assert told - set(errno.errorcode.values()) == expected


def test_an_undamaged_directory_yields_nothing(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    assert check(disk, built) == []


@pytest.mark.parametrize("number", range(8))
def test_any_flipped_bit_in_any_file_is_found_in_that_file(
    healthy: tuple[SimDisk, Built], number: int
) -> None:
    """The promise of verify. VERIFY_FLIPS=1000000 tries every bit there is."""
    disk, built = healthy
    path = built.files[number]
    bits = len(disk.contents(path)) * 8
    seed = number + 1
    rng = Random(seed)
    chosen = rng.sample(range(bits), min(FLIPS_PER_FILE, bits))
    if path == built.paths.hard_state:  # nearly all of it is padding
        slots = (0, SLOT_SIZE, 2 * SLOT_SIZE)
        chosen += [(slot + byte) * 8 + rng.randrange(8) for slot in slots for byte in range(56)]
    for bit in chosen:
        damaged = fork(disk)
        damaged.flip(path, bit)
        findings = check(damaged, built)
        assert any(finding.path == path for finding in findings), (seed, path.name, bit, findings)


def test_after_any_crash_there_are_only_tails_and_leftovers_and_none_after_opening() -> None:
    """What a crash leaves must never be called damage, or people would stop believing it."""
    seed = 5
    crashes = Random(seed)
    disk = SimDisk(page_size=256, tear_writes=True)
    workload = Workload(disk, seed)
    data_dir = workload.paths.root.parent
    levels: Counter[Level] = Counter()

    def crash_here(operation: str) -> None:
        crash_seed = crashes.getrandbits(32)
        if crash_seed % 2:
            return
        policy = crashes.choice(list(CrashPolicy))
        crashed = disk.crash(policy, Random(crash_seed))
        findings = verify(crashed, data_dir, unsynced_bytes_max=UNSYNCED_MAX)
        levels.update(finding.level for finding in findings)
        where = (seed, operation, policy, crash_seed)
        assert {finding.level for finding in findings} <= HARMLESS, (where, findings)
        open_shard(crashed, workload.paths)
        after = verify(crashed, data_dir, unsynced_bytes_max=UNSYNCED_MAX)
        assert {finding.level for finding in after} <= {Level.NOTE}, (where, after)

    disk.after_operation = crash_here
    for _ in range(200):
        workload.step()
    assert levels[Level.TAIL] > 10
    assert levels[Level.LEFTOVER] > 3


def test_a_missing_unsealed_file_is_a_missing_range_and_not_damage_to_the_one_before(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    later = built.active.with_name(unsealed_name(200))
    header = bytearray(disk.contents(built.active)[:64])
    header[16:24] = struct.pack("<Q", 200)
    header[60:64] = struct.pack("<I", crc32c(bytes(header[:32])))
    damaged.put(later, bytes(header))
    finding = only([item for item in check(damaged, built) if item.level is Level.ERROR])
    assert finding.reason == "MISSING_RANGE"
    assert finding.message == "no file holds entries 118 to 199"


def test_one_damaged_file_does_not_hide_another(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    for path in built.files:
        damaged.flip(path, 8 * 20)
    assert {finding.path for finding in check(damaged, built)} >= set(built.files)


@pytest.mark.parametrize("number", range(8))
def test_a_file_that_the_disk_cannot_read_is_a_finding(
    healthy: tuple[SimDisk, Built], number: int
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    path = built.files[number]
    damaged.fail("read", errno.EIO, path_contains=path.name, times=float("inf"))
    unreadable = [finding.path for finding in check(damaged, built) if "READ" in finding.reason]
    assert unreadable == [path]


def test_nothing_is_changed(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    operations = disk.operations
    check(disk, built)
    assert disk.operations == operations


def test_progress_ascends_and_ends_at_the_total(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    seen: list[tuple[int, int, Path]] = []
    verify(disk, built.data_dir, lambda done, total, path: seen.append((done, total, path)))
    done = [item[0] for item in seen]
    total = sum(len(disk.contents(path)) for path in built.files[4:])
    assert done == sorted(done)
    assert done[-1] == total
    assert {item[1] for item in seen} == {total}
    assert {built.sealed, built.active} <= {item[2] for item in seen}


# Unsealed files ----------------------------------------------------------------------------------


def test_a_torn_tail_is_told_from_corruption(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    end = len(disk.contents(built.active))
    damaged = fork(disk)
    damaged.put(built.active, disk.contents(built.active) + b"half an entry")
    torn = only(check(damaged, built))
    assert (torn.level, torn.reason, torn.offset) == (Level.TAIL, "TORN_TAIL", end)
    assert "13 bytes" in torn.message

    damaged = fork(disk)
    damaged.flip(built.active, 8 * (end - 1))
    corrupt = only(check(damaged, built))
    assert (corrupt.level, corrupt.reason) == (Level.ERROR, "ENTRY_DAMAGED")
    assert "durable" in corrupt.message


def test_damage_in_a_closed_file_is_never_a_tail(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.closed, disk.contents(built.closed)[:-3])
    assert only(check(damaged, built)).reason == "ENTRY_DAMAGED"


def test_payload_len_beyond_the_file_is_found(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    for path in (built.sealed, built.closed, built.active):
        damaged = fork(disk)
        data = bytearray(disk.contents(path))
        data[64 + 32 : 64 + 36] = struct.pack("<I", 0x7FFFFFFF)
        damaged.put(path, bytes(data))
        findings = [f for f in check(damaged, built) if f.path == path]
        assert only(findings).reason == "ENTRY_DAMAGED"
        assert only(findings).offset == 64


def test_an_interrupted_seal_is_a_tail(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.put(built.closed, disk.contents(built.closed) + bytes(300))
    finding = only(check(damaged, built))
    assert (finding.level, finding.reason) == (Level.TAIL, "INTERRUPTED_SEAL")


def test_a_file_without_a_header_is_a_leftover_only_at_the_end(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    after = len(built.entries) + 1
    damaged.put(built.paths.segments / unsealed_name(after), b"")
    finding = only(check(damaged, built))
    assert (finding.level, finding.reason) == (Level.LEFTOVER, "NO_HEADER")
    damaged.put(built.closed, b"")
    assert "HEADER_DAMAGED" in {f.reason for f in check(damaged, built)}


# Names, ranges, small files ----------------------------------------------------------------------


def test_leftovers_and_foreign_names_are_told_apart(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    segments = built.paths.segments
    first = int(built.compacted.name[:10])
    expected = {
        segments / compacting_name(first): (Level.LEFTOVER, "LEFTOVER"),
        segments / tomb_name(999): (Level.LEFTOVER, "LEFTOVER"),
        segments / "000001.flseg": (Level.FOREIGN, "FOREIGN"),
        segments / "0000000000.flseg": (Level.FOREIGN, "FOREIGN"),
        segments / "notes.txt": (Level.FOREIGN, "FOREIGN"),
        built.paths.root / "MANIFEST.tmp": (Level.LEFTOVER, "LEFTOVER"),
        built.paths.root / "core": (Level.FOREIGN, "FOREIGN"),
        built.data_dir / "SYSTEM.tmp": (Level.LEFTOVER, "LEFTOVER"),
        built.data_dir / "backup.tar": (Level.FOREIGN, "FOREIGN"),
        built.data_dir / "00007" / "x": None,
    }
    for path in expected:
        damaged.put(path, b"?")
    found = {f.path: (f.level, f.reason) for f in check(damaged, built)}
    expected[built.data_dir / "00007"] = (Level.FOREIGN, "FOREIGN")
    assert found == {path: level for path, level in expected.items() if level is not None}


def test_files_of_other_packages_are_left_alone_until_they_have_a_verifier(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    path = built.paths.snapshots / "0000000009.fsnap"
    damaged.put(path, b"a snapshot")
    damaged.put(built.paths.cold_list, b"a list")
    assert check(damaged, built) == []
    finding = Finding(Level.ERROR, path, 3, "BAD", "bad", "do something")
    asked: list[Path] = []

    def verifier(files: Files, file_path: Path) -> list[Finding]:
        asked.append(file_path)
        return [finding]

    found = verify(damaged, built.data_dir, verifiers={".fsnap": verifier})
    assert (found, asked) == ([finding], [path])


@pytest.mark.parametrize("which", ["compacted", "sealed", "closed", "active"])
def test_a_missing_file_is_a_missing_range(healthy: tuple[SimDisk, Built], which: str) -> None:
    disk, built = healthy
    damaged = fork(disk)
    path: Path = getattr(built, which)
    damaged.remove(path)
    reasons = {finding.reason for finding in check(damaged, built)}
    if which == "sealed":
        # The compacted file does not know how many proposals it had; the range tells.
        assert reasons == {"MISSING_RANGE"}
    elif which == "active":
        assert reasons == {"MISSING_END"}
    else:
        assert "MISSING_RANGE" in reasons
    assert Level.ERROR in {finding.level for finding in check(damaged, built)}


def test_a_copy_under_another_name_is_found(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    damaged = fork(disk)
    first = int(built.sealed.name[:10])
    damaged.put(built.paths.segments / segment_name(first + 1), disk.contents(built.sealed))
    assert {"WRONG_NAME", "OVERLAP"} <= {finding.reason for finding in check(damaged, built)}
    damaged = fork(disk)
    damaged.put(built.paths.segments / unsealed_name(first), disk.contents(built.sealed))
    assert "OVERLAP" in {finding.reason for finding in check(damaged, built)}


def test_what_was_recorded_is_compared_with_what_is_there(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    end = len(built.entries)
    manifest = load(disk, built.paths.manifest)
    assert manifest is not None
    point = manifest.checkpoint
    damaged = fork(disk)
    promised = replace(point, end_index=end + 5, end_proposal=point.end_proposal + 1)
    save(
        damaged,
        built.paths.manifest,
        replace(manifest, checkpoint=replace(promised, durable_index=end + 5)),
    )
    lost = only(check(damaged, built))
    assert lost.reason == "MISSING_END"
    assert f"{end + 1} to {end + 5}" in lost.message

    damaged = fork(disk)
    committed = replace(point, commit_index=end + 5)
    save(damaged, built.paths.manifest, replace(manifest, checkpoint=committed))
    assert only(check(damaged, built)).level is Level.NOTE

    damaged = fork(disk)
    condemned = replace(
        point,
        end_index=end - 1 - built.entries[-1].group_left,
        durable_index=built.commit_index,
        generation=point.generation + 1,
    )
    start_of_last = max(e.index for e in built.entries[:-1] if e.group_left == 0) + 1
    condemned = replace(condemned, end_index=start_of_last - 1, end_proposal=point.end_proposal - 1)
    save(
        damaged,
        built.paths.manifest,
        replace(manifest, checkpoint=condemned, cut_from_index=start_of_last),
    )
    assert only(check(damaged, built)).reason == "INTERRUPTED_CUT"


def test_a_shard_that_lost_all_of_its_files_is_not_taken_for_a_new_one(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    lost = fork(disk)
    for directory in (built.paths.segments, built.paths.snapshots):
        for name in lost.list(directory):
            lost.remove(directory / name)
    for path in (built.paths.manifest, built.paths.hard_state):
        lost.remove(path)
    finding = only(check(lost, built))
    assert (finding.level, finding.reason) == (Level.ERROR, "RAFT_LOST")


def test_small_files_that_are_missing_or_doubly_damaged(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    for path, reason in (
        (built.data_dir / "SYSTEM", "SYSTEM_DAMAGED"),
        (built.data_dir / "NODE", "NODE_DAMAGED"),
        (built.paths.manifest, "MANIFEST_MISSING"),
        (built.paths.hard_state, "RAFT_LOST"),
    ):
        damaged = fork(disk)
        damaged.remove(path)
        finding = only(check(damaged, built))
        assert (finding.level, finding.reason, finding.path) == (Level.ERROR, reason, path)
    damaged = fork(disk)
    damaged.flip(built.paths.hard_state, 8 * 20)
    assert only(check(damaged, built)).level is Level.TAIL
    damaged.flip(built.paths.hard_state, 8 * (SLOT_SIZE + 20))
    assert only(check(damaged, built)).reason == "RAFT_LOST"
    damaged = fork(disk)
    damaged.put(built.paths.hard_state, disk.contents(built.paths.hard_state) + b"more")
    assert only(check(damaged, built)).level is Level.ERROR


def test_missing_directories_and_shards_out_of_range(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    with pytest.raises(DirectoryError, match="shard 1 is not in"):
        verify(disk, built.data_dir, shard=1)
    assert verify(disk, built.data_dir, shard=0) == []
    with pytest.raises(NotADataDirectory, match="does not exist"):
        verify(disk, Path("/nowhere"))
    with pytest.raises(NotADataDirectory, match="did you mean /data"):
        verify(disk, built.paths.segments)
    with pytest.raises(NotADataDirectory, match="is a file"):
        verify(disk, built.sealed)
    fresh = SimDisk()
    fresh.put(Path("/data/SYSTEM"), disk.contents(built.data_dir / "SYSTEM"))
    fresh.put(Path("/data/NODE"), disk.contents(built.data_dir / "NODE"))
    assert only(verify(fresh, Path("/data"))).reason == "SHARD_MISSING"


def test_a_directory_without_its_small_files_is_still_verified(
    healthy: tuple[SimDisk, Built],
) -> None:
    disk, built = healthy
    damaged = fork(disk)
    damaged.remove(built.data_dir / "SYSTEM")
    damaged.remove(built.data_dir / "NODE")
    damaged.flip(built.sealed, 8 * 100)
    assert [finding.path.name for finding in check(damaged, built)] == [
        "SYSTEM",
        "NODE",
        built.sealed.name,
    ]


class RacingFiles(ReadOnlyFiles):
    """Lets a writer rename a file right after segs/ was listed for the n-th time."""

    def __init__(self, disk: SimDisk, path: Path, new_path: Path, listing: int) -> None:
        super().__init__(disk)
        self.disk, self.path, self.new_path = disk, path, new_path
        self.listings_left = listing

    def list(self, path: Path) -> list[str]:
        names = super().list(path)
        if path == self.path.parent:
            self.listings_left -= 1
            if self.listings_left == 0:
                self.disk.rename(self.path, self.new_path)
        return names


@pytest.mark.parametrize("listing", [1, 2])
def test_a_file_that_is_sealed_while_verify_runs_is_looked_for_again(
    healthy: tuple[SimDisk, Built], listing: int
) -> None:
    """Once when the sizes are added up, once when the files are about to be read."""
    disk, built = healthy
    live = fork(disk)
    early = built.paths.segments / unsealed_name(int(built.sealed.name[:10]))
    live.rename(built.sealed, early)
    racing = RacingFiles(live, early, built.sealed, listing)
    assert check(racing, built) == []
    assert racing.listings_left <= 0
