"""The time series section of a snapshot as tables: ``series`` and the points of buffers.

A column is one field of one series. ``series`` has a row for each column, with the blocks that hold
its older points: entries of the log, by index. ``buffered_points`` has the newest points, which are
in no block yet, in order of arrival; of two with the same time, ``policy`` and ``arrival`` decide
which one counts. Reads show nothing before ``trimmed_ns``, and nothing that a ``deleted`` range
covers in blocks below its ``before_index``.

Columns are read one by one (3 µs each); their points, blocks and names by array operations.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.points import BOOL, F64, I64, KIND_NAMES, to_doubles
from onelog.spark.columns.section_bytes import (
    PIECE_BYTES,
    U8,
    U16,
    U32,
    U64,
    SectionBytes,
    refuse,
)
from onelog.spark.columns.series_names import TAGS_TYPE, parse_series_name, tags_column
from onelog.spark.columns.timeseries_operands import POLICY_NAMES
from onelog.spark.columns.view import BATCH_ROWS_MAX
from onelog.ual.errors import CorruptPayload

_BLOCKS = pa.struct(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("first_ns", pa.int64(), nullable=False),
        pa.field("last_ns", pa.int64(), nullable=False),
        pa.field("points", pa.int64(), nullable=False),
    ]
)
_DELETED = pa.struct(
    [
        pa.field("first_ns", pa.int64(), nullable=False),
        pa.field("last_ns", pa.int64(), nullable=False),  # included
        pa.field("before_index", pa.int64(), nullable=False),
    ]
)
_COLUMN_FIELDS = (
    pa.field("namespace", pa.string(), nullable=False),
    pa.field("measurement", pa.string(), nullable=False),
    pa.field("series_id", pa.int64(), nullable=False),
    pa.field("series", pa.string(), nullable=False),
    pa.field("tags", TAGS_TYPE, nullable=False),
    pa.field("field_id", pa.int32()),
    pa.field("field", pa.string()),
    pa.field("value_type", pa.string()),
    pa.field("policy", pa.string(), nullable=False),
    pa.field("trimmed_ns", pa.int64()),
)
SERIES_SCHEMA = pa.schema(
    [
        *_COLUMN_FIELDS,
        pa.field("retention_ns", pa.int64(), nullable=False),
        pa.field("created_index", pa.int64(), nullable=False),
        pa.field("base", pa.int64()),  # points that left the buffer before
        pa.field("buffered", pa.int64(), nullable=False),
        pa.field("block_points", pa.int64(), nullable=False),
        pa.field("blocks", pa.list_(_BLOCKS), nullable=False),
        pa.field("deleted", pa.list_(_DELETED), nullable=False),
    ]
)
BUFFERED_POINTS_SCHEMA = pa.schema(
    [
        *_COLUMN_FIELDS,
        pa.field("arrival", pa.int64(), nullable=False),  # number among all points of the column
        pa.field("time", arrays.TIMESTAMP, nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("value_long", pa.int64()),
        pa.field("value_bool", pa.bool_()),
    ]
)
BATCH_COLUMNS_MAX = 16_384

_HEAD = struct.Struct("<QQq")  # created, config index, trimmed
_CONFIG = struct.Struct("<BQI")
_BOUNDS_SIZE = 32
_SERIES = struct.Struct("<QQ")
_COLUMN = struct.Struct("<HQIIH")  # field, base, points, blocks, deleted ranges
_BLOCK_WORDS, _DELETED_WORDS = 4, 3
_NEVER_TRIMMED = -(1 << 62)
_VALUE_SIZES = (0, 8, 8, 1)


@dataclass(slots=True)
class _Measurement:
    namespace: str
    name: str
    trimmed_ns: int
    policy: int
    retention_ns: int
    kinds: list[int] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Column:
    """A field of a series; ``field_id`` -1: the series has none."""

    measurement: _Measurement
    series_id: int
    series: bytes
    created_index: int
    field_id: int = -1
    base: int = 0
    times: bytes = b""
    values: bytes = b""
    blocks: bytes = b""
    deleted: bytes = b""

    @property
    def kind(self) -> int:
        return 0 if self.field_id < 0 else self.measurement.kinds[self.field_id]

    @property
    def points(self) -> int:
        return len(self.times) // 8


def series_rows(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each field of each series; a series without fields has one row."""
    for columns in _parts(chunks):
        blocks = _words([column.blocks for column in columns], _BLOCK_WORDS)
        block_counts = _lengths([column.blocks for column in columns], 8 * _BLOCK_WORDS)
        deleted = _words([column.deleted for column in columns], _DELETED_WORDS)
        deleted_counts = _lengths([column.deleted for column in columns], 8 * _DELETED_WORDS)
        block_ends = np.append(0, np.cumsum(block_counts))
        points = np.append(0, np.cumsum(blocks[:, 3]))
        has_field = _numbers([column.field_id for column in columns]) >= 0
        made = [
            *_names(columns, np.arange(len(columns))),
            pa.array([column.measurement.retention_ns for column in columns], pa.int64()),
            pa.array([column.created_index for column in columns], pa.int64()),
            arrays.numbers(_numbers([column.base for column in columns]), valid=has_field),
            pa.array([column.points for column in columns], pa.int64()),
            arrays.numbers(points[block_ends[1:]] - points[block_ends[:-1]]),
            _list(blocks, block_counts, _BLOCKS),
            _list(deleted, deleted_counts, _DELETED),
        ]
        yield pa.RecordBatch.from_arrays(made, schema=SERIES_SCHEMA)


def buffered_point_rows(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the points of all buffers, column by column, in order of arrival."""
    for part in _parts(chunks):
        columns = [column for column in part if column.points]
        if not columns:
            continue
        sizes = _numbers([column.points for column in columns])
        row = np.repeat(np.arange(len(columns)), sizes)
        kinds = np.array([column.kind for column in columns], np.uint8)[row]
        times = np.frombuffer(b"".join([column.times for column in columns]), "<i8")
        bits = _values(columns, kinds)
        bases = _numbers([column.base for column in columns])
        place = np.arange(len(row)) - (np.cumsum(sizes) - sizes)[row]
        made = [
            *_names(columns, row),
            arrays.numbers(bases[row] + place),
            arrays.timestamps(times),
            arrays.numbers(times),
            arrays.numbers(to_doubles(bits, kinds), pa.float64()),
            arrays.numbers(bits.view(np.int64), valid=kinds == I64),
            pa.array(bits != 0, mask=kinds != BOOL),
        ]
        yield pa.RecordBatch.from_arrays(made, schema=BUFFERED_POINTS_SCHEMA)


def _values(columns: list[_Column], kinds: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the values of all points as bits."""
    wide = b"".join([column.values for column in columns if column.kind != BOOL])
    narrow = b"".join([column.values for column in columns if column.kind == BOOL])
    if not narrow:
        return np.frombuffer(wide, "<u8")
    bits = np.empty(len(kinds), np.uint64)
    bits[kinds != BOOL] = np.frombuffer(wide, "<u8")
    bits[kinds == BOOL] = found = np.frombuffer(narrow, np.uint8)
    refuse((found > 1).any(), "a bool that is neither 0 nor 1")
    return bits


def _names(columns: list[_Column], rows: NDArray[np.intp]) -> list[pa.Array]:
    """Return the columns that name the series and field of each row."""
    parsed = [parse_series_name(column.series) for column in columns]
    measurements = [column.measurement for column in columns]
    for name, measurement in zip(parsed, measurements, strict=True):
        refuse(name.measurement != measurement.name, "a series of another measurement")
    field_ids = _numbers([column.field_id for column in columns])
    fields = [
        each.measurement.fields[each.field_id] if each.field_id >= 0 else None for each in columns
    ]
    trimmed_ns = _numbers([each.trimmed_ns for each in measurements])
    every = [
        pa.array([each.namespace for each in measurements], pa.string()),
        pa.array([each.name for each in measurements], pa.string()),
        arrays.numbers(_numbers([column.series_id for column in columns])),
        pa.array([column.series.decode() for column in columns], pa.string()),
        tags_column(parsed),
        arrays.numbers(field_ids, pa.int32(), field_ids >= 0),
        pa.array(fields, pa.string()),
        arrays.named(np.array([column.kind for column in columns]), KIND_NAMES),
        arrays.named(np.array([each.policy for each in measurements]), POLICY_NAMES),
        arrays.numbers(trimmed_ns, valid=trimmed_ns != _NEVER_TRIMMED),
    ]
    if len(rows) == len(columns):  # one row each
        return every
    chosen = pa.array(rows)
    return [values.take(chosen) for values in every]


def _numbers(values: list[int]) -> NDArray[np.int64]:
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        raise CorruptPayload("a number in a section is out of bounds") from error


def _lengths(parts: list[bytes], size: int) -> NDArray[np.int64]:
    return np.array([len(part) for part in parts], np.int64) // size


def _words(parts: list[bytes], words: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.frombuffer(b"".join(parts), "<i8").reshape(-1, words)
    return found


def _list(rows: NDArray[np.int64], counts: NDArray[np.int64], kind: pa.StructType) -> pa.Array:
    """Return rows of numbers as lists of structs, ``counts`` of them in each list."""
    columns = [pa.array(np.ascontiguousarray(rows[:, place])) for place in range(len(kind))]
    structs = pa.StructArray.from_arrays(columns, fields=list(kind))
    offsets = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
    return pa.ListArray.from_arrays(offsets, structs, type=pa.list_(kind))


def _parts(chunks: Iterable[bytes]) -> Iterator[list[_Column]]:
    """Yield lists of columns, each bounded in number, points and bytes."""
    part: list[_Column] = []
    points = size = 0
    for column in _columns(SectionBytes(chunks)):
        part.append(column)
        points += column.points
        size += len(column.times) + len(column.values) + len(column.blocks) + len(column.series)
        if len(part) >= BATCH_COLUMNS_MAX or points >= BATCH_ROWS_MAX or size >= PIECE_BYTES:
            yield part
            part, points, size = [], 0, 0
    if part:
        yield part


def _columns(section: SectionBytes) -> Iterator[_Column]:
    section.number(U64)
    for _ in range(section.number(U16)):
        namespace = section.text(U8)
        for _ in range(section.number(U32)):
            measurement = _measurement(namespace, section.sized(U32))
            section.take(_BOUNDS_SIZE)
            for _ in range(section.number(U64)):
                yield from _series(section, measurement)
    section.finish()


def _measurement(namespace: str, head: bytes) -> _Measurement:
    """Read the head of a measurement, without its rules."""
    reader = SectionBytes((b"\x01", head))
    name = reader.text(U8)
    _, _, trimmed_ns = reader.fields(_HEAD)
    policy, retention_ns, _ = reader.fields(_CONFIG)
    refuse(not 1 <= policy < len(POLICY_NAMES), "an unknown policy")
    found = _Measurement(namespace, name, trimmed_ns, policy, retention_ns)
    for _ in range(reader.number(U16)):
        kind = reader.number(U8)
        refuse(not F64 <= kind <= BOOL, "a field of an unknown type")
        found.kinds.append(kind)
        found.fields.append(reader.text(U8))
    return found


def _series(section: SectionBytes, measurement: _Measurement) -> Iterator[_Column]:
    series_id, created_index = section.fields(_SERIES)
    name = section.sized(U16)
    count = section.number(U16)
    if not count:
        yield _Column(measurement, series_id, name, created_index)
    for _ in range(count):
        field_id, base, points, blocks, ranges = section.fields(_COLUMN)
        refuse(field_id >= len(measurement.fields), "a field that does not exist")
        yield _Column(
            measurement,
            series_id,
            name,
            created_index,
            field_id,
            base,
            section.take(8 * points),
            section.take(_VALUE_SIZES[measurement.kinds[field_id]] * points),
            section.take(8 * _BLOCK_WORDS * blocks),
            section.take(8 * _DELETED_WORDS * ranges),
        )
