"""Queries: a selection of series, a range of time, and an aggregate.

A query has two halves. ``plan_query`` reads the state and takes a cut of each column that will be
read (``ColumnCut``): references, no points. A ``Reader`` runs the plan: it reads blocks through a
callable, decodes, and aggregates. The first half is short and runs on the thread of the state; the
second never reads the state and may run on another thread. So a query sees one moment, and neither
thread waits for the other. Blocks are entries and never change. A block that the state dropped
after the cut may be deleted when it is read; then ``read_block`` raises, and the query is repeated.

Nothing here knows a transport or changes state.

A query selects the series of a measurement by matchers, reads one field of each between two times
(the end is not included), splits time into windows, and aggregates each window. Windows
without points are omitted. Series are grouped by the values of tags: one group per series unless
``group_by`` says otherwise, one group for all with an empty ``group_by``. Without a function the
points themselves are returned, one row per series.

``topk`` keeps the groups with the largest result over the whole range, largest first; equal ones
in the order of groups. ``limit`` is about points of a row, ``row_limit`` about rows. What a query
may read is bounded before it reads it (QUERY_TOO_LARGE).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onelog.projections.limits import U64_MAX, find_out_of_bounds
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.timeseries.aggregate import (
    Function,
    Stretches,
    Windows,
    aggregate,
    combine,
    finish,
    percentile,
    stretches,
)
from onelog.projections.timeseries.columns import Cuts, Times, Values, find_starts
from onelog.projections.timeseries.limits import (
    BLOCK_POINTS_MAX,
    TIME_NS_MAX,
    TIME_NS_MIN,
)
from onelog.projections.timeseries.names import (
    Matcher,
    SeriesName,
    Tags,
    find_tags,
    format_series,
)
from onelog.projections.timeseries.projection import TimeSeries
from onelog.projections.timeseries.read import (
    BlockCache,
    Bundle,
    ReadBlock,
    points_between,
    read_bundles,
)
from onelog.projections.timeseries.store import Measurement

PART_POINTS = 1 << 20  # of several groups that are read and folded together


@dataclass(frozen=True, slots=True)
class Query:
    """What to read, and how to aggregate it."""

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

    def invalid(self) -> str | None:
        """Return what is wrong with the query, in words; None if nothing is."""
        if self.end_ns <= self.start_ns:
            return f"to_ns is {self.end_ns}, which is not above from_ns, {self.start_ns}"
        if not 0.0 <= self.percent <= 100.0:
            return f"parameter is {self.percent:g}; a percentile is 0 to 100"
        if self.topk and self.function is None:
            return f"top is {self.topk}, which is for aggregates"
        found = find_out_of_bounds((
            ("from_ns", self.start_ns, TIME_NS_MIN, TIME_NS_MAX),
            ("to_ns", self.end_ns, TIME_NS_MIN, TIME_NS_MAX + 1),
            ("window_ns", self.window_ns, 0, TIME_NS_MAX),
            ("offset_ns", self.offset_ns, 0, TIME_NS_MAX),
            ("top", self.topk, 0, U64_MAX),
            ("limit", self.limit, 0, U64_MAX),
            ("row_limit", self.row_limit, 0, U64_MAX),
        ))  # fmt: skip
        if found is None:
            return None
        return f"{found.name} is {found.value}; allowed: {found.least} to {found.most}"


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One group of a result: ``name`` is the series' own, or the group's tags in the same form."""

    name: bytes
    times: NDArray[np.int64]  # of points, or of the windows' starts
    values: NDArray[Any]

    @property
    def tags(self) -> Tags:
        """The tags that all series of the group share."""
        return find_tags(self.name)


class Plan:
    """What a query will read: an immutable cut through the state at one moment.

    Making one takes a third of a microsecond for each series and reads no point; running it
    (``Reader``) may take long, and any thread may do it.
    """

    __slots__ = ("cuts", "first_ns", "last_ns", "measurement", "names", "policy", "query")

    def __init__(
        self, measurement: Measurement, query: Query, names: list[bytes], cuts: Cuts
    ) -> None:
        self.measurement = measurement.name
        self.policy = measurement.config.policy
        self.first_ns = max(query.start_ns, measurement.trimmed_ns)
        self.last_ns = query.end_ns - 1
        self.query = query
        self.names = names  # of the series of the cuts, in the same order
        self.cuts = cuts


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one query."""

    series: int
    points: int  # that are read, which takes up to 32 bytes each meanwhile
    values: int  # in the result

    def refuse(self, found: int, limit: int) -> Refused | None:
        """Return a refusal if ``found`` is above ``limit``."""
        return Refused(Reason.QUERY_TOO_LARGE, found) if found > limit else None


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a query, and the number of points that were read."""

    rows: list[Row]
    scanned_count: int


def find_measurement(series: TimeSeries, namespace: str, name: str) -> Measurement | Refused:
    """Return a measurement of a namespace."""
    space = series.spaces.get(namespace)
    if space is None:
        return Refused(Reason.NAMESPACE_UNKNOWN)
    return space.measurements.get(name) or Refused(Reason.MEASUREMENT_UNKNOWN)


def plan_query(
    measurement: Measurement, query: Query, ids: Sequence[int], bounds: Bounds
) -> Plan | Refused:
    """Plan a query over the series with these ids, as far as they still exist."""
    field_id = measurement.field_ids.get(query.field)
    if field_id is None:
        return Refused(Reason.FIELD_UNKNOWN)
    refused = bounds.refuse(len(ids), bounds.series)
    if refused is not None:
        return refused
    selected = [each for each in map(measurement.series.get, ids) if each is not None]
    columns = [series.columns.get(field_id) for series in selected]
    if None in columns:
        selected = [series for series in selected if field_id in series.columns]
    names = [series.name for series in selected]
    found = [column for column in columns if column is not None]
    return Plan(measurement, query, names, Cuts(found))


class _Cutter:
    """Splits times into windows. Series that are written together have the same times, so those
    before are tried first: 100 series of 10,000 points take 9 ms with it and 14 without.
    """

    __slots__ = ("_found", "_times", "windows")

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._times: Times = np.empty(0, dtype=np.int64)
        self._found: Stretches | None = None

    def find(self, bundle: Bundle) -> Stretches:
        """Return the windows of the times of some series."""
        if len(bundle.columns) > 1:
            return stretches(self.windows, bundle.times, bundle.columns, bundle.starts)
        times, others, found = bundle.times, self._times, self._found
        if (
            found is None
            or len(times) != len(others)
            or times[0] != others[0]
            or times[-1] != others[-1]
            or not np.array_equal(times, others)
        ):
            found = stretches(self.windows, times)
            self._times, self._found = times, found
        return found._replace(owners=bundle.columns.repeat(len(found.starts)))


class _Groups(NamedTuple):
    """The groups of a result in order. Their columns follow each other."""

    names: list[bytes]
    sizes: list[int]  # columns of each
    places: list[int]  # of the columns among the cuts of the plan


class _Results(NamedTuple):
    """Results of groups, ascending by group and then by window or time."""

    groups: NDArray[np.int64]
    windows: NDArray[np.int64]  # their numbers; of points the times
    values: Values


class Reader:
    """Runs plans over one log. One reader is used by one thread."""

    def __init__(self, read_block: ReadBlock, cache_size_max: int) -> None:
        self.cache = BlockCache(read_block, cache_size_max)

    def run(
        self, plan: Plan, bounds: Bounds, pause: Callable[[], None] = lambda: None
    ) -> Found | Refused:
        """Run a plan; ``pause`` is called now and then, and may raise to end it.

        Raises ``CorruptBlock`` if the log does not hold what the state says.
        """
        query = plan.query
        refused = bounds.refuse(_points_bound(plan, bounds.points), bounds.points)
        if refused is not None:
            return refused
        groups = _group(plan)
        cutter = _Cutter(Windows(query.window_ns, query.offset_ns))
        rows: list[Row] = []
        ranks: list[float] = []
        scanned = value_count = 0
        # Sums of finite numbers may leave f64: the result says so with an infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            for part in _split(plan, groups):
                bundles = self._read(plan, part.places, pause)
                if not bundles:
                    continue
                pause()
                scanned += sum(len(bundle.times) for bundle in bundles)
                for group, times, values, rank in _fold(query, cutter, bundles, part.sizes):
                    if query.limit:
                        times, values = times[: query.limit], values[: query.limit]
                    rows.append(Row(part.names[group], times, values))
                    ranks.append(rank)
                    value_count += len(values)
                    refused = bounds.refuse(value_count, bounds.values)
                    if refused is not None and not query.topk:
                        return refused
        if query.topk:
            order = sorted(range(len(rows)), key=lambda place: (-ranks[place], place))
            rows = [rows[place] for place in order[: query.topk]]
            refused = bounds.refuse(sum(len(row.values) for row in rows), bounds.values)
        if query.row_limit:
            rows = rows[: query.row_limit]
        return refused or Found(rows, scanned)

    def _read(self, plan: Plan, places: list[int], pause: Callable[[], None]) -> list[Bundle]:
        between = plan.first_ns, plan.last_ns
        read = read_bundles(plan.cuts, places, between, plan.policy, self.cache, pause)
        return [bundle for bundle in read if len(bundle.times)]


def _fold(
    query: Query, cutter: _Cutter, bundles: list[Bundle], sizes: list[int]
) -> Iterator[tuple[int, Times, Values, float]]:
    """Yield number, times, values and rank of groups of these sizes; omit those without results."""
    groups = np.repeat(np.arange(len(sizes)), sizes)  # of each column
    found = _apply(query, cutter, bundles, groups)
    ranks: dict[int, float] = {}
    if query.topk:
        whole = _apply(query, _Cutter(Windows(0)), bundles, groups) if query.window_ns else found
        for each in whole:
            of_groups = each.values.astype(np.float64).tolist()
            ranks |= zip(each.groups.tolist(), of_groups, strict=True)
    for each in found:
        times = each.windows
        if query.function is not None:
            starts_ns = cutter.windows.starts(times)
            times = starts_ns if query.window_ns else np.full(len(times), query.start_ns)
        starts = find_starts(each.groups)
        edges = pairwise([*starts.tolist(), len(times)])
        for group, (start, end) in zip(each.groups[starts].tolist(), edges, strict=True):
            yield group, times[start:end], each.values[start:end], ranks.get(group, -np.inf)


def _apply(
    query: Query, cutter: _Cutter, bundles: list[Bundle], groups: NDArray[np.int64]
) -> list[_Results]:
    """Return the results of the groups, in order: aggregates, or the points themselves."""
    function = query.function
    group_count = int(groups[-1]) + 1
    if function is None or function is Function.PERCENTILE:
        columns, times, values = _join(bundles)
        of_points = groups[columns]
        if function is None:
            return [_Results(of_points, times, values)]
        windows = cutter.windows
        found = percentile(windows, of_points, group_count, times, values, query.percent)
        return [_Results(*found)]
    partials = [aggregate(function, cutter.find(each), each.times, each.values) for each in bundles]
    present = np.concatenate([bundle.columns for bundle in bundles])
    sizes = np.bincount(groups[present], minlength=group_count)
    combined = combine(function, partials, groups, sizes)
    return [_Results(each.owners, each.windows, finish(function, each)) for each in combined]


def _join(bundles: list[Bundle]) -> tuple[NDArray[np.int64], Times, Values]:
    """Return the column of each point, ascending, the times, and the values. They are copies."""
    columns = np.concatenate([np.repeat(each.columns, each.counts) for each in bundles])
    times = np.concatenate([bundle.times for bundle in bundles])
    values = np.concatenate([bundle.values for bundle in bundles])
    if bool((columns[1:] >= columns[:-1]).all()):
        return columns, times, values
    order = np.argsort(columns, kind="stable")
    return columns[order], times[order], values[order]


def _points_bound(plan: Plan, limit: int) -> int:
    """Return an upper bound of the points to read: a rough one if that is within the limit."""
    cuts = plan.cuts
    bound = sum(cuts.counts) + sum(cuts.block_counts) * BLOCK_POINTS_MAX
    if bound <= limit:
        return bound
    columns = (cuts[place] for place in range(len(cuts.counts)))
    return sum(points_between(column, plan.first_ns, plan.last_ns) for column in columns)


def _group(plan: Plan) -> _Groups:
    """Return groups in the order of their values, with columns in the order of their series."""
    group_by, names = plan.query.group_by, plan.names
    places = sorted(range(len(names)), key=names.__getitem__)
    if group_by is None:
        return _Groups([names[place] for place in places], [1] * len(places), places)
    tags = sorted(set(group_by))
    members: dict[tuple[str, ...], list[int]] = {}
    for place in places:
        values = dict(find_tags(names[place])) if tags else {}
        key = tuple([values.get(tag, "") for tag in tags])
        members.setdefault(key, []).append(place)
    keys = sorted(members)
    pairs = (
        tuple((tag, value) for tag, value in zip(tags, key, strict=True) if value) for key in keys
    )
    return _Groups(
        [format_series(SeriesName(plan.measurement, each)) for each in pairs],
        [len(members[key]) for key in keys],
        [place for key in keys for place in members[key]],
    )


def _split(plan: Plan, groups: _Groups) -> Iterator[_Groups]:
    """Yield groups, several at a time if they have few points."""
    names, sizes, places = groups
    counts, block_counts = plan.cuts.counts, plan.cuts.block_counts
    first = begin = at = points = 0
    for number, size in enumerate(sizes):
        end = at + size
        bound = sum(
            counts[place] + block_counts[place] * BLOCK_POINTS_MAX for place in places[at:end]
        )
        if points + bound > PART_POINTS and number > first:
            yield _Groups(names[first:number], sizes[first:number], places[begin:at])
            first, begin, points = number, at, 0
        at = end
        points += bound
    yield _Groups(names[first:], sizes[first:], places[begin:])
