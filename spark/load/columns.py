"""Columns of rows to write: the accepted types, one canonical form for each, and a digest.

In the canonical form, columns are large_binary, int64, float64 or bool. Rows are thus the same
wherever they come from: Spark or a file, text or bytes, batches of any size. The digest is over
that form. Headers are a large_binary of protobuf fields, ready to be sent.

A bad row is found here, before any row of its batch is written. The error names the row, counted
from 0 in the partition or file.
"""

from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onelog.errors import InvalidArgument, OnelogError, TooLarge
from onelog.packed import sized

DIGEST_SIZE = 16
HEADERS_MAX = 64
_HEADER_NAME = b"\x0a"  # Header.name = 1
_HEADER_VALUE = b"\x12"  # Header.value = 2
_INT64_MAX = 2**63 - 1
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class Kind(Enum):
    """What a column holds."""

    BYTES = "binary or string"
    TEXT = "string"
    INTEGER = "an integer"
    TIME = "a timestamp, or an integer of nanoseconds since 1970"
    HEADERS = "a map or struct of strings or binaries"
    FIELD = "a float, an integer or a bool"


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a target takes."""

    kind: Kind
    is_required: bool = False  # and never null
    tag: bytes = b""  # headers only: the protobuf tag of their field in its message


def fits(kind: Kind, found: pa.DataType) -> bool:
    """Tell whether a column of this type is accepted.

    A column of nulls only is accepted, except as a field: a field has the same type in all rows,
    and nulls do not tell which.
    """
    if pa.types.is_null(found):
        return kind is not Kind.FIELD
    match kind:
        case Kind.BYTES:
            return _is_text(found) or _is_binary(found)
        case Kind.TEXT:
            return _is_text(found)
        case Kind.INTEGER:
            return bool(pa.types.is_integer(found))
        case Kind.TIME:
            return bool(pa.types.is_timestamp(found) or pa.types.is_int64(found))
        case Kind.HEADERS:
            if pa.types.is_map(found):
                return _is_text(found.key_type) and fits(Kind.BYTES, found.item_type)
            return bool(pa.types.is_struct(found)) and all(
                fits(Kind.BYTES, each.type) for each in found
            )
        case Kind.FIELD:
            return bool(
                pa.types.is_floating(found)
                or pa.types.is_integer(found)
                or pa.types.is_boolean(found)
            )


def _is_text(found: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(found)
        or pa.types.is_large_string(found)
        or pa.types.is_string_view(found)
    )


def _is_binary(found: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(found)
        or pa.types.is_large_binary(found)
        or pa.types.is_binary_view(found)
        or pa.types.is_fixed_size_binary(found)
    )


def to_canonical_form(column: Column, name: str, array: pa.Array, first_row: int) -> pa.Array:
    """Return a column in its canonical form; refuse values that have none."""
    match column.kind:
        case Kind.BYTES | Kind.TEXT:
            return array.cast(pa.large_binary())
        case Kind.INTEGER:
            return _integers(name, array, first_row)
        case Kind.TIME:
            return _times(name, array, first_row)
        case Kind.HEADERS:
            return _headers(name, array, first_row, column.tag)
        case Kind.FIELD:
            if pa.types.is_boolean(array.type):
                return array
            if pa.types.is_integer(array.type):
                return _integers(name, array, first_row)
            return array.cast(pa.float64())


def _integers(name: str, array: pa.Array, first_row: int) -> pa.Array:
    if pa.types.is_uint64(array.type):
        check(
            pc.greater(array, pa.scalar(_INT64_MAX, pa.uint64())), first_row, name,
            "does not fit a signed 64-bit integer", "NUMBER_INVALID",
        )  # fmt: skip
    return array.cast(pa.int64())


def _times(name: str, array: pa.Array, first_row: int) -> pa.Array:
    if not pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())
    unit_ns = _UNIT_NS[array.type.unit]
    counts = array.cast(pa.int64())
    limit = _INT64_MAX // unit_ns
    beyond = pc.or_(pc.greater(counts, limit), pc.less(counts, -limit))
    check(beyond, first_row, name, "is no time of 1678 to 2262", "POINT_TIME_INVALID")
    return pc.multiply(counts, unit_ns)


def _headers(name: str, array: pa.Array, first_row: int, tag: bytes) -> pa.Array:
    """Return headers as they are sent; rows without headers cost nothing."""
    encoded: list[bytes | None] = [None] * len(array)
    for row in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
        found: Any = array[row].as_py()
        pairs = found.items() if isinstance(found, dict) else found
        parts = []
        for header, value in pairs:
            if value is None:
                if isinstance(found, dict):
                    continue  # a null in a struct: this row does not have the header
                raise row_error(first_row + row, name, f"has no value for {header!r}",
                                "HEADER_INVALID")  # fmt: skip
            data = value.encode() if isinstance(value, str) else value
            body = sized(_HEADER_NAME, header.encode()) + sized(_HEADER_VALUE, data)
            parts.append(sized(tag, body))
        if len(parts) > HEADERS_MAX:
            message = f"has {len(parts)} headers, at most {HEADERS_MAX}"
            raise row_error(first_row + row, name, message, "HEADER_INVALID")
        encoded[row] = b"".join(parts)
    return pa.array(encoded, pa.large_binary())


def check(is_bad: Any, first_row: int, column: str, what: str, reason: str) -> None:
    """Refuse the first row for which a mask is true; nulls in the mask count as false."""
    if isinstance(is_bad, pa.Array | pa.ChunkedArray):
        is_bad = pc.fill_null(is_bad, fill_value=False).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(is_bad)
    if len(bad):
        raise row_error(first_row + int(bad[0]), column, what, reason)


def row_error(row: int, column: str, what: str, reason: str) -> OnelogError:
    """Return the error of a row that cannot be written."""
    kind = TooLarge if reason.endswith("TOO_LARGE") else InvalidArgument
    return kind(
        f"{column} of row {row} {what}",
        reason=reason,
        metadata={"row": str(row), "column": column},
    )


def estimate_sizes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the approximate size of each row in bytes."""
    total = np.full(rows.num_rows, 8 * rows.num_columns, np.int64)
    for column in rows.columns:
        if pa.types.is_large_binary(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            total += lengths.to_numpy(zero_copy_only=False)
    return total


def digest_rows(before: bytes, rows: pa.RecordBatch) -> bytes:
    """Return the digest of rows that follow others; it depends on all rows and their order."""
    digest = blake2b(before, digest_size=DIGEST_SIZE)
    digest.update(rows.num_rows.to_bytes(8, "little"))
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        digest.update(f"{name}:{column.type};".encode())
        digest.update(column.is_valid().to_numpy(zero_copy_only=False).tobytes())
        if pa.types.is_large_binary(column.type):
            # The bytes behind a null are undefined: make them empty, so that digests are equal.
            whole = pa.concat_arrays([pc.fill_null(column, b"")])
            _, offset_buffer, data = whole.buffers()
            offsets = np.frombuffer(offset_buffer, np.int64, len(whole) + 1, whole.offset * 8)
            digest.update(np.diff(offsets).tobytes())
            if data is not None:
                digest.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])
        else:
            filled = pc.fill_null(column, pa.scalar(0).cast(column.type))
            digest.update(filled.to_numpy(zero_copy_only=False).tobytes())
    return digest.digest()
