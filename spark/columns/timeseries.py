"""The view ``timeseries_operations``: one row for each point that was written, and one for each
other operation of time series.

* ``ts_write`` has a row for each field. ``ts_write_batch`` and ``ts_rollup`` have a row for each
  point, run by run, in the order of the times in the entry; one row if there are no points.
* ``ts_block`` holds points again, compressed, that were written before: it has one row with its
  numbers and no rows for its points. Its hashes and body are in the payload of the view ``log``.
* All others have one row with their operands.

``measurement`` is that of the point, or the one that the operation names. For a rollup, ``source``
is the measurement whose points were aggregated. A selection of measurements keeps the rows whose
``measurement`` or ``source`` is one of them; a block names neither.

``value`` holds every value as a double; ``value_long`` and ``value_bool`` hold it exactly. ``time``
is never null for a point: any 64-bit nanoseconds are moments between 1677 and 2262.

The matchers of a ``ts_delete`` are formatted entry by entry (2 µs each): there are few.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Fields, Spans, ragged
from onelog.spark.columns.operations import OWNERS, find_types
from onelog.spark.columns.points import (
    BOOL,
    I64,
    KIND_NAMES,
    NO_POINTS,
    Runs,
    count_rows,
    find_runs,
    read_times,
    read_values,
    to_doubles,
)
from onelog.spark.columns.selection import is_one_of
from onelog.spark.columns.series_names import (
    TAGS_TYPE,
    Distinct,
    SeriesName,
    parse_series_name,
    tags_column,
)
from onelog.spark.columns.timeseries_operands import OPERANDS, Operands, read_operands
from onelog.spark.columns.view import ENTRY_FIELDS, Output, View
from onelog.ual.errors import CorruptPayload

_SCHEMA = pa.schema(
    [
        *ENTRY_FIELDS,
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("measurement", pa.string()),
        pa.field("series", pa.string()),
        pa.field("tags", TAGS_TYPE),
        pa.field("field", pa.string()),
        pa.field("time", arrays.TIMESTAMP),
        pa.field("time_ns", pa.int64()),
        pa.field("value_type", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("value_long", pa.int64()),
        pa.field("value_bool", pa.bool_()),
        *(pa.field(name, kind) for name, kind in OPERANDS.items()),
    ]
)


def entries_with_measurement(block: Block, names: frozenset[bytes]) -> NDArray[np.bool_]:
    """Tell which entries of any owner concern one of some measurements.

    An entry does if it names the measurement, or a series of it.
    """
    mask = np.zeros(len(block), np.bool_)
    owner = block.headers["entry_type"] >> np.uint16(8)
    rows = np.flatnonzero(owner == OWNERS.index("timeseries"))
    if len(rows):
        table = _Table.of(block.select(rows))
        mask[rows[table.runs.entry[table.of_measurements(names)]]] = True
    return mask


@dataclass(frozen=True, eq=False)
class _Table:
    """The runs of a block, and the other operands of their entries."""

    block: Block
    namespaces: Spans
    runs: Runs
    positions: NDArray[np.int64]  # of the first row of each run within its entry
    operands: Operands

    @staticmethod
    def of(block: Block) -> "_Table":
        runs = find_runs(block)
        fields = Fields(block.data, block.start, block.end)
        return _Table(block, fields.prefix(), runs, runs.positions(), read_operands(block))

    def select(self, chosen: NDArray[np.bool_]) -> "_Table":
        """Return some of the runs."""
        runs, positions = self.runs.take(chosen), self.positions[chosen]
        return _Table(self.block, self.namespaces, runs, positions, self.operands)

    # Names of series and fields, each distinct one once

    @cached_property
    def series(self) -> Distinct:
        return Distinct(self.block.data, self.runs.series_names)

    @cached_property
    def parsed(self) -> list[SeriesName]:
        return [parse_series_name(raw) for raw in self.series.values.to_pylist()]

    @cached_property
    def measurements(self) -> tuple[pa.Array, NDArray[np.int64]]:
        """The distinct measurements, and the number of each run's measurement; -1: none."""
        runs, named = self.runs, self.operands.texts["measurement"]
        own: dict[str, int] = {}
        of_series = [own.setdefault(each.measurement, len(own)) for each in self.parsed]
        rows = np.flatnonzero(named.valid)
        others = arrays.text(self.block.data, named.spans.take(rows)).dictionary_encode()
        if others.null_count:
            raise CorruptPayload("the name of a measurement is not UTF-8")
        of_entry = np.full(len(self.block), -1, np.int64)
        of_entry[rows] = others.indices.to_numpy() + len(own)
        codes = of_entry[runs.entry]
        has_series = runs.series >= 0
        numbers = np.array(of_series, np.int64)[self.series.codes]
        codes[has_series] = numbers[runs.series[has_series]]
        return pa.concat_arrays([pa.array(list(own), pa.string()), others.dictionary]), codes

    def of_measurements(self, names: frozenset[bytes]) -> NDArray[np.bool_]:
        """Tell which runs have one of some measurements as ``measurement`` or ``source``."""
        values, codes = self.measurements
        wanted = [name.encode() in names for name in values.to_pylist()]
        mask: NDArray[np.bool_] = np.array([*wanted, False], np.bool_)[codes]  # the last is -1
        source = self.operands.texts["source"]
        if source.valid.any():
            from_one = source.valid & is_one_of(self.block.data, source.spans, names)
            mask |= from_one[self.runs.entry]
        return mask

    # Rows

    @cached_property
    def run_of_row(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.runs.size)), self.runs.size)

    @cached_property
    def entry_of_row(self) -> NDArray[np.intp]:
        return self.runs.entry[self.run_of_row]

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        return self.runs.kind[self.run_of_row]

    @cached_property
    def times(self) -> NDArray[np.int64]:
        return read_times(self.block, self.runs)

    @cached_property
    def values(self) -> NDArray[np.uint64]:
        return read_values(self.block, self.runs)

    def take(self, values: pa.Array, codes: NDArray[np.int64]) -> pa.Array:
        """Return the value of each row by the code of its run; -1 is null."""
        absent = codes < 0
        numbers = codes[self.run_of_row]
        mask = absent[self.run_of_row] if absent.any() else None
        return values.take(pa.array(numbers, mask=mask))

    def series_codes(self) -> NDArray[np.int64]:
        return _codes(self.series, self.runs.series)


def _codes(names: Distinct, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map numbers of spans to numbers of distinct names; -1 stays -1."""
    found: NDArray[np.int64] = np.append(names.codes, -1)[spans]
    return found


def _decode(block: Block, output: Output) -> None:
    selection = output.request.selection
    if selection.namespaces is not None:
        namespaces = Fields(block.data, block.start, block.end).prefix()
        block = block.select(
            np.flatnonzero(is_one_of(block.data, namespaces, selection.namespaces))
        )
    table = _Table.of(block)
    if selection.measurements is not None:
        table = table.select(table.of_measurements(selection.measurements))
    position = ragged(table.positions, table.runs.size)
    output.add_entry_columns(block, table.entry_of_row, position)
    output.add(
        "namespace", lambda: arrays.text(block.data, table.namespaces, rows=table.entry_of_row)
    )
    _add_names(table, output)
    _add_values(table, output)
    for name, make in table.operands.columns(block.data, lambda: table.entry_of_row):
        if name != "measurement":
            output.add(name, make)


def _add_names(table: _Table, output: Output) -> None:
    def field() -> pa.Array:
        names = Distinct(table.block.data, table.runs.field_names)
        return table.take(arrays.to_text(names.values), _codes(names, table.runs.field))

    output.add("measurement", lambda: table.take(*table.measurements))
    output.add(
        "series", lambda: table.take(arrays.to_text(table.series.values), table.series_codes())
    )
    output.add("tags", lambda: table.take(tags_column(table.parsed), table.series_codes()))
    output.add("field", field)


def _add_values(table: _Table, output: Output) -> None:
    def of_kind(kind: int, column: pa.DataType, cast: Callable[[Any], Any]) -> pa.Array:
        if not (table.runs.kind == kind).any():
            return pa.nulls(len(table.kinds), column)
        return arrays.numbers(cast(table.values), column, table.kinds == kind)

    has_point = table.kinds != NO_POINTS
    output.add("time", lambda: arrays.timestamps(table.times, has_point))
    output.add("time_ns", lambda: arrays.numbers(table.times, valid=has_point))
    output.add("value_type", lambda: arrays.named(table.kinds, KIND_NAMES))
    output.add(
        "value",
        lambda: arrays.numbers(
            to_doubles(table.values, table.kinds), pa.float64(), table.kinds != NO_POINTS
        ),
    )
    output.add("value_long", lambda: of_kind(I64, pa.int64(), lambda bits: bits.view(np.int64)))
    output.add("value_bool", lambda: of_kind(BOOL, pa.bool_(), lambda bits: bits != 0))


VIEW = View("timeseries_operations", _SCHEMA, find_types("timeseries"), count_rows, _decode)
