"""Queries against loops over every point: random series, blocks, windows, matchers, groups."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.timeseries import query as ts_query
from onelog.projections.timeseries import read as ts_read
from onelog.projections.timeseries.aggregate import Function
from onelog.projections.timeseries.columns import CorruptBlock
from onelog.projections.timeseries.commands import ConfigureMeasurement, CreateMeasurement, Delete
from onelog.projections.timeseries.limits import CACHE_SIZE_MAX
from onelog.projections.timeseries.names import Matcher, Operator, compile_matchers, series_name
from onelog.projections.timeseries.point_batch import Run
from onelog.projections.timeseries.query import (
    Bounds,
    Found,
    Plan,
    Query,
    Reader,
    plan_query,
)
from onelog.projections.timeseries.tag_index import TagIndex
from onelog.projections.timeseries.types import Config, FieldType, Policy, Value
from onelog.projections.undo import UndoLog
from tests.projections.timeseries.ts_queries import BOUNDS, Queries
from tests.projections.timeseries.ts_twin import Twin, TwinMeasurement
from tests.projections.timeseries.ts_world import SECOND, SeriesWorld

HOSTS = ["", "a", "b", "web-1", "web-2"]
ZONES = ["", "eu", "us"]
KINDS = {"f": FieldType.F64, "n": FieldType.I64, "b": FieldType.BOOL}

times = st.integers(-20, 300).map(lambda number: number * SECOND // 4)
values = {
    "f": st.integers(-400, 400).map(lambda number: number / 8),
    "n": st.integers(-1_000, 1_000),
    "b": st.booleans(),
}
matchers = st.builds(
    Matcher,
    st.sampled_from(["host", "zone", "none"]),
    st.sampled_from([Operator.EQUAL, Operator.NOT_EQUAL]),
    st.sampled_from([*HOSTS, "eu"]),
) | st.builds(
    Matcher,
    st.sampled_from(["host", "zone", "none"]),
    st.sampled_from([Operator.MATCHES, Operator.MATCHES_NOT]),
    st.sampled_from(["web-.*", "a|b", "", ".+", "web-[0-9]", "[^w].*", "e?u?s?"]),
)


@st.composite
def queries(draw: st.DrawFn, field: str) -> Query:
    start, end = sorted((draw(times), draw(times)))
    function = draw(st.sampled_from([None, *Function]))
    return Query(
        measurement="m",
        field=field,
        start_ns=start,
        end_ns=end + 1,
        matchers=tuple(draw(st.lists(matchers, max_size=2))),
        function=function,
        window_ns=draw(st.sampled_from([0, SECOND, 7 * SECOND, 3 * SECOND // 2, 10**12])),
        offset_ns=draw(st.sampled_from([0, 0, SECOND // 3])),
        percent=draw(st.sampled_from([0.0, 25.0, 50.0, 90.0, 99.9, 100.0])),
        group_by=draw(st.sampled_from([None, (), ("zone",), ("zone", "host"), ("none",)])),
        topk=draw(st.sampled_from([0, 0, 1, 2])) if function is not None else 0,
        limit=draw(st.sampled_from([0, 0, 3])),
        row_limit=draw(st.sampled_from([0, 0, 2])),
    )


def assert_same(world: SeriesWorld, twin: Twin, query: Query) -> None:
    """Hold a query against the loops. A group that is not there has no group_by of its own."""
    if query.function is None:
        query = Query(**{**_fields(query), "group_by": None})
    rows = world.query(query)
    expected = twin.query(query)
    assert [row.tags for row in rows] == [tags for tags, _ in expected]
    for row, (_, points) in zip(rows, expected, strict=True):
        assert row.times.tolist() == [time for time, _ in points]
        for found, (_, value) in zip(row.values.tolist(), points, strict=True):
            assert math.isclose(found, value, rel_tol=1e-9, abs_tol=1e-9), (found, value)


def _fields(query: Query) -> dict[str, Any]:
    return {name: getattr(query, name) for name in Query.__slots__}


@given(data=st.data(), field=st.sampled_from(sorted(KINDS)), policy=st.sampled_from(Policy))
@settings(max_examples=80, deadline=None)
def test_a_query_finds_what_a_loop_finds(data: st.DataObject, field: str, policy: Policy) -> None:
    if policy is Policy.REJECT:
        policy = Policy.LAST
    world, twin = SeriesWorld(), Twin()
    world.run(CreateMeasurement("m", Config(policy)))
    twin.measurements["m"] = TwinMeasurement(Config(policy))
    for _ in range(data.draw(st.integers(1, 8), label="runs")):
        tags = {
            "host": data.draw(st.sampled_from(HOSTS)),
            "zone": data.draw(st.sampled_from(ZONES)),
        }
        tags = {tag: value for tag, value in tags.items() if value}
        name = series_name("m", tags)
        points = data.draw(st.lists(st.tuples(times, values[field]), min_size=1, max_size=25))
        if data.draw(st.booleans(), label="sorted"):
            points.sort(key=lambda point: point[0])
        run_times, run_values = zip(*points, strict=True)
        world.batch(Run(name, field, KINDS[field], run_times, run_values))
        for time, value in points:
            twin.write("m", name, tags, time, {field: value})
        if data.draw(st.booleans(), label="block"):
            world.block(name, field)
            twin.block("m", name, field, len(twin.measurements["m"].series[name][1][field].buffer))
        if data.draw(st.integers(0, 5), label="delete") == 0:
            first, last = sorted((data.draw(times), data.draw(times)))
            world.run(Delete("m", (), first, last))
            twin.delete("m", (), first, last)
    world.router.check()
    if field not in world.series.spaces["default"].measurements["m"].field_ids:
        return
    for _ in range(6):
        assert_same(world, twin, data.draw(queries(field)))


def filled(count: int = 3_000) -> SeriesWorld:
    world = SeriesWorld()
    for number in range(4):
        name = series_name("m", {"host": f"h{number}"})
        run_times = np.arange(count) * SECOND
        world.batch(Run(name, "f", FieldType.F64, run_times, np.arange(count) * (number + 1.0)))
        world.work()
    return world


def test_raw_points_do_not_change_under_their_reader() -> None:
    world = filled()
    row = world.query(Query("m", "f"))[0]
    before = row.times.copy()

    world.write(row.name, 9_999 * SECOND, f=1.0)
    world.query(Query("m", "f"))

    assert row.times.tolist() == before.tolist()


def test_the_cache_stays_within_its_size_and_answers_the_same() -> None:
    world = filled()
    small = Queries(world.series, world.read_block, cache_size_max=40_000)
    query = Query("m", "f", function=Function.SUM, window_ns=100 * SECOND)
    expected = [row.values.tolist() for row in world.query(query)]

    for _ in range(3):
        rows = small.query("default", query)
        assert isinstance(rows, list)
        assert [row.values.tolist() for row in rows] == expected
    assert small.cache.size <= 70_000  # one block may stand, whatever its size
    assert small.cache.miss_count > small.cache.hit_count
    assert world.queries.cache.miss_count == world.series.counts()["series_blocks"]


def test_blocks_outside_of_the_range_are_not_read() -> None:
    world = filled(9_000)
    assert world.series.counts()["series_blocks"] >= 8
    world.query(Query("m", "f", start_ns=0, end_ns=SECOND))

    assert world.queries.cache.miss_count == 4


def test_a_block_that_is_not_there_is_an_error_with_its_index() -> None:
    world = filled()
    (index, *_) = world.series.pinned(0, world.index)
    world.entries[index - 1] = world.entries[index]

    with pytest.raises(CorruptBlock) as caught:
        world.query(Query("m", "f"))
    assert caught.value.index == index


@pytest.mark.parametrize(
    ("query", "refused"),
    [
        (Query("none", "f"), Refused(Reason.MEASUREMENT_UNKNOWN)),
        (Query("m", "none"), Refused(Reason.FIELD_UNKNOWN)),
        (Query("m", "f", start_ns=5, end_ns=5), Refused(Reason.QUERY_INVALID)),
        (Query("m", "f", window_ns=-1), Refused(Reason.QUERY_INVALID)),
        (Query("m", "f", topk=3), Refused(Reason.QUERY_INVALID)),
        (Query("m", "f", limit=-2), Refused(Reason.QUERY_INVALID)),
        (
            Query("m", "f", matchers=(Matcher("host", Operator.MATCHES, "a(b"),)),
            Refused(Reason.MATCHER_INVALID, 3),
        ),
    ],
)
def test_a_query_that_cannot_be_has_its_reason(query: Query, refused: Refused) -> None:
    world = filled(10)

    assert world.queries.query("default", query) == refused
    assert world.queries.query("elsewhere", query) != refused or query.invalid() is not None


def test_a_query_that_reads_too_much_is_refused() -> None:
    world = filled(3_000)
    points = Bounds(series=4, points=5_000, values=1_000_000)
    series = Bounds(series=3, points=1_000_000, values=1_000_000)

    refused = world.queries.query("default", Query("m", "f"), points)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.QUERY_TOO_LARGE
    refused = world.queries.query("default", Query("m", "f"), series)
    assert refused == Refused(Reason.QUERY_TOO_LARGE, 4)


def test_an_overflow_is_an_infinity_and_not_a_warning() -> None:
    world = SeriesWorld()
    name = series_name("m")
    for second in range(3):
        world.write(name, second * SECOND, f=1.7e308)

    assert world.query(Query("m", "f", function=Function.SUM))[0].values.tolist() == [math.inf]


def test_a_percentile_of_numbers_far_apart_is_between_them() -> None:
    """Their difference is beyond a float."""
    world = SeriesWorld()
    name = series_name("m")
    for second, value in enumerate((-1.7e308, 1.7e308, 1.7e308)):
        world.write(name, second * SECOND, f=value)

    for percent, expected in ((0.0, -1.7e308), (25.0, 0.0), (50.0, 1.7e308), (100.0, 1.7e308)):
        query = Query("m", "f", function=Function.PERCENTILE, percent=percent)
        assert world.query(query)[0].values.tolist() == [expected], percent


def test_another_policy_decides_what_is_read() -> None:
    """Blocks keep one point per time; which of two blocks counts is decided at the read."""
    world = SeriesWorld()
    name = series_name("m")
    written: list[Value] = [1.0, 2.0, 3.0]
    for value in written:
        world.write(name, 5, f=value)
        world.block(name, "f")

    assert world.points(name, "f") == [(5, 3.0)]
    world.run(ConfigureMeasurement("m", Config(Policy.FIRST)))
    assert world.points(name, "f") == [(5, 1.0)]


def test_blocks_between_the_same_first_and_last_one_are_not_taken_for_each_other() -> None:
    """Backfill: each range of time has three blocks, the first and the last of all among them."""
    world = SeriesWorld()
    name = series_name("m")
    for run_times in ([0, 9], [1, 4], [5, 8], [2, 7]):
        values = [float(world.index + each) for each in run_times]
        world.batch(Run(name, "f", FieldType.F64, run_times, values))
        world.block(name, "f")

    for start, end in ((0, 5), (5, 10), (0, 10)):
        (row,) = world.query(Query("m", "f", start_ns=start, end_ns=end))
        assert row.times.tolist() == [
            each for each in (0, 1, 2, 4, 5, 7, 8, 9) if start <= each < end
        ]


def test_a_plan_shows_the_moment_at_which_it_was_made() -> None:
    world = filled(1_500)
    measurement = world.series.spaces["default"].measurements["m"]
    for series in measurement.series.values():
        world.batch(Run(series.name, "f", FieldType.F64, [1_500 * SECOND], [1.0]))
    ids = measurement.index.select([]).tolist()
    plan = plan_query(measurement, Query("m", "f"), ids, BOUNDS)
    assert isinstance(plan, Plan)
    before = [(row.name, row.times.tolist()) for row in world.query(Query("m", "f"))]
    world.batch(Run(before[0][0], "f", FieldType.F64, [9_999 * SECOND] * 2_000, [1.0] * 2_000))
    world.work()
    world.run(Delete("m", (), 0, 700 * SECOND))
    world.run(ConfigureMeasurement("m", Config(Policy.FIRST)))
    world.run(Delete("m", (Matcher("host", Operator.EQUAL, "h1"),)))

    found = Reader(world.read_block, CACHE_SIZE_MAX).run(plan, BOUNDS)

    assert isinstance(found, Found)
    assert [(row.name, row.times.tolist()) for row in found.rows] == before
    assert found.scanned_count == 4 * 1_501


def test_a_cut_through_the_index_does_not_see_what_comes_later() -> None:
    index = TagIndex(UndoLog())
    for number in range(1, 6):
        index.add(number, (("host", "ab"[number % 2]),))
    tests = compile_matchers([Matcher("host", Operator.MATCHES, "a|c")])
    cut = index.cut(tests)
    index.add(6, (("host", "a"),))
    index.add(7, (("host", "c"),))
    index.remove([(2, (("host", "a"),))])
    paused = 0

    def pause() -> None:
        nonlocal paused
        paused += 1

    assert cut.select(pause).tolist() == [2, 4]
    assert (cut.last_id, cut.effort, paused) == (5, 2, 1)
    assert index.select(tests).tolist() == [4, 6, 7]


@pytest.mark.parametrize("function", [None, *Function])
def test_how_many_series_are_read_together_changes_no_bit_of_an_answer(
    function: Function | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, draw = SeriesWorld(), np.random.default_rng(7)
    for _ in range(3):
        for number in range(12):
            name = series_name("m", {"host": f"h{number:02}", "zone": f"z{number % 5 % 4}"})
            run_times = draw.integers(0, 200, 30) * SECOND
            run_values = draw.choice([1e-9, 1.0, 1e9, -0.0, 0.0, 0.1], 30)
            world.batch(Run(name, "f", FieldType.F64, run_times, run_values))
            if number in {2, 3, 7}:  # series with blocks between others
                world.block(name, "f")
    start, end = 20 * SECOND, 180 * SECOND
    asked = [
        Query("m", "f", start, end, (), function, window, percent=70.0, group_by=group_by, topk=top)
        for window in ((0, 9 * SECOND) if function else (0,))
        for group_by in ((None, (), ("zone",)) if function else (None,))
        for top in ((0, 2) if function else (0,))
    ]

    def answers() -> list[tuple[bytes, bytes, bytes]]:
        rows = [row for query in asked for row in world.query(query)]
        return [(row.name, row.times.tobytes(), row.values.tobytes()) for row in rows]

    together = answers()
    assert len(together) >= 12
    for limit in (1, 40, 300):
        monkeypatch.setattr(ts_read, "BUNDLE_POINTS", limit)
        monkeypatch.setattr(ts_query, "PART_POINTS", limit)
        assert answers() == together
