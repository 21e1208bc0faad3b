"""Columnar batches: many points of many series as arrays that numpy reads in place.

A batch is tables (series names, fields, runs of times) and runs of values: each run names a series,
a field and a run of times, and has one value per time. Fields of a row, or all series of a scrape,
share one run of times. Values of 8 bytes and booleans stand in two arrays, each in the order of
the runs. docs/timeseries.md has the table.

Decoding is a fixed number of array operations, whatever the number of points; all counts are
checked before anything is built from them.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onelog.projections.codec import Reader
from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.timeseries.hashing import U64Array
from onelog.projections.timeseries.limits import (
    BATCH_FIELDS_MAX,
    BATCH_POINTS_MAX,
    BATCH_RUNS_MAX,
    BATCH_SERIES_MAX,
    BATCH_TIMES_MAX,
    TIME_NS_MAX,
    TIME_NS_MIN,
)
from onelog.projections.timeseries.names import encode_name, read_name
from onelog.projections.timeseries.types import EXPONENT_BITS, FieldType

_COUNTS = struct.Struct("<HHHHII")  # series, fields, time runs, runs, times, points
_EXPONENT = np.uint64(EXPONENT_BITS)
_DTYPES: dict[FieldType, Any] = {
    FieldType.F64: np.dtype("<f8"),
    FieldType.I64: np.dtype("<i8"),
    FieldType.BOOL: np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """Points of one field of one series, before encoding."""

    series: bytes
    field: str
    field_type: FieldType
    times: ArrayLike
    values: ArrayLike


@dataclass(frozen=True, slots=True, eq=False)
class WriteBatch:
    """A decoded batch. The arrays of runs have one element per run."""

    series: list[bytes]
    fields: list[tuple[str, FieldType]]
    run_series: list[int]
    run_fields: list[int]
    sizes: NDArray[np.int64]  # points of each run
    starts: NDArray[np.int64]  # where each run's points start in ``point_times`` and ``bits``
    time_starts: list[int]  # where each run's times start, in ``times``
    value_starts: list[int]  # where each run's raw values start, in bytes of ``raw_values``
    value_ends: list[int]
    times: bytes
    raw_values: bytes
    point_times: NDArray[np.int64]
    bits: U64Array  # the value of every point, in the order of the runs


def encode_batch(runs: Iterable[Run]) -> bytes:
    """Return the body of a batch with these runs; equal names and times are written once."""
    series: dict[bytes, int] = {}
    fields: dict[tuple[str, FieldType], int] = {}
    times: dict[bytes, int] = {}
    rows: list[tuple[int, int, int]] = []
    wide: list[bytes] = []
    narrow: list[bytes] = []
    points = 0
    for run in runs:
        raw_times = np.ascontiguousarray(run.times, dtype="<i8").tobytes()
        values = np.ascontiguousarray(run.values, dtype=_DTYPES[run.field_type])
        assert len(values) * 8 == len(raw_times), "a run with as many values as times"
        points += len(values)
        (narrow if run.field_type is FieldType.BOOL else wide).append(values.tobytes())
        rows.append(
            (
                series.setdefault(run.series, len(series)),
                fields.setdefault((run.field, run.field_type), len(fields)),
                times.setdefault(raw_times, len(times)),
            )
        )
    time_sizes = [len(raw) >> 3 for raw in times]
    columns = np.array(rows, dtype="<u2").reshape(-1, 3)
    head = _COUNTS.pack(len(series), len(fields), len(times), len(rows), sum(time_sizes), points)
    return b"".join(
        (
            head,
            np.array([len(name) for name in series], dtype="<u2").tobytes(),
            b"".join(series),
            *(bytes((kind,)) + encode_name(name) for name, kind in fields),
            np.array(time_sizes, dtype="<u4").tobytes(),
            *(columns[:, column].tobytes() for column in range(3)),
            b"".join(times),
            *wide,
            *narrow,
        )
    )


def read_batch(reader: Reader) -> WriteBatch:
    """Read a batch to the end of the payload; raise ``BadPayload`` if it is malformed."""
    counts = reader.fields(_COUNTS)
    limits = (
        BATCH_SERIES_MAX, BATCH_FIELDS_MAX, BATCH_TIMES_MAX, BATCH_RUNS_MAX, BATCH_POINTS_MAX,
        BATCH_POINTS_MAX,
    )  # fmt: skip
    for count, limit in zip(counts, limits, strict=True):
        if count > limit:
            raise BadPayload(Reason.PAYLOAD_COUNT_TOO_LARGE, count)
    series_count, field_count, time_count, run_count, times_total, points_total = counts
    series = _read_series(reader, series_count)
    fields = [_read_field(reader) for _ in range(field_count)]
    if len(set(series)) < series_count or len(set(fields)) < field_count:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID)
    time_sizes = _read_array(reader, "<u4", time_count).astype(np.int64)
    run_series, run_fields, run_times = (
        _read_array(reader, "<u2", run_count).astype(np.int64) for _ in range(3)
    )
    _check_uses(run_series, series_count)
    _check_uses(run_fields, field_count)
    _check_uses(run_times, time_count)
    if time_count and int(time_sizes.min()) == 0:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID)
    sizes = time_sizes[run_times]
    if int(time_sizes.sum()) != times_total or int(sizes.sum()) != points_total:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, points_total)
    narrow_runs = np.array([kind is FieldType.BOOL for _, kind in fields], dtype=bool)[run_fields]
    narrow_total = int(sizes[narrow_runs].sum())
    times = reader.take(8 * times_total)
    raw_values = reader.take(8 * (points_total - narrow_total) + narrow_total)
    reader.finish()
    all_times = np.frombuffer(times, dtype=np.int64)
    check_times(all_times)
    starts = np.cumsum(sizes) - sizes
    time_starts = (np.cumsum(time_sizes) - time_sizes)[run_times]
    if run_count == time_count and bool((starts == time_starts).all()):
        point_times = all_times  # every run has its own times, in order: no copy is needed
    else:
        places = np.repeat(time_starts - starts, sizes) + np.arange(points_total)
        point_times = all_times[places]
    value_sizes = np.where(narrow_runs, sizes, 8 * sizes)
    value_starts = _value_starts(value_sizes, narrow_runs)
    return WriteBatch(
        series=series,
        fields=fields,
        run_series=run_series.tolist(),
        run_fields=run_fields.tolist(),
        sizes=sizes,
        starts=starts,
        time_starts=time_starts.tolist(),
        value_starts=value_starts.tolist(),
        value_ends=(value_starts + value_sizes).tolist(),
        times=times,
        raw_values=raw_values,
        point_times=point_times,
        bits=_read_bits(raw_values, sizes, narrow_runs, _floats(fields)[run_fields]),
    )


def batch_runs(batch: WriteBatch) -> list[Run]:
    """Return the runs of a decoded batch."""
    runs = []
    for number, (series, field) in enumerate(zip(batch.run_series, batch.run_fields, strict=True)):
        name, kind = batch.fields[field]
        start = int(batch.starts[number])
        end = start + int(batch.sizes[number])
        raw = batch.raw_values[batch.value_starts[number] : batch.value_ends[number]]
        values = np.frombuffer(raw, dtype=_DTYPES[kind])
        runs.append(Run(batch.series[series], name, kind, batch.point_times[start:end], values))
    return runs


def check_times(times: NDArray[np.int64]) -> None:
    """Refuse times outside TIME_NS_MIN to TIME_NS_MAX."""
    if len(times):
        first, last = int(times.min()), int(times.max())
        if first < TIME_NS_MIN or last > TIME_NS_MAX:
            raise BadPayload(Reason.POINT_TIME_INVALID, first if first < TIME_NS_MIN else last)


def _read_array(reader: Reader, dtype: str, count: int) -> NDArray[Any]:
    layout = np.dtype(dtype)
    return np.frombuffer(reader.take(layout.itemsize * count), dtype=layout)


def _read_series(reader: Reader, count: int) -> list[bytes]:
    ends = np.cumsum(_read_array(reader, "<u2", count), dtype=np.int64).tolist()
    names = reader.take(ends[-1] if ends else 0)
    return [names[start:end] for start, end in pairwise([0, *ends])]


def _read_field(reader: Reader) -> tuple[str, FieldType]:
    kind = reader.take(1)[0]
    if not 1 <= kind <= len(FieldType):
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, kind)
    return read_name(reader), FieldType(kind)


def _check_uses(used: NDArray[np.int64], count: int) -> None:
    """Refuse references to what is not in the table, and rows of it that no run uses."""
    if len(used) and int(used.max()) >= count:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, int(used.max()))
    if not bool(np.bincount(used, minlength=count).all()):
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, count)


def _floats(fields: Sequence[tuple[str, FieldType]]) -> NDArray[np.bool_]:
    return np.array([kind is FieldType.F64 for _, kind in fields], dtype=bool)


def _value_starts(
    value_sizes: NDArray[np.int64], narrow_runs: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return where each run's values start: wide ones first, then the narrow ones."""
    starts = np.empty(len(value_sizes), dtype=np.int64)
    wide = value_sizes[~narrow_runs]
    narrow = value_sizes[narrow_runs]
    starts[~narrow_runs] = np.cumsum(wide) - wide
    starts[narrow_runs] = int(wide.sum()) + np.cumsum(narrow) - narrow
    return starts


def _read_bits(
    raw_values: bytes,
    sizes: NDArray[np.int64],
    narrow_runs: NDArray[np.bool_],
    float_runs: NDArray[np.bool_],
) -> U64Array:
    """Return the value bits of every point in the order of the runs, checked."""
    narrow_total = int(sizes[narrow_runs].sum())
    wide_total = int(sizes.sum()) - narrow_total
    wide = np.frombuffer(raw_values, dtype=np.uint64, count=wide_total)
    not_finite = (wide & _EXPONENT) == _EXPONENT
    if bool(not_finite.any()):
        wide_runs = ~narrow_runs
        not_finite &= np.repeat(float_runs[wide_runs], sizes[wide_runs])
        if bool(not_finite.any()):
            raise BadPayload(Reason.VALUE_NOT_FINITE, int(not_finite.argmax()))
    if not narrow_total:
        return wide
    narrow = np.frombuffer(raw_values, dtype=np.uint8, offset=8 * wide_total)
    if int(narrow.max()) > 1:
        raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, int(narrow.max()))
    bits = np.empty(wide_total + narrow_total, dtype=np.uint64)
    narrow_points = np.repeat(narrow_runs, sizes)
    bits[narrow_points] = narrow
    bits[~narrow_points] = wide
    return bits
