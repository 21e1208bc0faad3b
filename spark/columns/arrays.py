"""Numpy arrays and spans of bytes as Arrow arrays, without a loop over rows.

A column of bytes is made by one ``take``. The buffer that holds all payloads is treated as a binary
array whose elements are, in turn, a wanted span and the gap behind it; taking the wanted ones
copies each once. Spans must ascend, as they do in the order of the log. Rows that share a span, or
are in another order, refer to a span by its number.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onelog.spark.columns.fields import Spans

Mask = NDArray[np.bool_]

# Spark has no unsigned integers, and its timestamps are microseconds in UTC.
TIMESTAMP = pa.timestamp("us", tz="UTC")
INDEX = pa.int64()

# Well-formed UTF-8 (RFC 3629) as a pattern of bytes: Arrow matches binary columns as Latin-1.
_UTF8 = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]"
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}"
    r"|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)


def binary(
    data: NDArray[np.uint8],
    spans: Spans,
    *,
    valid: Mask | None = None,
    rows: NDArray[np.intp] | None = None,
) -> pa.Array:
    """Return spans as a column of bytes.

    ``valid``: which spans exist; the others are null. ``rows``: the number of the span of each row,
    if rows share spans.
    """
    count = len(spans.start)
    chosen = np.arange(count, dtype=np.int64) if rows is None else rows.astype(np.int64)
    if not count or not len(chosen):
        return pa.nulls(len(chosen), pa.binary())
    starts, ends = spans
    absent = None
    if valid is not None and not valid.all():
        # A null span must not break the order of the offsets.
        starts, ends = starts.copy(), ends.copy()
        starts[~valid] = ends[~valid] = 0
        floor = np.maximum.accumulate(ends)
        starts[~valid] = ends[~valid] = floor[~valid]
        absent = ~valid[chosen]
    assert (ends >= starts).all() and (starts[1:] >= ends[:-1]).all(), "spans do not ascend"  # noqa: PT018
    base = starts[0]
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts - base
    offsets[1::2] = ends - base
    everything = pa.Array.from_buffers(
        pa.binary(),
        2 * count - 1,
        [None, pa.py_buffer(offsets), pa.py_buffer(data[base : ends[-1]])],
    )
    return everything.take(pa.array(2 * chosen, mask=absent))


def to_readable(values: pa.Array) -> pa.Array:
    """Return a column of bytes as text; what is not UTF-8 becomes replacement characters."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        # Rare: only then value by value, each distinct one once.
        coded = values.dictionary_encode()
        readable = [value.decode(errors="replace") for value in coded.dictionary.to_pylist()]
        return pa.array(readable, pa.string()).take(coded.indices)


def text(
    data: NDArray[np.uint8],
    spans: Spans,
    *,
    valid: Mask | None = None,
    rows: NDArray[np.intp] | None = None,
) -> pa.Array:
    """Return spans as text; one that is not UTF-8 is null."""
    return to_text(binary(data, spans, valid=valid, rows=rows))


def to_text(values: pa.Array) -> pa.Array:
    """Return a column of bytes as text; what is not UTF-8 is null."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        is_text = pc.match_substring_regex(values, _UTF8)
        return pc.if_else(is_text, values, pa.scalar(None, pa.binary())).cast(pa.string())


def numbers(values: NDArray[Any], kind: pa.DataType = INDEX, valid: Mask | None = None) -> pa.Array:
    """Return numbers as a column; unsigned 64-bit ones are reinterpreted as signed."""
    if values.dtype.byteorder == ">":
        values = values.astype(values.dtype.newbyteorder("<"))
    if values.dtype == np.uint64:
        values = np.ascontiguousarray(values).view(np.int64)
    absent = None if valid is None or valid.all() else ~valid
    found = pa.array(np.ascontiguousarray(values), mask=absent)
    return found if found.type == kind else found.cast(kind)


def timestamps(values_ns: NDArray[Any], valid: Mask | None = None) -> pa.Array:
    """Return nanoseconds since 1970 as timestamps of microseconds."""
    micros = values_ns.astype(np.int64) // 1_000
    return numbers(micros, TIMESTAMP, valid)


def constant(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    """Return a column that has the same value in each row."""
    return pa.repeat(pa.scalar(value, kind), count)


def named(codes: NDArray[Any], names: Sequence[str | None]) -> pa.Array:
    """Return a column of names; ``codes`` are positions in ``names``."""
    return pa.array(names, pa.string()).take(pa.array(codes.astype(np.int64)))


def lists(counts: NDArray[Any], items: pa.Array, valid: Mask | None = None) -> pa.Array:
    """Return a column of lists: ``counts`` items each, one after the other; null if not valid."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    absent = None if valid is None or valid.all() else pa.array(~valid)
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=absent)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly the columns of a schema, in its order; missing ones are null."""
    if not schema.names:  # only the number of rows is wanted
        return batch
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        column = batch.column(at) if at >= 0 else pa.nulls(batch.num_rows, field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
