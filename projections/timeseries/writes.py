"""Writing points: one row, or a columnar batch.

Both decide first and write last. A write is all or nothing: one invalid point (wrong type, too old,
a series above the cardinality limit) refuses the entry. Missing objects are created: measurements
with default settings, fields with the type of their first value, series, columns.

The batch is the path that must be fast: known series are found by the bytes of their names, a run
of points is appended by two copies of bytes, and all points of the entry are hashed at once.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused
from onelog.projections.timeseries.columns import Column
from onelog.projections.timeseries.commands import Write
from onelog.projections.timeseries.hashing import (
    GOLDEN,
    hash_point,
    hash_points,
    run_seed,
    spread_seeds,
)
from onelog.projections.timeseries.limits import (
    BUFFER_POINTS,
    BUFFER_POINTS_MAX,
    FIELDS_MAX,
    MEASUREMENTS_MAX,
    TIME_NS_MIN,
)
from onelog.projections.timeseries.names import SeriesName, parse_series
from onelog.projections.timeseries.point_batch import WriteBatch
from onelog.projections.timeseries.store import (
    Field,
    Measurement,
    Series,
    SeriesSpace,
    Store,
    rules_after,
)
from onelog.projections.timeseries.types import Config, FieldType, Policy, to_field_type, value_bits

_HASH_MASK = 2**64 - 1
_FULL_SIZE = 8 * BUFFER_POINTS
_BUFFER_SIZE_MAX = 8 * BUFFER_POINTS_MAX
_MISSING = -1  # ids that no column has: the field is new,
_MISMATCH = -2  # or has another type

Known = Series | SeriesName
"""A series that exists, or the name of one to be created."""


@dataclass(slots=True)
class Plan:
    """What a write will create, checked against the limits before anything is created."""

    space: SeriesSpace
    measurements: dict[str, None] = field(default_factory=dict)
    series: dict[str, int] = field(default_factory=dict)  # how many per measurement
    fields: dict[tuple[str, str], FieldType] = field(default_factory=dict)
    field_counts: dict[str, int] = field(default_factory=dict)

    def find_series(self, name: bytes) -> Known | Refused:
        """Return a known series, or plan a new one."""
        series = self.space.series.get(name)
        if series is not None:
            return series
        parsed = parse_series(name)
        measurement = self.space.measurements.get(parsed.measurement)
        count = self.series.get(parsed.measurement, 0) + 1
        if measurement is None:
            self.measurements[parsed.measurement] = None
            if len(self.space.measurements) + len(self.measurements) > MEASUREMENTS_MAX:
                return Refused(Reason.MEASUREMENTS_FULL, MEASUREMENTS_MAX)
            series_max, present = Config().series_max, 0
        else:
            series_max, present = measurement.config.series_max, len(measurement.series)
        if present + count > series_max:
            return Refused(Reason.SERIES_FULL, series_max)
        self.series[parsed.measurement] = count
        return parsed

    def refuse_field(self, known: Known, name: str, field_type: FieldType) -> Refused | None:
        """Plan a field for a series, or return why it is refused."""
        measurement: Measurement | None
        if isinstance(known, Series):
            measurement = known.measurement
            key = measurement.name
        else:
            key = known.measurement
            measurement = self.space.measurements.get(key)
        if measurement is not None and name in measurement.field_ids:
            present = measurement.fields[measurement.field_ids[name]].field_type
        else:
            planned = self.fields.get((key, name))
            if planned is None:
                self.fields[key, name] = field_type
                count = self.field_counts.get(key, 0) + 1
                self.field_counts[key] = count
                if count + (len(measurement.fields) if measurement else 0) > FIELDS_MAX:
                    return Refused(Reason.FIELDS_FULL, FIELDS_MAX)
                return None
            present = planned
        return None if present is field_type else Refused(Reason.FIELD_TYPE_MISMATCH, present)


def write_row(store: Store, space: SeriesSpace, command: Write, index: int) -> Outcome:
    """Write the fields of one series at one time."""
    plan = Plan(space)
    known = plan.find_series(command.series)
    if isinstance(known, Refused):
        return known
    time_ns = command.time_ns
    for name, value in command.fields:
        refused = plan.refuse_field(known, name, to_field_type(value))
        if refused is None and isinstance(known, Series):
            refused = _refuse_point(known, name, time_ns)
        if refused is not None:
            return refused
    if isinstance(known, SeriesName):
        measurement = space.measurements.get(known.measurement)
        if measurement is not None and time_ns < measurement.trimmed_ns:
            return Refused(Reason.POINT_TOO_OLD, measurement.trimmed_ns)
    _make_fields(store, plan, index)
    series = known
    if isinstance(series, SeriesName):
        (series_id,) = store.take_series_ids(1)
        series = _make_series(store, space, series, command.series, series_id, index)
    fresh = False
    raw_time = time_ns.to_bytes(8, "little", signed=True)
    for name, value in command.fields:
        field_type = to_field_type(value)
        field_id = series.measurement.field_ids[name]
        column = series.columns.get(field_id)
        if column is None:
            column = store.add_column(series, field_id)
            fresh = True
        bits = value_bits(value)
        width = 1 if field_type is FieldType.BOOL else 8
        _append(store, column, raw_time, bits.to_bytes(width, "little"))
        seed = run_seed(column.seed, column.base + len(column) - 1)
        store.add_hash(hash_point(seed, time_ns, bits))
    store.point_count += len(command.fields)
    if fresh:
        store.publish_series(space, [series], index)
    note_times(store, series.measurement, time_ns, time_ns)
    return APPLIED


def write_batch(store: Store, space: SeriesSpace, batch: WriteBatch, index: int) -> Outcome:
    """Write the runs of a batch; the result's number is that of the points."""
    if not batch.run_series:
        return APPLIED
    plan = Plan(space)
    known: list[Known] = []
    for name in batch.series:
        found = plan.find_series(name)
        if isinstance(found, Refused):
            return found
        known.append(found)
    columns = _find_columns(plan, known, batch)
    if isinstance(columns, Refused):
        return columns
    refused = _refuse_times(space, known, columns, batch)
    if refused is not None:
        return refused
    _make_fields(store, plan, index)
    made = _make_columns(store, space, known, columns, batch, index)
    _append_runs(store, made, batch)
    _note_batch_times(store, made, batch)
    return Applied(len(batch.point_times))


def note_times(store: Store, measurement: Measurement, first_ns: int, last_ns: int) -> None:
    """Widen the bounds of a measurement, and reset rules to the first late point."""
    rules = rules_after(measurement, first_ns) if measurement.rules else None
    # A sweep has visited some series already: their new points belong to its next round.
    oldest_ns = measurement.oldest_ns
    if measurement.sweep_after:
        oldest_ns = max(oldest_ns, measurement.sweep_oldest_ns)
    if first_ns >= oldest_ns and last_ns <= measurement.newest_ns and rules is None:
        return
    store.widen(measurement, first_ns, last_ns)
    if rules is not None:
        store.update(measurement, rules=rules)


def _refuse_point(series: Series, field_name: str, time_ns: int) -> Refused | None:
    """Return why a column of a known series refuses a point, if it does."""
    measurement = series.measurement
    if time_ns < measurement.trimmed_ns:
        return Refused(Reason.POINT_TOO_OLD, measurement.trimmed_ns)
    field_id = measurement.field_ids.get(field_name, _MISSING)
    column = series.columns.get(field_id)
    if column is None:
        return None
    if len(column.times) >= _BUFFER_SIZE_MAX:
        return Refused(Reason.SERIES_BUFFER_FULL, len(column))
    if measurement.config.policy is Policy.REJECT:
        newest_ns = column.newest_ns()
        if time_ns <= newest_ns:
            return Refused(Reason.POINT_NOT_NEWER, newest_ns)
    return None


def _find_columns(
    plan: Plan, known: list[Known], batch: WriteBatch
) -> list[Column | None] | Refused:
    """Return the column of each run, None for one to be created."""
    field_ids: dict[str, list[int]] = {}
    ids_by_series: list[list[int]] = []
    columns_by_series: list[dict[int, Column]] = []
    nothing: dict[int, Column] = {}
    for each in known:
        if isinstance(each, SeriesName):
            columns_by_series.append(nothing)
            ids_by_series.append([_MISSING] * len(batch.fields))
            continue
        measurement = each.measurement
        ids = field_ids.get(measurement.name)
        if ids is None:
            ids = [_field_id(measurement, *of_batch) for of_batch in batch.fields]
            field_ids[measurement.name] = ids
        columns_by_series.append(each.columns)
        ids_by_series.append(ids)
    columns: list[Column | None] = []
    for series, number in zip(batch.run_series, batch.run_fields, strict=True):
        column = columns_by_series[series].get(ids_by_series[series][number])
        if column is None:
            refused = plan.refuse_field(known[series], *batch.fields[number])
            if refused is not None:
                return refused
        elif len(column.times) >= _BUFFER_SIZE_MAX:
            return Refused(Reason.SERIES_BUFFER_FULL, len(column))
        columns.append(column)
    return columns


def _field_id(measurement: Measurement, name: str, field_type: FieldType) -> int:
    field_id = measurement.field_ids.get(name)
    if field_id is None:
        return _MISSING
    return field_id if measurement.fields[field_id].field_type is field_type else _MISMATCH


def _refuse_times(
    space: SeriesSpace, known: list[Known], columns: list[Column | None], batch: WriteBatch
) -> Refused | None:
    """Check the times of a batch against retention and against policies that reject."""
    first_ns = int(batch.point_times.min())
    strict = False
    for each in known:
        measurement = (
            each.measurement
            if isinstance(each, Series)
            else space.measurements.get(each.measurement)
        )
        if measurement is not None and (
            first_ns < measurement.trimmed_ns or measurement.config.policy is Policy.REJECT
        ):
            strict = True
            break
    if not strict:
        return None
    newest: dict[tuple[int, int], int] = {}  # by series and field of the batch
    for number, series in enumerate(batch.run_series):
        each = known[series]
        measurement = (
            each.measurement
            if isinstance(each, Series)
            else space.measurements.get(each.measurement)
        )
        if measurement is None:
            continue
        start = int(batch.starts[number])
        times = batch.point_times[start : start + int(batch.sizes[number])]
        if int(times.min()) < measurement.trimmed_ns:
            return Refused(Reason.POINT_TOO_OLD, measurement.trimmed_ns)
        if measurement.config.policy is not Policy.REJECT:
            continue
        key = series, batch.run_fields[number]
        column = columns[number]
        newest_ns = newest.get(key)
        if newest_ns is None:
            newest_ns = TIME_NS_MIN - 1 if column is None else column.newest_ns()
        falling = np.flatnonzero(times[1:] <= times[:-1])
        if int(times[0]) <= newest_ns:
            return Refused(Reason.POINT_NOT_NEWER, newest_ns)
        if len(falling):
            return Refused(Reason.POINT_NOT_NEWER, int(times[falling[0]]))
        newest[key] = int(times[-1])
    return None


def _make_columns(
    store: Store,
    space: SeriesSpace,
    known: list[Known],
    columns: list[Column | None],
    batch: WriteBatch,
    index: int,
) -> list[Column]:
    """Create what the plan found missing; return the column of each run."""
    changed: dict[bytes, Series] = {}
    made: list[Column] = []
    ids = store.take_series_ids(sum(isinstance(each, SeriesName) for each in known))
    for number, column in enumerate(columns):
        if column is None:
            place = batch.run_series[number]
            name = batch.series[place]
            series = known[place]
            if isinstance(series, SeriesName):
                series = _make_series(store, space, series, name, next(ids), index)
                known[place] = series
            field_id = series.measurement.field_ids[batch.fields[batch.run_fields[number]][0]]
            column = series.columns.get(field_id)
            if column is None:  # the same field may come in several runs
                column = store.add_column(series, field_id)
                changed[name] = series
        made.append(column)
    if changed:
        store.publish_series(space, changed.values(), index)
    return made


def _make_series(
    store: Store, space: SeriesSpace, parsed: SeriesName, name: bytes, series_id: int, index: int
) -> Series:
    measurement = space.measurements[parsed.measurement]
    return store.add_series(measurement, name, parsed.tags, series_id, index)


def _make_fields(store: Store, plan: Plan, index: int) -> None:
    """Create the fields that are planned, and measurements for them.

    All fields of a measurement together: it is hashed once, not once per field.
    """
    fields: dict[str, list[Field]] = {}
    for (key, name), field_type in plan.fields.items():
        fields.setdefault(key, []).append(Field(name, field_type))
    for key, new in fields.items():
        measurement = plan.space.measurements.get(key)
        if measurement is None:
            measurement = store.create_measurement(plan.space, key, Config(), index)
        store.add_fields(measurement, new)


def _append(store: Store, column: Column, times: bytes, values: bytes) -> None:
    if store.undo.active:
        sizes = len(column.times), len(column.values)
        store.undo.note(partial(store.truncate, column, *sizes))
    column.times += times
    column.values += values
    store.buffer_size += len(times) + len(values)
    if len(column.times) >= _FULL_SIZE:
        store.full[column.key] = column


def _append_runs(store: Store, columns: list[Column], batch: WriteBatch) -> None:
    """Append every run to its column, then hash all points of the batch at once."""
    times = memoryview(batch.times)
    values = memoryview(batch.raw_values)
    seeds: list[int] = []
    undo = store.undo
    full = store.full
    for column, size, time_start, value_start, value_end in zip(
        columns,
        batch.sizes.tolist(),
        batch.time_starts,
        batch.value_starts,
        batch.value_ends,
        strict=True,
    ):
        buffered = column.times
        before = len(buffered)
        if undo.active:
            undo.note(partial(store.truncate, column, before, len(column.values)))
        seeds.append((column.seed + (column.base + (before >> 3)) * GOLDEN) & _HASH_MASK)
        buffered += times[8 * time_start : 8 * (time_start + size)]
        column.values += values[value_start:value_end]
        if before + 8 * size >= _FULL_SIZE:
            full[column.series_id, column.field_id] = column
    points = len(batch.point_times)
    store.point_count += points
    store.buffer_size += 8 * points + len(batch.raw_values)
    spread = spread_seeds(seeds, batch.sizes, batch.starts)
    store.add_hash(hash_points(spread, batch.point_times.view(np.uint64), batch.bits))


def _note_batch_times(store: Store, columns: list[Column], batch: WriteBatch) -> None:
    names = [store.by_id[column.series_id].measurement for column in columns]
    first = names[0]
    if all(each is first for each in names):
        times = batch.point_times
        note_times(store, first, int(times.min()), int(times.max()))
        return
    firsts: NDArray[np.int64] = np.minimum.reduceat(batch.point_times, batch.starts)
    lasts: NDArray[np.int64] = np.maximum.reduceat(batch.point_times, batch.starts)
    bounds: dict[str, tuple[Measurement, int, int]] = {}
    for each, first_ns, last_ns in zip(names, firsts.tolist(), lasts.tolist(), strict=True):
        _, low, high = bounds.get(each.name, (each, first_ns, last_ns))
        bounds[each.name] = (each, min(low, first_ns), max(high, last_ns))
    for each, first_ns, last_ns in bounds.values():
        note_times(store, each, first_ns, last_ns)
