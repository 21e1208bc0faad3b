"""Finds the points in the payloads of time series entries, for a whole block at once.

A ``ts_write_batch`` consists of tables and runs. A run has one series, one field, a list of times,
and a value for each time (docs/timeseries.md). A field of a ``ts_write`` is treated as a run of one
point. ``Runs`` has one element for each run, in the order of the log. An entry without points is
one run without a kind, which stands for its row.

The only loops are over the fields of entries (the first field of every entry, then the second of
every entry, ...), at most 1,000 by the format; the rest is a fixed number of array operations.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Fields, Spans, gather, ragged, side_by_side, sum_each
from onelog.spark.columns.operations import TYPES
from onelog.ual.errors import CorruptPayload

NO_POINTS, F64, I64, BOOL = range(4)  # the kind of a run; the numbers are those of the format
KIND_NAMES = (None, "f64", "i64", "bool")

_WRITE = TYPES["timeseries", "ts_write"]
_BATCH = TYPES["timeseries", "ts_write_batch"]
_ROLLUP = TYPES["timeseries", "ts_rollup"]
ROLLUP_NUMBERS_SIZE = 60  # bytes between the names and the batch of a rollup
_U1, _U2, _U4 = np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4")

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of points in the order of the log; names are given as numbers of spans, -1 for none."""

    entry: Numbers  # the row of the block that the run belongs to
    size: Numbers  # points, or 1 for an entry without
    kind: NDArray[np.uint8]
    series: Numbers
    field: Numbers
    time_at: Numbers  # where the first time is in the block's buffer
    value_at: Numbers
    series_names: Spans
    field_names: Spans

    def take(self, chosen: NDArray[np.bool_]) -> "Runs":
        """Return some of the runs."""
        return Runs(
            entry=self.entry[chosen],
            size=self.size[chosen],
            kind=self.kind[chosen],
            series=self.series[chosen],
            field=self.field[chosen],
            time_at=self.time_at[chosen],
            value_at=self.value_at[chosen],
            series_names=self.series_names,
            field_names=self.field_names,
        )

    def positions(self) -> Numbers:
        """Return the position of each run's first row within its entry."""
        before = np.cumsum(self.size) - self.size
        begins = np.append(True, self.entry[1:] != self.entry[:-1])
        first = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
        found: Numbers = before - before[first]
        return found


def count_rows(block: Block) -> Numbers:
    """Return the number of rows of each entry: one for each point, or one if it has no points."""
    types = block.headers["entry_type"]
    counts = np.ones(len(block), np.int64)
    writes = np.flatnonzero(types == _WRITE)
    fields = _fields_at(block, writes)
    fields.prefix()
    fields.bytes16()
    fields.skip(8)
    counts[writes] = fields.u16()
    batches = np.flatnonzero((types == _BATCH) | (types == _ROLLUP))
    fields = _open_batches(block, batches)
    fields.skip(12)
    counts[batches] = fields.u32()
    # A point has at least one byte: a damaged count must not decide how much is allocated.
    if (counts > np.maximum(block.end - block.start, 1)).any():
        raise CorruptPayload("more points than bytes")
    return np.maximum(counts, 1)


def find_runs(block: Block) -> Runs:
    """Find all points of a block of time series entries."""
    types = block.headers["entry_type"]
    writes = _write_runs(block, np.flatnonzero(types == _WRITE))
    batches = _batch_runs(block, np.flatnonzero((types == _BATCH) | (types == _ROLLUP)))
    with_points = np.zeros(len(block), np.bool_)
    with_points[writes.entry] = with_points[batches.entry] = True
    return _merge(writes, batches, np.flatnonzero(~with_points).astype(np.int64))


def _merge(writes: Runs, batches: Runs, others: Numbers) -> Runs:
    """Put runs in the order of the log; ``others`` are entries without points."""
    count = len(others)
    none = np.full(count, -1, np.int64)
    series_before, fields_before = len(writes.series_names.start), len(writes.field_names.start)
    entry = np.concatenate((writes.entry, batches.entry, others))
    order = np.argsort(entry, kind="stable")

    def joined(of_writes: NDArray[np.int64], of_batches: NDArray[np.int64]) -> Numbers:
        found: Numbers = np.concatenate((of_writes, of_batches, none))[order]
        return found

    return Runs(
        entry=entry[order],
        size=np.concatenate((writes.size, batches.size, np.ones(count, np.int64)))[order],
        kind=np.concatenate((writes.kind, batches.kind, np.zeros(count, np.uint8)))[order],
        series=joined(writes.series, batches.series + series_before),
        field=joined(writes.field, batches.field + fields_before),
        time_at=joined(writes.time_at, batches.time_at),
        value_at=joined(writes.value_at, batches.value_at),
        series_names=_concatenate(writes.series_names, batches.series_names),
        field_names=_concatenate(writes.field_names, batches.field_names),
    )


def _concatenate(first: Spans, second: Spans) -> Spans:
    return Spans(
        np.concatenate((first.start, second.start)), np.concatenate((first.end, second.end))
    )


def _fields_at(block: Block, rows: NDArray[np.intp]) -> Fields:
    return Fields(block.data, block.start[rows], block.end[rows])


def _open_batches(block: Block, rows: NDArray[np.intp]) -> Fields:
    """Return cursors at the batches of ``ts_write_batch`` and ``ts_rollup`` entries."""
    fields = _fields_at(block, rows)
    fields.prefix()
    is_rollup = block.headers["entry_type"][rows] == _ROLLUP
    if is_rollup.any():
        fields.bytes8(is_rollup)
        fields.bytes8(is_rollup)
        fields.skip(ROLLUP_NUMBERS_SIZE, is_rollup)
    return fields


def _write_runs(block: Block, rows: NDArray[np.intp]) -> Runs:
    fields = _fields_at(block, rows)
    fields.prefix()
    series_names = fields.bytes16()
    time_at = fields.at.copy()
    fields.skip(8)
    counts = fields.u16().astype(np.int64)
    kinds, names = _read_fields(fields, counts, behind=8)
    fields.finish()
    return Runs(
        entry=np.repeat(rows.astype(np.int64), counts),
        size=np.ones(len(kinds), np.int64),
        kind=kinds,
        series=np.repeat(np.arange(len(rows), dtype=np.int64), counts),
        field=np.arange(len(kinds), dtype=np.int64),
        time_at=np.repeat(time_at, counts),
        value_at=names.end,
        series_names=series_names,
        field_names=names,
    )


def _batch_runs(block: Block, rows: NDArray[np.intp]) -> Runs:
    data = block.data
    fields = _open_batches(block, rows)
    series_count, field_count, times_count, run_count = (
        fields.u16().astype(np.int64) for _ in range(4)
    )
    times_total, points_total = (fields.u32().astype(np.int64) for _ in range(2))
    sizes_at = fields.fixed(2 * series_count).start
    name_sizes = gather(data, ragged(sizes_at, series_count, 2), _U2).astype(np.int64)
    names_at = fields.fixed(sum_each(name_sizes, series_count)).start
    name_starts = side_by_side(names_at, series_count, name_sizes)
    kinds, field_names = _read_fields(fields, field_count, behind=0)
    time_sizes_at = fields.fixed(4 * times_count).start
    time_sizes = gather(data, ragged(time_sizes_at, times_count, 4), _U4).astype(np.int64)
    run_series, run_field, run_times = (
        _read_numbers(fields, run_count, limit)
        for limit in (series_count, field_count, times_count)
    )
    size = time_sizes[run_times]
    if (
        (time_sizes == 0).any()
        or (sum_each(time_sizes, times_count) != times_total).any()
        or (sum_each(size, run_count) != points_total).any()
    ):
        raise CorruptPayload("the runs of a batch do not add up")
    times_at = fields.fixed(8 * times_total).start
    kind = kinds[run_field]
    is_narrow = kind == BOOL
    wide_size, narrow_size = np.where(is_narrow, 0, 8 * size), np.where(is_narrow, size, 0)
    wide_at = fields.fixed(sum_each(wide_size, run_count)).start
    narrow_at = fields.fixed(sum_each(narrow_size, run_count)).start
    fields.finish()
    return Runs(
        entry=np.repeat(rows.astype(np.int64), run_count),
        size=size,
        kind=kind,
        series=run_series,
        field=run_field,
        time_at=side_by_side(times_at, times_count, 8 * time_sizes)[run_times],
        value_at=np.where(
            is_narrow,
            side_by_side(narrow_at, run_count, narrow_size),
            side_by_side(wide_at, run_count, wide_size),
        ),
        series_names=Spans(name_starts, name_starts + name_sizes),
        field_names=field_names,
    )


def _read_numbers(fields: Fields, counts: Numbers, limits: Numbers) -> Numbers:
    """Read ``counts`` references to tables of ``limits`` rows, as positions in all tables."""
    at = fields.fixed(2 * counts).start
    places = gather(fields.data, ragged(at, counts, 2), _U2).astype(np.int64)
    if (places >= np.repeat(limits, counts)).any():
        raise CorruptPayload("a run names what is not in its batch")
    found: Numbers = places + np.repeat(np.cumsum(limits) - limits, counts)
    return found


def _read_fields(
    fields: Fields, counts: Numbers, *, behind: int
) -> tuple[NDArray[np.uint8], Spans]:
    """Read ``counts`` fields of each payload: a kind, a name, and ``behind`` bytes to skip.

    Returns the kinds and names of all fields, payload after payload.
    """
    firsts = np.cumsum(counts) - counts
    total = int(counts.sum())
    # A field has at least two bytes: a damaged count must not decide how much is allocated.
    if (2 * counts > fields.end - fields.at).any():
        raise CorruptPayload("a field crosses the end of its payload")
    kinds = np.zeros(total, np.uint8)
    names = Spans(np.zeros(total, np.int64), np.zeros(total, np.int64))
    rows = np.flatnonzero(counts)
    cursor = fields.take(rows)
    for step in range(int(counts.max(initial=0))):
        going_on = counts[rows] > step
        if not going_on.all():
            fields.at[rows] = cursor.at
            rows, cursor = rows[going_on], cursor.take(going_on)
        place = firsts[rows] + step
        kinds[place] = cursor.u8()
        names.start[place], names.end[place] = cursor.bytes8()
        cursor.skip(behind)
    fields.at[rows] = cursor.at
    if ((kinds < F64) | (kinds > BOOL)).any():
        raise CorruptPayload("a field has an unknown type")
    return kinds, names


def read_times(block: Block, runs: Runs) -> Numbers:
    """Return the time of every point; 0 in a row without a point."""
    has_points = runs.kind != NO_POINTS
    if has_points.all():
        found: Numbers = gather(block.data, ragged(runs.time_at, runs.size, 8), np.dtype("<i8"))
        return found
    times = np.zeros(int(runs.size.sum()), np.int64)
    sizes = runs.size[has_points]
    at = ragged(runs.time_at[has_points], sizes, 8)
    times[np.repeat(has_points, runs.size)] = gather(block.data, at, np.dtype("<i8"))
    return times


def read_values(block: Block, runs: Runs) -> NDArray[np.uint64]:
    """Return the value of every point as bits, 0 or 1 for a bool; 0 in a row without a point."""
    values = np.zeros(int(runs.size.sum()), np.uint64)
    is_wide = (runs.kind == F64) | (runs.kind == I64)
    is_narrow = runs.kind == BOOL
    for chosen, step, layout in ((is_wide, 8, np.dtype("<u8")), (is_narrow, 1, _U1)):
        if chosen.any():
            at = ragged(runs.value_at[chosen], runs.size[chosen], step)
            found = gather(block.data, at, layout)
            if chosen.all():
                values = found.astype(np.uint64, copy=False)
            else:
                values[np.repeat(chosen, runs.size)] = found
    if is_narrow.any() and (values[np.repeat(is_narrow, runs.size)] > 1).any():
        raise CorruptPayload("a bool that is neither 0 nor 1")
    return values


def to_doubles(bits: NDArray[np.uint64], kinds: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the values of points as doubles, whatever their kinds."""
    is_double = kinds == F64
    if is_double.all():
        return bits.view(np.float64)
    found = bits.view(np.int64).astype(np.float64)  # right for integers, bools and no point
    found[is_double] = bits.view(np.float64)[is_double]
    return found
