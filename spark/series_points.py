"""The view ``timeseries``: all points of a state, from blocks and buffers.

Blocks are entries of the log, and those of one column are far apart in it. A task reads the log
once, in order, and copies the wanted blocks to a temporary file; then it reads them column by
column. Memory is bounded, and the file takes a few bytes for each point.

A block that is no longer kept is an error. The log keeps the blocks of the present state; a past
state may need others.
"""

import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.errors import OutOfRange
from onelog.snapshot.past import PastState
from onelog.snapshot.points import SeriesColumn, find_columns, read_points
from onelog.spark.columns import arrays
from onelog.spark.columns.operations import TYPES
from onelog.spark.columns.points import BOOL, I64, KIND_NAMES
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.series_names import TAGS_TYPE, parse_series_name, tags_column
from onelog.spark.columns.view import BATCH_ROWS_MAX
from onelog.spark.faults import REASON_DROPPED
from onelog.spark.options import ReadOptions
from onelog.spark.origin import Origin, Range

TIMESERIES_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("measurement", pa.string(), nullable=False),
        pa.field("series", pa.string(), nullable=False),
        pa.field("tags", TAGS_TYPE, nullable=False),
        pa.field("field", pa.string(), nullable=False),
        pa.field("time", arrays.TIMESTAMP, nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("value_type", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("value_long", pa.int64()),
        pa.field("value_bool", pa.bool_()),
    ]
)

_TYPE_BLOCK = TYPES["timeseries", "ts_block"]

Part = tuple[SeriesColumn, NDArray[np.int64], NDArray[Any]]


def point_batches(
    origin: Origin, read: ReadOptions, shard: int, past: PastState, columns: frozenset[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted points of a shard's state, with these columns (None: all)."""
    names = read.namespaces, read.measurements
    namespaces, measurements = (
        None if each is None else {name.decode() for name in each} for each in names
    )
    fields = [each for each in TIMESERIES_SCHEMA if columns is None or each.name in columns]
    schema = pa.schema(fields)
    with tempfile.TemporaryFile() as file:
        found = find_columns(past.projections, namespaces=namespaces, measurements=measurements)
        blocks = StoredBlocks(origin, shard, found, file)
        part: list[Part] = []
        size = 0
        for column, times, values in read_points(found, blocks.read):
            for at in range(0, len(times), BATCH_ROWS_MAX):
                rows = slice(at, at + BATCH_ROWS_MAX)
                # Copied, because the next read overwrites these arrays.
                part.append((column, times[rows].copy(), values[rows].copy()))
                size += len(times[rows])
                if size >= BATCH_ROWS_MAX:
                    yield _batch(shard, part, schema)
                    part, size = [], 0
        if part:
            yield _batch(shard, part, schema)


class StoredBlocks:
    """The blocks of some columns, readable in any order."""

    def __init__(
        self, origin: Origin, shard: int, columns: list[SeriesColumn], file: IO[bytes]
    ) -> None:
        self._shard = shard
        self._file = file
        lists = [column.blocks for column in columns]
        self._indexes = np.sort(np.concatenate(lists)) if lists else np.empty(0, np.int64)
        self._starts = np.zeros(len(self._indexes), np.int64)
        self._ends = np.zeros(len(self._indexes), np.int64)
        if len(self._indexes):
            try:
                self._bring(origin)
            except OutOfRange as error:
                if error.reason != REASON_DROPPED:
                    raise
                raise self._not_kept(int(self._indexes[0])) from error
            missing = np.flatnonzero(self._ends == 0)
            if len(missing):  # a compacted file has only some of its entries
                raise self._not_kept(int(self._indexes[missing[0]]))
            self._file.flush()

    def read(self, index: int) -> bytes:
        """Return the plain payload of a block's entry."""
        at = int(np.searchsorted(self._indexes, index))
        start = int(self._starts[at])
        return os.pread(self._file.fileno(), int(self._ends[at]) - start, start)

    def _bring(self, origin: Origin) -> None:
        selection = Selection(types=frozenset((_TYPE_BLOCK,)))
        whole = Range(self._shard, int(self._indexes[0]), int(self._indexes[-1]))
        position = 0
        for split in origin.splits([whole], selection):
            bounds = (split.first_index, split.last_index + 1)
            first, stop = np.searchsorted(self._indexes, bounds).tolist()
            if first == stop:
                continue
            for block in origin.blocks(split, selection):
                indexes = block.headers["index"].astype(np.int64)
                places = np.searchsorted(self._indexes, indexes)
                places = np.minimum(places, len(self._indexes) - 1)
                data = block.data.data
                for row in np.flatnonzero(self._indexes[places] == indexes).tolist():
                    payload = data[block.start[row] : block.end[row]]
                    self._file.write(payload)
                    self._starts[places[row]] = position
                    position += len(payload)
                    self._ends[places[row]] = position

    def _not_kept(self, index: int) -> OutOfRange:
        return OutOfRange(
            f"the state needs the block of points in entry {index} of shard {self._shard}, which "
            "the log no longer keeps: ask for the present state, or for a later one",
            reason=REASON_DROPPED,
            metadata={"shard": str(self._shard), "index": str(index)},
        )


def _batch(shard: int, part: list[Part], schema: pa.Schema) -> pa.RecordBatch:
    """Return the points of some columns as rows."""
    columns = [column for column, _, _ in part]
    sizes = np.array([len(times) for _, times, _ in part])
    count = int(sizes.sum())
    rows = pa.array(np.repeat(np.arange(len(part), dtype=np.int32), sizes))

    def spread(values: list[str] | pa.Array) -> pa.Array:
        every = pa.array(values, pa.string()) if isinstance(values, list) else values
        return every.take(rows)

    times = np.concatenate([times for _, times, _ in part])
    makers = {
        "shard": lambda: arrays.constant(shard, count, pa.int32()),
        "namespace": lambda: spread([each.namespace for each in columns]),
        "measurement": lambda: spread([each.measurement for each in columns]),
        "series": lambda: spread([each.series.decode() for each in columns]),
        "tags": lambda: spread(tags_column([parse_series_name(each.series) for each in columns])),
        "field": lambda: spread([each.field for each in columns]),
        "time": lambda: arrays.timestamps(times),
        "time_ns": lambda: arrays.numbers(times),
        "value_type": lambda: spread([str(KIND_NAMES[each.field_type]) for each in columns]),
        "value": lambda: pa.array(
            np.concatenate([values.astype(np.float64, copy=False) for _, _, values in part])
        ),
        "value_long": lambda: _of_kind(part, sizes, I64, np.dtype(np.int64)),
        "value_bool": lambda: _of_kind(part, sizes, BOOL, np.dtype(np.bool_)),
    }
    found = [makers[each.name]() for each in schema]
    if not found:  # only the number of rows is wanted
        return pa.RecordBatch.from_arrays([pa.nulls(count)], [""]).select([])
    return pa.RecordBatch.from_arrays(found, schema=schema)


def _of_kind(
    part: list[Part], sizes: NDArray[np.int64], kind: int, layout: np.dtype[Any]
) -> pa.Array:
    """Return the values of the columns of one kind, and nulls for the other columns."""
    if not any(column.field_type == kind for column, _, _ in part):
        return pa.nulls(int(sizes.sum()), pa.from_numpy_dtype(layout))
    parts = [
        values if column.field_type == kind else np.zeros(len(values), layout)
        for column, _, values in part
    ]
    absent = np.repeat([column.field_type != kind for column, _, _ in part], sizes)
    return pa.array(np.concatenate(parts), mask=absent)
