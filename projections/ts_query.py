"""The query engine: a selection of series, a range of time, and what to make of it.

``QueryEngine`` works on the projection's rooms and reads blocks through a callable; it knows no
transport, changes no state, and may be used by any replica. One engine is used by one thread.

A query selects the series of a measurement by matchers, reads one field of each between two times
(the end is not included), cuts time into windows, and folds the points of each window. Windows
without points are left out. Series are grouped by the values of tags: one group per series unless
``group_by`` says otherwise, one group for all with an empty ``group_by``. Without a function the
points themselves are returned, one row per series.

``topk`` keeps the groups with the largest result over the whole range, largest first; equal ones
in the order of groups. ``limit`` is about points of a row, ``row_limit`` about rows. What a query
may read is bounded before it reads it (QUERY_TOO_LARGE).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from projections.errors import BadPayload
from projections.reasons import Reason
from projections.result import Refused
from projections.timeseries import TimeSeries
from projections.ts_aggregate import (
    Function,
    Partial,
    Windows,
    aggregate,
    combine,
    finish,
    percentile,
)
from projections.ts_blocks import Values
from projections.ts_buffers import BLOCK_WORDS, Column, Times
from projections.ts_entities import Measurement, Series
from projections.ts_limits import (
    BLOCK_POINTS_MAX,
    CACHE_SIZE_MAX,
    QUERY_POINTS_MAX,
    QUERY_SERIES_MAX,
    TIME_NS_MAX,
    TIME_NS_MIN,
)
from projections.ts_names import (
    Matcher,
    SeriesName,
    Tags,
    compile_matchers,
    format_series,
    parse_series,
)
from projections.ts_read import BlockCache, Points, ReadBlock, points_between, read_column


@dataclass(frozen=True, slots=True)
class Query:
    """What to read, and what to make of it."""

    measurement: str
    field: str
    start_ns: int = TIME_NS_MIN
    end_ns: int = TIME_NS_MAX + 1  # not included
    matchers: tuple[Matcher, ...] = ()
    function: Function | None = None
    window_ns: int = 0  # 0: the whole range is one window
    offset_ns: int = 0  # windows start at multiples of their size from here
    percent: float = 50.0  # for percentile
    group_by: tuple[str, ...] | None = None
    topk: int = 0
    limit: int = 0
    row_limit: int = 0

    def invalid(self) -> int | None:
        """Return the first number that does not fit, None if all do."""
        if not TIME_NS_MIN <= self.start_ns < self.end_ns <= TIME_NS_MAX + 1:
            return self.end_ns
        if not 0 <= self.window_ns <= TIME_NS_MAX or not 0 <= self.offset_ns <= TIME_NS_MAX:
            return self.window_ns
        if not 0.0 <= self.percent <= 100.0:
            return 0
        if self.topk and self.function is None:
            return self.topk
        numbers = (self.topk, self.limit, self.row_limit)
        return next((number for number in numbers if number < 0), None)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One group of a result: ``name`` is the series' own, or the group's tags in the same form."""

    name: bytes
    times: NDArray[np.int64]  # of points, or of the windows' starts
    values: NDArray[Any]

    @property
    def tags(self) -> Tags:
        """The tags that all series of the group share."""
        return parse_series(self.name).tags


@dataclass(slots=True)
class _Group:
    name: bytes
    members: list[Column]


class QueryEngine:
    """Answers queries from a projection and its log."""

    def __init__(
        self, series: TimeSeries, read_block: ReadBlock, cache_size_max: int = CACHE_SIZE_MAX
    ) -> None:
        self._series = series
        self.cache = BlockCache(read_block, cache_size_max)

    def query(self, namespace: str, query: Query) -> list[Row] | Refused:
        """Run a query; raise ``CorruptBlock`` if the log does not hold what the state says."""
        invalid = query.invalid()
        if invalid is not None:
            return Refused(Reason.QUERY_INVALID, invalid)
        room = self._series.rooms.get(namespace)
        if room is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        measurement = room.measurements.get(query.measurement)
        if measurement is None:
            return Refused(Reason.MEASUREMENT_UNKNOWN)
        field_id = measurement.field_ids.get(query.field)
        if field_id is None:
            return Refused(Reason.FIELD_UNKNOWN)
        try:
            ids = measurement.index.select(compile_matchers(query.matchers)).tolist()
        except BadPayload as error:
            return Refused(error.reason, error.detail)
        if len(ids) > QUERY_SERIES_MAX:
            return Refused(Reason.QUERY_TOO_LARGE, len(ids))
        selected = [measurement.series[each] for each in ids]
        selected = sorted((s for s in selected if field_id in s.columns), key=lambda s: s.name)
        columns = [series.columns[field_id] for series in selected]
        points = _points_bound(columns, query)
        if points > QUERY_POINTS_MAX:
            return Refused(Reason.QUERY_TOO_LARGE, points)
        groups = _group(measurement, selected, field_id, query.group_by)
        # Sums of finite numbers may leave f64: the result says so with an infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            rows = self._rows(measurement, groups, query)
        return rows[: query.row_limit] if query.row_limit else rows

    def _rows(self, measurement: Measurement, groups: list[_Group], query: Query) -> list[Row]:
        rows: list[Row] = []
        ranks: list[float] = []
        for group in groups:
            folded = self._fold(measurement, group.members, query)
            if folded is None:
                continue
            times, values, rank = folded
            if query.limit:
                times, values = times[: query.limit], values[: query.limit]
            rows.append(Row(group.name, times, values))
            ranks.append(rank)
        if query.topk:
            order = sorted(range(len(rows)), key=lambda place: (-ranks[place], place))
            rows = [rows[place] for place in order[: query.topk]]
        return rows

    def _fold(
        self, measurement: Measurement, columns: list[Column], query: Query
    ) -> tuple[Times, Values, float] | None:
        """Return times, values and rank of one group; None if it has no result."""
        parts: list[Points] = []
        for column in columns:
            points = read_column(measurement, column, query.start_ns, query.end_ns - 1, self.cache)
            if len(points[0]):
                parts.append(points)
        if not parts:
            return None
        function = query.function
        if function is None:
            times, values = parts[0]
            return times.copy(), values.copy(), 0.0
        windows = Windows(query.window_ns, query.offset_ns)
        numbers, values = _apply(function, windows, parts, query.percent)
        if not len(numbers):
            return None
        rank = 0.0
        if query.topk:
            whole = values
            if query.window_ns:
                _, whole = _apply(function, Windows(0), parts, query.percent)
            rank = float(whole[0]) if len(whole) else -np.inf
        if not query.window_ns:
            return np.array([query.start_ns], dtype=np.int64), values, rank
        return windows.starts(numbers), values, rank


def _apply(
    function: Function, windows: Windows, parts: list[Points], percent: float
) -> tuple[NDArray[np.int64], Values]:
    if function is Function.PERCENTILE:
        return percentile(windows, parts, percent)
    partials: list[Partial] = [aggregate(function, windows, *points) for points in parts]
    combined = combine(function, partials)
    return combined.windows, finish(function, combined)


def _points_bound(columns: list[Column], query: Query) -> int:
    """Return an upper bound for the points that are read, exact only if it might matter."""
    bound = sum(
        len(column) + len(column.blocks or ()) // BLOCK_WORDS * BLOCK_POINTS_MAX
        for column in columns
    )
    if bound <= QUERY_POINTS_MAX:
        return bound
    return sum(points_between(column, query.start_ns, query.end_ns - 1) for column in columns)


def _group(
    measurement: Measurement,
    selected: list[Series],
    field_id: int,
    group_by: tuple[str, ...] | None,
) -> list[_Group]:
    """Put series into groups; groups come in the order of their values, members of their names."""
    if group_by is None:
        return [_Group(s.name, [s.columns[field_id]]) for s in selected]
    tags = sorted(set(group_by))
    members: dict[tuple[str, ...], list[Column]] = {}
    for series in selected:
        values = dict(series.tags) if tags else {}
        key = tuple(values.get(tag, "") for tag in tags)
        members.setdefault(key, []).append(series.columns[field_id])
    groups = []
    for key in sorted(members):
        pairs = tuple((tag, value) for tag, value in zip(tags, key, strict=True) if value)
        name = format_series(SeriesName(measurement.name, pairs))
        groups.append(_Group(name, members[key]))
    return groups
