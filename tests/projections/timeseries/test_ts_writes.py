"""Writing points: what is made on the way, what is refused and why, and nothing in between."""

import math
import struct

import numpy as np
import pytest

from onelog.projections.codec import SessionRef, encode_prefix
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Duplicate, Refused
from onelog.projections.system.commands import NamespaceCreate, NamespaceDelete, SessionOpen
from onelog.projections.timeseries import limits
from onelog.projections.timeseries.commands import (
    TYPE_WRITE_BATCH,
    ConfigureMeasurement,
    CreateMeasurement,
    Write,
)
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.names import Matcher, Operator, series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.query import Query
from onelog.projections.timeseries.store import Measurement, measurement_item
from onelog.projections.timeseries.types import Config, FieldType, Policy, Value
from onelog.ual.entry import Draft
from tests.projections.timeseries.ts_world import NAMESPACE, SECOND, SeriesWorld

A = series_name("cpu", {"host": "a"})
B = series_name("cpu", {"host": "b"})


def test_a_first_write_makes_measurement_series_and_fields() -> None:
    world = SeriesWorld()

    assert world.write(A, 5, f=1.5, n=2, b=True) == APPLIED
    assert world.points(A, "f") == [(5, 1.5)]
    assert world.points(A, "n") == [(5, 2)]
    assert world.points(A, "b") == [(5, True)]
    assert world.meta(A) == b'{"id":1,"created":1,"fields":{"f":"f64","n":"i64","b":"bool"}}'
    assert world.meta(b"cpu") == (
        b'{"created":1,"policy":"last","retention_ns":0,"series_max":100000,"rules":[]}'
    )


def test_a_new_field_of_a_series_is_published() -> None:
    world = SeriesWorld()
    world.write(A, 5, f=1.5)
    world.write(A, 6, n=1)

    assert world.meta(A) == b'{"id":1,"created":1,"fields":{"f":"f64","n":"i64"}}'


def test_a_batch_is_the_same_as_its_rows() -> None:
    """One hash for both: how points were grouped into entries is not part of the state."""
    rows, batch = SeriesWorld(), SeriesWorld()
    times = [3 * SECOND, SECOND, SECOND]
    values: dict[str, list[Value]] = {
        "f": [1.5, -0.0, 2.5],
        "n": [1, -2, 3],
        "b": [True, False, True],
    }
    kinds = {"f": FieldType.F64, "n": FieldType.I64, "b": FieldType.BOOL}
    for name in (A, B):
        for field in kinds:
            for time, value in zip(times, values[field], strict=True):
                rows.write(name, time, **{field: value})
    batch.batch(*(Run(n, f, k, times, values[f]) for n in (A, B) for f, k in kinds.items()))
    columns = [[w.column(n, f) for n in (A, B) for f in kinds] for w in (rows, batch)]

    for one, other in zip(*columns, strict=True):
        assert (one.times, one.values) == (other.times, other.values)
        assert one.points_hash() == other.points_hash()
    batch.router.check()
    rows.router.check()


def test_a_batch_is_refused_whole() -> None:
    world = SeriesWorld()
    world.write(A, 5, f=1.5)
    before = world.router.state_hashes()

    refused = world.batch(
        Run(B, "f", FieldType.F64, [1], [1.0]), Run(A, "f", FieldType.I64, [1], [1])
    )

    assert refused == Refused(Reason.FIELD_TYPE_MISMATCH, FieldType.F64)
    assert world.router.state_hashes() == before
    assert world.meta(B) is None


@pytest.mark.parametrize("value", [1, True])
def test_the_first_write_fixes_the_type_of_a_field(value: Value) -> None:
    world = SeriesWorld()
    world.write(A, 5, f=1.5)

    assert world.write(B, 5, f=value) == Refused(Reason.FIELD_TYPE_MISMATCH, FieldType.F64)
    refused = world.batch(
        Run(B, "g", FieldType.F64, [1], [1.0]), Run(A, "g", FieldType.BOOL, [1], [True])
    )
    assert refused == Refused(Reason.FIELD_TYPE_MISMATCH, FieldType.F64)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_refused(value: float) -> None:
    world = SeriesWorld()

    assert world.write(A, 5, g=1.0, f=value) == Refused(Reason.VALUE_NOT_FINITE, 1)
    run = Run(A, "f", FieldType.F64, [1, 2, 3], [1.0, 2.0, value])
    assert world.batch(run) == Refused(Reason.VALUE_NOT_FINITE, 2)
    same_bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    integers = Run(A, "n", FieldType.I64, [1], [same_bits])
    assert world.batch(integers, Run(A, "f", FieldType.F64, [1], [1.0])) == Applied(2)


@pytest.mark.parametrize("time_ns", [TIME_NS_MIN - 1, TIME_NS_MAX + 1])
def test_a_time_that_cannot_be_is_refused(time_ns: int) -> None:
    world = SeriesWorld()

    assert world.write(A, time_ns, f=1.0) == Refused(Reason.POINT_TIME_INVALID, time_ns)
    run = Run(A, "f", FieldType.F64, [0, time_ns], [1.0, 1.0])
    assert world.batch(run) == Refused(Reason.POINT_TIME_INVALID, time_ns)
    assert world.write(A, TIME_NS_MIN, f=1.0) == APPLIED
    assert world.write(A, TIME_NS_MAX, f=1.0) == APPLIED
    world.router.check()


def test_the_last_point_of_a_time_wins_unless_the_first_does() -> None:
    world = SeriesWorld()
    world.run(CreateMeasurement("first", Config(Policy.FIRST)))
    for value in (1.0, 2.0, 3.0):
        world.write(A, 5, f=value)
        world.write(series_name("first"), 5, f=value)

    assert world.points(A, "f") == [(5, 3.0)]
    assert world.points(series_name("first"), "f") == [(5, 1.0)]


def test_a_measurement_that_rejects_takes_rising_times_only() -> None:
    world = SeriesWorld()
    world.run(CreateMeasurement("cpu", Config(Policy.REJECT)))
    world.write(A, 5, f=1.0)

    assert world.write(A, 5, f=2.0) == Refused(Reason.POINT_NOT_NEWER, 5)
    assert world.write(A, 4, f=2.0) == Refused(Reason.POINT_NOT_NEWER, 5)
    assert world.write(A, 4, g=2.0) == APPLIED
    run = Run(A, "f", FieldType.F64, [6, 8, 7], [1.0, 1.0, 1.0])
    assert world.batch(run) == Refused(Reason.POINT_NOT_NEWER, 8)
    twice = [Run(B, "f", FieldType.F64, [6, 8], [1.0, 1.0])] * 2
    assert world.batch(*twice) == Refused(Reason.POINT_NOT_NEWER, 8)
    world.block(A, "f")
    assert world.write(A, 5, f=2.0) == Refused(Reason.POINT_NOT_NEWER, 5)
    assert world.write(A, 6, f=2.0) == APPLIED


def test_cardinality_has_a_limit_and_a_clear_reason() -> None:
    world = SeriesWorld()
    world.run(CreateMeasurement("cpu", Config(series_max=2)))
    world.write(A, 5, f=1.0)
    c, d = (series_name("cpu", {"host": host}) for host in "cd")

    both = [Run(name, "f", FieldType.F64, [1], [1.0]) for name in (c, d)]
    assert world.batch(*both) == Refused(Reason.SERIES_FULL, 2)
    assert world.batch(both[0]) == Applied(1)
    refused = world.write(d, 5, f=1.0)
    assert refused == Refused(Reason.SERIES_FULL, 2)
    assert "cardinality limit" in refused.message
    world.run(ConfigureMeasurement("cpu", Config(series_max=3)))
    assert world.write(d, 5, f=1.0) == APPLIED


def test_fields_and_measurements_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SeriesWorld()
    monkeypatch.setattr("onelog.projections.timeseries.writes.FIELDS_MAX", 2)
    monkeypatch.setattr("onelog.projections.timeseries.writes.MEASUREMENTS_MAX", 2)
    monkeypatch.setattr("onelog.projections.timeseries.projection.MEASUREMENTS_MAX", 2)
    world.write(A, 5, f=1.0)

    assert world.write(A, 5, g=1.0, h=1.0) == Refused(Reason.FIELDS_FULL, 2)
    assert world.write(series_name("m2"), 5, f=1.0) == APPLIED
    assert world.write(series_name("m3"), 5, f=1.0) == Refused(Reason.MEASUREMENTS_FULL, 2)
    created = world.run(CreateMeasurement("m3", Config()))
    assert created == Refused(Reason.MEASUREMENTS_FULL, 2)


def test_the_fields_of_an_entry_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement is hashed with all its fields: once for each would take a third of a second."""
    world = SeriesWorld()
    world.write(A, 0, first=1.0)
    hashed: list[int] = []

    def count(measurement: Measurement) -> int:
        hashed.append(len(measurement.fields))
        return measurement_item(measurement)

    monkeypatch.setattr("onelog.projections.timeseries.store.measurement_item", count)
    fields = [f"field-{number:03}" for number in range(900)]
    world.batch(*(Run(A, field, FieldType.F64, [1], [1.0]) for field in fields))
    world.write(A, 2, **{f"more-{number}": 1.0 for number in range(50)})

    assert hashed == [901, 951]
    measurement = world.find(A).measurement
    assert [field.name for field in measurement.fields[:3]] == ["first", *fields[:2]]
    world.router.check()


def test_a_buffer_that_nobody_empties_pushes_back() -> None:
    world = SeriesWorld(rollups=False)
    run = Run(A, "f", FieldType.F64, np.arange(40_000), np.zeros(40_000))
    assert world.batch(run) == Applied(40_000)
    assert world.batch(run) == Applied(40_000)

    assert world.batch(run) == Refused(Reason.SERIES_BUFFER_FULL, 80_000)
    assert world.write(A, 1, f=1.0) == Refused(Reason.SERIES_BUFFER_FULL, 80_000)
    assert world.write(A, 1, g=1.0) == APPLIED
    world.work()
    assert world.write(A, 1, f=1.0) == APPLIED
    world.router.check()


def test_a_row_of_a_session_is_written_once() -> None:
    world = SeriesWorld()
    world.system(SessionOpen(60 * SECOND))
    command = Write(A, 5, (("f", 1.0),))
    session = SessionRef(1, 1, 0)

    assert world.run(command, NAMESPACE, session) == APPLIED
    assert world.run(command, NAMESPACE, session) == Duplicate(2, Applied())
    assert len(world.column(A, "f")) == 1


def test_a_namespace_takes_its_series_with_it() -> None:
    world = SeriesWorld()
    empty = world.series.state_hash()
    assert world.run(Write(A, 5, (("f", 1.0),)), "other") == Refused(Reason.NAMESPACE_UNKNOWN)
    world.system(NamespaceCreate(Limits()), "other")
    world.run(CreateMeasurement("cpu", Config(retention_ns=SECOND)), "other")
    assert world.run(Write(A, 5, (("f", 1.0),)), "other") == APPLIED
    run = Run(B, "f", FieldType.F64, np.arange(2_000), np.zeros(2_000))
    world.batch(run, namespace="other")
    for draft in world.router.due(0, 10):
        assert world.draft(draft) == APPLIED
    assert world.series.pinned(0, world.index)
    assert world.meta(A, "other") is not None

    assert world.system(NamespaceDelete(), "other") == APPLIED
    world.router.check()
    assert not world.series.pinned(0, world.index)
    assert world.series.counts()["series"] == 0
    world.write(A, 5, f=1.0)
    assert world.find(A).series_id == 3  # ids are not used again
    assert world.series.state_hash() != empty


def limited_batch(**counts: int) -> Draft:
    names = ("series", "fields", "times", "runs", "time_points", "points")
    head = struct.pack("<HHHHII", *(counts.get(name, 1) for name in names))
    return Draft(TYPE_WRITE_BATCH, encode_prefix(NAMESPACE) + head)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("series", limits.BATCH_SERIES_MAX),
        ("fields", limits.BATCH_FIELDS_MAX),
        ("times", limits.BATCH_TIMES_MAX),
        ("runs", limits.BATCH_RUNS_MAX),
        ("time_points", limits.BATCH_POINTS_MAX),
        ("points", limits.BATCH_POINTS_MAX),
    ],
)
def test_a_batch_is_bounded_before_it_is_read(name: str, limit: int) -> None:
    world = SeriesWorld()

    refused = world.draft(limited_batch(**{name: limit + 1}))
    assert refused == Refused(Reason.PAYLOAD_COUNT_TOO_LARGE, limit + 1)
    assert world.draft(limited_batch(**{name: limit})) == Refused(Reason.PAYLOAD_TRUNCATED)


def test_an_empty_batch_is_nothing() -> None:
    world = SeriesWorld()
    before = world.series.state_hash()

    assert world.draft(Draft(TYPE_WRITE_BATCH, encode_prefix(NAMESPACE) + encode_batch([]))) == (
        APPLIED
    )
    assert world.series.state_hash() == before


def test_series_are_listed_page_by_page() -> None:
    world = SeriesWorld()
    for number in range(7):
        world.write(series_name("cpu", {"host": f"h{number}", "odd": str(number % 2)}), 1, f=1.0)
    odd = (Matcher("odd", Operator.EQUAL, "1"),)

    found = []
    after: int | None = 0
    while after is not None:
        page = world.series.series(NAMESPACE, "cpu", odd, after=after, limit=2)
        assert not isinstance(page, Refused)
        found += [item.name for item in page.items]
        after = page.after
    assert found == [series_name("cpu", {"host": f"h{n}", "odd": "1"}) for n in (1, 3, 5)]
    assert world.series.series(NAMESPACE, "cpu", limit=0) == Refused(Reason.LIMIT_INVALID, 0)
    assert world.series.series(NAMESPACE, "none") == Refused(Reason.MEASUREMENT_UNKNOWN)
    infos = world.series.measurements(NAMESPACE)
    assert not isinstance(infos, Refused)
    assert infos[0].tags == (("host", 7), ("odd", 2))


def test_backfill_lands_between_blocks() -> None:
    world = SeriesWorld()
    world.batch(Run(A, "f", FieldType.F64, np.arange(0, 4_000, 2), np.zeros(2_000)))
    world.work()
    world.batch(Run(A, "f", FieldType.F64, np.arange(1, 4_000, 2), np.ones(2_000)))
    world.work()
    world.write(A, 10, f=7.0)

    assert world.series.counts()["series_blocks"] == 2
    points = world.points(A, "f")
    assert [time for time, _ in points] == list(range(4_000))
    assert points[9:12] == [(9, 1.0), (10, 7.0), (11, 1.0)]
    assert len(world.query(Query("cpu", "f", start_ns=9, end_ns=12))[0].times) == 3
