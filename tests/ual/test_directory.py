"""The data directory: made once, finished after a crash, never opened by the wrong one."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from onelog.ual.directory import DataDirectory, Node, System, Topology
from onelog.ual.errors import (
    CorruptFile,
    DirectoryError,
    DirectoryExposed,
    DirectoryInUse,
    NotADataDirectory,
    UnknownVersion,
)
from onelog.ual.files import DiskFiles, Files
from onelog.ual.hard_state import HardStateFile
from onelog.ual.json_file import encode_json_file
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import CREATED_AT, make_directory

FOUR_SHARDS = Topology()
CLUSTER, OTHER_CLUSTER = UUID(int=0xC1), UUID(int=0xC2)
NODE, OTHER_NODE = UUID(int=0x01), UUID(int=0x02)
RANDOM_SEEDS = 12  # of each crash point; the points themselves are all visited


def open_directory(
    files: Files,
    path: Path,
    *,
    topology: Topology = FOUR_SHARDS,
    node_name: str = "n1",
    cluster_id: UUID = CLUSTER,
    node_id: UUID = NODE,
) -> DataDirectory:
    node = Node(node_id, node_name, CREATED_AT)
    return make_directory(files, path, topology, cluster_id=cluster_id, node=node)


@pytest.fixture
def created(tmp_path: Path) -> Path:
    """Return a data directory of two shards that nobody uses."""
    path = tmp_path / "data"
    open_directory(DiskFiles(), path, topology=Topology(2, 16)).close()
    return path


def names(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*")}


def test_a_directory_that_does_not_exist_is_created(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"

    with open_directory(DiskFiles(), path) as directory:
        assert directory.path == path
        assert directory.system.topology == Topology(4, 256)
        assert directory.system.cluster_id == CLUSTER
        assert directory.system.created_at == CREATED_AT
        assert (directory.node.node_id, directory.node.name) == (NODE, "n1")
    shards = [f"{shard:05d}" for shard in range(4)]
    assert names(path) == {
        "LOCK",
        "NODE",
        "SYSTEM",
        *shards,
        *(f"{shard}/segs" for shard in shards),
        *(f"{shard}/snaps" for shard in shards),
        *(f"{shard}/RAFT" for shard in shards),
    }


def test_an_existing_directory_keeps_what_it_says(created: Path) -> None:
    """The ids for a new directory are drawn by the caller on every start, and not used here."""
    directory = open_directory(
        DiskFiles(), created, node_name="n9", cluster_id=OTHER_CLUSTER, node_id=OTHER_NODE
    )

    assert (directory.system.cluster_id, directory.system.topology) == (CLUSTER, Topology(2, 16))
    assert (directory.node.node_id, directory.node.name) == (NODE, "n1")


def test_all_files_of_a_shard_are_named_in_one_place(created: Path) -> None:
    with open_directory(DiskFiles(), created) as directory:
        paths = directory.shard_path(1)

        assert paths.root == created / "00001"
        assert paths.segments == created / "00001" / "segs"
        assert paths.snapshots == created / "00001" / "snaps"
        assert paths.manifest == created / "00001" / "MANIFEST"
        assert paths.hard_state == created / "00001" / "RAFT"
        assert paths.cold_list == created / "00001" / "cold.fcold"
        with pytest.raises(AssertionError):
            directory.shard_path(2)


def test_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    open_directory(DiskFiles(), Path("onelog-data")).close()

    assert (tmp_path / "onelog-data" / "SYSTEM").exists()


def test_a_directory_is_used_by_one_at_a_time(created: Path) -> None:
    first = open_directory(DiskFiles(), created)

    with pytest.raises(DirectoryInUse, match=r"another process is using .*; stop it first"):
        open_directory(DiskFiles(), created)
    with pytest.raises(DirectoryInUse):
        DataDirectory.open_existing(DiskFiles(), created, lock=True)
    DataDirectory.open_existing(DiskFiles(), created, lock=False).close()

    first.close()
    first.close()
    open_directory(DiskFiles(), created).close()


def test_another_process_is_kept_out_until_this_one_is_done(created: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from onelog.ual.directory import DataDirectory\n"
        "from onelog.ual.errors import DirectoryInUse\n"
        "from onelog.ual.files import DiskFiles\n"
        "try:\n"
        "    DataDirectory.open_existing(DiskFiles(), Path(sys.argv[1]), lock=True)\n"
        "except DirectoryInUse:\n"
        "    sys.exit(7)\n"
    )
    root = Path(__file__).parents[2]

    def exit_code() -> int:
        return subprocess.run(
            [sys.executable, "-c", program, str(created)], cwd=root, timeout=60, check=False
        ).returncode

    with open_directory(DiskFiles(), created):
        assert exit_code() == 7
    assert exit_code() == 0


def test_a_refusal_releases_the_lock(created: Path) -> None:
    (created / "NODE").rename(created / "NODE.away")
    with pytest.raises(CorruptFile):
        open_directory(DiskFiles(), created)
    with pytest.raises(CorruptFile):
        DataDirectory.open_existing(DiskFiles(), created, lock=True)
    (created / "NODE.away").rename(created / "NODE")

    open_directory(DiskFiles(), created).close()


@pytest.mark.parametrize(("shards", "partitions"), [(0, 1), (65_536, 65_536), (4, 3), (1, 65_537)])
def test_a_topology_outside_the_limits_says_what_to_choose(shards: int, partitions: int) -> None:
    with pytest.raises(DirectoryError, match="choose"):
        Topology(shards, partitions)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb"])
def test_a_node_name_must_be_printable_and_short(tmp_path: Path, name: str) -> None:
    with pytest.raises(DirectoryError, match="choose"):
        open_directory(DiskFiles(), tmp_path, node_name=name)


@pytest.mark.parametrize(
    "foreign",
    ["notes.txt", ".git/config", "00000/segs/x", "00000/MANIFEST", "12345x", "NODE.bak"],
)
def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path, foreign: str) -> None:
    (tmp_path / foreign).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / foreign).write_text("somebody else's")
    before = names(tmp_path)

    with pytest.raises(NotADataDirectory, match="choose an empty directory"):
        open_directory(DiskFiles(), tmp_path)

    assert names(tmp_path) == before


def test_a_new_file_system_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()

    open_directory(DiskFiles(), tmp_path).close()


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")

    with pytest.raises(NotADataDirectory, match="is a file; choose a directory"):
        open_directory(DiskFiles(), tmp_path / "data")
    with pytest.raises(NotADataDirectory, match="is a file; choose a directory"):
        DataDirectory.open_existing(DiskFiles(), tmp_path / "data", lock=False)


def test_a_lost_system_file_is_not_replaced_where_there_is_data(created: Path) -> None:
    (created / "SYSTEM").unlink()
    (created / "00001" / "segs" / "0000000001.flseg.tmp").write_bytes(b"entries")

    with pytest.raises(CorruptFile, match=r"SYSTEM: missing, but 00001 holds data; restore"):
        open_directory(DiskFiles(), created)

    assert not (created / "SYSTEM").exists()


@pytest.mark.parametrize("name", ["MANIFEST", "MANIFEST.tmp", "RAFT", "cold.fcold"])
def test_any_file_in_a_shard_counts_as_data(created: Path, name: str) -> None:
    (created / "SYSTEM").unlink()
    (created / "00000" / name).write_bytes(b"")

    with pytest.raises(CorruptFile, match="holds data"):
        open_directory(DiskFiles(), created)


def test_a_vote_counts_as_data(created: Path) -> None:
    """Creation makes RAFT without one; the term of a shard that has begun is never given up."""
    (created / "SYSTEM").unlink()
    HardStateFile.open(DiskFiles(), created / "00001" / "RAFT").save(1, NODE)

    with pytest.raises(CorruptFile, match="holds data"):
        open_directory(DiskFiles(), created)


def test_a_lost_node_file_is_not_replaced(created: Path) -> None:
    (created / "NODE").unlink()

    with pytest.raises(CorruptFile, match="NODE: missing; restore it from a backup, or remove"):
        open_directory(DiskFiles(), created)


@pytest.mark.parametrize("missing", ["00001", "00000/segs", "00001/snaps", "00001/RAFT"])
def test_a_shard_that_disappeared_is_not_made_again(created: Path, missing: str) -> None:
    """Its volume may not be mounted; an empty replica would vote again in old terms."""
    (created / missing).rename(created / "elsewhere")

    with pytest.raises(CorruptFile, match=f"{missing}: missing; mount its volume"):
        open_directory(DiskFiles(), created)


def test_the_shards_of_other_workers_stay_empty(tmp_path: Path) -> None:
    """Earlier versions made no RAFT before a shard was opened first, and there none ever is."""
    system = System(CLUSTER, Topology(3, 16), CREATED_AT, worker=1, workers=2)
    for _ in range(2):
        claim = DataDirectory.claim(DiskFiles(), tmp_path, Node(NODE, "n1", CREATED_AT))
        claim.complete(system).close()

    assert {each for each in names(tmp_path) if each.endswith("RAFT")} == {"00001/RAFT"}


def test_tools_open_only_what_exists(tmp_path: Path, created: Path) -> None:
    with DataDirectory.open_existing(DiskFiles(), created, lock=True) as directory:
        assert directory.system.topology == Topology(2, 16)
        assert directory.node.node_id == NODE
    with pytest.raises(NotADataDirectory, match="does not exist; give the path"):
        DataDirectory.open_existing(DiskFiles(), tmp_path / "nowhere", lock=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotADataDirectory, match="no SYSTEM file; give the path"):
        DataDirectory.open_existing(DiskFiles(), tmp_path / "empty", lock=True)
    (created / "SYSTEM").unlink()
    with pytest.raises(NotADataDirectory, match="start the server once"):
        DataDirectory.open_existing(DiskFiles(), created, lock=True)
    assert names(tmp_path / "empty") == set()


def test_tools_open_a_directory_with_damaged_shards(created: Path) -> None:
    (created / "00001").rename(created / "elsewhere")

    DataDirectory.open_existing(DiskFiles(), created, lock=True).close()


@pytest.mark.parametrize("name", ["SYSTEM", "NODE"])
def test_every_flipped_bit_is_found(name: str) -> None:
    disk, path = SimDisk(), Path("/data")
    open_directory(disk, path, topology=Topology(1, 8)).close()

    for position in range(len(disk.contents(path / name)) * 8):
        disk.flip(path / name, position)
        with pytest.raises(CorruptFile, match="restore it from a backup"):
            open_directory(disk, path)
        disk.flip(path / name, position)
    open_directory(disk, path).close()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("SYSTEM", {"shards": 0}),
        ("SYSTEM", {"shards": 65_536}),
        ("SYSTEM", {"partitions": 1}),
        ("SYSTEM", {"partitions": 65_537}),
        ("SYSTEM", {"cluster_id": "x"}),
        ("SYSTEM", {"created_at": "x" * 65}),
        ("SYSTEM", {"colour": "red"}),
        ("SYSTEM", {"cluster_name": "x" * 256}),
        ("SYSTEM", {"workers": 0}),
        ("SYSTEM", {"worker": 2}),
        ("SYSTEM", {"founders": [{"node_id": str(NODE), "name": "", "address": ""}]}),
        ("SYSTEM", {"founders": [{"node_id": str(NODE), "name": "a", "address": ""}] * 2}),
        ("NODE", {"node_id": None}),
        ("NODE", {"name": "a\nb"}),
        ("NODE", {"name": ""}),
        ("NODE", {"created_at": 7}),
        ("NODE", {"colour": "red"}),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(
    created: Path, name: str, fields: dict[str, object]
) -> None:
    good: dict[str, object] = (
        {
            "version": 2,
            "cluster_id": str(CLUSTER),
            "shards": 2,
            "partitions": 16,
            "cluster_name": "c",
            "worker": 0,
            "workers": 2,
            "founders": [],
        }
        if name == "SYSTEM"
        else {"version": 1, "node_id": str(NODE), "name": "n1"}
    )
    content = encode_json_file({"created_at": CREATED_AT, **good, **fields})
    (created / name).write_bytes(content)

    with pytest.raises(CorruptFile, match=next(iter(fields))):
        open_directory(DiskFiles(), created)


@pytest.mark.parametrize("name", ["SYSTEM", "NODE"])
def test_a_newer_version_asks_for_an_upgrade(created: Path, name: str) -> None:
    (created / name).write_bytes(encode_json_file({"version": 9, "whatever": 1}))

    with pytest.raises(UnknownVersion, match="upgrade"):
        open_directory(DiskFiles(), created)


def crash_everywhere(
    disk: SimDisk, work: Callable[[], object], check: Callable[[SimDisk, str], None]
) -> int:
    """Check what a crash after each operation of ``work`` leaves; return how many there were."""
    count = 0

    def crash_here(operation: str) -> None:
        nonlocal count
        for policy in CrashPolicy:
            for seed in range(RANDOM_SEEDS if policy is CrashPolicy.RANDOM else 1):
                check(disk.crash(policy, Random(seed)), f"{operation}, {policy}, seed {seed}")
                count += 1

    disk.after_operation = crash_here
    work()
    disk.after_operation = None
    return count


def test_a_creation_that_crashed_anywhere_is_finished_by_the_next_start() -> None:
    """By a start that drew other ids, and crashes too; then it holds, even if the power fails."""
    path = Path("/var/data")
    disk = SimDisk(tear_writes=True, forget_directories=True)
    topology = Topology(1, 16)

    def open_again(left: SimDisk) -> DataDirectory:
        return open_directory(
            left, path, topology=topology, cluster_id=OTHER_CLUSTER, node_id=OTHER_NODE
        )

    def check_finished(left: SimDisk, label: str) -> None:
        directory = open_again(left)
        assert directory.node.node_id in (NODE, OTHER_NODE), label
        assert directory.system.cluster_id in (CLUSTER, OTHER_CLUSTER), label
        after = left.crash(CrashPolicy.LOST)
        found = DataDirectory.open_existing(after, path, lock=True)
        assert (found.node, found.system) == (directory.node, directory.system), label
        assert after.list(found.shard_path(0).root) == ["RAFT", "segs", "snaps"], label
        assert HardStateFile.is_new(after, found.shard_path(0).hard_state), label

    def check(left: SimDisk, label: str) -> None:
        fork = left.crash(CrashPolicy.KEPT)
        check_finished(left, label)
        if "KEPT" not in label:
            return
        # Killed, and nothing of it durable: the start after that meets the loss of power.
        points: list[tuple[SimDisk, str]] = []
        fork.after_operation = lambda operation: points.extend(
            (fork.crash(policy, Random(1)), f"{label}, then {operation}, {policy}")
            for policy in (CrashPolicy.LOST, CrashPolicy.RANDOM)
        )
        open_again(fork)
        for left_twice, second_label in points:
            check_finished(left_twice, second_label)

    assert (
        crash_everywhere(disk, lambda: open_directory(disk, path, topology=topology), check) > 200
    )


def test_a_directory_that_was_opened_survives_the_loss_of_power() -> None:
    """The start before was killed after it wrote SYSTEM and before it was durable."""
    path = Path("/data")
    disk = SimDisk(tear_writes=True, forget_directories=True)

    def check(left: SimDisk, label: str) -> None:
        directory = open_directory(left, path)
        paths = directory.shard_path(0)
        left.put(paths.manifest, b"of this run")
        after = open_directory(left.crash(CrashPolicy.LOST), path)
        assert after.system == directory.system, label

    crash_everywhere(disk, lambda: open_directory(disk, path), check)


def test_a_crash_while_opening_leaves_an_existing_directory_as_it_is() -> None:
    path = Path("/data")
    disk = SimDisk(tear_writes=True)
    before = open_directory(disk, path)
    before.close()

    def check(left: SimDisk, label: str) -> None:
        after = open_directory(left, path)
        assert (after.node, after.system) == (before.node, before.system), label

    assert crash_everywhere(disk, lambda: open_directory(disk, path), check) > 0


def test_parents_that_are_not_ours_to_sync_do_not_stop_a_creation() -> None:
    """A volume in a read-only image, or below a directory that we may pass but not read."""
    path = Path("/sealed/volume")
    for before in (0, 6):  # of NODE, and of SYSTEM
        disk = SimDisk()
        disk.make_directory(path)
        disk.fail("sync_directory", errno.EACCES, path_contains="/sealed", after=before)
        open_directory(disk, path, topology=Topology(3, 16)).close()

        disk = SimDisk()
        disk.fail("sync_directory", errno.EIO, path_contains="/sealed", after=before)
        with pytest.raises(OSError, match="Input/output error"):
            open_directory(disk, path, topology=Topology(3, 16))


@pytest.mark.parametrize("after", [0, 1], ids=["NODE", "SYSTEM"])
def test_a_disk_that_fills_up_during_creation_can_be_continued(after: int) -> None:
    path = Path("/data")
    disk = SimDisk()
    disk.fail("write", errno.ENOSPC, after=after)

    with pytest.raises(OSError, match="No space left"):
        open_directory(disk, path)

    open_directory(disk, path).close()


def test_others_lose_the_access_that_they_had(created: Path) -> None:
    """An earlier version left files that every user of the machine could read."""
    for each in (created, *created.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    open_directory(DiskFiles(), created).close()
    assert {each.stat().st_mode & 0o077 for each in (created, *created.rglob("*"))} == {0}


def test_a_directory_that_cannot_be_narrowed_is_refused_with_its_lock_released(
    created: Path,
) -> None:
    class OfAnother(DiskFiles):
        def restrict(self, path: Path) -> Sequence[Path]:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path / "RAFT"))

    with pytest.raises(DirectoryExposed, match="RAFT") as refused:
        open_directory(OfAnother(), created)
    assert refused.value.reason == "DIRECTORY_EXPOSED"
    open_directory(DiskFiles(), created).close()
