"""``onelog log verify`` and ``repair`` as commands, on what real servers have left."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onelog import Client
from tests.system.nodes import ServeProcess, nodes, until
from tests.system.processes import ROOT
from tests.system.test_rot import rot
from tests.system.tls_nodes import status

CLEAN, DAMAGED = 0, 1
KEYS = 32


def onelog(*arguments: object) -> tuple[int, str]:
    """Run a command; return its exit code and everything that it printed."""
    command = [sys.executable, "-m", "onelog.cli.main", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def fill(node: ServeProcess, shards: int) -> dict[str, bytes]:
    """Write until the logs of all shards were trimmed; return what the keys hold."""
    values: dict[str, bytes] = {}
    with Client(node.flags["listen"], timeout_s=30) as client:

        def is_trimmed() -> bool:
            for number in range(KEYS):
                values[f"k{number}"] = b"%d %d" % (len(values), number) * 500
                client.kv.put(f"k{number}", values[f"k{number}"])
            for shard in range(shards):
                client.admin.take_snapshot(shard)
            return all(each.first_index > 1 for each in status(client, node).shards)

        until(is_trimmed)
    return values


def read(node: ServeProcess) -> dict[str, bytes]:
    with Client(node.flags["listen"], timeout_s=30) as client:
        found = {f"k{number}": client.kv.get(f"k{number}") for number in range(KEYS)}
    return {key: item.value for key, item in found.items() if item is not None}


@pytest.mark.parametrize("lost", ["damaged", "missing"])
def test_manifest_and_a_snapshot_are_repaired_and_the_server_has_all_its_data(
    tmp_path: Path, lost: str
) -> None:
    flags = {"shards": "1", "partitions": "1", "log_segment_bytes_max": "64KiB"}
    with nodes(tmp_path, "n1", **flags) as cluster:
        (node,) = cluster.values()
        node.start().until_ready()
        values = fill(node, 1)
        assert node.terminate() == 0
        data = Path(node.flags["data-dir"])
        assert onelog("log", "verify", data)[0] == CLEAN

        shard = data / "00000"
        snapshot = max((shard / "snaps").glob("*.fsnap"))
        rot(snapshot, 300)
        content = snapshot.read_bytes()
        if lost == "damaged":
            rot(shard / "MANIFEST", 40)
        else:
            (shard / "MANIFEST").unlink()
        code, found = onelog("log", "verify", data)
        assert code == DAMAGED, found
        assert "CORRUPT_SNAPSHOT" in found
        assert f"MANIFEST_{lost.upper()}" in found
        code, found = onelog("log", "repair", data, "--yes")
        assert code == CLEAN, found
        code, found = onelog("log", "verify", data)
        assert code == CLEAN, found
        assert onelog("log", "prove", data)[0] == CLEAN

        assert not snapshot.exists()
        (aside,) = (shard / "snaps").glob(f"{snapshot.name}.*.damaged")
        assert aside.read_bytes() == content
        node.start().until_ready()
        assert read(node) == values
        assert aside.read_bytes() == content


@pytest.mark.parametrize("origin", ["another cluster", "another shard"])
def test_a_copied_directory_of_a_shard_is_refused_everywhere(tmp_path: Path, origin: str) -> None:
    flags = {"shards": "2", "partitions": "2", "log_segment_bytes_max": "64KiB"}
    with (
        nodes(tmp_path, "n1", **flags) as ours,
        nodes(tmp_path, "n2", **flags) as theirs,
    ):
        (node,), (other,) = ours.values(), theirs.values()
        for each in (node, other):
            each.start().until_ready()
            fill(each, 2)
            assert each.terminate() == 0
        data = Path(node.flags["data-dir"])
        if origin == "another cluster":
            source = Path(other.flags["data-dir"]) / "00000"
        else:
            source = data / "00001"
        shutil.rmtree(data / "00000")
        shutil.copytree(source, data / "00000")
        before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}

        node.start()
        assert node.wait() == DAMAGED
        line = node.output.splitlines()[-1]
        assert "error: FOREIGN_SHARD: " in line
        assert str(data / "00000") in line
        assert "was copied or moved" in line
        for command in (("verify",), ("repair",), ("repair", "--yes")):
            code, found = onelog("log", *command, data)
            assert code == DAMAGED, (command, found)
            assert "FOREIGN_SHARD" in found
        after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
        assert after == before
