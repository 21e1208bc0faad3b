"""Reads of series that take long: what they see, and what ends them."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onelog import errors
from onelog.node.edge import calls, timeseries_reads
from onelog.projections.timeseries import columns as ts_columns
from onelog.projections.timeseries import query as ts_query
from onelog.projections.timeseries import read as ts_read
from onelog.projections.timeseries import tag_index
from onelog.ual.errors import IndexDropped
from onelog.v1 import common_pb2, pipeline_pb2
from onelog.v1 import timeseries_pb2 as ts
from tests.node.services.nodes import Node, refusal, until
from tests.node.services.test_timeseries_service import (
    FOREVER,
    REGEX,
    SECOND,
    matcher,
    on_a_node,
    points,
    query,
    rows_of,
    until_blocks,
    write,
)


class Gate:
    """Holds whatever comes by, on another thread, until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def pass_by(self) -> None:
        self.reached.set()
        assert self.open.wait(20)


def hold(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Gate:
    """Make calls of a function wait at a gate before they begin."""
    gate = Gate()
    original: Callable[..., Any] = getattr(owner, name)

    def held(*args: Any, **kwargs: Any) -> Any:
        gate.pass_by()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, held)
    return gate


def test_a_query_sees_one_moment_while_others_write_delete_and_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        times = [n * SECOND for n in range(1_200)]
        series = [points(times, {"v": [1.0] * 1_200}, h=str(n)) for n in range(3)]
        written = await node.ts.WritePoints(ts.WritePointsRequest(measurement="m", series=series))
        await until_blocks(node, "m")
        await write(node, "m", points([2_000 * SECOND], {"v": [1.0]}, h="0"))
        gate = hold(monkeypatch, ts_query.Reader, "run")
        request = ts.QueryRequest(
            measurement="m", field="v", aggregate=ts.AGGREGATE_COUNT, by_series=True, **FOREVER
        )
        asked = asyncio.ensure_future(node.ts.Query(request))
        await until(gate.reached.is_set)
        # The loop goes on meanwhile, and so do writers.
        more = [points([3_000 * SECOND + n for n in range(2_000)], {"v": [2.0] * 2_000}, h="0")]
        await write(node, "m", *more, points([5], {"v": [1.0]}, h="new"))
        await node.ts.DeletePoints(
            ts.DeletePointsRequest(
                measurement="m", matchers=[matcher("h", ts.MATCH_OPERATOR_EQUAL, "1")]
            )
        )
        await node.ts.DeletePoints(
            ts.DeletePointsRequest(measurement="m", first_ns=0, last_ns=100 * SECOND)
        )
        await node.ts.DeleteMeasurement(ts.DeleteMeasurementRequest(measurement="m"))
        gate.open.set()
        answer = await asked
        counts = {dict(tags)["h"]: values for tags, (_, values) in rows_of(answer).items()}
        assert counts == {"0": [1_201], "1": [1_200], "2": [1_200]}
        assert answer.header.applied_index > written.header.index
        assert answer.scanned_count == 3_601

    on_a_node(tmp_path, test)


def test_series_that_come_while_a_pattern_runs_are_in_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        await write(node, "m", points([1], {"v": [1.0]}, h="a1"), points([1], {"v": [2.0]}, h="a2"))
        gate = hold(monkeypatch, tag_index.IndexCut, "select")
        asked = asyncio.ensure_future(query(node, "m", "v", matchers=[matcher("h", REGEX, "a.")]))
        await until(gate.reached.is_set)
        await node.ts.DeletePoints(
            ts.DeletePointsRequest(measurement="m", matchers=[matcher("h", REGEX, "a1")])
        )
        await write(node, "m", points([1], {"v": [3.0]}, h="a3"), points([1], {"v": [4.0]}, h="b"))
        gate.open.set()
        assert {dict(tags)["h"] for tags in await asked} == {"a2", "a3"}

    on_a_node(tmp_path, test)


def test_a_block_that_was_dropped_meanwhile_lets_the_query_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        times = [n * SECOND for n in range(1_200)]
        await write(node, "m", points(times, {"v": [1.0] * 1_200}, h="old"))
        await write(node, "m", points(times, {"v": [1.0] * 1_200}, h="kept"))
        await until_blocks(node, "m")
        edge = node.context.edge
        assert edge is not None
        log = edge.replica(edge.find_shard(b"m")).shard.log
        state = edge.replica(edge.find_shard(b"m")).shard.projections
        before = set(state.series.pinned(0, log.last_index))
        gate = hold(monkeypatch, ts_query.Reader, "run")
        asked = asyncio.ensure_future(query(node, "m", "v"))
        await until(gate.reached.is_set)
        await node.ts.DeletePoints(
            ts.DeletePointsRequest(measurement="m", matchers=[matcher("h", REGEX, "old")])
        )
        dropped = before - set(state.series.pinned(0, log.last_index))
        assert dropped
        read = log.read

        def without(index: int) -> Any:
            if index in dropped:
                raise IndexDropped(index, index + 1, log.last_index)
            return read(index)

        monkeypatch.setattr(log, "read", without)
        gate.open.set()
        assert {dict(tags)["h"] for tags in await asked} == {"kept"}
        # One that the state still names is not there: that does not pass for a gap.
        dropped |= before
        edge.series_reads._readers.clear()
        error = await refusal(node.ts.Query(ts.QueryRequest(measurement="m", field="v", **FOREVER)))
        assert (type(error), error.reason) == (errors.DataLoss, "BLOCK_MISSING")

    on_a_node(tmp_path, test)


def test_queries_end_when_nobody_waits_and_are_refused_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        for number in range(50):
            await write(node, "m", points([1], {"v": [1.0]}, h=str(number)))
        request = ts.QueryRequest(measurement="m", field="v", **FOREVER)
        monkeypatch.setattr(timeseries_reads, "READS_MAX", 2)
        monkeypatch.setattr(ts_read, "BUNDLE_POINTS", 1)
        gate = hold(monkeypatch, ts_columns.Cuts, "buffered")
        first = node.ts.Query(request)
        await until(gate.reached.is_set)
        second = node.ts.Query(request)
        edge = node.context.edge
        assert edge is not None
        await until(lambda: edge.series_reads.count == 2)
        error = await refusal(node.ts.Query(request))
        assert (type(error), error.reason) == (errors.ResourceExhausted, "TOO_MANY_QUERIES")
        assert error.retry_after_s
        listing = await refusal(node.ts.ListSeries(ts.ListSeriesRequest(measurement="m")))
        assert listing.reason == "TOO_MANY_QUERIES"
        first.cancel()
        second.cancel()
        await until(lambda: edge.series_reads.count == 0)
        # What nobody wants any more is not read: its columns are left after the one that was held.
        reads = 0
        original = ts_columns.Cuts.buffered

        def counting(*args: Any) -> Any:
            nonlocal reads
            reads += 1
            return original(*args)

        monkeypatch.setattr(ts_columns.Cuts, "buffered", counting)
        gate.open.set()
        assert len(rows_of(await node.ts.Query(request)).keys()) == 50
        assert reads == 50
        assert edge.series_reads.count == 0

    on_a_node(tmp_path, test)


def test_a_query_whose_deadline_passes_reads_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        await write(node, "m", points([1], {"v": [1.0]}, h="a"), points([1], {"v": [1.0]}, h="b"))
        clock = node.context.clock
        now_s = clock.now_s
        gate = hold(monkeypatch, ts_columns.Cuts, "buffered")
        request = ts.QueryRequest(measurement="m", field="v", **FOREVER)
        late = asyncio.ensure_future(refusal(node.ts.Query(request)))
        await until(gate.reached.is_set)
        monkeypatch.setattr(clock, "now_s", lambda: now_s() + calls.DEADLINE_DEFAULT_S)
        gate.open.set()
        error = await late
        assert (type(error), error.reason) == (errors.DeadlineExceeded, "EXPIRED")

    on_a_node(tmp_path, test)


def test_what_a_query_may_cost_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node) -> None:
        times = [n * SECOND for n in range(100)]
        for number in range(4):
            await write(node, "m", points(times, {"v": [1.0] * 100}, h=str(number)))
        request = ts.QueryRequest(measurement="m", field="v", **FOREVER)
        folded = ts.QueryRequest(measurement="m", field="v", aggregate=ts.AGGREGATE_SUM, **FOREVER)
        for bounds, asked, is_refused in (
            (ts_query.Bounds(series=4, points=400, values=400), request, False),
            (ts_query.Bounds(series=3, points=400, values=400), request, True),
            (ts_query.Bounds(series=4, points=399, values=400), request, True),
            (ts_query.Bounds(series=4, points=400, values=399), request, True),
            (ts_query.Bounds(series=4, points=400, values=1), folded, False),
            (ts_query.Bounds(series=4, points=399, values=1), folded, True),
        ):
            monkeypatch.setattr(timeseries_reads, "BOUNDS", bounds)
            if is_refused:
                error = await refusal(node.ts.Query(asked))
                assert (type(error), error.reason) == (errors.ResourceExhausted, "QUERY_TOO_LARGE")
            else:
                assert (await node.ts.Query(asked)).scanned_count == 400

    on_a_node(tmp_path, test)


def test_any_replica_answers_stale_queries_and_an_index_is_waited_for(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        written = await node.ts.WritePoints(
            ts.WritePointsRequest(measurement="m", series=[points([1], {"v": [1.0]})])
        )
        options = common_pb2.ReadOptions(
            level=common_pb2.READ_LEVEL_STALE, min_index=written.header.index
        )
        assert await query(node, "m", "v", options=options) == {(): ([1], [1.0])}

    on_a_node(tmp_path, test)


def test_series_are_read_as_of_an_index(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        indexes = []
        for at in range(1, 5):
            series = points([at], {"v": [float(at)]}, host=f"h{at}")
            request = ts.WritePointsRequest(measurement="m", series=[series])
            indexes.append((await node.ts.WritePoints(request)).header.index)
        await node.ts.DeleteMeasurement(ts.DeleteMeasurementRequest(measurement="m"))
        for count in (3, 1, 4):
            past = common_pb2.ReadOptions(as_of_index=indexes[count - 1])
            asked = ts.QueryRequest(measurement="m", field="v", options=past, **FOREVER)
            assert len((await node.ts.Query(asked)).groups) == count
            listed = await node.ts.ListSeries(ts.ListSeriesRequest(measurement="m", options=past))
            assert len(listed.series) == count
            shown = await node.ts.GetMeasurement(
                ts.GetMeasurementRequest(measurement="m", options=past)
            )
            assert shown.measurement.series_count == count
            executed = await node.pipeline.ExecuteOnce(
                pipeline_pb2.ExecuteRequest(operations=[pipeline_pb2.Operation(query=asked)])
            )
            assert len(executed.results[0].query.groups) == count

    on_a_node(tmp_path, test)
