"""A member whose log was damaged while it was down: it starts, is repaired by the others, serves.

Nothing is in a snapshot unless a test takes one, so a start needs the whole log for its replay.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from onelog import Client
from onelog.client.values import Read
from onelog.ual.files import DiskFiles
from onelog.ual.segments.format import FOOTER_SIZE
from onelog.ual.segments.sealed import SealedSegment
from tests.system.nodes import ServeProcess, nodes, until
from tests.system.test_damage import FLAGS

KEYS = 400
NAMES = ("n1", "n2", "n3")
WAITS = "starts when its log is repaired"
STARTED = "has started: its log is repaired"


@contextmanager
def cluster_of(directory: Path, *names: str, **more: str) -> Iterator[dict[str, ServeProcess]]:
    """Run nodes, write until each has some sealed files, and kill them all."""
    with nodes(directory, *names, **(FLAGS | more)) as cluster:
        for each in cluster.values():
            each.start()
        for each in cluster.values():
            each.until_ready()
        with connected(cluster) as client:
            client.kv.put_many(expected())
        for each in cluster.values():
            for shard in range(int(each.flags["shards"])):
                until(lambda each=each, shard=shard: len(sealed(each, shard)) >= 3 or None)  # type: ignore[misc]
        yield cluster


def connected(cluster: dict[str, ServeProcess]) -> Client:
    return Client([each.flags["listen"] for each in cluster.values()], timeout_s=20.0)


def expected() -> dict[str, bytes]:
    rng = Random(7)
    return {f"key-{at}": rng.randbytes(1_000) for at in range(KEYS)}


def sealed(node: ServeProcess, shard: int = 0) -> list[Path]:
    return sorted((node.directory / "data" / f"{shard:05d}" / "segs").glob("*.flseg"))


def find_shard(key: str) -> int:
    return int(crc32c(key.encode()) % int(FLAGS["partitions"]) % 2)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def flip_body(path: Path) -> None:
    flip(path, path.stat().st_size // 3)


def flip_header(path: Path) -> None:
    flip(path, 9)


def flip_footer(path: Path) -> None:
    flip(path, path.stat().st_size - FOOTER_SIZE + 3)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    path.unlink()


def kill(*killed: ServeProcess) -> None:
    for each in killed:
        each.kill()


def assert_whole(cluster: dict[str, ServeProcess]) -> None:
    """Check that each node has all that was written, and that nothing is wrong with its files."""
    for each in cluster.values():
        each.until_ready()
        with Client(each.flags["listen"], timeout_s=20.0) as client:
            stale = Read(stale=True)

            def found(client: Client = client, stale: Read = stale) -> bool:
                values = client.kv.get_many(list(expected()), read=stale)
                return [each and each.value for each in values] == list(expected().values())

            until(found)
            assert list(client.admin.damage(endpoint=each.flags["listen"]).segments) == []
    for each in cluster.values():
        each.terminate()
        verified = onelog("log", "verify", str(each.directory / "data"))
        assert verified.returncode == 0, verified.stdout + verified.stderr


def onelog(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onelog.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("damage", [flip_body, flip_header, flip_footer, truncate, remove])
def test_a_member_is_repaired_before_it_serves(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """It needs the file for its replay, and had to be rebuilt by hand."""
    with cluster_of(tmp_path, *NAMES) as cluster:
        node = cluster["n2"]
        node.kill()
        path = sealed(node)[1]
        before = SealedSegment.open(DiskFiles(), path)
        damage(path)
        node.start().until_ready()
        (line,) = node.logged(WAITS)
        assert f"entries {before.first_index} to {before.last_index} ({path}: " in line["message"]
        assert node.logged(STARTED)
        with connected(cluster) as client:
            client.kv.put("after", b"1")
        assert_whole(cluster)


@pytest.mark.parametrize("damage", [flip_footer, remove])
def test_damage_that_a_snapshot_covers_keeps_no_member_waiting(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Its replay does not need the file: it serves at once, and repairs it meanwhile."""
    with cluster_of(tmp_path, *NAMES) as cluster:
        for each in cluster.values():
            with Client(each.flags["listen"], timeout_s=20.0) as client:
                client.admin.take_snapshot(0, endpoint=each.flags["listen"])
        node = cluster["n2"]
        node.kill()
        damage(sealed(node)[1])
        node.start().until_ready()
        assert node.logged(WAITS) == []
        with Client(node.flags["listen"], timeout_s=20.0) as client:
            until(lambda: not client.admin.damage(endpoint=node.flags["listen"]).segments)
        assert_whole(cluster)


def test_a_member_waits_for_others_and_says_for_what(tmp_path: Path) -> None:
    """All are down; then one comes back, with which there is no leader before the repair."""
    with cluster_of(tmp_path, *NAMES) as cluster:
        kill(*cluster.values())
        node = cluster["n1"]
        paths = sealed(node)
        flip_header(paths[0])
        flip_header(paths[1])  # nothing before it shows its place until that one is repaired
        remove(paths[2])
        node.start()
        report = node.until_report(stage="repairing", ready=False)
        assert "no other member is connected" in report["waiting_for"]
        (first, *_) = report["shards"]["0"]["repair"]
        assert (first["first_index"], first["path"]) == (1, str(paths[0]))
        (alarm,) = {
            (each.reason, each.shard) for each in Client(node.flags["listen"]).admin.status().alarms
        }
        assert alarm == ("SEGMENT_DAMAGED", 0)
        # Killed while it waits, and while it repairs.
        node.kill()
        cluster["n2"].start()
        lines = len(node.logged(WAITS))
        node.start()
        until(lambda: len(node.logged(WAITS)) > lines)
        node.kill()
        node.start().until_ready()
        cluster["n3"].start()
        assert_whole(cluster)


def test_two_of_three_members_repair_each_other(tmp_path: Path) -> None:
    """The third is down: nobody leads, and each has what the other lacks."""
    with cluster_of(tmp_path, *NAMES) as cluster:
        kill(*cluster.values())
        remove(sealed(cluster["n1"])[0])
        flip_body(sealed(cluster["n2"])[2])
        for name in ("n1", "n2"):
            cluster[name].start()
        for name in ("n1", "n2"):
            cluster[name].until_ready()
            assert cluster[name].logged(STARTED)
        cluster["n3"].start()
        assert_whole(cluster)


def test_other_shards_serve_while_one_waits_for_a_member_that_is_whole(tmp_path: Path) -> None:
    """Two of three are damaged in the same place; the leader that is left has no majority."""
    with cluster_of(tmp_path, *NAMES, shards="2") as cluster:
        kill(*cluster.values())
        for name in ("n1", "n2"):
            truncate(sealed(cluster[name])[1])
        flip_body(sealed(cluster["n1"], 1)[1])  # of this one the other has a copy
        for name in ("n1", "n2"):
            cluster[name].start()

        def asked() -> bool:
            _, report = cluster["n1"].ready()
            return "damaged here" in report.get("waiting_for", "")

        until(asked)
        assert list(cluster["n1"].ready()[1]["shards"]["0"]) == ["recovery", "repair"]
        key = next(each for each in map("new-{}".format, range(99)) if find_shard(each) == 1)
        with connected(cluster) as client:
            client.kv.put(key, b"written meanwhile")
            (found,) = client.kv.get_many([key])
            assert found is not None
            assert found.value == b"written meanwhile"
        cluster["n3"].start()
        assert_whole(cluster)


def test_a_member_alone_does_not_start_and_says_what_to_do(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "n1") as cluster:
        node = cluster["n1"]
        node.kill()
        path = sealed(node)[1]
        segment = SealedSegment.open(DiskFiles(), path)
        flip_body(path)
        assert node.start().wait() == 1
        last = node.output.splitlines()[-1]
        assert last.startswith("error: SHARD_DAMAGED: shard 0 cannot start: "), last
        for part in (
            f"entries {segment.first_index} to {segment.last_index} ({path}: checksum of the file)",
            "no other member",
            "onelog log verify",
            "onelog log repair",
            "backup",
        ):
            assert part in last


def test_a_member_with_a_damaged_unsealed_file_does_not_start(tmp_path: Path) -> None:
    """It may have acknowledged what nobody else has: no copy can replace that."""
    with cluster_of(tmp_path, *NAMES) as cluster:
        node = cluster["n2"]
        node.kill()
        segments = node.directory / "data" / "00000" / "segs"
        path, *_ = sorted(segments.glob("*.flseg.tmp"))  # the first one has entries
        flip(path, 100)
        assert node.start().wait() == 1
        last = node.output.splitlines()[-1]
        assert last.startswith("error: SHARD_DAMAGED: shard 0 cannot start: "), last
        assert str(path) in last
        assert "remove this node from the cluster" in last


@pytest.mark.parametrize("lost", ["*", "RAFT", "[!R]*"])
def test_a_member_whose_shard_lost_its_files_does_not_begin_it_anew(
    tmp_path: Path, lost: str
) -> None:
    """It would vote a second time in a term, and count for entries that it has lost."""
    with cluster_of(tmp_path, *NAMES, shards="2") as cluster:
        node = cluster["n2"]
        node.kill()
        for path in (node.directory / "data" / "00001").rglob(lost):
            if path.is_file():
                path.unlink()
        assert node.start().wait() == 1
        last = node.output.splitlines()[-1]
        assert "/00001" in last
        assert "remove this node from the cluster" in last
        with connected(cluster) as client:  # the others have all of it
            values = client.kv.get_many(list(expected()))
            assert [each and each.value for each in values] == list(expected().values())
