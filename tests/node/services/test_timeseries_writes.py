"""Writes of series in pipelines, batches and sessions, what watchers hear, and a leader change."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog.projections.timeseries import deletes as ts_deletes
from onelog.v1 import admin_pb2, common_pb2, log_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import timeseries_pb2 as ts
from tests.node.services.nodes import Node, cluster, eventually, refusal, run, until
from tests.node.services.test_timeseries_service import (
    FOREVER,
    SECOND,
    host,
    on_a_node,
    points,
    query,
    rows_of,
    until_blocks,
    write,
)
from tests.node.watch.test_watch import Watcher

Operation = pipeline.Operation
Event = pipeline.SeriesEvent


def writing(measurement: str, *series: ts.SeriesPoints, **fields: Any) -> ts.WritePointsRequest:
    return ts.WritePointsRequest(measurement=measurement, series=series, **fields)


def asking(measurement: str, field: str = "v", **fields: Any) -> ts.QueryRequest:
    return ts.QueryRequest(measurement=measurement, field=field, **(FOREVER | fields))


def test_pipelines_write_and_ask_in_order_and_operations_fail_alone(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        early = common_pb2.WriteOptions(durability=common_pb2.DURABILITY_ASYNC)
        answer = await node.pipeline.ExecuteOnce(
            pipeline.ExecuteRequest(
                operations=[
                    Operation(write_points=writing("m", points([1], {"v": [1.0]}, h="a"))),
                    Operation(query=asking("m")),
                    Operation(get=kv.GetRequest(key=b"{m}key")),
                    Operation(write_points=writing("m", points([2, 3], {"v": [2.0, 3.0]}, h="a"))),
                    Operation(query=asking("m")),
                    Operation(query=asking("m", "none")),
                    Operation(query=asking("m", aggregate=ts.AGGREGATE_SUM)),
                    Operation(write_points=writing("m", points([4], {"v": [4]}, h="a"))),
                    Operation(write_points=writing("m")),
                    Operation(
                        write_points=writing("m", points([5], {"v": [5.0]}, h="a"), options=early)
                    ),
                ]
            )
        )
        results = answer.results
        assert results[0].write_points.written_count == 1
        assert rows_of(results[1].query) == {(("h", "a"),): ([1], [1.0])}
        assert results[1].query.header.applied_index >= results[0].write_points.header.index
        assert results[2].WhichOneof("result") == "get"
        assert results[3].write_points.written_count == 2
        assert rows_of(results[4].query) == {(("h", "a"),): ([1, 2, 3], [1.0, 2.0, 3.0])}
        assert results[5].error.reason == "FIELD_UNKNOWN"
        assert rows_of(results[6].query) == {(): ([0], [6.0])}
        assert results[7].error.reason == "FIELD_TYPE_MISMATCH"
        assert results[8].error.reason == "POINTS_MISSING"
        assert results[9].write_points.written_count == 1

        async def has_all() -> None:
            assert (await query(node, "m", "v"))[("h", "a"),][0] == [1, 2, 3, 5]

        await eventually(has_all)

    on_a_node(tmp_path, test)


def test_a_batch_writes_points_with_keys_or_nothing(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        def batch(value: Any, version: int) -> pipeline.TransactRequest:
            return pipeline.TransactRequest(
                conditions=[
                    kv.Condition(
                        key=b"{m}k",
                        version=kv.VersionTest(comparison=kv.COMPARISON_EQUAL, version=version),
                    )
                ],
                operations=[
                    pipeline.TransactOperation(put=kv.PutRequest(key=b"{m}k", value=b"1")),
                    pipeline.TransactOperation(
                        write_points=writing("m", points([1], {"v": [value]}))
                    ),
                ],
            )

        done = await node.pipeline.Transact(batch(1.0, 0))
        assert done.results[1].write_points.written_count == 1
        version = done.results[0].put.header.index
        error = await refusal(node.pipeline.Transact(batch(2.0, 0)))
        assert error.reason == "CONDITION_FAILED"
        error = await refusal(node.pipeline.Transact(batch(2, version)))
        assert (error.reason, error.metadata["cause"]) == ("BATCH_REFUSED", "FIELD_TYPE_MISMATCH")
        assert await query(node, "m", "v") == {(): ([1], [1.0])}
        assert (await node.kv.Get(kv.GetRequest(key=b"{m}k"))).item.version == version

    on_a_node(tmp_path, test)


def test_a_repeated_write_in_a_session_counts_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        edge = node.context.edge
        assert edge is not None
        shard = edge.find_shard(b"m")
        opened = await node.pipeline.OpenSession(pipeline.OpenSessionRequest(shard=shard))

        def options(sequence: int) -> common_pb2.WriteOptions:
            session = common_pb2.Session(
                session_id=opened.session_id, sequence=sequence, first_unacknowledged=1
            )
            return common_pb2.WriteOptions(session=session)

        first = writing("m", points([1, 2], {"v": [1.0, 2.0]}), options=options(1))
        done = await node.ts.WritePoints(first)
        await write(node, "m", points([1], {"v": [9.0]}))
        again = await node.ts.WritePoints(first)
        assert (again.header.index, again.header.duplicate) == (done.header.index, True)
        assert again.written_count == done.written_count == 2
        assert await query(node, "m", "v") == {(): ([1, 2], [9.0, 2.0])}
        # A delete of several entries, whose first one is known already, goes on behind it.
        many = [points([1], {"v": [1.0]}, n=str(n)) for n in range(2_200)]
        await write(node, "m", *many)
        deletion = ts.DeletePointsRequest(measurement="m", options=options(2))
        assert (await node.ts.DeletePoints(deletion)).series_count == 2_201
        repeated = await node.ts.DeletePoints(deletion)
        assert repeated.header.duplicate
        dropping = ts.DeleteMeasurementRequest(measurement="m", options=options(3))
        await node.ts.DeleteMeasurement(dropping)
        assert (await node.ts.DeleteMeasurement(dropping)).header.duplicate

    on_a_node(tmp_path, test)


def test_watchers_hear_of_measurements_and_of_points_as_they_were_written(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        watched = pipeline.WatchFilter(owner=log_pb2.OWNER_TIME_SERIES)
        target = pipeline.WatchFilter(owner=log_pb2.OWNER_TIME_SERIES, name=b"ten{m}")
        everything, only_target = Watcher(node, filters=[watched]), Watcher(node, filters=[target])
        for each in (everything, only_target):
            await each.begin()
        start_ns = node.context.clock.wall_ns() // SECOND * SECOND - 100 * SECOND
        first = points([start_ns + 1, start_ns], {"v": [0.5, -1.5], "up": [True, False]}, h="a")
        second = points([start_ns], {"n": [7]}, h="b")
        measurement: dict[str, Any] = {"measurement": "m"}
        await node.ts.CreateMeasurement(ts.CreateMeasurementRequest(**measurement))
        await write(node, "m", first, second)
        config = ts.MeasurementConfig(duplicates=ts.DUPLICATE_POLICY_FIRST)
        await node.ts.ConfigureMeasurement(
            ts.ConfigureMeasurementRequest(config=config, **measurement)
        )
        # Refused: nothing happens. A block: nothing happens for a reader.
        await refusal(node.ts.WritePoints(writing("m", points([1], {"v": [1]}))))
        times = [start_ns + 10 + n for n in range(1_100)]
        await write(node, "m", points(times, {"v": [2.0] * 1_100}, h="a"))
        assert await until_blocks(node, "m") == 1
        await node.ts.DeletePoints(ts.DeletePointsRequest(last_ns=start_ns, **measurement))
        rule = ts.Rule(
            name="r", window_ns=10 * SECOND, aggregates=[ts.AGGREGATE_MAX],
            target_measurement="ten{m}",
        )  # fmt: skip
        await node.ts.SetRule(ts.SetRuleRequest(rule=rule, **measurement))
        await only_target.collect(1)
        (rolled_up,) = only_target.events
        assert (rolled_up.series.measurement, rolled_up.series.kind) == ("ten{m}", Event.WRITTEN)
        assert [each.field for each in rolled_up.series.points[0].columns] == ["v_max", "up_max"]
        await node.ts.DeleteRule(ts.DeleteRuleRequest(rule="r", **measurement))
        config.retention_ms = 1_000
        await node.ts.ConfigureMeasurement(
            ts.ConfigureMeasurementRequest(config=config, **measurement)
        )
        kinds = [
            Event.CREATED, Event.WRITTEN, Event.CONFIGURED, Event.WRITTEN, Event.POINTS_DELETED,
            Event.CONFIGURED, Event.WRITTEN, Event.CONFIGURED, Event.CONFIGURED,
            Event.POINTS_DELETED,
        ]  # fmt: skip
        await everything.collect(len(kinds))
        await node.ts.DeleteMeasurement(ts.DeleteMeasurementRequest(**measurement))
        await everything.collect(len(kinds) + 1)
        assert [each.series.kind for each in everything.events] == [*kinds, Event.DELETED]
        written = everything.events[1]
        assert (written.namespace, written.series.measurement) == ("default", "m")
        assert list(written.series.points) == [first, second]
        # From the log it is the same.
        again = Watcher(node, filters=[watched], cursor=beginning(node))
        await again.collect(len(kinds) + 1)
        assert again.events == everything.events

    on_a_node(tmp_path, test)


def beginning(node: Node) -> common_pb2.Cursor:
    shards = range(len(node.context.drivers))
    return common_pb2.Cursor(
        positions=[common_pb2.Position(shard=shard, index=1) for shard in shards]
    )


def test_acknowledged_points_survive_leader_changes_and_others_do_not_count(tmp_path: Path) -> None:
    """F8: writes are replicated by consensus; every node answers, and all replicas agree."""

    async def main() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            acknowledged: dict[int, float] = {}
            unknown: set[int] = set()
            is_done = asyncio.Event()

            async def writer(number: int) -> None:
                at = number
                while not is_done.is_set():
                    node = nodes[at % len(nodes)]
                    value = float(at)
                    try:
                        await write(node, "m", points([at], {"v": [value]}, host="a"))
                        acknowledged[at] = value
                    except Exception:  # noqa: BLE001 - whatever it was, nobody said that it is there
                        unknown.add(at)
                    at += 4

            writers = [asyncio.ensure_future(writer(number)) for number in range(4)]
            for _ in range(3):
                await move_leader(nodes)
                wanted = len(acknowledged) + 20
                await until(lambda wanted=wanted: len(acknowledged) > wanted)  # type: ignore[misc]
            is_done.set()
            await asyncio.gather(*writers)
            assert len(acknowledged) > 60
            for node in nodes:
                times, values = (await query(node, "m", "v"))[host("a")]
                found = dict(zip(times, values, strict=True))
                assert acknowledged.items() <= found.items()
                assert found.keys() <= acknowledged.keys() | unknown
                last = max(each.context.drivers[0].shard.log.commit_index for each in nodes)
                stale = common_pb2.ReadOptions(level=common_pb2.READ_LEVEL_STALE, min_index=last)
                assert await query(node, "m", "v", options=stale) == {host("a"): (times, values)}

    run(main())


async def move_leader(nodes: list[Node]) -> None:
    leader = next(node for node in nodes if node.leads(0))
    other = next(node for node in nodes if node is not leader)
    request = admin_pb2.TransferLeadershipRequest(shard=0, node_id=str(other.context.node_id))
    await eventually(lambda: leader.admin.TransferLeadership(request))


def test_a_repeated_deletion_takes_nothing_that_was_created_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many series, which takes several entries: the first carries the session."""
    monkeypatch.setattr(ts_deletes, "DELETE_SERIES_MAX", 2)

    async def test(node: Node) -> None:
        opened = await node.pipeline.OpenSession(pipeline.OpenSessionRequest())
        older = [points([SECOND], {"v": [1.0]}, h=f"old-{n}") for n in range(5)]
        newer = [points([SECOND], {"v": [2.0]}, h=f"new-{n}") for n in range(5)]
        for sequence, make, call in (
            (1, ts.DeletePointsRequest, node.ts.DeletePoints),
            (2, ts.DeleteMeasurementRequest, node.ts.DeleteMeasurement),
        ):
            session = common_pb2.Session(session_id=opened.session_id, sequence=sequence)
            request = make(measurement="m", options=common_pb2.WriteOptions(session=session))
            await write(node, "m", *older)
            await call(request)
            await write(node, "m", *newer)
            assert (await call(request)).header.index
            found = rows_of(await node.ts.Query(asking("m")))
            assert {tags for (tags,) in found} == {("h", f"new-{n}") for n in range(5)}, make
            await node.ts.DeletePoints(ts.DeletePointsRequest(measurement="m"))

    on_a_node(tmp_path, test)
