"""The time series service of a real node, asked by stubs that were generated from the protos."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node import series_reads
from onelog import errors
from onelog.v1 import admin_pb2, common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import timeseries_pb2 as ts
from tests.services.nodes import Node, eventually, refusal, run, single, until

SECOND = 10**9
FOREVER = {"from_ns": 0, "to_ns": 2**62}
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
        fields = {
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


async def four_series(node: Node) -> None:
    await write(
        node, "cpu",
        points([SECOND], {"load": [1.0]}, host="web1", zone="eu"),
        points([SECOND], {"load": [2.0]}, host="web2", zone="us"),
        points([SECOND], {"load": [3.0]}, host="db1", zone="eu"),
        points([SECOND], {"load": [4.0]}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("matchers", "expected"),
    [
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
    ],
)
def test_matchers_select_series(
    tmp_path: Path, matchers: list[tuple[str, ts.MatchOperator, str]], expected: set[int]
) -> None:
    """F2: = != and patterns, in queries and in listings."""

    async def test(node: Node) -> None:
        await four_series(node)
        wanted = [matcher(*each) for each in matchers]
        rows = await query(node, "cpu", "load", matchers=wanted)
        assert {int(values[0]) for _, values in rows.values()} == expected
        listed = await node.ts.ListSeries(ts.ListSeriesRequest(measurement="cpu", matchers=wanted))
        assert {tuple(sorted(each.tags.items())) for each in listed.series} == set(rows)

    on_a_node(tmp_path, test)
