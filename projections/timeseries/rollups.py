"""Downsampling: the leader computes, apply stores.

A leader opens a slice of a rule first (``make_begin``, ``begin_rollup``). Then it reads the points
of the slice and writes their aggregates as batches for the target measurement (``make_rollup``),
each within every limit of a batch; a column is never cut. ``apply_rollup`` checks that the rule
stands where the entry begins, writes the batch like any other, and moves the rule on.

The leader may miss points that are applied while a slice is open. Each that belongs to the slice is
noted (store.py), and the rule returns to the first of them when the slice is written. Without the
entry that opens a slice, points that are in the log but not applied while a leader reads would
never be in a window.

If the target refuses a batch (cardinality, a field of another type) the rule continues all the same
and counts the refusal: retrying for ever would not help.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from onelog.projections.codec import Reader
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused
from onelog.projections.timeseries.aggregate import Function, Windows, aggregate, finish, stretches
from onelog.projections.timeseries.columns import Column
from onelog.projections.timeseries.commands import BeginRollup, DropRule, Rollup, SetRule
from onelog.projections.timeseries.limits import (
    BATCH_FIELDS_MAX,
    BATCH_POINTS_MAX,
    BATCH_RUNS_MAX,
    BATCH_SERIES_MAX,
    BATCH_TIMES_MAX,
    NAME_SIZE_MAX,
    ROLLUP_NAMES_SIZE_MAX,
    ROLLUP_POINTS_MAX,
    ROLLUP_READ_POINTS_MAX,
    RULES_MAX,
    SERIES_NAME_SIZE_MAX,
    TIME_NS_MAX,
    TIME_NS_MIN,
)
from onelog.projections.timeseries.names import SeriesName, format_series
from onelog.projections.timeseries.point_batch import Run, WriteBatch, encode_batch, read_batch
from onelog.projections.timeseries.read import BlockCache, points_between, read_column
from onelog.projections.timeseries.store import (
    Measurement,
    Series,
    SeriesSpace,
    Store,
    back_to,
    first_whole_ns,
)
from onelog.projections.timeseries.types import (
    NOT_LATE,
    START,
    Aggregate,
    ColumnKey,
    FieldType,
    Progress,
    Rule,
    window_start,
)
from onelog.projections.timeseries.writes import write_batch

_FUNCTIONS = {kind: Function[kind.name] for kind in Aggregate}
_KEEP_TYPE = frozenset((Aggregate.MIN, Aggregate.MAX, Aggregate.FIRST, Aggregate.LAST))


def set_rule(
    store: Store, space: SeriesSpace, command: SetRule, index: int, timestamp_ns: int
) -> Outcome:
    """Set a rule; its progress starts at the beginning of time."""
    measurement = space.measurements.get(command.measurement)
    if measurement is None:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    rule = command.rule
    if rule.name not in measurement.rules and len(measurement.rules) >= RULES_MAX:
        return Refused(Reason.RULES_FULL, RULES_MAX)
    target = space.measurements.get(rule.target)
    # No chains: a rollup of rollups would be wrong for most aggregates, and a cycle never ends.
    if rule.target == measurement.name or (target is not None and target.rules):
        return Refused(Reason.RULE_INVALID, 1)
    for other in space.in_order():
        if any(each.target == measurement.name for each, _ in other.rules.values()):
            return Refused(Reason.RULE_INVALID, 2)
    rules = {**measurement.rules, rule.name: (rule, Progress(index, timestamp_ns))}
    store.update(measurement, rules=rules)
    store.publish_measurement(measurement, index)
    return Applied(index)


def drop_rule(store: Store, space: SeriesSpace, command: DropRule, index: int) -> Outcome:
    """Drop a rule."""
    measurement = space.measurements.get(command.measurement)
    if measurement is None:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    if command.rule not in measurement.rules:
        return Refused(Reason.RULE_UNKNOWN)
    rules = {name: rule for name, rule in measurement.rules.items() if name != command.rule}
    store.update(measurement, rules=rules)
    store.publish_measurement(measurement, index)
    return Applied()


def begin_rollup(
    store: Store, space: SeriesSpace, command: BeginRollup, index: int, timestamp_ns: int
) -> Outcome:
    """Open a slice of a rule: from now on late points for it are noted."""
    found = _find_rule(space, command)
    if isinstance(found, Refused):
        return found
    measurement, rule, progress = found
    if (
        progress.slice_index
        or command.to_ns <= progress.done_ns
        or command.to_ns % rule.window_ns
        or command.to_ns + rule.delay_ns > timestamp_ns
    ):
        return Refused(Reason.ROLLUP_STALE, command.to_ns)
    after = replace(progress, slice_index=index, slice_to_ns=command.to_ns, moved_ns=timestamp_ns)
    store.update(measurement, rules={**measurement.rules, rule.name: (rule, after)})
    return APPLIED


def apply_rollup(
    store: Store, space: SeriesSpace, command: Rollup, index: int, timestamp_ns: int
) -> Outcome:
    """Store what a leader computed; number = points written."""
    found = _find_rule(space, command)
    if isinstance(found, Refused):
        return found
    measurement, rule, progress = found
    place = (command.slice_index, command.from_ns, command.after)
    if (
        not progress.slice_index
        or (progress.slice_index, progress.done_ns, progress.cursor) != place
        or command.to_ns > progress.slice_to_ns
        or (progress.cursor != START and command.to_ns != progress.slice_to_ns)
        or command.to_ns % rule.window_ns
    ):
        return Refused(Reason.ROLLUP_STALE, command.from_ns)
    stem = format_series(SeriesName(rule.target, ()))[:-1]
    if not all(name.startswith(stem) for name in command.batch.series):
        return Refused(Reason.PAYLOAD_FIELD_INVALID)
    written = write_batch(store, space, command.batch, index)
    late_ns = progress.late_ns if progress.late_ns < command.to_ns else NOT_LATE
    if command.last != START:
        after = replace(progress, slice_to_ns=command.to_ns, cursor=command.last, late_ns=late_ns)
    else:
        done_ns = command.to_ns
        if late_ns != NOT_LATE:
            done_ns = min(done_ns, back_to(measurement, rule, late_ns))
        after = replace(
            progress,
            done_ns=done_ns,
            slice_index=0,
            slice_to_ns=TIME_NS_MIN,
            cursor=START,
            late_ns=NOT_LATE,
        )
    after = replace(after, moved_ns=timestamp_ns)
    if isinstance(written, Refused):
        count = min(after.refused_count + 1, 2**64 - 1)
        after = replace(after, refused_count=count, refused_reason=int(written.reason))
    store.update(measurement, rules={**measurement.rules, rule.name: (rule, after)})
    return Applied(0 if isinstance(written, Refused) else written.number)


def _find_rule(
    space: SeriesSpace, command: BeginRollup | Rollup
) -> tuple[Measurement, Rule, Progress] | Refused:
    measurement = space.measurements.get(command.measurement)
    if measurement is None or measurement.created_index != command.created_index:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    rule, progress = measurement.rules.get(command.rule, (None, None))
    if rule is None or progress is None or progress.index != command.rule_index:
        return Refused(Reason.RULE_UNKNOWN)
    return measurement, rule, progress


def rollup_due_ns(measurement: Measurement, rule: Rule, progress: Progress) -> int | None:
    """Return when the next window of a rule is closed; None if it has no points to read."""
    if progress.slice_index:
        return 0
    if measurement.newest_ns < progress.done_ns or measurement.newest_ns < TIME_NS_MIN:
        return None
    oldest_ns = min(measurement.oldest_ns, measurement.newest_ns)
    start_ns = window_start(max(progress.done_ns, oldest_ns), rule.window_ns)
    return start_ns + rule.window_ns + rule.delay_ns


def make_begin(
    measurement: Measurement, rule: Rule, progress: Progress, now_ns: int
) -> BeginRollup:
    """Make the command that opens a slice with all closed windows of a rule."""
    to_ns = window_start(min(now_ns, TIME_NS_MAX) - rule.delay_ns, rule.window_ns)
    return BeginRollup(
        measurement.name, rule.name, measurement.created_index, progress.index, to_ns
    )


def make_rollup(
    measurement: Measurement, rule: Rule, progress: Progress, cache: BlockCache
) -> Rollup:
    """Compute the next entry of an open slice."""
    assert progress.slice_index, progress
    to_ns = progress.slice_to_ns
    from_ns = max(progress.done_ns, first_whole_ns(measurement, rule))
    begin_ns: int | None = progress.done_ns
    if progress.cursor == START:
        first_ns = _first_time(measurement, from_ns, to_ns)
        begin_ns = None if first_ns is None else first_ns // rule.window_ns * rule.window_ns
        if begin_ns is not None:
            to_ns = _choose_end(measurement, rule, begin_ns, to_ns)
    runs = _Runs()
    last = START
    if begin_ns is not None:
        last = _collect(runs, measurement, rule, progress.cursor, (from_ns, to_ns - 1), cache)
    if last != START and begin_ns is not None and begin_ns > progress.done_ns:
        # The slice takes several entries, and points that come meanwhile must not add windows to
        # it. So this entry only advances the rule to its first points; the next slice is short.
        runs, to_ns, last = _Runs(), begin_ns, START
    return Rollup(
        measurement=measurement.name,
        rule=rule.name,
        created_index=measurement.created_index,
        rule_index=progress.index,
        slice_index=progress.slice_index,
        from_ns=progress.done_ns,
        to_ns=to_ns,
        after=progress.cursor,
        last=last,
        batch=runs.batch(),
    )


class _Runs:
    """The runs of one entry, which keep within every limit of a batch."""

    __slots__ = ("_fields", "_names_size", "_points", "_runs", "_series")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._series: set[bytes] = set()
        self._fields: set[tuple[str, FieldType]] = set()
        self._names_size = 0
        self._points = 0

    def take(self, name: bytes, runs: list[Run]) -> bool:
        """Add the runs of one column, if they fit or are the first; return whether they were added.

        One column always fits: a run and a field for each aggregate, and as many points as
        ``_choose_end`` allows.
        """
        series_count = len(self._series) + (name not in self._series)
        fields = {(run.field, run.field_type) for run in runs} - self._fields
        names_size = self._names_size + sum(len(name.encode()) for name, _ in fields)
        names_size += 0 if name in self._series else len(name)
        points = self._points + sum(len(np.asarray(run.times)) for run in runs)
        if self._runs and (
            series_count > BATCH_SERIES_MAX
            or len(self._fields) + len(fields) > BATCH_FIELDS_MAX
            or len(self._runs) + len(runs) > min(BATCH_RUNS_MAX, BATCH_TIMES_MAX)
            or points > ROLLUP_POINTS_MAX
            or names_size > ROLLUP_NAMES_SIZE_MAX
        ):
            return False
        self._runs += runs
        self._series.add(name)
        self._fields |= fields
        self._names_size = names_size
        self._points = points
        return True

    def batch(self) -> WriteBatch:
        """Return the runs as a batch."""
        assert len(self._runs) <= min(BATCH_RUNS_MAX, BATCH_TIMES_MAX), len(self._runs)
        assert len(self._series) <= BATCH_SERIES_MAX, len(self._series)
        assert len(self._fields) <= BATCH_FIELDS_MAX, len(self._fields)
        assert self._points <= BATCH_POINTS_MAX, self._points
        return read_batch(Reader(encode_batch(self._runs)))


def _collect(
    runs: _Runs,
    measurement: Measurement,
    rule: Rule,
    after: ColumnKey,
    times: tuple[int, int],
    cache: BlockCache,
) -> ColumnKey:
    """Add columns until an entry is full; return the last of them, START if none is left."""
    read = 0
    last = after
    name = b""
    for series, column in _columns(measurement, after):
        if read >= ROLLUP_READ_POINTS_MAX:
            return last
        if series.series_id != last[0] or not name:
            name = format_series(SeriesName(rule.target, series.tags))
        if len(name) <= SERIES_NAME_SIZE_MAX:
            made = list(_column_runs(name, measurement, column, rule, times, cache))
            if made and not runs.take(name, made):
                return last
            read += points_between(column.cut(), *times)
        last = column.key
    return START


def _first_time(measurement: Measurement, from_ns: int, to_ns: int) -> int | None:
    """Return a time at or before the first point from ``from_ns`` to before ``to_ns``."""
    first_ns = to_ns
    for _, column in _columns(measurement, START):
        if column.times:
            times, _ = column.buffered()
            times = times[times >= from_ns]
            if len(times):
                first_ns = min(first_ns, int(times.min()))
        rows = column.rows()
        rows = rows[rows[:, 2] >= from_ns]
        if len(rows):
            first_ns = min(first_ns, max(from_ns, int(rows[:, 1].min())))
    return first_ns if first_ns < to_ns else None


def _columns(measurement: Measurement, after: ColumnKey) -> Iterator[tuple[Series, Column]]:
    """Iterate over the columns after ``after``, in order."""
    for series_id in measurement.index.after(max(0, after[0] - 1)):
        series = measurement.series[series_id]
        for field_id in sorted(series.columns):
            if (series_id, field_id) > after:
                yield series, series.columns[field_id]


def _choose_end(measurement: Measurement, rule: Rule, begin_ns: int, closed_ns: int) -> int:
    """Return the end of a slice such that one column fits an entry."""
    per_window = max(1, len(measurement.fields) * len(rule.aggregates))
    windows = max(1, ROLLUP_POINTS_MAX // per_window)
    windows = min(windows, max(1, (closed_ns - begin_ns) // rule.window_ns))
    while windows > 1:
        last_ns = begin_ns + windows * rule.window_ns - 1
        largest = max(
            (
                points_between(each.cut(), begin_ns, last_ns)
                for _, each in _columns(measurement, START)
            ),
            default=0,
        )
        if largest <= ROLLUP_READ_POINTS_MAX:
            break
        windows //= 2
    return min(closed_ns, begin_ns + windows * rule.window_ns)


def _column_runs(
    name: bytes,
    measurement: Measurement,
    column: Column,
    rule: Rule,
    between: tuple[int, int],
    cache: BlockCache,
) -> Iterator[Run]:
    """Yield the aggregates of a column, except those whose name would be too long."""
    times, values = read_column(measurement, column, *between, cache)
    if not len(times):
        return
    windows = Windows(rule.window_ns)
    found = stretches(windows, times)
    for kind in rule.aggregates:
        field = f"{measurement.fields[column.field_id].name}_{kind.name.lower()}"
        if len(field.encode()) > NAME_SIZE_MAX:
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            partial = aggregate(_FUNCTIONS[kind], found, times, values)
            results = finish(_FUNCTIONS[kind], partial)
        starts = np.maximum(windows.starts(partial.windows), TIME_NS_MIN)
        field_type = FieldType.F64
        if kind in _KEEP_TYPE:
            field_type = column.field_type
        elif kind is Aggregate.COUNT:
            field_type = FieldType.I64
        else:  # a sum of finite numbers can still be infinite: such a window has no point
            finite = np.isfinite(results)
            starts, results = starts[finite], results[finite]
        if len(starts):
            yield Run(name, field, field_type, starts, results)
