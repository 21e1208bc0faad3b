"""Removing points: by matcher and range, by retention, and whole measurements.

Each entry does a bounded amount of work and returns where to continue: ids of series rise, so a
cursor is the last id that was visited. Buffered points and whole blocks are removed at once. A
block that is affected in part stays, and the column remembers the range: reads omit its points.
Ranges that touch are merged (``columns.merge_range``), so deletes of adjacent times stay one. An
empty series is removed, and no longer counts for the cardinality limit.

Retention first raises ``trimmed_ns`` of the measurement, which hides all older points from reads at
once, then sweeps through the series step by step. It keeps what rules have still to read
(store.py).
"""

import numpy as np

from onelog.projections.codec import U64
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Outcome, Refused
from onelog.projections.timeseries.columns import (
    Column,
    DeletedRange,
    Rows,
    merge_range,
    raw_values,
    rows_outside,
    useful_ranges,
)
from onelog.projections.timeseries.commands import Delete, DropMeasurement, Trim
from onelog.projections.timeseries.limits import (
    DELETE_BLOCKS_MAX,
    DELETE_COLUMNS_MAX,
    DELETE_EFFORT_MAX,
    DELETE_RANGES_MAX,
    DELETE_SERIES_MAX,
    DELETE_VISITS_MAX,
    DELETED_RANGES_MAX,
    TIME_NS_MAX,
    TIME_NS_MIN,
    TRIM_COLUMNS_MAX,
    UNMERGED_RANGES_MAX,
)
from onelog.projections.timeseries.names import compile_matchers, passes_all
from onelog.projections.timeseries.store import (
    Measurement,
    Series,
    SeriesSpace,
    Store,
    trim_allowed_ns,
)


class _Budget:
    """The work that one entry may still do."""

    __slots__ = ("blocks", "columns", "ranges", "series", "visits")

    def __init__(self) -> None:
        self.visits = DELETE_VISITS_MAX
        self.series = DELETE_SERIES_MAX
        self.columns = DELETE_COLUMNS_MAX
        self.blocks = DELETE_BLOCKS_MAX
        self.ranges = DELETE_RANGES_MAX

    @property
    def left(self) -> bool:
        """Whether the budget allows one more series."""
        return min(self.visits, self.series, self.columns, self.blocks, self.ranges) > 0

    def take(self, series: Series) -> None:
        """Charge the cost of changing a series."""
        self.series -= 1
        self.columns -= len(series.columns)
        self.blocks -= sum(len(column.rows()) for column in series.columns.values())
        self.ranges -= _extra_ranges(series)


def _extra_ranges(series: Series) -> int:
    """Count the ranges that no column had before ranges were merged: older logs replay the same."""
    return sum(
        max(0, len(column.deleted) - UNMERGED_RANGES_MAX) for column in series.columns.values()
    )


def delete(store: Store, space: SeriesSpace, command: Delete, index: int) -> Outcome:
    """Delete points or series; number = series changed, value = cursor unless all are done."""
    measurement = _find_measurement(space, command)
    if measurement is None:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    whole = (command.first_ns, command.last_ns) == (TIME_NS_MIN, TIME_NS_MAX)
    new = DeletedRange(command.first_ns, command.last_ns, index)
    tests = compile_matchers(command.matchers)
    patterns = [test for test in tests if test.is_pattern]
    chosen: list[Series] = []
    budget = _Budget()
    cursor: int | None = None
    last = command.after
    for series_id in measurement.index.after(command.after):
        if not budget.left or sum(test.effort for test in patterns) > DELETE_EFFORT_MAX:
            cursor = last
            break
        budget.visits -= 1
        series = measurement.series[series_id]
        if 0 < command.before_index <= series.created_index:
            break  # and all that follow are younger
        if not tests or passes_all(tests, series.tags):
            if not whole and not all(
                _takes_range(each, new, merges=command.merges) for each in series.columns.values()
            ):
                if not chosen:
                    limit = DELETED_RANGES_MAX if command.merges else UNMERGED_RANGES_MAX
                    return Refused(Reason.SERIES_DELETES_FULL, limit)
                cursor = last
                break
            chosen.append(series)
            budget.take(series)
        last = series_id
    gone = chosen
    if not whole:
        for series in chosen:
            for column in series.columns.values():
                _delete_range(store, column, new, merges=command.merges)
        gone = [each for each in chosen if all(c.empty for c in each.columns.values())]
    if gone:
        store.remove_series(measurement, gone, index)
    return Applied(len(chosen), None if cursor is None else U64.pack(cursor))


def _takes_range(column: Column, new: DeletedRange, *, merges: bool) -> bool:
    """Return whether the column can take one more deleted range, or needs none."""
    if merges and len(column.deleted) < DELETED_RANGES_MAX:
        return True
    limit = DELETED_RANGES_MAX if merges else UNMERGED_RANGES_MAX
    return len(_with_range(column, new, merges=merges)[0]) <= limit


def _with_range(
    column: Column, new: DeletedRange, *, merges: bool
) -> tuple[tuple[DeletedRange, ...], Rows]:
    """Return the deleted ranges and the blocks of a column as they will be."""
    rows = column.rows()
    if merges:
        return merge_range(column.deleted, rows, new)
    left = rows_outside(rows, new.first_ns, new.last_ns)
    older = tuple(
        each
        for each in column.deleted
        if each.first_ns < new.first_ns or each.last_ns > new.last_ns
    )
    return useful_ranges((*older, new), left), left


def _delete_range(store: Store, column: Column, new: DeletedRange, *, merges: bool) -> None:
    times, bits = column.buffered()
    kept = (times < new.first_ns) | (times > new.last_ns)
    deleted, left = _with_range(column, new, merges=merges)
    if bool(kept.all()) and len(left) == len(column.rows()) and deleted == column.deleted:
        return
    values = raw_values(column.field_type, bits[kept])
    buffer = bytearray(times[kept].tobytes()), bytearray(values)
    store.change_column(column, buffer=buffer, rows=left, deleted=deleted)


def drop_measurement(
    store: Store, space: SeriesSpace, command: DropMeasurement, index: int
) -> Outcome:
    """Delete series, then the measurement; number = series, value = series left unless done."""
    measurement = _find_measurement(space, command)
    if measurement is None:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    budget = _Budget()
    gone: list[Series] = []
    for series_id in measurement.index.after(0):
        if not budget.left:
            break
        series = measurement.series[series_id]
        budget.take(series)
        gone.append(series)
    if gone:
        store.remove_series(measurement, gone, index)
    if measurement.series:
        return Applied(len(gone), U64.pack(len(measurement.series)))
    store.remove_measurement(measurement, index)
    return Applied(len(gone))


def _find_measurement(space: SeriesSpace, command: Delete | DropMeasurement) -> Measurement | None:
    """Return the measurement, unless it was created after the deletion that this continues."""
    found = space.measurements.get(command.measurement)
    is_younger = found is not None and 0 < command.before_index <= found.created_index
    return None if is_younger else found


def trim(store: Store, space: SeriesSpace, command: Trim, index: int, timestamp_ns: int) -> Outcome:
    """Drop what retention does not keep, for the next series of a sweep; number = series gone."""
    measurement = space.measurements.get(command.measurement)
    if measurement is None or measurement.created_index != command.created_index:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    retention_ns = measurement.config.retention_ns
    allowed_ns = trim_allowed_ns(measurement, timestamp_ns)
    if not retention_ns or command.cutoff_ns > allowed_ns:
        return Refused(Reason.TRIM_EARLY, allowed_ns if retention_ns else 0)
    if command.after != measurement.sweep_after:
        return Refused(Reason.TRIM_STALE, measurement.sweep_after)
    cutoff_ns = max(measurement.trimmed_ns, command.cutoff_ns)
    oldest_ns = measurement.sweep_oldest_ns if command.after else TIME_NS_MAX + 1
    cursor = 0
    columns_left = TRIM_COLUMNS_MAX
    gone: list[Series] = []
    last = command.after
    for series_id in measurement.index.after(command.after):
        if columns_left <= 0:
            cursor = last
            break
        last = series_id
        series = measurement.series[series_id]
        columns_left -= len(series.columns) + _extra_ranges(series) // UNMERGED_RANGES_MAX
        for column in series.columns.values():
            oldest_ns = min(oldest_ns, _trim_column(store, column, cutoff_ns))
        if all(column.empty for column in series.columns.values()):
            gone.append(series)
    if gone:
        store.remove_series(measurement, gone, index)
    store.update(
        measurement,
        trimmed_ns=cutoff_ns,
        sweep_after=cursor,
        sweep_oldest_ns=oldest_ns if cursor else TIME_NS_MAX + 1,
        oldest_ns=measurement.oldest_ns if cursor else oldest_ns,
    )
    return Applied(len(gone))


def _trim_column(store: Store, column: Column, cutoff_ns: int) -> int:
    """Drop points and blocks before the cutoff; return the next time to be dropped.

    A block is dropped with its last point; until then reads omit points that are too old.
    """
    rows = column.rows()
    oldest_ns = TIME_NS_MAX + 1
    if column.times:
        oldest_ns = int(np.frombuffer(column.times, dtype=np.int64).min())
    if len(rows):
        oldest_ns = min(oldest_ns, int(rows[:, 2].min()))
    if oldest_ns >= cutoff_ns:
        return oldest_ns
    times, bits = column.buffered()
    kept = times >= cutoff_ns
    times = times[kept]
    rows = rows[rows[:, 2] >= cutoff_ns]
    buffer = bytearray(times.tobytes()), bytearray(raw_values(column.field_type, bits[kept]))
    deleted = useful_ranges(column.deleted, rows)
    store.change_column(column, buffer=buffer, rows=rows, deleted=deleted)
    firsts = [int(times.min())] if len(times) else []
    firsts += [int(rows[:, 2].min())] if len(rows) else []
    return min(firsts, default=TIME_NS_MAX + 1)
