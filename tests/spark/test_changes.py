"""Changes of keys and events of queues as tables: ranges, tasks, losses, streams, clusters."""

import asyncio
import pickle
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from onelog.client.client import AsyncClient
from onelog.errors import InvalidArgument, OnelogError, OutOfRange
from onelog.snapshot.changes import key_changes, queue_events
from onelog.snapshot.offline import fresh_projections, open_shard
from onelog.snapshot.past import PastState
from onelog.spark.changes import CHANGE_VIEWS, ChangesTable
from onelog.spark.columns.operations import OPERATIONS
from onelog.spark.source import OnelogDataSource
from onelog.spark.streaming import OnelogStreamReader
from onelog.ual.files import DiskFiles
from onelog.v1 import admin_pb2
from tests.node.services.nodes import WAIT_S, run, single
from tests.spark.shard_dirs import Shard
from tests.spark.written import write_history
from tests.ual.shards import drop_before

Row = dict[str, Any]
STATES = ("ready", "delayed", "leased")


def table_of(**options: str) -> ChangesTable:
    source = OnelogDataSource(options)
    source.reader(source.schema())  # raises what a read is refused for
    assert isinstance(source._table, ChangesTable)
    return source._table


def rows(**options: str) -> list[Row]:
    """Read as tasks do: each in a process of its own, with what was pickled."""
    table = table_of(**options)
    found: list[Row] = []
    for part in table.parts:
        travelled: ChangesTable = pickle.loads(pickle.dumps(table))
        for batch in travelled.batches(part):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole log, and two snapshots inside of it."""
    path = tmp_path_factory.mktemp("changes")
    return write_history(path, seed=21, steps=600, snapshots=2).path.parent


@pytest.fixture(scope="module")
def everything(data_dir: Path) -> dict[str, list[Row]]:
    return {view: rows(view=view, path=str(data_dir)) for view in CHANGE_VIEWS}


def replayed(data_dir: Path, last_index: int) -> Iterator[tuple[str, list[Any]]]:
    """Return what a replay from the beginning finds, without the columns."""
    log = open_shard(DiskFiles(), data_dir, 0)

    def begin() -> PastState:
        return PastState(fresh_projections(), 0, (), ())

    yield "kv_changes", list(key_changes(begin(), log.entries, last_index))
    yield "queue_events", list(queue_events(begin(), log.entries, last_index))


def test_rows_are_what_a_replay_from_the_beginning_finds(
    data_dir: Path, everything: dict[str, list[Row]]
) -> None:
    """Three tasks, two of which begin with a snapshot, find the same."""
    table = table_of(view="kv_changes", path=str(data_dir))
    assert len(table.parts) == 3
    for view, expected in replayed(data_dir, table.cut.shards[0].last_index):
        found = everything[view]
        assert len(found) == len(expected) > 200
        for row, each in zip(found, expected, strict=True):
            fields = each._asdict()
            fields["operation"] = OPERATIONS[fields.pop("entry_type")]
            fields["transaction"] = fields["transaction"] or None
            for name in ("state", "previous_state"):
                if fields.get(name) is not None:
                    fields[name] = STATES[fields[name]]
            assert {name: row[name] for name in fields} == fields
            assert row["shard"] == 0
            assert row["timestamp"].timestamp() == pytest.approx(row["timestamp_ns"] / 1e9)
            if view == "kv_changes":
                assert row["key_text"] is None or row["key_text"].encode() == row["key"]
    assert {row["transaction"] for row in everything["queue_events"]} > {None}


@pytest.mark.parametrize("view", CHANGE_VIEWS)
def test_a_range_has_the_rows_of_its_entries(
    data_dir: Path, everything: dict[str, list[Row]], view: str
) -> None:
    """Also where it begins or ends inside of a transaction, or in front of a snapshot."""
    path, all_rows = str(data_dir), everything[view]
    inside = [
        second["index"]
        for first, second in pairwise(all_rows)
        if first["transaction"] is not None and first["transaction"] == second["transaction"]
    ]
    kept = [part.last_index for part in table_of(view=view, path=path).parts]
    last = kept[-1]
    bounds = [(inside[0], inside[-1]), (inside[1], inside[1]), (kept[0], kept[0] + 1), (3, last)]
    for first, stop in bounds:
        found = rows(view=view, path=path, from_index=str(first), to_index=str(stop))
        assert found == [row for row in all_rows if first <= row["index"] <= stop], (first, stop)
    middle = all_rows[len(all_rows) // 2]["timestamp_ns"]
    early = rows(view=view, path=path, to_time=str(middle))
    late = rows(view=view, path=path, from_time=str(middle + 1))
    assert early + late == all_rows
    assert early
    assert late


def test_selections_prune(data_dir: Path, everything: dict[str, list[Row]]) -> None:
    path = str(data_dir)
    found = rows(view="kv_changes", path=path, namespaces="default", key_prefix="key-1")
    assert found == [
        row
        for row in everything["kv_changes"]
        if row["namespace"] == "default" and row["key"].startswith(b"key-1")
    ]
    assert found
    found = rows(view="queue_events", path=path, queues="dead,mail", namespaces="default")
    assert found == [row for row in everything["queue_events"] if row["queue"] in ("dead", "mail")]
    assert found


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"as_of_index": "5"}, InvalidArgument, "OPTION_UNCONCERNED: option as_of_index"),
        ({"types": "put"}, InvalidArgument, "OPTION_UNCONCERNED: option types"),
        ({"owners": "kv"}, InvalidArgument, "OPTION_UNCONCERNED: option owners"),
        ({"queues": "a"}, InvalidArgument, "OPTION_UNCONCERNED: option queues"),
        ({"from_index": "999999"}, OutOfRange, "INDEX_IN_FUTURE"),
        ({"columns": "term"}, InvalidArgument, "COLUMN_UNKNOWN"),
    ],
)
def test_what_changes_cannot_have_is_refused(
    data_dir: Path, options: dict[str, str], error: type[OnelogError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        table_of(view="kv_changes", path=str(data_dir), **options)


def test_events_of_queues_are_not_streamed(data_dir: Path) -> None:
    source = OnelogDataSource({"view": "queue_events", "path": str(data_dir)})
    with pytest.raises(InvalidArgument, match=r"VIEW_NOT_STREAMED.*kv_changes"):
        source.streamReader(source.schema())


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    shard = Shard(tmp_path / "data", seed=3)
    shard.write(40)
    shard.live.snapshot()
    shard.write(30)
    shard.live.snapshot()
    return shard


def test_changes_begin_behind_the_oldest_snapshot_where_the_beginning_is_gone(
    shard: Shard,
) -> None:
    path = str(shard.path)
    before = rows(view="kv_changes", path=path)
    oldest, newest = (record.index for record in shard.live.log.manifest.snapshots)
    snapshot_ns = next(shard.live.log.segments.scan(oldest, oldest)).timestamp_ns
    shard.seal()
    drop_before(shard.live.log, shard.live.log.segments.segments[2].first_index)
    assert 1 < shard.live.log.first_index < oldest
    kept = [row for row in before if row["index"] > oldest]
    assert rows(view="kv_changes", path=path) == kept
    assert kept
    for name, value in (("from_index", oldest), ("from_time", snapshot_ns)):
        with pytest.raises(OutOfRange, match=f"COMPACTED: option {name} is {value}"):
            table_of(view="kv_changes", path=path, **{name: str(value)})
    # One that the log does not go on from leads nowhere, and neither does a damaged one.
    behind = [each.first_index for each in shard.live.log.segments.segments]
    drop_before(shard.live.log, next(index for index in behind if index > oldest + 1))
    assert oldest + 1 < shard.live.log.first_index <= newest
    assert rows(view="kv_changes", path=path) == [row for row in kept if row["index"] > newest]
    file = shard.live.paths.snapshots / shard.live.log.manifest.snapshots[0].file
    file.write_bytes(b"")
    assert rows(view="kv_changes", path=path) == [row for row in kept if row["index"] > newest]
    with pytest.raises(OutOfRange, match="COMPACTED"):
        table_of(view="kv_changes", path=path, from_index=str(newest))
    file = shard.live.paths.snapshots / shard.live.log.manifest.snapshots[1].file
    file.write_bytes(b"")
    with pytest.raises(OutOfRange, match="COMPACTED: no snapshot that can be read leads to"):
        table_of(view="kv_changes", path=path)


def stream_of(**options: str) -> OnelogStreamReader:
    source = OnelogDataSource({"view": "kv_changes", **options})
    return source.streamReader(source.schema())


def read(reader: OnelogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    for partition in reader.partitions(start, end):
        travelled: OnelogStreamReader = pickle.loads(pickle.dumps(reader))
        for batch in travelled.read(pickle.loads(pickle.dumps(partition))):
            found += batch.to_pylist()
    return found


@pytest.mark.parametrize("limit", [ReadMaxRows(9), ReadAllAvailable()])
def test_batches_of_a_stream_are_the_changes_each_once(shard: Shard, limit: Any) -> None:
    path = str(shard.path)
    reader = stream_of(path=path)
    start = reader.initialOffset()
    found: list[Row] = []
    while (end := reader.latestOffset(start, limit)) != start:
        batch = read(reader, start, end)
        # As after a crash: another process, the same offsets.
        assert read(stream_of(path=path), start, end) == batch
        first, last = int(start["0"]) + 1, int(end["0"])
        assert batch == rows(
            view="kv_changes", path=path, from_index=str(first), to_index=str(last)
        )
        found += batch
        start = end
    assert found == rows(view="kv_changes", path=path)


def test_a_stream_that_no_state_leads_to_any_more_has_a_gap(shard: Shard) -> None:
    path = str(shard.path)
    everything = rows(view="kv_changes", path=path)
    start = stream_of(path=path).initialOffset()
    oldest = shard.live.log.manifest.snapshots[0].index
    shard.seal()
    drop_before(shard.live.log, shard.live.log.segments.segments[1].first_index)
    failing = stream_of(path=path)
    end = failing.latestOffset(start, ReadAllAvailable())
    with pytest.raises(OutOfRange, match=rf"COMPACTED: entries 1 to {oldest} of shard 0"):
        failing.partitions(start, end)
    gap, *others = read(stream_of(path=path, on_loss="gap"), start, end)
    assert {name: value for name, value in gap.items() if value is not None} == {
        "shard": 0, "index": 1, "position": 0, "operation": "gap",
        "gap_first_index": 1, "gap_last_index": oldest, "gap_cause": "RETENTION",
    }  # fmt: skip
    behind = [row["index"] for row in everything if row["index"] > oldest]
    assert [row["index"] for row in others] == behind


def test_a_cluster_sends_what_changes_are_replayed_from(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2) as node, AsyncClient(node.endpoint) as client:
            changes = {"view": "kv_changes", "endpoint": node.endpoint, "namespaces": "default"}
            await asyncio.gather(*(client.kv.put(f"k{n}", f"v{n}") for n in range(40)))
            for shard in (0, 1):
                request = admin_pb2.TakeSnapshotRequest(shard=shard)
                await node.admin.TakeSnapshot(request, timeout=WAIT_S)
            await asyncio.gather(*(client.kv.put(f"k{n}", f"w{n}") for n in range(30)))
            await client.kv.delete("k39")
            queue = client.queue("jobs")
            await queue.create()
            await queue.enqueue(b"body")
            (job,) = await queue.lease()
            await queue.ack(job)
            found = await asyncio.to_thread(lambda: rows(**changes))
            values = [(row["key_text"], row["previous_value"], row["value"]) for row in found]
            assert sorted(values, key=str) == sorted(
                [
                    *((f"k{n}", None, b"v%d" % n) for n in range(40)),
                    *((f"k{n}", b"v%d" % n, b"w%d" % n) for n in range(30)),
                    ("k39", b"v39", None),
                ],
                key=str,
            )
            assert {row["shard"] for row in found} == {0, 1}
            events = await asyncio.to_thread(
                lambda: rows(view="queue_events", endpoint=node.endpoint, queues="jobs")
            )
            kinds = {row["event"]: row for row in events}
            assert list(kinds) == ["created", "enqueued", "leased", "acked"]
            waited_ns = kinds["leased"]["timestamp_ns"] - kinds["enqueued"]["timestamp_ns"]
            assert waited_ns >= 0
            assert kinds["leased"]["since_ns"] == kinds["enqueued"]["timestamp_ns"]
            assert (kinds["acked"]["previous_state"], kinds["acked"]["state"]) == ("leased", None)

    run(test())
