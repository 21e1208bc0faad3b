"""Downsampling: the leader computes, apply stores.

``make_rollup`` reads the points of the next windows of a rule and writes their aggregates as a
batch for the target measurement. ``apply_rollup`` checks that the rule stands where the entry
begins, writes the batch like any other, and moves the rule on. If the target does not take the
batch (cardinality, a field of another type) the rule moves on all the same and counts it: a leader
that tried again for ever would help nobody.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from projections.payload import Reader
from projections.reasons import Reason
from projections.result import Applied, Outcome, Refused
from projections.ts_aggregate import Function, Windows, aggregate, finish, stretches
from projections.ts_batch import Run, encode_batch, read_batch
from projections.ts_buffers import Column
from projections.ts_commands import DropRule, Rollup, SetRule
from projections.ts_entities import Measurement, Room, Series
from projections.ts_limits import (
    NAME_SIZE_MAX,
    ROLLUP_POINTS_MAX,
    ROLLUP_READ_POINTS_MAX,
    RULES_MAX,
    SERIES_NAME_SIZE_MAX,
    TIME_NS_MAX,
    TIME_NS_MIN,
)
from projections.ts_names import SeriesName, format_series
from projections.ts_read import BlockCache, points_between, read_column
from projections.ts_rules import Aggregate, Progress, Rule, window_start
from projections.ts_store import Store
from projections.ts_types import FieldType
from projections.ts_writes import write_batch

_FUNCTIONS = {kind: Function[kind.name] for kind in Aggregate}
_KEEP_TYPE = frozenset((Aggregate.MIN, Aggregate.MAX, Aggregate.FIRST, Aggregate.LAST))


def set_rule(store: Store, room: Room, command: SetRule, index: int) -> Outcome:
    """Set a rule; its progress starts at the beginning of time."""
    measurement = room.measurements.get(command.measurement)
    if measurement is None:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    rule = command.rule
    if rule.name not in measurement.rules and len(measurement.rules) >= RULES_MAX:
        return Refused(Reason.RULES_FULL, RULES_MAX)
    target = room.measurements.get(rule.target)
    # No chains: a rollup of rollups would be wrong for most aggregates, and a cycle never ends.
    if rule.target == measurement.name or (target is not None and target.rules):
        return Refused(Reason.RULE_INVALID, 1)
    for other in room.in_order():
        if any(each.target == measurement.name for each, _ in other.rules.values()):
            return Refused(Reason.RULE_INVALID, 2)
    rules = {**measurement.rules, rule.name: (rule, Progress(index))}
    store.update(measurement, rules=rules)
    store.publish_measurement(measurement, index)
    return Applied(index)


def drop_rule(store: Store, room: Room, command: DropRule, index: int) -> Outcome:
    """Drop a rule."""
    measurement = room.measurements.get(command.measurement)
    if measurement is None:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    if command.rule not in measurement.rules:
        return Refused(Reason.RULE_UNKNOWN)
    rules = {name: rule for name, rule in measurement.rules.items() if name != command.rule}
    store.update(measurement, rules=rules)
    store.publish_measurement(measurement, index)
    return Applied()


def apply_rollup(
    store: Store, room: Room, command: Rollup, index: int, timestamp_ns: int
) -> Outcome:
    """Store what a leader computed; number = points written."""
    measurement = room.measurements.get(command.measurement)
    if measurement is None or measurement.created_index != command.created_index:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    rule, progress = measurement.rules.get(command.rule, (None, None))
    if rule is None or progress is None or progress.index != command.rule_index:
        return Refused(Reason.RULE_UNKNOWN)
    same_slice = not progress.cursor or progress.slice_to_ns == command.to_ns
    if (
        (progress.done_ns, progress.cursor) != (command.from_ns, command.after)
        or not same_slice
        or command.to_ns % rule.window_ns
        or command.to_ns + rule.delay_ns > timestamp_ns
    ):
        return Refused(Reason.ROLLUP_STALE, command.from_ns)
    stem = format_series(SeriesName(rule.target, ()))[:-1]
    if not all(name.startswith(stem) for name in command.batch.series):
        return Refused(Reason.PAYLOAD_FIELD_INVALID)
    written = write_batch(store, room, command.batch, index)
    if command.last:
        after = replace(progress, slice_to_ns=command.to_ns, cursor=command.last)
    else:
        after = replace(progress, done_ns=command.to_ns, slice_to_ns=TIME_NS_MIN, cursor=0)
    if isinstance(written, Refused):
        count = min(after.refused_count + 1, 2**64 - 1)
        after = replace(after, refused_count=count, refused_reason=int(written.reason))
    store.update(measurement, rules={**measurement.rules, rule.name: (rule, after)})
    return Applied(0 if isinstance(written, Refused) else written.number)


def rollup_due_ns(measurement: Measurement, rule: Rule, progress: Progress) -> int | None:
    """Return when the next window of a rule is closed; None while no point waits for it."""
    if measurement.newest_ns < progress.done_ns or measurement.newest_ns < TIME_NS_MIN:
        return None
    oldest_ns = min(measurement.oldest_ns, measurement.newest_ns)
    start_ns = window_start(max(progress.done_ns, oldest_ns), rule.window_ns)
    return start_ns + rule.window_ns + rule.delay_ns


def make_rollup(
    measurement: Measurement, rule: Rule, progress: Progress, now_ns: int, cache: BlockCache
) -> Rollup:
    """Compute the next entry of a rule that is due."""
    closed_ns = window_start(min(now_ns, TIME_NS_MAX) - rule.delay_ns, rule.window_ns)
    to_ns = progress.slice_to_ns if progress.cursor else closed_ns
    if not progress.cursor:
        first_ns = _first_time(measurement, progress.done_ns, closed_ns)
        if first_ns is not None:
            to_ns = _choose_end(measurement, rule, first_ns, closed_ns)
    runs: list[Run] = []
    points = read = last = 0
    for series_id in measurement.index.after(progress.cursor):
        if points >= ROLLUP_POINTS_MAX or read >= ROLLUP_READ_POINTS_MAX:
            break
        series = measurement.series[series_id]
        for run in _series_runs(series, rule, progress.done_ns, to_ns - 1, cache):
            runs.append(run)
            points += len(np.asarray(run.times))
        read += sum(
            points_between(column.cut(), progress.done_ns, to_ns - 1)
            for column in series.columns.values()
        )
        last = series_id
    else:
        last = 0
    return Rollup(
        measurement=measurement.name,
        rule=rule.name,
        created_index=measurement.created_index,
        rule_index=progress.index,
        from_ns=progress.done_ns,
        to_ns=to_ns,
        after=progress.cursor,
        last=last,
        batch=read_batch(Reader(encode_batch(runs))),
    )


def _first_time(measurement: Measurement, done_ns: int, closed_ns: int) -> int | None:
    """Return a time at or before the first point from ``done_ns`` on, if that is closed."""
    first_ns = closed_ns
    for column in _columns(measurement):
        if column.times:
            times, _ = column.buffered()
            times = times[times >= done_ns]
            if len(times):
                first_ns = min(first_ns, int(times.min()))
        rows = column.rows()
        rows = rows[rows[:, 2] >= done_ns]
        if len(rows):
            first_ns = min(first_ns, max(done_ns, int(rows[:, 1].min())))
    first_ns = max(first_ns, measurement.trimmed_ns)
    return first_ns if first_ns < closed_ns else None


def _columns(measurement: Measurement) -> Iterator[Column]:
    for series_id in measurement.index.ids:
        yield from measurement.series[series_id].columns.values()


def _choose_end(measurement: Measurement, rule: Rule, first_ns: int, closed_ns: int) -> int:
    """Return where to stop, so that one series of it fits an entry."""
    per_window = max(1, len(measurement.fields) * len(rule.aggregates))
    start_ns = window_start(first_ns, rule.window_ns)
    windows = max(1, ROLLUP_POINTS_MAX // per_window)
    windows = min(windows, max(1, (closed_ns - start_ns) // rule.window_ns))
    while windows > 1:
        last_ns = start_ns + windows * rule.window_ns - 1
        largest = max(
            (points_between(column.cut(), start_ns, last_ns) for column in _columns(measurement)),
            default=0,
        )
        if largest <= ROLLUP_READ_POINTS_MAX:
            break
        windows //= 2
    return min(closed_ns, start_ns + windows * rule.window_ns)


def _series_runs(
    series: Series, rule: Rule, first_ns: int, last_ns: int, cache: BlockCache
) -> Iterator[Run]:
    """Yield the aggregates of a series' fields, unless their names would be too long."""
    measurement = series.measurement
    name = format_series(SeriesName(rule.target, series.tags))
    if len(name) > SERIES_NAME_SIZE_MAX:
        return
    windows = Windows(rule.window_ns)
    for field_id in sorted(series.columns):
        column = series.columns[field_id]
        times, values = read_column(measurement, column, first_ns, last_ns, cache)
        if not len(times):
            continue
        found = stretches(windows, times)
        for kind in rule.aggregates:
            field = f"{measurement.fields[field_id].name}_{kind.name.lower()}"
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
