"""The time series service of a real node, asked by stubs that were generated from the protos."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onelog import errors
from onelog.v1 import admin_pb2, common_pb2
from onelog.v1 import timeseries_pb2 as ts
from tests.node.services.nodes import Node, eventually, refusal, run, single, until

SECOND = 10**9
FOREVER: dict[str, Any] = {"from_ns": 0, "to_ns": 2**62}
REGEX, NOT_REGEX = ts.MATCH_OPERATOR_REGEX, ts.MATCH_OPERATOR_NOT_REGEX
EQUAL, NOT_EQUAL = ts.MATCH_OPERATOR_EQUAL, ts.MATCH_OPERATOR_NOT_EQUAL
Rows = dict[tuple[tuple[str, str], ...], tuple[list[int], list[Any]]]


def on_a_node(directory: Path, test: Callable[[Node], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with single(directory, **changes) as node:
            await test(node)

    run(main())


def column(field: str, values: Sequence[float | int | bool]) -> ts.Column:
    if all(isinstance(each, bool) for each in values):
        return ts.Column(field=field, bools=ts.BoolValues(values=[bool(each) for each in values]))
    if all(isinstance(each, int) for each in values):
        return ts.Column(field=field, integers=ts.IntegerValues(values=[int(v) for v in values]))
    return ts.Column(field=field, doubles=ts.DoubleValues(values=values))


def points(
    times: Sequence[int], fields: Mapping[str, Sequence[Any]], **tags: str
) -> ts.SeriesPoints:
    columns = [column(name, values) for name, values in fields.items()]
    return ts.SeriesPoints(tags=tags, times_ns=times, columns=columns)


async def write(node: Node, measurement: str, *series: ts.SeriesPoints, **fields: Any) -> int:
    answer = await node.ts.WritePoints(
        ts.WritePointsRequest(measurement=measurement, series=series, **fields)
    )
    count: int = answer.written_count
    return count


def values_of(each: ts.Column) -> list[Any]:
    return list(getattr(each, each.WhichOneof("values") or "").values)


async def query(node: Node, measurement: str, field: str, **fields: Any) -> Rows:
    request = ts.QueryRequest(measurement=measurement, field=field, **(FOREVER | fields))
    return rows_of(await node.ts.Query(request))


def rows_of(answer: ts.QueryResponse) -> Rows:
    return {
        tuple(sorted(group.tags.items())): (list(group.times_ns), values_of(group.columns[0]))
        for group in answer.groups
    }


def matcher(tag: str, operator: ts.MatchOperator, value: str) -> ts.Matcher:
    return ts.Matcher(tag=tag, operator=operator, value=value)


def host(name: str) -> tuple[tuple[str, str], ...]:
    return (("host", name),)


def test_points_of_all_types_come_back_as_they_were_written(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        fields: dict[str, list[Any]] = {
            "load": [0.5, -0.0, 1e-300],
            "n": [7, -(2**63), 2**63 - 1],
            "up": [True, False, True],
        }
        times = [3 * SECOND, 1 * SECOND, 2 * SECOND]
        answer = await node.ts.WritePoints(
            ts.WritePointsRequest(measurement="cpu", series=[points(times, fields, host="a")])
        )
        assert answer.written_count == 9
        assert answer.header.index
        for field, values in fields.items():
            rows = await query(node, "cpu", field)
            expected = [values[1], values[2], values[0]]
            assert repr(rows) == repr({host("a"): ([SECOND, 2 * SECOND, 3 * SECOND], expected)})
        one = await node.ts.Query(
            ts.QueryRequest(
                measurement="cpu", field="n", from_ns=SECOND, to_ns=3 * SECOND, limit=1,
                options=common_pb2.ReadOptions(with_cost=True),
            )
        )  # fmt: skip
        assert rows_of(one) == {host("a"): ([SECOND], [-(2**63)])}
        assert one.scanned_count == 2
        assert one.header.cost.scanned == 2
        assert one.header.applied_index >= answer.header.index

    on_a_node(tmp_path, test)


def test_a_measurement_is_created_configured_shown_and_deleted(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        config = ts.MeasurementConfig(
            duplicates=ts.DUPLICATE_POLICY_FIRST, retention_ms=86_400_000, series_max=5
        )
        await node.ts.CreateMeasurement(ts.CreateMeasurementRequest(measurement="m", config=config))
        error = await refusal(
            node.ts.CreateMeasurement(ts.CreateMeasurementRequest(measurement="m"))
        )
        assert (type(error), error.reason) == (errors.AlreadyExists, "MEASUREMENT_EXISTS")
        await write(node, "m", points([2**61], {"f": [1.5], "i": [2], "b": [True]}, host="a"))
        await node.ts.SetRule(
            ts.SetRuleRequest(
                measurement="m",
                rule=ts.Rule(
                    name="hourly", window_ns=3600 * SECOND, target_measurement="hours{m}",
                    aggregates=[ts.AGGREGATE_MAX, ts.AGGREGATE_MEAN],
                ),
            )
        )  # fmt: skip
        shown = (
            await node.ts.GetMeasurement(ts.GetMeasurementRequest(measurement="m"))
        ).measurement
        assert (shown.namespace, shown.measurement, shown.series_count) == ("default", "m", 1)
        assert shown.config == config
        assert [(each.name, each.type) for each in shown.fields] == [("f", 1), ("i", 2), ("b", 3)]
        (rule,) = shown.rules
        assert (rule.name, rule.target_measurement) == ("hourly", "hours{m}")
        assert rule.window_ns == 3600 * SECOND
        assert list(rule.aggregates) == [ts.AGGREGATE_MEAN, ts.AGGREGATE_MAX]
        await node.ts.DeleteRule(ts.DeleteRuleRequest(measurement="m", rule="hourly"))
        error = await refusal(
            node.ts.DeleteRule(ts.DeleteRuleRequest(measurement="m", rule="hourly"))
        )
        assert (type(error), error.reason) == (errors.NotFound, "RULE_UNKNOWN")
        await node.ts.ConfigureMeasurement(ts.ConfigureMeasurementRequest(measurement="m"))
        shown = (
            await node.ts.GetMeasurement(ts.GetMeasurementRequest(measurement="m"))
        ).measurement
        assert shown.config == ts.MeasurementConfig(
            duplicates=ts.DUPLICATE_POLICY_LAST, series_max=100_000
        )
        assert not shown.rules
        await node.ts.DeleteMeasurement(ts.DeleteMeasurementRequest(measurement="m"))
        for call in (
            node.ts.GetMeasurement(ts.GetMeasurementRequest(measurement="m")),
            node.ts.ListSeries(ts.ListSeriesRequest(measurement="m")),
            node.ts.DeleteMeasurement(ts.DeleteMeasurementRequest(measurement="m")),
            node.ts.DeletePoints(ts.DeletePointsRequest(measurement="m")),
            node.ts.ConfigureMeasurement(ts.ConfigureMeasurementRequest(measurement="m")),
            node.ts.Query(ts.QueryRequest(measurement="m", field="f", **FOREVER)),
        ):
            error = await refusal(call)
            assert (type(error), error.reason) == (errors.NotFound, "MEASUREMENT_UNKNOWN")

    on_a_node(tmp_path, test)


async def four_series(node: Node, measurement: str) -> None:
    await write(
        node, measurement,
        points([SECOND], {"load": [1.0]}, host="web1", zone="eu"),
        points([SECOND], {"load": [2.0]}, host="web2", zone="us"),
        points([SECOND], {"load": [3.0]}, host="db1", zone="eu"),
        points([SECOND], {"load": [4.0]}),
    )  # fmt: skip


MATCHES: list[tuple[list[tuple[str, ts.MatchOperator, str]], set[int]]] = [
    ([], {1, 2, 3, 4}),
    ([("host", EQUAL, "web1")], {1}),
    ([("host", EQUAL, "")], {4}),
    ([("host", NOT_EQUAL, "web1")], {2, 3, 4}),
    ([("host", NOT_EQUAL, "")], {1, 2, 3}),
    ([("host", REGEX, "web\\d")], {1, 2}),
    ([("host", REGEX, "web|db1")], {3}),
    ([("host", REGEX, ".*")], {1, 2, 3, 4}),
    ([("host", NOT_REGEX, "web.*")], {3, 4}),
    ([("host", REGEX, "(w|d).+"), ("zone", EQUAL, "eu")], {1, 3}),
    ([("zone", NOT_REGEX, "eu|"), ("host", REGEX, "web.*")], {2}),
    ([("none", EQUAL, "x")], set()),
]


def test_matchers_select_series_in_queries_listings_and_deletes(tmp_path: Path) -> None:
    """F2: = != and patterns. F7: delete by matcher."""

    async def test(node: Node) -> None:
        for number, (matchers, expected) in enumerate(MATCHES):
            name = f"cpu{number}"
            await four_series(node, name)
            wanted = [matcher(*each) for each in matchers]
            rows = await query(node, name, "load", matchers=wanted)
            assert {int(values[0]) for _, values in rows.values()} == expected, matchers
            listing = ts.ListSeriesRequest(measurement=name, matchers=wanted)
            listed = await node.ts.ListSeries(listing)
            assert {tuple(sorted(each.tags.items())) for each in listed.series} == set(rows)
            deletion = ts.DeletePointsRequest(measurement=name, matchers=wanted)
            deleted = await node.ts.DeletePoints(deletion)
            assert deleted.series_count == len(expected)
            left = await query(node, name, "load")
            assert {int(values[0]) for _, values in left.values()} == {1, 2, 3, 4} - expected

    on_a_node(tmp_path, test)


def test_windows_are_aggregated_grouped_and_ranked(tmp_path: Path) -> None:
    """F3: every aggregate, group by, topk."""

    async def test(node: Node) -> None:
        times = [s * SECOND for s in range(6)]
        await write(
            node, "m",
            points(times, {"v": [1.0, 3.0, 5.0, 7.0, 2.0, 4.0]}, h="a", z="x"),
            points(times, {"v": [0.0, 0.0, 0.0, 8.0, 8.0, 8.0]}, h="b", z="x"),
            points([0, 5 * SECOND], {"v": [100.0, 50.0]}, h="c"),
        )  # fmt: skip
        a, b, c = (("h", "a"), ("z", "x")), (("h", "b"), ("z", "x")), (("h", "c"),)
        by_window = {"window_ns": 3 * SECOND, "by_series": True}
        expected: dict[ts.Aggregate, list[float]] = {
            ts.AGGREGATE_MEAN: [3.0, 13 / 3],
            ts.AGGREGATE_SUM: [9.0, 13.0],
            ts.AGGREGATE_COUNT: [3, 3],
            ts.AGGREGATE_MIN: [1.0, 2.0],
            ts.AGGREGATE_MAX: [5.0, 7.0],
            ts.AGGREGATE_FIRST: [1.0, 7.0],
            ts.AGGREGATE_LAST: [5.0, 4.0],
            ts.AGGREGATE_STDDEV: [float(np.std([1, 3, 5])), float(np.std([7, 2, 4]))],
            ts.AGGREGATE_PERCENTILE: [2.0, 3.0],
            ts.AGGREGATE_RATE: [2.0, 2.0],  # 7 to 2 is a counter that began again
            ts.AGGREGATE_DELTA: [4.0, -3.0],
        }
        for aggregate, values in expected.items():
            rows = await query(node, "m", "v", aggregate=aggregate, parameter=25.0, **by_window)
            assert rows[a][0] == [0, 3 * SECOND]
            assert rows[a][1] == pytest.approx(values), aggregate
        # One group for all, groups of tags, and a whole range as one window.
        everything = await query(node, "m", "v", aggregate=ts.AGGREGATE_SUM)
        assert everything == {(): ([0], [22.0 + 24.0 + 150.0])}
        zones = await query(node, "m", "v", aggregate=ts.AGGREGATE_SUM, group_by=["z"])
        assert zones == {(): ([0], [150.0]), (("z", "x"),): ([0], [46.0])}
        top = await node.ts.Query(
            ts.QueryRequest(
                measurement="m", field="v", aggregate=ts.AGGREGATE_MEAN, top=2, by_series=True,
                window_ns=SECOND, limit=1, **FOREVER,
            )
        )  # fmt: skip
        assert [tuple(sorted(each.tags.items())) for each in top.groups] == [c, b]
        assert [list(each.times_ns) for each in top.groups] == [[0], [0]]

    on_a_node(tmp_path, test)


def test_late_points_and_duplicates_are_resolved_as_the_measurement_says(tmp_path: Path) -> None:
    """F5: out of order, backfill into blocks, duplicate policies."""

    async def test(node: Node) -> None:
        for policy, name in ((1, "last"), (2, "first"), (3, "reject")):
            config = ts.MeasurementConfig(duplicates=ts.DuplicatePolicy.Name(policy))
            await node.ts.CreateMeasurement(
                ts.CreateMeasurementRequest(measurement=name, config=config)
            )
            times = [n * SECOND for n in range(1_500)]
            await write(node, name, points(times, {"v": [float(n) for n in range(1_500)]}))
            await until_blocks(node, name)
        late = points([700 * SECOND, 10 * SECOND + 1], {"v": [-1.0, -2.0]})
        await write(node, "last", late)
        await write(node, "first", late)
        error = await refusal(
            node.ts.WritePoints(ts.WritePointsRequest(measurement="reject", series=[late]))
        )
        assert (type(error), error.reason) == (errors.FailedPrecondition, "POINT_NOT_NEWER")
        for name, at_700, count in (
            ("last", -1.0, 1_501),
            ("first", 700.0, 1_501),
            ("reject", 700.0, 1_500),
        ):
            times_found, values = (await query(node, name, "v"))[()]
            assert len(times_found) == count
            assert times_found == sorted(times_found)
            assert values[times_found.index(700 * SECOND)] == at_700

    on_a_node(tmp_path, test)


async def until_blocks(node: Node, measurement: str) -> int:
    """Wait until the leader has made blocks of full buffers; return how many there are."""
    edge = node.context.edge
    assert edge is not None
    shard = edge.replica(edge.find_shard(measurement.encode())).shard
    await until(lambda: shard.projections.series.counts()["series_buffers_full"] == 0)
    return shard.projections.series.counts()["series_blocks"]


def test_blocks_are_read_from_the_log_after_a_restart(tmp_path: Path) -> None:
    """F6: compressed blocks, served without a replay of the entries that brought the points."""

    async def main() -> None:
        draw = np.random.default_rng(1)
        times = (np.arange(6_000) * SECOND).tolist()
        values = np.round(np.cumsum(draw.normal(0, 1, 6_000)), 2).tolist()
        async with single(tmp_path) as node:
            for start in range(0, 6_000, 1_500):  # each fills a buffer, and the leader empties it
                end = start + 1_500
                await write(node, "m", points(times[start:end], {"v": values[start:end]}))
                blocks = await until_blocks(node, "m")
            assert blocks >= 3
            before = await query(node, "m", "v")
            edge = node.context.edge
            assert edge is not None
            snapshot = admin_pb2.TakeSnapshotRequest(shard=edge.find_shard(b"m"))
            await node.admin.TakeSnapshot(snapshot, timeout=30)
        async with single(tmp_path) as node:
            assert await query(node, "m", "v") == before == {(): (times, values)}
            part = {"from_ns": 2_000 * SECOND, "to_ns": 2_010 * SECOND}
            rows = await query(node, "m", "v", **part)
            assert rows == {(): (times[2_000:2_010], values[2_000:2_010])}

    run(main())


def test_series_are_listed_in_pages_and_their_number_is_limited(tmp_path: Path) -> None:
    """F7: listing, cardinality limit, deleting more series than one entry takes."""

    async def test(node: Node) -> None:
        config = ts.MeasurementConfig(series_max=2_500)
        await node.ts.CreateMeasurement(ts.CreateMeasurementRequest(measurement="m", config=config))
        series = [points([SECOND], {"v": [1.0]}, n=str(n)) for n in range(2_500)]
        assert await write(node, "m", *series) == 2_500
        more = ts.WritePointsRequest(measurement="m", series=[points([1], {"v": [1.0]}, n="more")])
        error = await refusal(node.ts.WritePoints(more))
        assert (type(error), error.reason) == (errors.ResourceExhausted, "SERIES_FULL")
        found: list[str] = []
        request = ts.ListSeriesRequest(measurement="m", page_size=999)
        while True:
            page = await node.ts.ListSeries(request)
            found += [each.tags["n"] for each in page.series]
            if not page.next_page_token:
                break
            assert len(page.series) == 999
            request.page_token = page.next_page_token
        assert found == [str(n) for n in range(2_500)]
        deletion = ts.DeletePointsRequest(
            measurement="m", matchers=[matcher("n", REGEX, "[1-9].*")], last_ns=SECOND
        )
        assert (await node.ts.DeletePoints(deletion)).series_count == 2_499
        left = await node.ts.ListSeries(ts.ListSeriesRequest(measurement="m"))
        assert [each.tags["n"] for each in left.series] == ["0"]
        assert await write(node, "m", *series) == 2_500
        await node.ts.DeleteMeasurement(ts.DeleteMeasurementRequest(measurement="m"))
        error = await refusal(node.ts.GetMeasurement(ts.GetMeasurementRequest(measurement="m")))
        assert error.reason == "MEASUREMENT_UNKNOWN"

    on_a_node(tmp_path, test)


def test_measurements_of_all_shards_are_listed_by_name_in_pages(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        names = [f"m{n:02}" for n in range(25)] + ["other"]
        for name in names:
            await write(node, name, points([1], {"v": [1.0]}))

        async def listed(prefix: str, page_size: int) -> list[str]:
            request = ts.ListMeasurementsRequest(prefix=prefix, page_size=page_size)
            found: list[str] = []
            while True:
                page = await node.ts.ListMeasurements(request)
                assert len(page.measurements) <= (page_size or 100)
                found += [each.measurement for each in page.measurements]
                if not page.next_page_token:
                    return found
                request.page_token = page.next_page_token

        for page_size in (0, 1, 7, 13, 26):
            assert await listed("", page_size) == names
            assert await listed("m1", page_size) == names[10:20]
        assert await listed("none", 3) == []

    on_a_node(tmp_path, test, shards=3)


def test_rules_and_retention_take_effect_by_themselves(tmp_path: Path) -> None:
    """F4: retention and downsampling of the series of a measurement."""

    async def test(node: Node) -> None:
        now_ns = node.context.clock.wall_ns()
        window_ns = 10 * SECOND
        start_ns = (now_ns - 600 * SECOND) // window_ns * window_ns
        config = ts.MeasurementConfig(retention_ms=3_600_000)
        create = ts.CreateMeasurementRequest(measurement="raw{cpu}", config=config)
        await node.ts.CreateMeasurement(create)
        times = [start_ns + n * SECOND for n in range(100)]
        values = [float(n % 7) for n in range(100)]
        await write(node, "raw{cpu}", points(times, {"load": values}, host="a"))
        rule = ts.Rule(
            name="down", window_ns=window_ns, target_measurement="ten{cpu}",
            aggregates=[ts.AGGREGATE_MEAN, ts.AGGREGATE_COUNT],
        )  # fmt: skip
        await node.ts.SetRule(ts.SetRuleRequest(measurement="raw{cpu}", rule=rule))
        windows = [start_ns + n * window_ns for n in range(10)]
        means = [sum(values[10 * n : 10 * n + 10]) / 10 for n in range(10)]

        async def is_rolled_up(expected: list[float]) -> None:
            rows = await query(node, "ten{cpu}", "load_mean")
            assert rows[host("a")][0] == windows
            assert rows[host("a")][1] == pytest.approx(expected)
            counts = await query(node, "ten{cpu}", "load_count")
            assert counts[host("a")] == (windows, [10] * 10)

        await eventually(lambda: is_rolled_up(means))
        # A late point replaces one: its window is written again.
        await write(node, "raw{cpu}", points([times[0]], {"load": [100.0]}, host="a"))
        means[0] += (100.0 - values[0]) / 10
        await eventually(lambda: is_rolled_up(means))
        # What is older than the retention goes; what was made of it stays.
        config.retention_ms = 1_000
        await node.ts.ConfigureMeasurement(
            ts.ConfigureMeasurementRequest(measurement="raw{cpu}", config=config)
        )

        async def is_trimmed() -> None:
            assert await query(node, "raw{cpu}", "load") == {}
            shown = await node.ts.GetMeasurement(ts.GetMeasurementRequest(measurement="raw{cpu}"))
            assert shown.measurement.series_count == 0

        await eventually(is_trimmed)
        await is_rolled_up(means)
        old = points([times[0]], {"load": [1.0]}, host="a")
        error = await refusal(
            node.ts.WritePoints(ts.WritePointsRequest(measurement="raw{cpu}", series=[old]))
        )
        assert (type(error), error.reason) == (errors.OutOfRange, "POINT_TOO_OLD")

    on_a_node(tmp_path, test)
