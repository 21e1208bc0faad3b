"""Points between the API and the log: columns stay arrays, and nothing loops over values.

A packed field is the bytes of its array (onelog/packed.py), and so are the runs of a batch
(projections/timeseries/point_batch.py): a column is copied from one to the other. What is wrong
with points whatever the state is found here, before anything is written: names, counts, times,
values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onelog.errors import TooLarge
from onelog.node.edge.shards import invalid
from onelog.node.public_errors import error_of_reason
from onelog.packed import TIMES, VALUES, sized, unsized
from onelog.projections.reasons import Reason
from onelog.projections.timeseries.limits import (
    BATCH_FIELDS_MAX,
    BATCH_POINTS_MAX,
    BATCH_RUNS_MAX,
    BATCH_SERIES_MAX,
)
from onelog.projections.timeseries.names import parse_series, series_name
from onelog.projections.timeseries.point_batch import Run
from onelog.projections.timeseries.types import FieldType
from onelog.v1 import timeseries_pb2

# Names that are remembered: at most 16 MiB of them.
NAMES_MAX = 16_384
NAMES_SIZE_MAX = 256
_TYPES: dict[str, tuple[FieldType, Any]] = {
    "doubles": (FieldType.F64, np.dtype("<f8")),
    "integers": (FieldType.I64, np.dtype("<i8")),
    "bools": (FieldType.BOOL, np.dtype("u1")),
}
_COLUMNS = {"f": "doubles", "i": "integers", "b": "bools"}  # by the kind of an array
_WIRE: dict[str, Any] = {"f": "<f8", "i": "<i8", "b": "u1"}


class _Names:
    """Canonical names of series that were written before, which most are: making and checking one
    takes 9 µs, finding it 2. Forgets everything when it is full.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, tuple[tuple[str, str], ...]], bytes] = {}

    def name_of(self, measurement: str, tags: Mapping[str, str]) -> bytes:
        """Return the name of a series; refuse what cannot be one."""
        key = measurement, tuple(tags.items())
        name = self._names.get(key)
        if name is None:
            name = series_name(measurement, tags)
            parse_series(name)
            if len(name) <= NAMES_SIZE_MAX:
                if len(self._names) >= NAMES_MAX:
                    self._names.clear()
                self._names[key] = name
        return name


_NAMES = _Names()


def count_values(series: Sequence[timeseries_pb2.SeriesPoints]) -> int:
    """Return how many values points have, all columns together."""
    return sum(len(each.times_ns) * len(each.columns) for each in series)


def runs_of(measurement: str, series: Sequence[timeseries_pb2.SeriesPoints]) -> list[Run]:
    """Return the points of a request as runs of a batch; refuse what cannot be."""
    _check_count(len(series), BATCH_SERIES_MAX, "series")
    _check_count(sum(len(each.columns) for each in series), BATCH_RUNS_MAX, "columns")
    _check_count(count_values(series), BATCH_POINTS_MAX, "values")
    runs: list[Run] = []
    types: dict[str, FieldType] = {}
    for points in series:
        _add_runs(runs, types, measurement, points)
    if not runs:
        raise invalid("POINTS_MISSING", "there are no points to write")
    _check_count(len(types), BATCH_FIELDS_MAX, "fields")
    return runs


def _check_count(count: int, limit: int, what: str) -> None:
    if count > limit:
        metadata = {"limit": str(limit), "of": what}
        message = f"{count} {what} in one write, limit {limit}"
        raise TooLarge(message, reason="POINTS_TOO_LARGE", metadata=metadata)


def _add_runs(
    runs: list[Run],
    types: dict[str, FieldType],
    measurement: str,
    points: timeseries_pb2.SeriesPoints,
) -> None:
    name = _NAMES.name_of(measurement, points.tags)
    only_times = timeseries_pb2.SeriesPoints()
    only_times.times_ns.MergeFrom(points.times_ns)
    times = np.frombuffer(unsized(only_times.SerializeToString()), "<i8")
    if not len(times) or not points.columns:
        raise invalid("POINTS_MISSING", f"a series without points: {name.decode()}")
    fields = set()
    for column in points.columns:
        field, kind = column.field, column.WhichOneof("values")
        if kind is None:
            raise invalid("FIELDS_INVALID", f"field {field!r} has no values")
        field_type, dtype = _TYPES[kind]
        values = np.frombuffer(unsized(getattr(column, kind).SerializeToString()), dtype)
        if len(values) != len(times):
            raise invalid(
                "FIELDS_INVALID", f"field {field!r} has {len(values)} values for {len(times)} times"
            )
        if types.setdefault(field, field_type) is not field_type:
            raise error_of_reason(Reason.FIELD_TYPE_MISMATCH, types[field])
        fields.add(field)
        runs.append(Run(name, field, field_type, times, values))
    if len(fields) < len(points.columns):
        raise invalid("FIELDS_INVALID", "a field comes twice in the points of one series")


def pack_points(
    tags: Mapping[str, str], times: NDArray[np.int64], columns: Iterable[tuple[str, NDArray[Any]]]
) -> timeseries_pb2.SeriesPoints:
    """Return points as a message."""
    points = timeseries_pb2.SeriesPoints(tags=tags)
    points.MergeFromString(sized(TIMES, times.astype("<i8", copy=False).tobytes()))
    for field, values in columns:
        kind = values.dtype.kind
        target = getattr(points.columns.add(field=field), _COLUMNS[kind])
        raw = values.astype(_WIRE[kind], copy=False).tobytes()
        target.SetInParent()
        target.MergeFromString(sized(VALUES, raw))
    return points


def pack_runs(runs: Iterable[Run]) -> Iterator[tuple[str, timeseries_pb2.SeriesPoints]]:
    """Yield the points of a batch as they were written: measurement and message, series by series.

    Columns of one series that have the same times follow each other and are one message.
    """
    last: tuple[bytes, bytes] | None = None
    name, times, columns = b"", np.empty(0, dtype=np.int64), list[tuple[str, NDArray[Any]]]()
    for run in runs:
        run_times = np.asarray(run.times, dtype=np.int64)
        values = np.asarray(run.values)
        if run.field_type is FieldType.BOOL:
            values = values.astype(np.bool_)
        mark = run.series, run_times.tobytes()
        if last is not None and mark != last:
            yield _packed(name, times, columns)
            columns = []
        last, name, times = mark, run.series, run_times
        columns.append((run.field, values))
    if last is not None:
        yield _packed(name, times, columns)


def _packed(
    name: bytes, times: NDArray[np.int64], columns: list[tuple[str, NDArray[Any]]]
) -> tuple[str, timeseries_pb2.SeriesPoints]:
    parsed = parse_series(name)
    return parsed.measurement, pack_points(dict(parsed.tags), times, columns)
