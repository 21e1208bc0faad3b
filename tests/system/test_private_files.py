"""The data directory of real servers, which is for its owner alone."""

import os
from pathlib import Path

import pytest

from onelog import Client
from tests.system.nodes import ServeProcess, nodes


def modes(path: Path) -> dict[str, set[int]]:
    """Return the modes of all directories and of all files below a path."""
    found: dict[str, set[int]] = {"directories": {path.stat().st_mode & 0o777}, "files": set()}
    for each in path.rglob("*"):
        kind = "directories" if each.is_dir() else "files"
        found[kind].add(each.stat().st_mode & 0o777)
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_data_directory_is_for_its_owner_alone_whatever_the_umask(
    tmp_path: Path, workers: str
) -> None:
    private = {"directories": {0o700}, "files": {0o600}}
    flags = {"shards": "2", "partitions": "2", "workers": workers, "log_segment_bytes_max": "64KiB"}
    with nodes(tmp_path, "n1", **flags) as cluster:
        (node,) = cluster.values()
        before = os.umask(0)
        try:
            node.start().until_ready()
            use(node)
            data = Path(node.flags["data-dir"])
            assert list(data.rglob("*.fsnap"))
            assert modes(data) == private
            assert node.terminate() == 0
            for each in (data, *data.rglob("*")):
                each.chmod(0o777 if each.is_dir() else 0o666)
            os.umask(0o077)
            node.start().until_ready()
            assert modes(data) == private
            assert "only the owner has now" in node.output
        finally:
            os.umask(before)


def use(node: ServeProcess) -> None:
    """Write enough that segments are sealed, and take snapshots."""
    with Client(node.flags["listen"], timeout_s=30) as client:
        for number in range(64):
            client.kv.put(f"k{number}", "x" * 4096)
        for shard in range(2):
            client.admin.take_snapshot(shard)
