"""Arrays go in and come out as they are, or are refused with the value and its position."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client import timeseries
from onelog.client.arrays import TIME_NS_MAX, TIME_NS_MIN
from onelog.client.timeseries import (
    SeriesData,
    split_points,
    to_points,
    to_points_of_each,
    to_series_data,
)
from onelog.errors import InvalidArgument
from onelog.packed import PointsPacker
from onelog.projections.timeseries import limits
from onelog.v1 import timeseries_pb2

times = st.lists(st.integers(TIME_NS_MIN, TIME_NS_MAX), max_size=300)
finite = st.floats(width=64, allow_nan=False, allow_infinity=False)


def sent(when: Any, fields: Any, tags: Any = None) -> timeseries_pb2.SeriesPoints:
    message = timeseries_pb2.SeriesPoints()
    to_points(when, fields, tags).fill(message)
    found = timeseries_pb2.SeriesPoints()
    found.MergeFromString(message.SerializeToString())
    return found


@given(times, st.data())
def test_points_survive_the_wire(when: list[int], data: st.DataObject) -> None:
    count = len(when)
    floats = data.draw(st.lists(finite, min_size=count, max_size=count))
    integers = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count))
    bools = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    fields = {
        "f": np.array(floats, "f8"),
        "i": np.array(integers, "i8"),
        "b": np.array(bools, "?"),
    }
    message = sent(np.array(when, "datetime64[ns]"), fields, {"host": "a"})
    (found,) = to_series_data([message])
    assert list(message.times_ns) == when
    assert list(message.columns[1].integers.values) == integers
    assert found.tags == {"host": "a"}
    np.testing.assert_array_equal(found.times_ns, np.array(when, "i8"))
    for name, array in fields.items():
        np.testing.assert_array_equal(found.fields[name], array)
        assert found.fields[name].dtype == array.dtype


def test_times_may_be_datetimes_texts_or_a_single_number() -> None:
    january_ns = 1_767_225_600 * 10**9
    assert list(sent(np.array(["2026-01-01"], "datetime64[s]"), {"x": [1.5]}).times_ns) == [
        january_ns
    ]
    berlin = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    listed = [berlin, datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]
    assert list(sent(listed, {"x": [1, 2]}).times_ns) == [january_ns, january_ns + 1_000]
    texts = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00.000001+01:00"]
    for told in (texts, np.array(texts), [berlin, texts[1]]):
        assert list(sent(told, {"x": [1, 2]}).times_ns) == [january_ns, january_ns + 1_000]
    (a_while_ago, now) = sent(["now-1h", "now"], {"x": [1, 2]}).times_ns
    assert abs(now - a_while_ago - 3_600 * 10**9) < 60 * 10**9
    single = sent(7, {"x": 1.5, "n": 3, "up": True})
    assert [each.WhichOneof("values") for each in single.columns] == [
        "doubles",
        "integers",
        "bools",
    ]


@pytest.mark.parametrize(
    ("when", "shown"),
    [
        ([1.5], "not float64"),
        ([1, 2**62], "4611686018427387904 ns at position 1 is outside 1823 to 2116"),
        ([1, 2**64], "18446744073709551616 at position 1"),
        (np.array([5, 2**63 + 1], "u8"), "9223372036854775809 ns at position 1"),
        (np.array(["2026-01-01", "9999-01-01"], "datetime64[D]"), "9999-01-01 at position 1"),
        (np.datetime64("1700-01-01"), "1700-01-01 at position 0"),
        (np.array(["2026-01-01", "NaT"], "datetime64[s]"), "NaT at position 1 is no time"),
        (np.datetime64(1, "ps"), "position 0 is not a number of nanoseconds"),
        (np.ma.array([1, 2, 3], mask=[False, True, False]), "2 at position 1 is masked"),
        (datetime(2026, 1, 1), "without a zone"),
        (["2026-01-01T00:00:00Z", "2026-01-01"], r"times_ns\[1\]: '2026-01-01' has no zone"),
        (["now", "yesterday"], r"times_ns\[1\]: 'yesterday' is no time"),
        (["1800000000"], "looks like seconds"),
        ([b"now"], "not |S3"),
        ([[1, 2]], "2 dimensions"),
        (1_800_000_000, "looks like seconds"),
        ([1_800_000_000_000, 1_800_000_001_000], "looks like milliseconds"),
        (np.array([1_800_000_000_000_000]), "looks like microseconds"),
    ],
)
def test_a_time_that_would_be_another_one_is_refused(when: Any, shown: str) -> None:
    with pytest.raises(InvalidArgument, match=shown) as failure:
        sent(when, {"x": np.arange(np.size(when))})
    assert failure.value.reason == "TIME_INVALID"


def test_times_of_1970_are_taken_if_they_cannot_be_a_mistake() -> None:
    second = 10**9
    assert len(sent(np.arange(4) * second, {"x": np.arange(4)}).times_ns) == 4
    meant = np.datetime64(1_800_000_000, "ns")
    assert list(sent(meant, {"x": 1}).times_ns) == [1_800_000_000]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["text"], "not <U4"),
        ([None], "None at position 0"),
        ([1, 2**64], "18446744073709551616 at position 1"),
        ([2**60 + 1, 0.5], "1152921504606846977 at position 0 is not a float64"),
        (np.array([1, 2**63], "u8"), "9223372036854775808 at position 1 is above"),
        (np.array([0, np.longdouble(1) / 3]), "position 1 is not a float64"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "2.0 at position 1 is masked"),
        ([1j], "complex"),
        ([[1], [2, 3]], "no array"),
    ],
)
def test_a_value_that_would_be_another_one_is_refused(values: Any, shown: str) -> None:
    with pytest.raises(InvalidArgument, match=shown) as failure:
        sent(np.arange(len(values)), {"x": values})
    assert failure.value.reason == "FIELDS_INVALID"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_refused_with_its_place(value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"field x: {value} at position 2") as failure:
        sent([1, 2, 3], {"x": [0.5, 1.5, value]})
    assert failure.value.reason == "VALUE_NOT_FINITE"


@pytest.mark.parametrize(
    ("fields", "tags", "reason"),
    [
        ({}, None, "FIELDS_INVALID"),
        ({"x": [1.0, 2.0]}, None, "FIELDS_INVALID"),
        ({"x": 1.0}, {"host": ""}, "TAG_INVALID"),
    ],
)
def test_what_cannot_be_points_is_refused(fields: Any, tags: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        sent([1], fields, tags)
    assert failure.value.reason == reason


def test_nothing_masked_is_an_array_like_any_other() -> None:
    values = np.ma.array([1.5, 2.5], mask=False)
    assert list(sent(np.ma.array([1, 2]), {"x": values}).columns[0].doubles.values) == [1.5, 2.5]


def test_parts_are_within_the_limits_of_the_server_and_lose_nothing() -> None:
    assert timeseries.WRITE_VALUES_MAX <= limits.BATCH_POINTS_MAX
    assert timeseries.WRITE_SERIES_MAX <= limits.BATCH_SERIES_MAX
    assert timeseries.WRITE_COLUMNS_MAX <= limits.BATCH_RUNS_MAX
    when = np.arange(130_000) * 10**9
    long = to_points(when, {"a": when, "b": when / 2}, {"host": "long"})
    short = [to_points(1, {"a": n}, {"host": f"h{n}"}) for n in range(12_000)]
    parts = list(split_points("m", [long, *short]))
    assert len(parts) == 3 + 2
    found = [each for part in parts for each in to_series_data(part.series)]
    of_long = [each for each in found if each.tags["host"] == "long"]
    np.testing.assert_array_equal(np.concatenate([each.times_ns for each in of_long]), when)
    np.testing.assert_array_equal(np.concatenate([each.fields["b"] for each in of_long]), when / 2)
    assert [each.tags["host"] for each in found if each not in of_long] == [
        f"h{n}" for n in range(12_000)
    ]
    wide = [to_points(1, {f"f{n}": n for n in range(900)}, {"n": str(n)}) for n in range(50)]
    assert [len(part.series) for part in split_points("m", wide)] == [22, 22, 6]
    heavy = [to_points(1, {"a": 1}, {"n": f"{n:04}" + "x" * 4_000}) for n in range(2_000)]
    assert all(part.ByteSize() <= timeseries.WRITE_BYTES_MAX for part in split_points("m", heavy))


GOOD = SeriesData({"host": "good"}, np.array([1, 2]), {"x": np.array([0.5, 1.5])})
NOW_S = 1_767_225_600


@pytest.mark.parametrize(
    "wrong",
    [
        SeriesData({}, np.array([NOW_S, NOW_S + 1]), {"x": np.array([0.5, 1.5])}),
        SeriesData({}, np.array([1, 2**62]), {"x": np.array([0.5, 1.5])}),
        SeriesData({}, np.array([1, 2]), {"x": np.array([0.5, np.nan])}),
        SeriesData({}, np.array([1, 2]), {"x": np.array([0.5, 1.5, 2.5])}),
        SeriesData({}, np.array([1, 2]), {"x": np.array([1, 2**63], "u8")}),
        SeriesData({}, np.ma.array([1, 2], mask=[True, False]), {"x": np.array([0.5, 1.5])}),
        SeriesData({"host": ""}, np.array([1, 2]), {"x": np.array([0.5, 1.5])}),
        SeriesData({}, np.array([1, 2]), {}),
    ],
)
def test_what_is_wrong_among_many_series_is_refused_as_if_it_were_alone(wrong: SeriesData) -> None:
    """It says which one, besides."""
    with pytest.raises(InvalidArgument) as alone:
        to_points(wrong.times_ns, wrong.fields, wrong.tags)
    with pytest.raises(InvalidArgument) as among:
        to_points_of_each([GOOD, GOOD, wrong, GOOD])
    assert " of series[2]" in among.value.message
    said = among.value.message.replace(" of series[2]", "")
    assert (among.value.reason, said) == (alone.value.reason, alone.value.message)


@pytest.mark.parametrize(
    "other",
    [
        SeriesData({"host": "é" * 100}, np.array([3]), {"x" * 128: np.array([True])}),
        SeriesData({}, np.array([3, 4], "u4"), {"x": np.array([1, 2], "i2")}),
        SeriesData({}, np.array([3, 4], "datetime64[s]"), {"x": np.array([1, 2], ">f4")}),
        SeriesData(
            {}, np.arange(3_000)[::2], {"x": np.arange(6_000.0)[::4], "y": np.arange(1_500)}
        ),
        SeriesData({}, np.array([], "i8"), {"x": np.array([])}),
    ],
)
def test_many_series_are_sent_as_each_of_them_would_be(other: SeriesData) -> None:
    several = [GOOD, other, GOOD]
    packer = PointsPacker()
    found = [
        timeseries_pb2.SeriesPoints.FromString(each.pack(packer))
        for each in to_points_of_each(several)
    ]
    assert found == [sent(each.times_ns, each.fields, each.tags) for each in several]
