"""All points of a state as a table: the answers of queries, from blocks and buffers."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onelog.snapshot.points
from onelog.client.client import AsyncClient
from onelog.client.timeseries import MeasurementConfig
from onelog.errors import OutOfRange
from onelog.projections.timeseries.names import parse_series
from onelog.projections.timeseries.query import Query
from onelog.snapshot.offline import read_entry, rebuild_state
from onelog.spark.source import OnelogDataSource
from onelog.spark.state import StateTable
from onelog.ual.files import DiskFiles
from onelog.ual.segments.sealing import compact_segment
from tests.node.services.nodes import run, single
from tests.projections.timeseries.ts_queries import Queries
from tests.spark.written import write_history

Row = dict[str, Any]
Points = dict[tuple[str, str, str], list[tuple[int, float]]]
VALUES = {"f64": "value", "i64": "value_long", "bool": "value_bool"}


def table_of(*columns: str, **options: str) -> list[Row]:
    table = OnelogDataSource({"view": "timeseries", **options})._table
    assert isinstance(table, StateTable)
    found: list[Row] = []
    for part in table.parts:
        for batch in table.batches(part, frozenset(columns) if columns else None):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def points_of(rows: list[Row]) -> Points:
    """Return rows by series, after a look at the columns that say the same."""
    found: Points = {}
    for row in rows:
        exact = row[VALUES[row["value_type"]]]
        assert row["value"] == float(exact)
        others = {"value_long", "value_bool"} - {VALUES[row["value_type"]]}
        assert {row[each] for each in others} == {None}
        name = parse_series(row["series"].encode())
        assert (row["measurement"], dict(row["tags"])) == (name.measurement, dict(name.tags))
        since = row["time"] - datetime(1970, 1, 1, tzinfo=UTC)
        assert since // timedelta(microseconds=1) == row["time_ns"] // 1_000
        key = row["namespace"], row["series"], row["field"]
        found.setdefault(key, []).append((row["time_ns"], exact))
    return found


def answers(data_dir: Path, index: int) -> Points:
    """Return what queries over all time answer at an index."""
    rebuilt = rebuild_state(DiskFiles(), data_dir, 0, index=index)
    state = rebuilt.projections.series
    queries = Queries(state, lambda at: read_entry(rebuilt.source, at).plain_payload())
    found: Points = {}
    for namespace in state.spaces:
        measurements = state.measurements(namespace)
        assert isinstance(measurements, list)
        for info in measurements:
            for field, _ in info.fields:
                answer = queries.query(namespace, Query(info.name, field))
                assert isinstance(answer, list)
                for row in answer:
                    points = list(zip(row.times.tolist(), row.values.tolist(), strict=True))
                    if points:
                        found[namespace, row.name.decode(), field] = points
    return found


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("points")
    return write_history(path, seed=11, steps=900, snapshots=2).path.parent


def last_index(data_dir: Path) -> int:
    table = OnelogDataSource({"view": "timeseries", "path": str(data_dir)})._table
    assert isinstance(table, StateTable)
    return table.parts[0].index


def ends_before(data_dir: Path, *indexes: int) -> list[int]:
    """Return ends of groups, where there is a state."""
    log = rebuild_state(DiskFiles(), data_dir, 0).source
    entries = (next(log.entries(index, index)) for index in indexes)
    return [entry.index + entry.group_left for entry in entries]


def test_points_are_the_answers_of_queries_at_any_index(data_dir: Path) -> None:
    last = last_index(data_dir)
    compared = 0
    for index in (last, *ends_before(data_dir, last // 2, last // 4)):
        rows = table_of(path=str(data_dir), as_of_index=str(index))
        expected = answers(data_dir, index)
        assert points_of(rows) == expected
        compared += len(expected)
    assert compared > 20
    series = OnelogDataSource({"view": "series", "path": str(data_dir)})._table
    assert isinstance(series, StateTable)
    (batch,) = series.batches(series.parts[0])
    assert sum(batch.column("block_points").to_pylist()) > 0
    assert sum(batch.column("buffered").to_pylist()) > 0
    assert any(batch.column("deleted").to_pylist())


def test_a_long_column_is_read_in_windows_of_time(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks overlap, and a time may be in several of them: the windows must not show it."""
    whole = table_of(path=str(data_dir))
    monkeypatch.setattr(onelog.snapshot.points, "WINDOW_POINTS", 100)
    assert table_of(path=str(data_dir)) == whole


def test_selections_and_columns_prune(data_dir: Path) -> None:
    path = str(data_dir)
    everything = table_of(path=path)
    chosen = everything[0]["measurement"]
    wanted = table_of(path=path, measurements=f"{chosen},nothing", namespaces="default")
    assert wanted == [row for row in everything if row["measurement"] == chosen]
    assert 0 < len(wanted) < len(everything)
    assert not table_of(path=path, namespaces="nobody")
    narrow = table_of("field", "time_ns", path=path)
    assert narrow == [{name: row[name] for name in ("field", "time_ns")} for row in everything]
    table = OnelogDataSource({"view": "timeseries", "path": path})._table
    assert isinstance(table, StateTable)
    count = sum(batch.num_rows for batch in table.batches(table.parts[0], frozenset()))
    assert count == len(everything)


def test_a_block_that_is_not_kept_any_more_is_an_error(tmp_path: Path) -> None:
    """A snapshot of the past names blocks; the log keeps those of the present."""
    data_dir = write_history(tmp_path, seed=9, steps=500, snapshots=1).path.parent
    log = rebuild_state(DiskFiles(), data_dir, 0).source
    assert log.manifest is not None
    (record,) = log.manifest.snapshots
    options = {"path": str(data_dir), "as_of_index": str(record.index)}
    assert table_of(**options)
    pinned = rebuild_state(DiskFiles(), data_dir, 0, index=record.index).projections.series.pinned(
        1, record.index
    )
    first, *_, last = pinned
    for part in log.parts:
        assert part.segment is not None
        indexes = range(part.first_index, part.segment.last_index + 1)
        if last in indexes:
            kept = np.array([each for each in indexes if each != last], np.uint64)
            compact_segment(DiskFiles(), part.path, kept)
    with pytest.raises(OutOfRange, match=f"COMPACTED: the state needs the block.* entry {last} "):
        table_of(**options)
    for part in log.parts:
        if part.first_index <= first:
            part.path.unlink()
    with pytest.raises(OutOfRange, match=f"COMPACTED: the state needs the block.* entry {first} "):
        table_of(**options)


def test_a_cluster_sends_blocks_and_buffers(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node, AsyncClient(node.endpoint) as client:
            options = {"endpoint": node.endpoint}
            await client.ts.create("cpu", MeasurementConfig())
            times = np.arange(3_000, dtype=np.int64) * 1_000
            tags = {"host": "a"}
            await client.ts.write("cpu", times, {"load": times / 7, "n": times}, tags=tags)

            def blocks() -> int:
                table = OnelogDataSource({"view": "series", **options})._table
                assert isinstance(table, StateTable)
                batches = table.batches(table.parts[0])
                return sum(sum(each.column("block_points").to_pylist()) for each in batches)

            async with asyncio.timeout(20):
                while not await asyncio.to_thread(blocks):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            # Into the blocks, behind them, and some of it away again.
            await client.ts.write("cpu", times[:5], {"load": times[:5] + 1.0}, tags=tags)
            await client.ts.write("cpu", times[-3:] + 10, {"n": times[:3]}, tags=tags)
            await client.ts.delete("cpu", first_ns=100_000, last_ns=200_000)
            rows = await asyncio.to_thread(lambda: table_of(**options))
            found = points_of(rows)
            for field in ("load", "n"):
                (answer,) = await client.ts.query("cpu", field, 0, 10**12, by_series=True)
                points = list(zip(answer.times_ns.tolist(), answer.values.tolist(), strict=True))
                assert found["default", "cpu{host=a}", field] == points
            assert len(found) == 2

    run(test())
