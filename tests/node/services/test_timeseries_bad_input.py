"""Bad input for every call of the time series service: a stable reason, and nothing written."""

from pathlib import Path
from typing import Any, cast

import pytest

from onelog import errors
from onelog.projections.reasons import Reason
from onelog.reasons import find_class
from onelog.v1 import common_pb2
from onelog.v1 import timeseries_pb2 as ts
from tests.node.services.nodes import Node, refusal, run, single
from tests.node.services.test_timeseries_service import column, matcher, points

LONG = "n" * 129
LONG_VALUE = "v" * 257
REGEX = ts.MATCH_OPERATOR_REGEX
Options = common_pb2.WriteOptions
BAD_SESSION = Options(session=common_pb2.Session(session_id=3, sequence=0))
GOOD = points([1], {"v": [1.0]}, host="a")
RANGE: dict[str, Any] = {"from_ns": 0, "to_ns": 10}
MATCHERS_33 = [matcher(f"t{n}", ts.MATCH_OPERATOR_EQUAL, "") for n in range(33)]

BY_NAME: list[tuple[str, type, dict[str, Any]]] = [
    ("CreateMeasurement", ts.CreateMeasurementRequest, {}),
    ("ConfigureMeasurement", ts.ConfigureMeasurementRequest, {}),
    ("DeleteMeasurement", ts.DeleteMeasurementRequest, {}),
    ("GetMeasurement", ts.GetMeasurementRequest, {}),
    ("WritePoints", ts.WritePointsRequest, {"series": [GOOD]}),
    ("ListSeries", ts.ListSeriesRequest, {}),
    ("DeletePoints", ts.DeletePointsRequest, {}),
    ("Query", ts.QueryRequest, {"field": "v", **RANGE}),
    ("SetRule", ts.SetRuleRequest, {"rule": ts.Rule(name="r", target_measurement="t{m}")}),
    ("DeleteRule", ts.DeleteRuleRequest, {"rule": "r"}),
]
BAD_NAMES = [
    (method, make(measurement=name, **fields), "SERIES_NAME_INVALID")
    for method, make, fields in BY_NAME
    for name in ("", LONG, "é" * 65, "a\nb")
]
BAD_NAMESPACES = [
    (method, make(measurement="m", namespace=LONG, **fields), "NAMESPACE_NAME_INVALID")
    for method, make, fields in BY_NAME
    if method != "SetRule"
]


def writing(*series: ts.SeriesPoints, **fields: Any) -> tuple[str, ts.WritePointsRequest]:
    return "WritePoints", ts.WritePointsRequest(measurement="m", series=series, **fields)


BAD_POINTS: list[tuple[str, Any, str]] = [
    (*writing(), "POINTS_MISSING"),
    (*writing(ts.SeriesPoints(tags={"host": "a"})), "POINTS_MISSING"),
    (*writing(ts.SeriesPoints(times_ns=[1])), "POINTS_MISSING"),
    (*writing(ts.SeriesPoints(columns=[column("v", [])])), "POINTS_MISSING"),
    (*writing(ts.SeriesPoints(times_ns=[1], columns=[ts.Column(field="v")])), "FIELDS_INVALID"),
    (*writing(points([1, 2], {"v": [1.0]})), "FIELDS_INVALID"),
    (*writing(points([1], {"v": [1.0, 2.0]})), "FIELDS_INVALID"),
    (
        *writing(ts.SeriesPoints(times_ns=[1], columns=[column("v", [1.0])] * 2)),
        "FIELDS_INVALID",
    ),
    (*writing(GOOD, points([1], {"v": [1]}, host="b")), "FIELD_TYPE_MISMATCH"),
    (*writing(GOOD, points([1], {"": [1.0]})), "SERIES_NAME_INVALID"),
    (*writing(points([1], {LONG: [1.0]})), "SERIES_NAME_INVALID"),
    (*writing(points([1], {"v\0": [1.0]})), "SERIES_NAME_INVALID"),
    (*writing(points([1], {"v": [1.0]}, **{LONG: "x"})), "SERIES_NAME_INVALID"),
    (*writing(points([1], {"v": [1.0]}, **{"": "x"})), "SERIES_NAME_INVALID"),
    (*writing(points([1], {"v": [1.0]}, host=LONG_VALUE)), "SERIES_NAME_INVALID"),
    (*writing(points([1], {"v": [1.0]}, host="a\tb")), "SERIES_NAME_INVALID"),
    (
        *writing(points([1], {"v": [1.0]}, **{f"t{n}": "x" for n in range(33)})),
        "SERIES_NAME_INVALID",
    ),
    (
        *writing(points([1], {"v": [1.0]}, **{f"t{n}": "x" * 200 for n in range(25)})),
        "SERIES_NAME_INVALID",
    ),
    (*writing(GOOD, points([1], {"v": [float("nan")]})), "VALUE_NOT_FINITE"),
    (*writing(points([1, 2], {"v": [1.0, float("inf")]})), "VALUE_NOT_FINITE"),
    (*writing(points([1], {"v": [float("-inf")]})), "VALUE_NOT_FINITE"),
    (*writing(points([2**62], {"v": [1.0]})), "POINT_TIME_INVALID"),
    (*writing(points([-(2**62) - 1], {"v": [1.0]})), "POINT_TIME_INVALID"),
    (*writing(points([2**63 - 1], {"v": [1.0]})), "POINT_TIME_INVALID"),
    (*writing(*[GOOD] * 5_001), "POINTS_TOO_LARGE"),
    (
        *writing(points(range(50_001), {"v": [1.0] * 50_001, "w": [1.0] * 50_001})),
        "POINTS_TOO_LARGE",
    ),
    (
        *writing(*[points([1], {f"f{n}": [1.0] for n in range(21)})] * 1_000),
        "POINTS_TOO_LARGE",
    ),
    (*writing(points([1], {f"f{n}": [1.0] for n in range(1_001)})), "POINTS_TOO_LARGE"),
    (*writing(GOOD, options=BAD_SESSION), "SEQUENCE_INVALID"),
    (*writing(GOOD, options=Options(durability=cast(Any, 9))), "DURABILITY_INVALID"),
]


def asking(**fields: Any) -> tuple[str, ts.QueryRequest]:
    return "Query", ts.QueryRequest(**({"measurement": "known", "field": "v"} | RANGE | fields))


def bad_patterns(pattern: str) -> list[tuple[str, Any, str]]:
    matchers = [matcher("host", REGEX, pattern)]
    return [
        (*asking(matchers=matchers), "MATCHER_INVALID"),
        (
            "ListSeries",
            ts.ListSeriesRequest(measurement="known", matchers=matchers),
            "MATCHER_INVALID",
        ),
        (
            "DeletePoints",
            ts.DeletePointsRequest(measurement="known", matchers=matchers),
            "MATCHER_INVALID",
        ),
    ]


BAD_READS: list[tuple[str, Any, str]] = [
    (*asking(field=""), "SERIES_NAME_INVALID"),
    (*asking(field="none"), "FIELD_UNKNOWN"),
    (*asking(namespace="nowhere"), "NAMESPACE_UNKNOWN"),
    (*asking(from_ns=5, to_ns=5), "QUERY_INVALID"),
    (*asking(from_ns=6, to_ns=5), "QUERY_INVALID"),
    (*asking(to_ns=2**62 + 1), "QUERY_INVALID"),
    (*asking(from_ns=-(2**63)), "QUERY_INVALID"),
    (*asking(aggregate=ts.AGGREGATE_SUM, window_ns=2**62), "QUERY_INVALID"),
    (*asking(aggregate=ts.AGGREGATE_SUM, window_ns=2**64 - 1), "QUERY_INVALID"),
    (*asking(aggregate=cast(Any, 12)), "QUERY_INVALID"),
    (*asking(aggregate=ts.AGGREGATE_PERCENTILE, parameter=100.5), "QUERY_INVALID"),
    (*asking(aggregate=ts.AGGREGATE_PERCENTILE, parameter=-1), "QUERY_INVALID"),
    (*asking(aggregate=ts.AGGREGATE_PERCENTILE, parameter=float("nan")), "QUERY_INVALID"),
    (*asking(window_ns=5), "QUERY_INVALID"),
    (*asking(top=5), "QUERY_INVALID"),
    (*asking(group_by=["host"]), "QUERY_INVALID"),
    (*asking(aggregate=ts.AGGREGATE_SUM, group_by=["host"], by_series=True), "QUERY_INVALID"),
    (*asking(aggregate=ts.AGGREGATE_SUM, group_by=[""]), "SERIES_NAME_INVALID"),
    (*asking(aggregate=ts.AGGREGATE_SUM, group_by=[f"t{n}" for n in range(33)]), "QUERY_INVALID"),
    (*asking(matchers=[ts.Matcher(tag="host", value="x")]), "MATCHER_INVALID"),
    (*asking(matchers=[matcher("host", cast(Any, 7), "x")]), "MATCHER_INVALID"),
    (*asking(matchers=[matcher("", REGEX, "x")]), "SERIES_NAME_INVALID"),
    (*asking(matchers=[matcher("host", ts.MATCH_OPERATOR_EQUAL, LONG_VALUE)]), "MATCHER_INVALID"),
    (*asking(matchers=MATCHERS_33), "MATCHER_INVALID"),
    (*asking(options=common_pb2.ReadOptions(level=cast(Any, 9))), "LEVEL_INVALID"),
    *bad_patterns("a("),
    *bad_patterns("[z-a]"),
    *bad_patterns("*"),
    *bad_patterns("\\1(a)"),
    *bad_patterns("a{3,1}"),
    *bad_patterns("((((a{99}){99}){99}){99})"),
    *bad_patterns("(" * 40 + ")" * 40),
    *bad_patterns("x" * 257),
    ("ListSeries", ts.ListSeriesRequest(measurement="known", page_size=10_001), "LIMIT_INVALID"),
    (
        "ListSeries",
        ts.ListSeriesRequest(measurement="known", page_token=b"x"),
        "PAGE_TOKEN_INVALID",
    ),
    ("ListMeasurements", ts.ListMeasurementsRequest(page_size=1_001), "LIMIT_INVALID"),
    ("ListMeasurements", ts.ListMeasurementsRequest(page_token=b"x"), "PAGE_TOKEN_INVALID"),
    ("ListMeasurements", ts.ListMeasurementsRequest(page_token=b"\1\xff"), "PAGE_TOKEN_INVALID"),
    ("ListMeasurements", ts.ListMeasurementsRequest(prefix=LONG), "SERIES_NAME_INVALID"),
    ("ListMeasurements", ts.ListMeasurementsRequest(namespace="nowhere"), "NAMESPACE_UNKNOWN"),
    (
        "ListMeasurements",
        ts.ListMeasurementsRequest(options=common_pb2.ReadOptions(as_of_index=1)),
        "SEVERAL_SHARDS",
    ),
]


def config(**fields: Any) -> list[tuple[str, Any, str]]:
    settings = ts.MeasurementConfig(**fields)
    return [
        (method, make(measurement="m", config=settings), "MEASUREMENT_CONFIG_INVALID")
        for method, make in (
            ("CreateMeasurement", ts.CreateMeasurementRequest),
            ("ConfigureMeasurement", ts.ConfigureMeasurementRequest),
        )
    ]


def rule(reason: str = "RULE_INVALID", **fields: Any) -> tuple[str, Any, str]:
    sound: dict[str, Any] = {
        "name": "r", "window_ns": 10**9, "aggregates": [ts.AGGREGATE_MEAN],
        "target_measurement": "t{known}",
    }  # fmt: skip
    request = ts.SetRuleRequest(measurement="known", rule=ts.Rule(**(sound | fields)))
    return "SetRule", request, reason


BAD_SETTINGS: list[tuple[str, Any, str]] = [
    *config(duplicates=cast(Any, 4)),
    *config(duplicates=cast(Any, -1)),
    *config(retention_ms=101 * 365 * 86_400_000),
    *config(retention_ms=2**64 - 1),
    *config(series_max=10_000_001),
    *config(series_max=2**64 - 1),
    rule(name="", reason="SERIES_NAME_INVALID"),
    rule(name=LONG, reason="SERIES_NAME_INVALID"),
    rule(target_measurement="", reason="SERIES_NAME_INVALID"),
    rule(target_measurement="far3", reason="SEVERAL_SHARDS"),
    rule(window_ns=0),
    rule(window_ns=999_999),
    rule(window_ns=2**64 - 1),
    rule(aggregates=[]),
    rule(aggregates=[ts.AGGREGATE_UNSPECIFIED]),
    rule(aggregates=[ts.AGGREGATE_PERCENTILE]),
    rule(aggregates=[ts.AGGREGATE_RATE]),
    rule(aggregates=[cast(Any, 99)]),
    ("DeleteRule", ts.DeleteRuleRequest(measurement="m"), "SERIES_NAME_INVALID"),
    (
        "DeletePoints",
        ts.DeletePointsRequest(measurement="m", first_ns=2, last_ns=1),
        "RANGE_INVALID",
    ),
    (
        "DeletePoints",
        ts.DeletePointsRequest(measurement="m", first_ns=-(2**63)),
        "RANGE_INVALID",
    ),
    ("DeletePoints", ts.DeletePointsRequest(measurement="m", last_ns=2**62), "RANGE_INVALID"),
    (
        "DeletePoints",
        ts.DeletePointsRequest(measurement="m", matchers=MATCHERS_33),
        "MATCHER_INVALID",
    ),
]  # fmt: skip


def test_bad_input_is_refused_with_a_reason_and_nothing_is_written(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        known = ts.WritePointsRequest(measurement="known", series=[GOOD])
        await node.ts.WritePoints(known)
        logs = [driver.shard.log for driver in node.context.drivers.values()]
        before = [log.last_index for log in logs]
        seen = set()
        for method, request, reason in (
            *BAD_NAMES, *BAD_NAMESPACES, *BAD_POINTS, *BAD_READS, *BAD_SETTINGS,
        ):  # fmt: skip
            error = await refusal(getattr(node.ts, method)(request))
            assert error.reason == reason, (method, error, str(request)[:200])
            assert not isinstance(error, errors.Internal), (method, error)
            assert error.message, (method, reason)
            seen.add(method)
        assert [log.last_index for log in logs] == before
        service = ts.DESCRIPTOR.services_by_name["TimeSeries"]
        assert seen == {each.name for each in service.methods}

    async def main() -> None:
        async with single(tmp_path) as node:
            await test(node)

    run(main())


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.SERIES_NAME_INVALID, errors.InvalidArgument),
        (Reason.MEASUREMENT_UNKNOWN, errors.NotFound),
        (Reason.MEASUREMENT_EXISTS, errors.AlreadyExists),
        (Reason.MEASUREMENTS_FULL, errors.ResourceExhausted),
        (Reason.MEASUREMENT_CONFIG_INVALID, errors.InvalidArgument),
        (Reason.SERIES_FULL, errors.ResourceExhausted),
        (Reason.FIELD_UNKNOWN, errors.NotFound),
        (Reason.FIELD_TYPE_MISMATCH, errors.FailedPrecondition),
        (Reason.FIELDS_FULL, errors.ResourceExhausted),
        (Reason.POINT_TIME_INVALID, errors.InvalidArgument),
        (Reason.POINT_TOO_OLD, errors.OutOfRange),
        (Reason.POINT_NOT_NEWER, errors.FailedPrecondition),
        (Reason.VALUE_NOT_FINITE, errors.InvalidArgument),
        (Reason.SERIES_BUFFER_FULL, errors.ResourceExhausted),
        (Reason.SERIES_DELETES_FULL, errors.ResourceExhausted),
        (Reason.MATCHER_INVALID, errors.InvalidArgument),
        (Reason.RULE_UNKNOWN, errors.NotFound),
        (Reason.RULES_FULL, errors.ResourceExhausted),
        (Reason.RULE_INVALID, errors.InvalidArgument),
        (Reason.QUERY_INVALID, errors.InvalidArgument),
        (Reason.QUERY_TOO_LARGE, errors.ResourceExhausted),
    ],
)
def test_reasons_have_the_class_that_says_what_to_do(
    reason: Reason, kind: type[errors.OnelogError]
) -> None:
    assert find_class(reason.name) is kind
