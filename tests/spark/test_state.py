"""Tables of the state: from a snapshot's sections, by replay, from files and from a cluster."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog.client.client import AsyncClient
from onelog.errors import InvalidArgument, NotFound, OnelogError, OutOfRange
from onelog.projections.kv.reads import Range as KeyRange
from onelog.snapshot.offline import make_snapshot, rebuild_state
from onelog.spark.source import OnelogDataSource
from onelog.spark.state import STATE_VIEWS, StateTable
from onelog.ual.files import DiskFiles
from onelog.v1 import admin_pb2
from tests.node.services.nodes import WAIT_S, run, single
from tests.spark.shard_dirs import Shard
from tests.spark.written import write_history


def table_of(**options: str) -> StateTable:
    table = OnelogDataSource(options)._table
    assert isinstance(table, StateTable)
    return table


def rows(**options: str) -> list[dict[str, Any]]:
    table = table_of(**options)
    return [
        row for part in table.parts for batch in table.batches(part) for row in batch.to_pylist()
    ]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    shard = Shard(tmp_path_factory.mktemp("state") / "data", seed=11)
    shard.write_queues(("jobs",))
    shard.write(60)
    shard.live.snapshot()
    shard.write(60)
    shard.live.snapshot()
    return shard


def keys_at(shard: Shard, index: int) -> dict[tuple[str, bytes], tuple[bytes, int]]:
    """Return all keys of the state at an index, by the reads that the server uses."""
    state = rebuild_state(DiskFiles(), shard.path, 0, index=index).projections
    found = {}
    for namespace in state.kv.stores:
        page = state.kv.scan(namespace, KeyRange.prefix(b""), limit=10_000)
        for item in page.items:  # type: ignore[union-attr]
            found[namespace, item.key] = (item.value, item.version)
    return found


def test_keys_at_any_index_are_those_that_reads_of_the_past_find(shard: Shard) -> None:
    """One index is a snapshot's own, the others are replayed; the rows come the same way."""
    newest = shard.live.log.manifest.snapshots[-1].index
    assert newest == shard.last_index
    compared = 0
    for index in (newest, newest - 1, newest // 2, newest // 3, 5):
        try:
            found = rows(view="kv", path=str(shard.path), as_of_index=str(index))
        except OutOfRange:
            with pytest.raises(OutOfRange, match="AS_OF_INSIDE_TRANSACTION"):
                rows(view="kv", path=str(shard.path), as_of_index=str(index))
            continue
        assert {
            (row["namespace"], row["key"]): (row["value"], row["version"]) for row in found
        } == (keys_at(shard, index))
        compared += 1
    assert compared >= 3
    assert rows(view="kv", path=str(shard.path)) == rows(
        view="kv", path=str(shard.path), as_of_index=str(newest)
    )


def test_every_table_of_the_state_is_the_same_from_sections_and_by_replay(tmp_path: Path) -> None:
    """A snapshot that is damaged or gone costs time and changes no row."""
    data_dir = write_history(tmp_path, seed=4, steps=600).path.parent
    made = make_snapshot(DiskFiles(), data_dir, 0, 1_800_000_000)
    assert made is not None
    path = data_dir / "00000" / "snaps" / made.record.file
    tables = {view: rows(view=view, path=str(data_dir)) for view in STATE_VIEWS}
    content = path.read_bytes()
    # In the middle of a section: only its checksum can tell.
    path.write_bytes(content[:-500] + bytes((content[-500] ^ 1,)) + content[-499:])
    assert {view: rows(view=view, path=str(data_dir)) for view in STATE_VIEWS} == tables
    assert all(tables.values()), {view: len(found) for view, found in tables.items()}


def test_a_time_means_the_last_entry_up_to_it(shard: Shard) -> None:
    entries = list(shard.live.log.segments.scan(1, shard.last_index))
    middle = entries[len(entries) // 2]
    last = max(each.index for each in entries if each.timestamp_ns <= middle.timestamp_ns)
    by_time = table_of(view="kv", path=str(shard.path), as_of_time=str(middle.timestamp_ns))
    # Refused entries at the end of it change nothing, so the index may stand before them.
    (part,) = by_time.parts
    assert part.index <= last
    seen = {index for index, *_ in shard.expected(shard.last_index)}
    assert not [index for index in range(part.index + 1, last + 1) if index in seen]


def test_selections_and_columns_prune(shard: Shard) -> None:
    everything = rows(view="kv", path=str(shard.path))
    wanted = rows(view="kv", path=str(shard.path), namespaces="default", key_prefix="key-1")
    assert wanted == [
        row
        for row in everything
        if row["namespace"] == "default" and row["key"].startswith(b"key-1")
    ]
    assert 0 < len(wanted) < len(everything)


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"as_of_index": "999999"}, OutOfRange, "INDEX_IN_FUTURE"),
        ({"as_of_index": "7=5"}, NotFound, "SHARD_UNKNOWN"),
        ({"as_of_index": "5", "as_of_time": "7"}, InvalidArgument, "OPTION_CONFLICT"),
        ({"as_of_time": "yesterday"}, InvalidArgument, "TIME_INVALID"),
        ({"from_index": "5"}, InvalidArgument, "OPTION_UNCONCERNED"),
        ({"types": "put"}, InvalidArgument, "OPTION_UNCONCERNED"),
        ({"streams": "a"}, InvalidArgument, "OPTION_UNCONCERNED"),
        ({"columns": "nothing"}, InvalidArgument, "COLUMN_UNKNOWN"),
    ],
)
def test_what_a_state_cannot_have_is_refused(
    shard: Shard, options: dict[str, str], error: type[OnelogError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        OnelogDataSource({"view": "kv", "path": str(shard.path), **options})


def test_views_of_entries_have_no_as_of_and_states_no_stream(shard: Shard) -> None:
    path = str(shard.path)
    with pytest.raises(InvalidArgument, match="OPTION_UNCONCERNED: option as_of_index"):
        OnelogDataSource({"view": "log", "path": path, "as_of_index": "5"})
    source = OnelogDataSource({"view": "kv", "path": path})
    with pytest.raises(InvalidArgument, match="VIEW_NOT_STREAMED"):
        source.streamReader(source.schema())


def test_a_cluster_sends_its_snapshot_and_the_log_behind_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2) as node, AsyncClient(node.endpoint) as client:
            options = {"view": "kv", "endpoint": node.endpoint}
            await asyncio.gather(*(client.kv.put(f"k{n}", f"v{n}") for n in range(60)))
            for shard in (0, 1):
                request = admin_pb2.TakeSnapshotRequest(shard=shard)
                await node.admin.TakeSnapshot(request, timeout=WAIT_S)
            await asyncio.gather(*(client.kv.put(f"k{n}", f"w{n}") for n in range(30)))
            found = await asyncio.to_thread(lambda: rows(**options))
            assert {row["key_text"]: row["value"].decode() for row in found} == {
                f"k{n}": f"w{n}" if n < 30 else f"v{n}" for n in range(60)
            }
            assert {row["shard"] for row in found} == {0, 1}
            kept = {}
            for shard in (0, 1):
                kept[shard] = (await client.log.describe(shard)).snapshots[-1].index
            as_of = ",".join(f"{shard}={index}" for shard, index in kept.items())
            before = await asyncio.to_thread(lambda: rows(**options, as_of_index=as_of))
            assert {row["value"].decode()[0] for row in before} == {"v"}
            assert len(before) == 60

    run(test())
