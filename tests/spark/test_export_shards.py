"""Exports of several shards: from a cluster and from its files, into a directory and a store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from onelog.client.client import AsyncClient
from onelog.errors import FailedPrecondition
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.export.job import run_export
from onelog.spark.export.plan import EXPORTED_VIEWS, ExportRequest
from onelog.spark.export.target import Target, open_target
from onelog.spark.export.verify import verify_export
from onelog.spark.options import ReadOptions
from onelog.spark.table import open_origin
from onelog.v1 import admin_pb2
from tests.node.services.nodes import WAIT_S, run, single
from tests.spark.exports import directory, everything, export, serial

VIEWS = ("log", "kv", "kv_changes")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a server with two shards, and in ``exported`` what it was exported to."""
    path = tmp_path_factory.mktemp("cluster")

    def export_all(endpoint: str) -> None:
        for view in VIEWS:
            options = ReadOptions.parse({"view": view, "endpoint": endpoint}, EXPORTED_VIEWS)
            target = directory(path / "exported" / view)
            run_export(ExportRequest(options, open_origin(options), target), serial)

    async def write() -> None:
        async with single(path / "data", shards=2) as node, AsyncClient(node.endpoint) as client:
            await asyncio.gather(*(client.kv.put(f"k{n}", f"v{n}") for n in range(60)))
            await asyncio.gather(*(client.kv.put(f"k{n}", f"w{n}") for n in range(30)))
            for shard in (0, 1):
                request = admin_pb2.TakeSnapshotRequest(shard=shard)
                await node.admin.TakeSnapshot(request, timeout=WAIT_S)
            await asyncio.to_thread(export_all, node.endpoint)

    run(write())
    return path


def values(out: Path, view: str) -> dict[int, list[tuple[str, bytes]]]:
    """Return keys and values of each shard's files."""
    found: dict[int, list[tuple[str, bytes]]] = {0: [], 1: []}
    for path in sorted((out / view).rglob("*.parquet")):
        table = pyarrow.parquet.ParquetFile(path).read(["key_text", "value"])
        shard = int(path.relative_to(out / view).parts[0].removeprefix("shard="))
        found[shard] += [(row["key_text"], row["value"]) for row in table.to_pylist()]
    return found


def test_every_shard_of_a_cluster_is_exported(cluster: Path) -> None:
    exported = cluster / "exported"
    expected = [(f"k{n}", b"v%d" % n) for n in range(60)]
    expected += [(f"k{n}", b"w%d" % n) for n in range(30)]
    changes = values(exported / "kv_changes", "kv_changes")
    assert all(changes.values())
    everywhere = [row for rows in changes.values() for row in rows if row[0].startswith("k")]
    assert sorted(everywhere) == sorted(expected)
    states = values(exported / "kv", "kv")
    for shard, rows in changes.items():
        assert dict(states[shard]) == dict(rows)
    for view in VIEWS:
        report = verify_export(
            directory(exported / view), DirectoryOrigin(str(cluster / "data" / "n1"))
        )
        assert report.is_good
        assert len(report.log_not_compared) == (2 if view == "kv" else 0)
        assert report.log_compared == (0 if view == "kv" else report.files)


def test_a_state_of_each_shard_has_an_index_of_its_own(cluster: Path, tmp_path: Path) -> None:
    data = cluster / "data" / "n1"
    ends = {each.shard: each.last_index for each in DirectoryOrigin(str(data)).cut().shards}
    asked = f"0={ends[0]},1={ends[1] - 1}"
    target = directory(tmp_path / "out")
    receipt = export(data, target, view="kv", as_of_index=asked).receipt
    assert [(each.shard, each.last_index) for each in receipt.ranges] == [
        (0, ends[0]), (1, ends[1] - 1),
    ]  # fmt: skip
    for other in ({"as_of_index": f"0={ends[0]}"}, {"shards": "0"}, {}):
        with pytest.raises(FailedPrecondition) as caught:
            export(data, target, None, view="kv", **other)
        assert caught.value.reason == "TARGET_HAS_ANOTHER_EXPORT"


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Run a store; yield a URL in it, to be formatted with a path."""
    from pyarrow import fs

    server = pytest.importorskip("moto.server", reason="moto is not installed")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    options = f"scheme=http&endpoint_override={host}%3A{port}&region=us-east-1"
    root, _ = fs.FileSystem.from_uri(
        f"s3://key:secret@exports/?allow_bucket_creation=true&{options}"
    )
    root.create_dir("exports")
    yield f"s3://key:secret@exports/{{}}?{options}"
    running.stop()


@pytest.mark.parametrize("place", ["directory", "store"])
@pytest.mark.parametrize("view", VIEWS)
def test_files_that_are_exchanged_between_shards_are_named(
    view: str, place: str, cluster: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target: Target = directory(tmp_path / "out")
    if place == "store":
        target = open_target(request.getfixturevalue("store").format(view))
    data = cluster / "data" / "n1"
    receipt = export(data, target, view=view).receipt
    assert verify_export(target, DirectoryOrigin(str(data))).is_good
    # The first day of a shard is that of its founding, the same in all shards to the last byte.
    one, two = ([each.name for each in receipt.files if each.shard == n][-1] for n in (0, 1))
    contents = everything(target)
    target.write(one, contents[two])
    target.write(two, contents[one])
    found = verify_export(target).differences
    assert [(each.kind, each.name) for each in found] == [("EXCHANGED", one), ("EXCHANGED", two)]
    assert two in found[0].message
    assert one in found[1].message
