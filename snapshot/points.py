"""All time series points of a state: column after column, as a query over all time returns them.

A column is one field of one series. ``find_columns`` returns them, with the blocks that hold their
older points: entries of the log, by index. The caller puts the payloads where they can be read in
any order; then ``read_points`` yields times and values, by the rule of queries
(``projections/timeseries/read.py``): one point for each time as the policy says, without deleted
ranges and trimmed points.

A long column is read in windows of time, so that memory is bounded whatever its length.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onelog.projections.shard_state import Projections
from onelog.projections.timeseries.columns import Column, CorruptBlock, Rows, Times
from onelog.projections.timeseries.limits import TIME_NS_MAX, TIME_NS_MIN
from onelog.projections.timeseries.read import BlockCache, ReadBlock, read_column
from onelog.projections.timeseries.store import Measurement
from onelog.ual.errors import CorruptPayload

# About how many points of blocks are decoded for one window.
WINDOW_POINTS = 1 << 17
# Decoded blocks that are kept, for windows that share some.
CACHE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class SeriesColumn:
    """One field of one series."""

    namespace: str
    measurement: str
    series: bytes  # the canonical name
    field: str
    field_type: int
    _measurement: Measurement
    _column: Column

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The entries that hold its blocks, ascending."""
        return self._column.rows()[:, 0]


def find_columns(
    projections: Projections,
    *,
    namespaces: Collection[str] | None = None,
    measurements: Collection[str] | None = None,
) -> list[SeriesColumn]:
    """Return the columns that have points, in the order of names; None: of all."""
    found: list[SeriesColumn] = []
    for namespace, space in sorted(projections.series.spaces.items()):
        if namespaces is not None and namespace not in namespaces:
            continue
        for measurement in space.in_order():
            if measurements is not None and measurement.name not in measurements:
                continue
            for series in measurement.series.values():
                for field_id, column in sorted(series.columns.items()):
                    if column.empty:
                        continue
                    field = measurement.fields[field_id]
                    names = (namespace, measurement.name, series.name, field.name)
                    found.append(SeriesColumn(*names, int(column.field_type), measurement, column))
    return found


def read_points(
    columns: Collection[SeriesColumn], read_block: ReadBlock
) -> Iterator[tuple[SeriesColumn, Times, NDArray[Any]]]:
    """Yield times and values of each column, in the order of time; a long one in several parts.

    ``read_block`` returns the plain payload of the entry at an index, and is asked for the blocks
    of one column after the other. The arrays are valid until the next iteration.
    """
    for each in columns:
        cache = BlockCache(read_block, CACHE_BYTES)
        for first_ns, last_ns in _windows(each._column.rows()):
            try:
                times, values = read_column(
                    each._measurement, each._column, first_ns, last_ns, cache
                )
            except CorruptBlock as error:
                raise CorruptPayload(str(error)) from error
            if len(times):
                yield each, times, values


def _windows(rows: Rows) -> Iterator[tuple[int, int]]:
    """Yield ranges of time that cover all times, each with some of the blocks."""
    first_ns = TIME_NS_MIN
    if int(rows[:, 3].sum()) > WINDOW_POINTS:
        order = np.argsort(rows[:, 2], kind="stable")
        parts = np.cumsum(rows[order, 3]) // WINDOW_POINTS
        # A window ends with the last block of each part.
        ends = rows[order, 2][np.flatnonzero(np.diff(parts))]
        for last_ns in np.unique(ends).tolist():
            yield first_ns, last_ns
            first_ns = last_ns + 1
    yield first_ns, TIME_NS_MAX
