"""Points as numpy arrays, in and out of protobuf without a loop over values.

Packed fields are the bytes of the array itself: little-endian, eight bytes for a time, a double or
an integer, one for a bool (see onelog/packed.py).

numpy is loaded with the first points: it takes a quarter of a second of CPU, a third of what a
command of the program takes that has nothing to do with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from onelog.errors import InvalidArgument
from onelog.packed import TIMES, VALUES, sized, unsized
from onelog.v1 import timeseries_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
ArrayLike: TypeAlias = "npt.ArrayLike"


@dataclass(frozen=True, slots=True, eq=False)
class SeriesData:
    """Points of one series or group: times, and as many values in each field."""

    tags: Mapping[str, str]
    times_ns: "npt.NDArray[np.int64]"
    fields: Mapping[str, Array]

    @property
    def values(self) -> Array:
        """The values, where there is one field, as in the answer to a query."""
        (only,) = self.fields.values()
        return only

    def __len__(self) -> int:
        return len(self.times_ns)


def fill_points(
    points: timeseries_pb2.SeriesPoints,
    times_ns: ArrayLike,
    fields: Mapping[str, ArrayLike],
    tags: Mapping[str, str] | None,
) -> int:
    """Write points into a request and return how many values these are.

    Times are int64 nanoseconds or datetime64; a single number is a point. The type of a field
    follows from its array: floats, integers, bools.
    """
    import numpy as np

    times = np.atleast_1d(np.asarray(times_ns))
    if times.dtype.kind == "M":
        times = times.astype("datetime64[ns]")
    elif times.dtype.kind not in "iu":
        raise InvalidArgument(
            f"times are integers or datetime64, not {times.dtype}", reason="TIMES_INVALID"
        )
    if times.ndim != 1:
        raise InvalidArgument("times have one dimension", reason="TIMES_INVALID")
    if not fields:
        raise InvalidArgument("points have at least one field", reason="FIELDS_INVALID")
    if tags:
        points.tags.update(tags)
    points.MergeFromString(sized(TIMES, times.astype("<i8").tobytes()))
    for name, values in fields.items():
        column = np.atleast_1d(np.asarray(values))
        if column.shape != times.shape:
            raise InvalidArgument(
                f"field {name} has {column.shape} values for {times.shape} times",
                reason="FIELDS_INVALID",
            )
        _fill_column(points.columns.add(field=name), column)
    return len(times) * len(fields)


def _fill_column(column: timeseries_pb2.Column, values: Array) -> None:
    match values.dtype.kind:
        case "f":
            column.doubles.MergeFromString(sized(VALUES, values.astype("<f8").tobytes()))
        case "i" | "u":
            column.integers.MergeFromString(sized(VALUES, values.astype("<i8").tobytes()))
        case "b":
            column.bools.MergeFromString(sized(VALUES, values.astype("u1").tobytes()))
        case _:
            raise InvalidArgument(
                f"field {column.field}: floats, integers or bools, not {values.dtype}",
                reason="FIELDS_INVALID",
            )


def data_of(points: timeseries_pb2.SeriesPoints) -> SeriesData:
    """Return points as arrays."""
    import numpy as np

    only_times = timeseries_pb2.SeriesPoints()
    only_times.times_ns.MergeFrom(points.times_ns)
    times = np.frombuffer(unsized(only_times.SerializeToString()), "<i8")
    fields: dict[str, Array] = {}
    for column in points.columns:
        match column.WhichOneof("values"):
            case "doubles":
                fields[column.field] = _array(column.doubles, "<f8")
            case "integers":
                fields[column.field] = _array(column.integers, "<i8")
            case "bools":
                fields[column.field] = _array(column.bools, "?")
            case _:
                fields[column.field] = np.zeros(0)
    return SeriesData(dict(points.tags), times, fields)


def _array(values: Any, dtype: str) -> Array:
    import numpy as np

    return np.frombuffer(unsized(values.SerializeToString()), dtype)
