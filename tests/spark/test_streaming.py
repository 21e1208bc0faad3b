"""Micro-batches of the log: offsets, limits, losses and holds, without a JVM.

The reader is called as Spark calls it; tests/spark/jvm has real queries.
"""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from onelog.client.client import AsyncClient
from onelog.errors import FailedPrecondition, InvalidArgument, OnelogError, OutOfRange
from onelog.spark.columns.views import VIEWS
from onelog.spark.options import ReadOptions
from onelog.spark.source import OnelogDataSource
from onelog.spark.streaming import (
    STREAM_OPTIONS,
    GapPartition,
    OnelogStreamReader,
    StreamOptions,
    schema_with_gaps,
)
from tests.node.services.nodes import run, single
from tests.spark.shard_dirs import Shard
from tests.ual.shards import drop_before

ALL = ReadAllAvailable()


def reader_of(**options: str) -> OnelogStreamReader:
    given = {"view": "log", **options}
    read = ReadOptions.parse(given, VIEWS, others=STREAM_OPTIONS)
    stream = StreamOptions.parse(given, read)
    schema = read.view.schema
    if stream.with_gaps:
        schema = schema_with_gaps(schema)
    return OnelogStreamReader(read, stream, from_arrow_schema(schema, prefer_timestamp_ntz=False))


def read(
    reader: OnelogStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[dict[str, Any]]:
    """Read a batch as tasks do: each in a process of its own, with what was pickled."""
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions(start, end):
        travelled: OnelogStreamReader = pickle.loads(pickle.dumps(reader))
        for batch in travelled.read(pickle.loads(pickle.dumps(partition))):
            rows += batch.to_pylist()
    return rows


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    shard = Shard(tmp_path / "data", seed=3)
    shard.write(40)
    shard.live.snapshot()
    return shard


def group_ends(shard: Shard) -> set[int]:
    return {
        entry.index
        for entry in shard.live.log.segments.scan(1, shard.last_index)
        if entry.group_left == 0
    }


@pytest.mark.parametrize("limit", [ReadMaxRows(1), ReadMaxRows(7), ReadMaxBytes(500), ALL])
def test_batches_end_with_groups_and_bring_each_entry_once(shard: Shard, limit: Any) -> None:
    """Whatever the limit, joined batches are the log, and no transaction is in two of them."""
    reader = reader_of(path=str(shard.path))
    start = reader.initialOffset()
    ends, seen = group_ends(shard), []
    batches = 0
    while (end := reader.latestOffset(start, limit)) != start:
        assert int(end["0"]) in ends
        seen += [row["index"] for row in read(reader, start, end)]
        start = end
        batches += 1
    assert seen == [index for index, *_ in shard.expected(shard.last_index)]
    assert batches == 1 if limit is ALL else batches > 2


def test_a_query_for_what_is_there_ends_although_more_is_written(shard: Shard) -> None:
    reader = reader_of(path=str(shard.path))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    last = shard.last_index
    shard.write(5)
    shard.live.snapshot()
    end = reader.latestOffset(start, ALL)
    assert int(end["0"]) == last
    assert reader.latestOffset(end, ALL) == end
    report = reader.reportLatestOffset()
    assert int(report["0"]) == shard.last_index > last


def test_a_batch_that_is_read_again_has_the_same_rows(shard: Shard) -> None:
    """Spark reads a batch again after a crash; files were sealed and written meanwhile."""
    reader = reader_of(path=str(shard.path))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(30))
    before = read(reader, start, end)
    shard.write(40)
    shard.seal()
    assert read(reader_of(path=str(shard.path)), start, end) == before


def test_a_checkpoint_of_another_cluster_or_log_is_refused(shard: Shard) -> None:
    reader = reader_of(path=str(shard.path))
    start = reader.initialOffset()
    for change, reason in (
        ({"cluster": "another"}, "CHECKPOINT_OF_ANOTHER_CLUSTER"),
        ({"0": shard.last_index + 5}, "CHECKPOINT_AHEAD"),
    ):
        with pytest.raises(FailedPrecondition, match=reason):
            reader.latestOffset({**start, **change}, ALL)
    with pytest.raises(FailedPrecondition, match="CHECKPOINT_OTHER_SHARDS"):
        reader.latestOffset({"cluster": start["cluster"]}, ALL)


def test_entries_that_are_gone_are_an_error_or_one_row_with_their_range(shard: Shard) -> None:
    path = str(shard.path)
    start = reader_of(path=path).initialOffset()
    shard.seal()
    second = shard.live.log.segments.segments[1].first_index
    drop_before(shard.live.log, second)
    failing = reader_of(path=path)
    end = failing.latestOffset(start, ALL)
    with pytest.raises(OutOfRange, match=rf"COMPACTED: entries 1 to {second - 1} of shard 0"):
        failing.partitions(start, end)
    rows = read(reader_of(path=path, on_loss="gap"), start, end)
    gap, *others = rows
    assert {name: value for name, value in gap.items() if value is not None} == {
        "shard": 0, "index": 1, "position": 0, "operation": "gap",
        "gap_first_index": 1, "gap_last_index": second - 1, "gap_cause": "RETENTION",
    }  # fmt: skip
    assert [row["index"] for row in others] == [
        index for index, *_ in shard.expected(shard.last_index, second)
    ]
    assert {row["gap_cause"] for row in others} == {None}


def test_entries_that_go_away_between_plan_and_task_are_a_gap_too(shard: Shard) -> None:
    """Retention does not wait for tasks: what they find gone must not end a query with gaps."""
    path = str(shard.path)
    shard.seal()
    second = shard.live.log.segments.segments[1].first_index
    planned = {}
    for on_loss in ("gap", "fail"):
        reader = reader_of(path=path, on_loss=on_loss)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        planned[on_loss] = reader, reader.partitions(start, end)
    drop_before(shard.live.log, second)
    reader, partitions = planned["gap"]
    rows = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    assert [(row["gap_first_index"], row["gap_last_index"]) for row in rows[:2]] == [
        (1, second - 1),
        (None, None),
    ]
    assert [row["index"] for row in rows[1:]] == [
        index for index, *_ in shard.expected(shard.last_index, second)
    ]
    reader, partitions = planned["fail"]
    with pytest.raises(OutOfRange, match="COMPACTED"):
        list(reader.read(partitions[0]))


def test_entries_that_go_away_during_the_plan_are_a_gap_too(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(path=str(shard.path), on_loss="gap")
    start = reader.initialOffset()
    shard.seal()
    end = reader.latestOffset(start, ALL)
    second = shard.live.log.segments.segments[1].first_index
    splits = reader._origin.splits

    def late(*arguments: Any) -> Any:
        """Plan after the server has dropped a file."""
        if shard.live.log.first_index < second:
            drop_before(shard.live.log, second)
        return splits(*arguments)

    monkeypatch.setattr(reader._origin, "splits", late)
    gap, *_ = reader.partitions(start, end)
    assert isinstance(gap, GapPartition)
    assert (gap.gap.first_index, gap.gap.last_index) == (1, second - 1)


def test_a_beginning_that_is_gone_stops_new_queries_and_no_running_ones(shard: Shard) -> None:
    """A restarted program says the same options again; its checkpoint is what counts."""
    path = str(shard.path)
    start = reader_of(path=path).initialOffset()
    end = reader_of(path=path).latestOffset(start, ALL)
    shard.write(5)
    shard.live.snapshot()
    shard.seal()
    drop_before(shard.live.log, shard.live.log.segments.segments[1].first_index)
    source = OnelogDataSource({"view": "log", "path": path, "from_index": "1"})
    again = source.streamReader(source.schema())
    assert again.latestOffset(end, ALL) != end
    with pytest.raises(OutOfRange, match="COMPACTED: option from_index is 1"):
        again.initialOffset()
    with pytest.raises(OutOfRange, match="COMPACTED: option from_index is 1"):
        source.reader(source.schema())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"to_index": "5"}, "OPTION_UNCONCERNED: option to_index"),
        ({"to_time": "5"}, "OPTION_UNCONCERNED: option to_time"),
        ({"max_rows": "0"}, "OPTION_INVALID: option max_rows"),
        ({"max_bytes": "many"}, "OPTION_INVALID: option max_bytes"),
        ({"on_loss": "skip"}, "OPTION_INVALID: option on_loss"),
        ({"hold": ""}, "OPTION_INVALID: option hold"),
        ({"hold": "nightly"}, "OPTION_UNCONCERNED: option hold"),
    ],
)
def test_options_that_a_stream_cannot_have_are_refused(
    shard: Shard, options: dict[str, str], reason: str
) -> None:
    source = OnelogDataSource({"view": "log", "path": str(shard.path), **options})
    with pytest.raises(InvalidArgument, match=reason):
        source.streamReader(source.schema())


def test_options_of_streams_are_refused_for_a_batch_read(shard: Shard) -> None:
    for name, value in (("max_rows", "5"), ("hold", "x"), ("on_loss", "gap")):
        source = OnelogDataSource({"view": "log", "path": str(shard.path), name: value})
        with pytest.raises(InvalidArgument, match=f"OPTION_UNCONCERNED: option {name}"):
            source.reader(source.schema())


def test_a_hold_is_made_at_the_beginning_and_follows_commits(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2) as node, AsyncClient(node.endpoint) as client:
            await asyncio.gather(*(client.kv.put(f"k{n}", b"v") for n in range(50)))
            options = {"endpoint": node.endpoint, "hold": "nightly"}
            reader = reader_of(**options)
            start = await asyncio.to_thread(reader.initialOffset)
            assert await holds(client) == {0: int(start["0"]) + 1, 1: int(start["1"]) + 1}
            end = await asyncio.to_thread(reader.latestOffset, start, ALL)
            await asyncio.to_thread(reader.commit, end)
            assert await holds(client) == {0: int(end["0"]) + 1, 1: int(end["1"]) + 1}
            # Each move is an entry to read: it takes more than that to move it again.
            later = await asyncio.to_thread(reader.latestOffset, end, ALL)
            assert later != end
            await asyncio.to_thread(reader.commit, later)
            assert await asyncio.to_thread(reader.latestOffset, later, ALL) == later
            # A query that lost its checkpoint goes on where its hold stands.
            again = await asyncio.to_thread(reader_of(**options).initialOffset)
            assert again == end
            # One that was released is made again where the query is.
            await client.admin.release_hold("nightly")
            newest = await asyncio.to_thread(reader.latestOffset, end, ALL)
            await asyncio.to_thread(reader_of(**options).commit, newest)
            assert await holds(client) == {0: int(newest["0"]) + 1, 1: int(newest["1"]) + 1}
            with pytest.raises(OnelogError, match="HOLD_AHEAD: the hold nightly stands at"):
                await asyncio.to_thread(reader_of(**options, from_index="1").initialOffset)

    run(test())


def test_a_hold_keeps_nothing_of_shards_that_are_not_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2) as node, AsyncClient(node.endpoint) as client:
            reader = reader_of(endpoint=node.endpoint, hold="some", shards="0")
            start = await asyncio.to_thread(reader.initialOffset)
            await asyncio.gather(*(client.kv.put(f"k{n}", b"v") for n in range(50)))
            before = (await client.log.describe(1)).cut_index
            end = await asyncio.to_thread(reader.latestOffset, start, ALL)
            await asyncio.to_thread(reader.commit, end)
            stands = await holds(client)
            assert stands[0] == int(end["0"]) + 1
            assert stands[1] > before

    run(test())


async def holds(client: AsyncClient) -> dict[int, int]:
    return {each.shard: each.index for each in await client.admin.list_holds()}
