"""Time series in dicts and lists, with loops: what the real ones are held against."""

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise

from onelog.projections.timeseries.aggregate import Function
from onelog.projections.timeseries.names import Matcher, Operator
from onelog.projections.timeseries.query import Query
from onelog.projections.timeseries.types import Config, Policy, Value

Point = tuple[int, Value]
LAST_TIME = 2**62 - 1


def resolve(points: list[Point], policy: Policy) -> list[Point]:
    """One point per time, in the order of time."""
    found: dict[int, Value] = {}
    for time, value in points:
        if policy is Policy.FIRST:
            found.setdefault(time, value)
        else:
            found[time] = value
    return sorted(found.items())


@dataclass
class TwinBlock:
    first: int
    last: int
    points: list[Point]


@dataclass
class TwinColumn:
    kind: type
    blocks: list[TwinBlock] = field(default_factory=list)
    buffer: list[Point] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.blocks and not self.buffer

    def everything(self) -> list[Point]:
        return [point for block in self.blocks for point in block.points] + self.buffer

    def newest(self) -> int:
        """The latest time that it ever had, as long as the block is there that held it."""
        times = [time for time, _ in self.buffer] + [block.last for block in self.blocks]
        return max(times, default=-(2**62) - 1)

    def drop(self, first: int, last: int) -> None:
        """Drop the points from first to last, and blocks that lie between them."""
        self.blocks = [b for b in self.blocks if b.first < first or b.last > last]
        for block in self.blocks:
            block.points = [p for p in block.points if not first <= p[0] <= last]
        self.buffer = [p for p in self.buffer if not first <= p[0] <= last]


@dataclass
class TwinMeasurement:
    config: Config = field(default_factory=Config)
    kinds: dict[str, type] = field(default_factory=dict)
    series: dict[bytes, tuple[dict[str, str], dict[str, TwinColumn]]] = field(default_factory=dict)
    trimmed: int = -(2**62)


class Twin:
    """All measurements of one namespace."""

    def __init__(self) -> None:
        self.measurements: dict[str, TwinMeasurement] = {}

    def refuses(self, name: str, series: bytes, time: int, fields: dict[str, Value]) -> bool:
        """Tell whether a row cannot be written."""
        measurement = self.measurements.get(name)
        if measurement is None:
            return False
        if series not in measurement.series and (
            len(measurement.series) >= measurement.config.series_max
        ):
            return True
        if time < measurement.trimmed:
            return True
        for key, value in fields.items():
            if measurement.kinds.get(key, type(value)) is not type(value):
                return True
            if measurement.config.policy is Policy.REJECT and series in measurement.series:
                column = measurement.series[series][1].get(key)
                if column and time <= column.newest():
                    return True
        return False

    def write(
        self, name: str, series: bytes, tags: dict[str, str], time: int, fields: dict[str, Value]
    ) -> None:
        measurement = self.measurements.setdefault(name, TwinMeasurement())
        _, columns = measurement.series.setdefault(series, (tags, {}))
        for key, value in fields.items():
            measurement.kinds.setdefault(key, type(value))
            columns.setdefault(key, TwinColumn(type(value))).buffer.append((time, value))

    def block(self, name: str, series: bytes, key: str, taken: int) -> None:
        measurement = self.measurements[name]
        column = measurement.series[series][1][key]
        points = resolve(column.buffer[:taken], measurement.config.policy)
        column.blocks.append(TwinBlock(points[0][0], points[-1][0], points))
        del column.buffer[:taken]

    def delete(self, name: str, matchers: tuple[Matcher, ...], first: int, last: int) -> int:
        measurement = self.measurements[name]
        changed = 0
        for series, (tags, columns) in list(measurement.series.items()):
            if not selected(matchers, tags):
                continue
            changed += 1
            if (first, last) == (-(2**62), LAST_TIME):
                del measurement.series[series]
                continue
            for column in columns.values():
                column.drop(first, last)
            if all(column.empty for column in columns.values()):
                del measurement.series[series]
        return changed

    def trim(self, name: str, cutoff: int) -> None:
        measurement = self.measurements[name]
        measurement.trimmed = max(measurement.trimmed, cutoff)
        for series, (_, columns) in list(measurement.series.items()):
            for column in columns.values():
                column.drop(-(2**62), measurement.trimmed - 1)
            if all(column.empty for column in columns.values()):
                del measurement.series[series]

    def points(self, name: str, series: bytes, key: str) -> list[Point]:
        measurement = self.measurements[name]
        column = measurement.series[series][1].get(key)
        return resolve(column.everything(), measurement.config.policy) if column else []

    def query(self, query: Query) -> list[tuple[tuple[tuple[str, str], ...], list[Point]]]:
        """Answer a query by looking at every point."""
        measurement = self.measurements[query.measurement]
        groups: dict[tuple[str, ...], list[list[Point]]] = {}
        labels: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {}
        for series in sorted(measurement.series):
            tags, columns = measurement.series[series]
            if query.field not in columns or not selected(query.matchers, tags):
                continue
            if query.group_by is None:
                key: tuple[str, ...] = (series.decode(),)
                labels[key] = tuple(sorted(tags.items()))
            else:
                wanted = sorted(set(query.group_by))
                key = tuple(tags.get(tag, "") for tag in wanted)
                labels[key] = tuple((t, v) for t, v in zip(wanted, key, strict=True) if v)
            points = self.points(query.measurement, series, query.field)
            inside = [p for p in points if query.start_ns <= p[0] < query.end_ns]
            groups.setdefault(key, []).append(inside)
        rows = []
        for key in sorted(groups):
            found = fold(query, groups[key], query.window_ns)
            if found:
                rank = fold(query, groups[key], 0) if query.topk else []
                cut = found[: query.limit] if query.limit else found
                rows.append((labels[key], cut, float(rank[0][1]) if rank else -math.inf))
        if query.topk:
            rows = sorted(rows, key=lambda row: -row[2])[: query.topk]
        if query.row_limit:
            rows = rows[: query.row_limit]
        return [(label, points) for label, points, _ in rows]


def fold(query: Query, members: list[list[Point]], window: int) -> list[Point]:
    if query.function is None:
        return members[0]
    windows: dict[int, list[list[Point]]] = {}
    for points in members:
        mine: dict[int, list[Point]] = {}
        for time, value in points:
            start = query.start_ns
            if window:
                start = (time - query.offset_ns) // window * window + query.offset_ns
            mine.setdefault(start, []).append((time, value))
        for start, inside in mine.items():
            windows.setdefault(start, []).append(inside)
    folded = []
    for start in sorted(windows):
        found = fold_window(query.function, windows[start], query.percent)
        if found is not None:
            folded.append((start, found))
    return folded


def fold_window(function: Function, members: list[list[Point]], percent: float) -> Value | None:
    values = [value for points in members for _, value in points]
    mean = sum(float(value) for value in values) / len(values)
    match function:
        case Function.COUNT:
            return len(values)
        case Function.SUM:
            return math.fsum(float(value) for value in values)
        case Function.MEAN:
            return mean
        case Function.MIN:
            return min(values)
        case Function.MAX:
            return max(values)
        case Function.STDDEV:
            return math.sqrt(sum((float(value) - mean) ** 2 for value in values) / len(values))
        case Function.FIRST:
            return min((points[0] for points in members), key=lambda point: point[0])[1]
        case Function.LAST:
            return max((points[-1] for points in members), key=lambda point: point[0])[1]
        case Function.PERCENTILE:
            ordered = sorted(map(float, values))
            rank = (len(ordered) - 1) * (percent / 100)
            low = int(rank)
            high = min(low + 1, len(ordered) - 1)
            return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)
        case Function.DELTA:
            long = [points for points in members if len(points) > 1]
            return sum(float(p[-1][1]) - float(p[0][1]) for p in long) if long else None
        case Function.RATE:
            long = [points for points in members if len(points) > 1]
            return sum(map(rate, long)) if long else None


def rate(points: list[Point]) -> float:
    increase = 0.0
    for (_, before), (_, after) in pairwise(points):
        step = float(after) - float(before)
        increase += float(after) if step < 0 else step
    return increase / ((points[-1][0] - points[0][0]) / 1e9)


def selected(matchers: tuple[Matcher, ...], tags: dict[str, str]) -> bool:
    for matcher in matchers:
        value = tags.get(matcher.tag, "")
        match matcher.operator:
            case Operator.EQUAL:
                passes = value == matcher.value
            case Operator.NOT_EQUAL:
                passes = value != matcher.value
            case Operator.MATCHES:
                passes = re.fullmatch(matcher.value, value) is not None
            case Operator.MATCHES_NOT:
                passes = re.fullmatch(matcher.value, value) is None
        if not passes:
            return False
    return True
