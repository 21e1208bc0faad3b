"""Arrays go in and come out as they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.timeseries import fill_points, to_series_data
from onelog.errors import InvalidArgument
from onelog.v1 import timeseries_pb2

times = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=300)


@given(times, st.data())
def test_points_survive_the_wire(when: list[int], data: st.DataObject) -> None:
    count = len(when)
    floats = data.draw(st.lists(st.floats(width=64), min_size=count, max_size=count))
    integers = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count))
    bools = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    fields = {
        "f": np.array(floats, "f8"),
        "i": np.array(integers, "i8"),
        "b": np.array(bools, "?"),
    }
    points = timeseries_pb2.SeriesPoints()
    values = fill_points(points, np.array(when, "i8"), fields, {"host": "a"})

    sent = timeseries_pb2.SeriesPoints.FromString(points.SerializeToString())
    found = to_series_data(sent)
    assert values == 3 * count
    assert list(sent.times_ns) == when
    assert list(sent.columns[1].integers.values) == integers
    assert found.tags == {"host": "a"}
    np.testing.assert_array_equal(found.times_ns, np.array(when, "i8"))
    for name, array in fields.items():
        np.testing.assert_array_equal(found.fields[name], array)
        assert found.fields[name].dtype == array.dtype


def test_times_may_be_datetimes_or_a_single_number() -> None:
    points = timeseries_pb2.SeriesPoints()
    fill_points(points, np.array(["2026-01-01"], "datetime64[s]"), {"x": [1.5]}, None)
    assert list(points.times_ns) == [1_767_225_600 * 10**9]
    single = timeseries_pb2.SeriesPoints()
    fill_points(single, 7, {"x": 1.5, "n": 3, "up": True}, None)
    assert [each.WhichOneof("values") for each in single.columns] == [
        "doubles",
        "integers",
        "bools",
    ]


@pytest.mark.parametrize(
    ("when", "fields"),
    [([1.5], {"x": [1.0]}), ([1, 2], {"x": [1.0]}), ([1], {}), ([1], {"x": ["text"]})],
)
def test_what_cannot_be_points_is_refused(when: list[int], fields: dict[str, list[float]]) -> None:
    with pytest.raises(InvalidArgument):
        fill_points(timeseries_pb2.SeriesPoints(), when, fields, None)
