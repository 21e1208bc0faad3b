"""The key-value section of a snapshot as tables: ``kv`` and ``kv_versions``.

One pass in Python finds where each key starts (0.25 µs a key), because only the size of a key tells
where the next one starts. Array operations then make all columns from these positions.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.fields import Fields, Spans
from onelog.spark.columns.section_bytes import (
    U8,
    U16,
    U32,
    U64,
    SectionBytes,
    end_of_records,
    optional_numbers,
    refuse,
)

KV_SCHEMA = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("key_text", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("expires_ns", pa.int64()),
        pa.field("lease", pa.int64()),
    ]
)
KV_VERSIONS_SCHEMA = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("key_text", pa.string()),
        pa.field("place", pa.int32(), nullable=False),  # 0: the newest version of the key
        pa.field("version", pa.int64(), nullable=False),
        pa.field("value", pa.binary()),  # null: deleted
        pa.field("tombstone", pa.bool_(), nullable=False),
        pa.field("expired", pa.bool_(), nullable=False),  # deleted because it expired
        pa.field("expires_ns", pa.int64()),
        pa.field("lease", pa.int64()),
        pa.field("trimmed", pa.bool_(), nullable=False),  # older versions of the key were dropped
    ]
)

_TOMBSTONE, _EXPIRED, _EXPIRES, _LEASED = 1, 2, 4, 8
_FLAGS_END = 16
_LEASE_SIZE = 24
VALUE_SIZE_MAX = 8_323_072  # of the format (docs/payloads.md)
KEY_BYTES_MAX = 4_100 + 255 * (VALUE_SIZE_MAX + 29)  # a key with the most and largest versions
# The largest distance between values of a batch: Arrow's offsets have 32 bits.
VERSIONS_BYTES_MAX = 256 << 20

_HEAD = struct.Struct("<xB8xBI")  # of a key, behind the key: versions, flags, value size
_HEAD_SIZE = _HEAD.size
_VERSION = struct.Struct("<8xBI")  # flags, value size

Numbers = NDArray[np.int64]


def kv_rows(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the live keys of a section, in the order of namespaces and keys."""
    for namespace, data, starts, end in _pieces(chunks):
        keys = _read_keys(data, starts, end)
        newest = _read_versions(data, keys.first_version, end)
        live = np.flatnonzero((newest.flags & np.uint8(_TOMBSTONE)) == 0)
        keys_column = arrays.binary(data, keys.key.take(live))
        versions = newest.take(live)
        if len(live):
            columns = [
                arrays.constant(namespace, len(live), pa.string()),
                keys_column,
                arrays.to_text(keys_column),
                arrays.binary(data, versions.value),
                arrays.numbers(versions.version),
                versions.expiry(),
                versions.leases(),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=KV_SCHEMA)


def kv_version_rows(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield every kept version of every key of a section, the newest of a key first."""
    for namespace, data, starts, end in _pieces(chunks):
        keys = _read_keys(data, starts, end)
        key_of_row, place, versions = _all_versions(data, keys, end)
        first = 0
        while first < len(place):
            reach = versions.value.start[first] + VERSIONS_BYTES_MAX
            stop = max(int(np.searchsorted(versions.value.end, reach, "right")), first + 1)
            rows = np.arange(first, stop)
            yield _version_batch(
                namespace, data, keys, key_of_row[rows], place[rows], versions.take(rows)
            )
            first = stop


class _Keys(NamedTuple):
    key: Spans
    trimmed: NDArray[np.uint8]
    version_count: Numbers
    first_version: Numbers  # where the newest one starts


class _Versions(NamedTuple):
    version: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    expires_ns: NDArray[np.uint64]
    lease: NDArray[np.uint64]
    value: Spans

    def take(self, rows: NDArray[np.intp]) -> "_Versions":
        return _Versions(
            self.version[rows],
            self.flags[rows],
            self.expires_ns[rows],
            self.lease[rows],
            self.value.take(rows),
        )

    def has(self, flag: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (self.flags & np.uint8(flag)) != 0
        return found

    def expiry(self) -> pa.Array:
        return optional_numbers(self.expires_ns, self.has(_EXPIRES))

    def leases(self) -> pa.Array:
        return optional_numbers(self.lease, self.has(_LEASED))


def _pieces(
    chunks: Iterable[bytes],
) -> Iterator[tuple[str, NDArray[np.uint8], Numbers, int]]:
    """Yield pieces of whole keys: namespace, bytes, where each key starts, where the last ends."""
    section = SectionBytes(chunks)
    for _ in range(section.number(U16)):
        namespace = section.text(U8)
        section.number(U64)
        for _ in range(section.number(U32)):
            section.take(_LEASE_SIZE)
        for data, starts, end in section.records(section.number(U64), _find_keys):
            yield namespace, data, starts, end
    section.finish()


def _find_keys(data: bytes, at: int, count: int, starts: list[int]) -> tuple[int, int]:
    """Find keys; see ``FindRecords``. This runs for every key, so it does as little as it can."""
    read_head, found = _HEAD.unpack_from, starts.append
    is_cut = False
    try:
        for _ in range(count):
            found(at)
            at += 2 + (data[at] | data[at + 1] << 8)
            versions, flags, size = read_head(data, at)
            at += _HEAD_SIZE + size
            if flags or versions != 1:
                at = _skip_versions(data, at, versions, flags)
    except (IndexError, struct.error):
        is_cut = True
    return end_of_records(starts, at, len(data), is_cut=is_cut, record_bytes_max=KEY_BYTES_MAX)


def _skip_versions(data: bytes, at: int, count: int, flags: int) -> int:
    """Return where a key ends; ``at``: where its newest value ends, before the bindings."""
    at += 8 * (flags >> 2 & 1) + 8 * (flags >> 3 & 1)
    for _ in range(count - 1):
        flags, size = _VERSION.unpack_from(data, at)
        at += 13 + size + 8 * (flags >> 2 & 1) + 8 * (flags >> 3 & 1)
    return at


def _read_keys(data: NDArray[np.uint8], starts: Numbers, end: int) -> _Keys:
    fields = Fields(data, starts, np.append(starts[1:], end))
    key = fields.bytes16()
    trimmed, count = fields.u8(), fields.u8()
    refuse((trimmed > 1).any() or not count.all(), "a key without versions")
    return _Keys(key, trimmed, count.astype(np.int64), fields.at)


def _read_versions(data: NDArray[np.uint8], starts: Numbers, end: int) -> _Versions:
    fields = Fields(data, starts, np.full(len(starts), end))
    version, flags, size = fields.u64(), fields.u8(), fields.u32().astype(np.int64)
    refuse((flags >= _FLAGS_END).any() or (size > VALUE_SIZE_MAX).any(), "a bad version of a key")
    if flags.any():
        expires_ns = fields.u64((flags & np.uint8(_EXPIRES)) != 0)
        lease = fields.u64((flags & np.uint8(_LEASED)) != 0)
        gone = (flags & np.uint8(_TOMBSTONE)) != 0
        refuse((size[gone] > 0).any() or (flags[gone] > 3).any(), "a bad tombstone of a key")
        refuse((flags[~gone] & np.uint8(_EXPIRED)).any(), "a value that has expired")
    else:
        expires_ns = lease = np.zeros(len(starts), np.uint64)
    return _Versions(version, flags, expires_ns, lease, fields.fixed(size))


def _all_versions(
    data: NDArray[np.uint8], keys: _Keys, end: int
) -> tuple[NDArray[np.intp], Numbers, _Versions]:
    """Return the key, place and content of each version, key by key and newest first."""
    firsts = np.cumsum(keys.version_count) - keys.version_count
    total = int(keys.version_count.sum())
    key_of_row = np.repeat(np.arange(len(firsts)), keys.version_count)
    place = np.arange(total) - firsts[key_of_row]
    starts = np.empty(total, np.int64)
    rows, at = np.arange(len(firsts)), keys.first_version
    for step in range(
        int(keys.version_count.max(initial=0))
    ):  # at most 255 steps: the first version of every key, then the second, and so on
        going_on = keys.version_count[rows] > step
        rows, at = rows[going_on], at[going_on]
        starts[firsts[rows] + step] = at
        at = _read_versions(data, at, end).value.end
    versions = _read_versions(data, starts, end)
    same_key = place[1:] > 0
    refuse((versions.version[1:] >= versions.version[:-1])[same_key].any(), "versions out of order")
    return key_of_row, place, versions


def _version_batch(
    namespace: str,
    data: NDArray[np.uint8],
    keys: _Keys,
    key_of_row: NDArray[np.intp],
    place: Numbers,
    versions: _Versions,
) -> pa.RecordBatch:
    count = len(place)
    first_key = key_of_row[0]
    spans = keys.key.take(np.arange(first_key, key_of_row[-1] + 1))
    keys_column = arrays.binary(data, spans, rows=key_of_row - first_key)
    gone = versions.has(_TOMBSTONE)
    columns = [
        arrays.constant(namespace, count, pa.string()),
        keys_column,
        arrays.to_text(keys_column),
        arrays.numbers(place, pa.int32()),
        arrays.numbers(versions.version),
        arrays.binary(data, versions.value, valid=~gone),
        pa.array(gone),
        pa.array(versions.has(_EXPIRED)),
        versions.expiry(),
        versions.leases(),
        pa.array(keys.trimmed[key_of_row] != 0),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KV_VERSIONS_SCHEMA)
