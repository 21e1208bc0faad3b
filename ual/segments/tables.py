"""The tables of a sealed segment, and entries as columns: numpy in, numpy out, no I/O.

A segment may hold a million entries and as many stream records, so nothing here loops over them in
Python: headers are gathered, varints are packed and unpacked, rows are checked by whole arrays.

What an ``encode_*`` function takes was checked by its caller (ual/segments/sealing.py). What a
``decode_*`` function takes came from a disk. Its checksum was compared when the ``Table`` was made,
and still every rule that a reader relies on is verified: order, range, agreement with the header. A
row that breaks one is ``CorruptFile``, never an index out of range later. Nothing is allocated by a
number from a file before that number was compared with the size of the table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from onelog.ual.entry import CRC_SIZE, Entry
from onelog.ual.entry import HEADER_SIZE as ENTRY_HEADER_SIZE
from onelog.ual.errors import CorruptFile
from onelog.ual.segments import format as layout
from onelog.ual.segments.format import SegmentHeader, TableSpan
from onelog.ual.segments.notes import SegmentNotes

Bytes = bytes | memoryview
Indexes = NDArray[np.uint64]
Offsets = NDArray[np.uint32]
Rows = NDArray[np.intp]  # numbers of entries within a segment, from 0

ENTRY_DTYPE = np.dtype(
    [
        ("crc", "<u4"),
        ("entry_type", "<u2"),
        ("flags", "<u2"),
        ("term", "<u8"),
        ("index", "<u8"),
        ("timestamp_ns", "<u8"),
        ("payload_len", "<u4"),
        ("group_left", "<u4"),
    ]
)
SPARSE_DTYPE = np.dtype([("index", "<u8"), ("offset", "<u4")])
TIME_DTYPE = np.dtype([("timestamp_ns", "<u8"), ("index", "<u8")])
STREAM_DTYPE = np.dtype([("stream_id", "<u8"), ("record_count", "<u4"), ("position", "<u4")])
VOID_DTYPE = np.dtype([("first_index", "<u8"), ("last_index", "<u8")])
assert ENTRY_DTYPE.itemsize == ENTRY_HEADER_SIZE  # the same bytes as onelog.ual.entry.HEADER
assert SPARSE_DTYPE.itemsize == layout.SPARSE_ROW_SIZE
assert TIME_DTYPE.itemsize == layout.TIME_ROW_SIZE
assert STREAM_DTYPE.itemsize == layout.STREAM_ROW_SIZE
assert VOID_DTYPE.itemsize == layout.VOID_ROW_SIZE

CHECKSUM_BLOCK_ENTRIES = 65_536

VARINT_SIZE_MAX = 10  # 7 bits a byte
VARINT_TOP_MAX = 1  # what the tenth byte may hold: bit 63
_LOW_BITS = np.uint8(0x7F)
_MORE_BIT = np.uint8(0x80)


# Entries -----------------------------------------------------------------------------------------


def gather_headers(buffer: Bytes, offsets: NDArray[Any]) -> NDArray[np.void]:
    """Return the entry headers at ``offsets``, which must lie inside the buffer.

    The buffer is seen as one overlapping 40-byte item per byte. Plain items, not records: numpy
    takes records field by field, which is ten times slower.
    """
    if not len(offsets):
        return np.empty(0, ENTRY_DTYPE)
    starts = len(buffer) - ENTRY_HEADER_SIZE + 1
    everywhere: NDArray[np.void] = np.ndarray(
        (starts,), f"V{ENTRY_HEADER_SIZE}", buffer, strides=(1,)
    )
    headers: NDArray[np.void] = everywhere[offsets].view(ENTRY_DTYPE)
    return headers


def gather_group_left(buffer: Bytes, offsets: NDArray[Any]) -> NDArray[np.uint32]:
    """Return only the last field of the headers at ``offsets``: a tenth of the memory."""
    if not len(offsets):
        return np.empty(0, np.uint32)
    starts = len(buffer) - ENTRY_HEADER_SIZE + 1
    at = ENTRY_HEADER_SIZE - 4
    everywhere: NDArray[np.uint32] = np.ndarray((starts,), "<u4", buffer, at, strides=(1,))
    group_left: NDArray[np.uint32] = everywhere[offsets]
    return group_left


def first_bad_checksum(
    buffer: Bytes, offsets: NDArray[Any], ends: NDArray[Any], crcs: NDArray[np.uint32]
) -> int | None:
    """Return the row of the first entry whose checksum fails."""
    # In blocks: as Python objects, the offsets of a million entries take more than their bytes.
    for first in range(0, len(offsets), CHECKSUM_BLOCK_ENTRIES):
        block = slice(first, first + CHECKSUM_BLOCK_ENTRIES)
        bad = find_bad_checksums(buffer, offsets[block], ends[block], crcs[block])
        if len(bad):
            return first + int(bad[0])
    return None


def find_bad_checksums(
    buffer: Bytes, offsets: NDArray[Any], ends: NDArray[Any], crcs: NDArray[np.uint32]
) -> Rows:
    """Return the rows of all entries whose checksum fails."""
    view = memoryview(buffer)
    starts = (offsets + np.uint32(CRC_SIZE)).tolist()
    bounds = zip(starts, ends.tolist(), strict=True)
    found = np.array([crc32c(view[start:end]) for start, end in bounds], np.uint32)
    bad: Rows = np.flatnonzero(found != crcs)
    return bad


def join_entries(buffer: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> bytes:
    """Copy entries together; neighbours are copied as one piece."""
    view = memoryview(buffer)
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    run_starts = starts[np.append(0, breaks + 1)] if len(starts) else starts
    run_ends = ends[np.append(breaks, len(ends) - 1)] if len(ends) else ends
    runs = zip(run_starts.tolist(), run_ends.tolist(), strict=True)
    return b"".join([view[start:end] for start, end in runs])


def are_in(values: Indexes, ascending: Indexes) -> NDArray[np.bool_]:
    """Return which values are in an ascending array (numpy's ``isin`` would sort it each time)."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    nearest = ascending.take(np.searchsorted(ascending, values), mode="clip")
    found: NDArray[np.bool_] = nearest == values
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Entries as parallel arrays; payload ``i`` is a slice of ``buffer``, which is not copied."""

    buffer: memoryview
    index: Indexes
    term: NDArray[np.uint64]
    timestamp_ns: NDArray[np.uint64]
    entry_type: NDArray[np.uint16]
    flags: NDArray[np.uint16]
    group_left: NDArray[np.uint32]
    payload_offset: NDArray[np.uint32]
    payload_len: NDArray[np.uint32]

    @staticmethod
    def of_headers(
        buffer: memoryview, headers: NDArray[np.void], offsets: NDArray[Any]
    ) -> "Columns":
        """Split the headers that were gathered at ``offsets`` into columns."""
        return Columns(
            buffer=buffer,
            index=headers["index"],
            term=headers["term"],
            timestamp_ns=headers["timestamp_ns"],
            entry_type=headers["entry_type"],
            flags=headers["flags"],
            group_left=headers["group_left"],
            payload_offset=(offsets + np.uint32(ENTRY_HEADER_SIZE)).astype(np.uint32),
            payload_len=headers["payload_len"],
        )

    def __len__(self) -> int:
        return len(self.index)

    def select(self, mask: NDArray[np.bool_]) -> "Columns":
        """Return the rows where ``mask`` is true."""
        return Columns(
            self.buffer,
            self.index[mask],
            self.term[mask],
            self.timestamp_ns[mask],
            self.entry_type[mask],
            self.flags[mask],
            self.group_left[mask],
            self.payload_offset[mask],
            self.payload_len[mask],
        )

    def entries(self) -> Iterator[Entry]:
        """Build the entries one by one, so that only the payloads in use are copied."""
        buffer = self.buffer
        starts = self.payload_offset.astype(np.int64)
        ends = (starts + self.payload_len).tolist()
        payloads = (
            bytes(buffer[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)
        )
        columns = (
            self.entry_type.tolist(),
            self.flags.tolist(),
            self.term.tolist(),
            self.index.tolist(),
            self.timestamp_ns.tolist(),
            self.group_left.tolist(),
        )
        return map(Entry._make, zip(*columns, payloads, strict=True))


# Encoding ----------------------------------------------------------------------------------------


def encode_offsets(offsets: NDArray[Any]) -> bytes:
    """Encode the offsets table."""
    return offsets.astype("<u4").tobytes()


def encode_indexes(indexes: Indexes) -> bytes:
    """Encode the indexes table of a compacted segment."""
    return indexes.astype("<u8").tobytes()


def encode_sparse(indexes: Indexes, offsets: NDArray[Any]) -> bytes:
    """Encode every 256th entry's index and offset."""
    rows = np.empty(-(-len(indexes) // layout.SPARSE_STEP), SPARSE_DTYPE)
    rows["index"] = indexes[:: layout.SPARSE_STEP]
    rows["offset"] = offsets[:: layout.SPARSE_STEP]
    return rows.tobytes()


def encode_time(timestamps_ns: NDArray[np.uint64], indexes: Indexes) -> bytes:
    """Encode the first entry and each that is at least 1 s later than the last row."""
    step = np.uint64(layout.TIME_STEP_NS)
    targets = timestamps_ns + step
    following = np.searchsorted(timestamps_ns, targets, "left")
    # An addition that wrapped around has no entry after it.
    following[targets < step] = len(timestamps_ns)
    chosen: list[int] = []
    row = 0
    while row < len(timestamps_ns):
        chosen.append(row)
        row = int(following[row])
    rows = np.empty(len(chosen), TIME_DTYPE)
    rows["timestamp_ns"] = timestamps_ns[chosen]
    rows["index"] = indexes[chosen]
    return rows.tobytes()


def encode_streams(notes: SegmentNotes, first_index: int) -> bytes:
    """Encode the directory of streams and the varints of their records."""
    if not notes.streams:
        return b""
    stream_ids = sorted(notes.streams)
    lists = [notes.streams[stream_id] for stream_id in stream_ids]
    counts = np.array([len(records) for records in lists], np.int64)
    starts = np.cumsum(counts) - counts
    records = np.concatenate(lists)
    deltas = np.diff(records, prepend=np.uint64(0))
    deltas[starts] = records[starts] - np.uint64(first_index)
    data, ends = encode_varints(deltas)
    directory = np.empty(len(lists), STREAM_DTYPE)
    directory["stream_id"] = stream_ids
    directory["record_count"] = counts
    directory["position"] = directory.nbytes + np.append(0, ends[starts[1:] - 1])
    return directory.tobytes() + data.tobytes()


def encode_voids(notes: SegmentNotes) -> bytes:
    """Encode the voids table."""
    return notes.voids.astype("<u8").tobytes()


def encode_varints(values: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Encode as LEB128; return the bytes and, for each value, where its bytes end."""
    sizes = np.ones(len(values), np.int64)
    for size in range(1, VARINT_SIZE_MAX):
        longer = values >> np.uint64(7 * size) != 0
        if not longer.any():
            break
        sizes += longer
    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = np.empty(int(sizes.sum()), np.uint8)
    rows = np.arange(len(values))
    for number in range(VARINT_SIZE_MAX):
        rows = rows[sizes[rows] > number]
        if not len(rows):
            break
        low = (values[rows] >> np.uint64(7 * number)).astype(np.uint8) & _LOW_BITS
        more = sizes[rows] > number + 1
        data[starts[rows] + number] = low | np.where(more, _MORE_BIT, np.uint8(0))
    return data, ends


# Decoding ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """The bytes of one table, checked against their checksum, and where they came from."""

    path: str
    name: str
    span: TableSpan
    data: Bytes

    def __post_init__(self) -> None:
        if len(self.data) != self.span.size:
            raise self.corrupt(f"{len(self.data)} bytes of {self.span.size}")
        if crc32c(self.data) != self.span.crc:
            raise self.corrupt("checksum")

    def corrupt(self, rule: str) -> CorruptFile:
        """Return the error that says which table of which file breaks ``rule``."""
        return CorruptFile(self.path, f"{self.name} table: {rule}", self.span.position)

    def rows(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the rows without copying them."""
        return np.frombuffer(self.data, dtype, self.span.count)


def _column(rows: NDArray[Any], name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Copy one column out of packed rows: searching a strided one would copy it every time."""
    column = rows[name].astype(dtype)
    column.flags.writeable = False
    return column


def _check_ascending(table: Table, what: str, values: NDArray[Any], step_min: int = 1) -> None:
    later, earlier = values[1:], values[:-1]
    # Compared before subtracted: a difference below zero would wrap around.
    if not ((later > earlier) & (later - earlier >= step_min)).all():
        raise table.corrupt(f"{what} less than {step_min} apart, or descending")


def _check_range(table: Table, what: str, values: NDArray[Any], first: int, last: int) -> None:
    """Compare the ends of a column that is known to ascend."""
    if len(values) and not (values[0] >= first and values[-1] <= last):
        raise table.corrupt(f"{what} outside {first} to {last}")


def decode_offsets(table: Table, entries_end: int) -> Offsets:
    """Return where each entry starts, as a view of the table."""
    offsets = table.rows(np.dtype("<u4"))
    _check_ascending(table, "offsets", offsets, ENTRY_HEADER_SIZE)
    _check_range(table, "offsets", offsets, layout.ENTRIES_OFFSET, entries_end - ENTRY_HEADER_SIZE)
    if len(offsets) and offsets[0] != layout.ENTRIES_OFFSET:
        raise table.corrupt(f"first entry at {offsets[0]}, not at {layout.ENTRIES_OFFSET}")
    return offsets


def decode_indexes(table: Table, header: SegmentHeader) -> Indexes:
    """Return the index of each entry of a compacted segment, as a view of the table."""
    indexes = table.rows(np.dtype("<u8"))
    _check_ascending(table, "indexes", indexes)
    _check_range(table, "indexes", indexes, header.first_index, header.last_index)
    return indexes


def decode_sparse(table: Table, header: SegmentHeader, entries_end: int) -> tuple[Indexes, Offsets]:
    """Return index and offset of every 256th entry."""
    rows = table.rows(SPARSE_DTYPE)
    indexes = _column(rows, "index", np.uint64)
    offsets = _column(rows, "offset", np.uint32)
    _check_ascending(table, "indexes", indexes, layout.SPARSE_STEP)
    _check_ascending(table, "offsets", offsets, layout.SPARSE_STEP * ENTRY_HEADER_SIZE)
    _check_range(table, "indexes", indexes, header.first_index, header.last_index)
    _check_range(table, "offsets", offsets, layout.ENTRIES_OFFSET, entries_end - ENTRY_HEADER_SIZE)
    if len(offsets) and offsets[0] != layout.ENTRIES_OFFSET:
        raise table.corrupt(f"first entry at {offsets[0]}, not at {layout.ENTRIES_OFFSET}")
    if not header.is_compacted and indexes[-1] != header.first_index + layout.SPARSE_STEP * (
        len(indexes) - 1
    ):
        raise table.corrupt("a row is not for a 256th entry")
    return indexes, offsets


def decode_time(table: Table, header: SegmentHeader) -> tuple[NDArray[np.uint64], Indexes]:
    """Return timestamp and index of the rows."""
    rows = table.rows(TIME_DTYPE)
    timestamps_ns = _column(rows, "timestamp_ns", np.uint64)
    indexes = _column(rows, "index", np.uint64)
    _check_ascending(table, "timestamps", timestamps_ns, layout.TIME_STEP_NS)
    _check_ascending(table, "indexes", indexes)
    _check_range(
        table, "timestamps", timestamps_ns, header.first_timestamp_ns, header.last_timestamp_ns
    )
    _check_range(table, "indexes", indexes, header.first_index, header.last_index)
    first = (header.first_timestamp_ns, header.first_index)
    if not header.is_compacted and (timestamps_ns[0], indexes[0]) != first:
        raise table.corrupt("the first row is not the first entry")
    return timestamps_ns, indexes


def decode_voids(table: Table, header: SegmentHeader) -> Indexes:
    """Return rows of first and last index; ranges ascend and do not touch."""
    rows = table.rows(VOID_DTYPE)
    # By columns: the first indexes are searched, and a strided array would be copied for that.
    voids = np.empty((len(rows), 2), np.uint64, order="F")
    voids[:, 0] = rows["first_index"]
    voids[:, 1] = rows["last_index"]
    voids.flags.writeable = False
    firsts, lasts = voids[:, 0], voids[:, 1]
    if not (firsts <= lasts).all():
        raise table.corrupt("a range ends before it starts")
    if not ((firsts[1:] > lasts[:-1]) & (firsts[1:] - lasts[:-1] >= 2)).all():
        raise table.corrupt("ranges touch or descend")
    _check_range(table, "ranges", voids.reshape(-1), header.first_index, header.last_index)
    return voids


class StreamTable:
    """The streams table: its directory, checked when made, and records decoded when asked for."""

    __slots__ = ("_bounds", "_counts", "_header", "_table", "stream_ids")

    def __init__(self, table: Table, header: SegmentHeader) -> None:
        rows = table.rows(STREAM_DTYPE)
        self._table = table
        self._header = header
        self.stream_ids: NDArray[np.uint64] = _column(rows, "stream_id", np.uint64)
        self._counts: NDArray[np.int64] = _column(rows, "record_count", np.int64)
        # Stream i has the bytes from bounds[i] to bounds[i + 1].
        self._bounds = np.append(rows["position"].astype(np.int64), table.span.size)
        _check_ascending(table, "stream ids", self.stream_ids)
        if self._bounds[0] != rows.nbytes:
            raise table.corrupt(f"records at {self._bounds[0]}, not at {rows.nbytes}")
        if not (self._counts >= 1).all() or not (self._counts <= header.entry_count).all():
            raise table.corrupt(f"a stream without records, or with over {header.entry_count}")
        if not (np.diff(self._bounds) >= self._counts).all():
            raise table.corrupt("a stream has more records than bytes")

    def records(self, stream_id: int) -> Indexes:
        """Return the indexes of the stream's records; none for a stream that is not here."""
        row = int(np.searchsorted(self.stream_ids, np.uint64(stream_id)))
        if row == len(self.stream_ids) or self.stream_ids[row] != stream_id:
            return np.empty(0, np.uint64)
        return self._decode(row, row + 1)

    def all_records(self) -> dict[int, Indexes]:
        """Return the records of every stream."""
        if not len(self.stream_ids):
            return {}
        records = self._decode(0, len(self.stream_ids))
        lists = np.split(records, np.cumsum(self._counts)[:-1])
        return dict(zip(self.stream_ids.tolist(), lists, strict=True))

    def _decode(self, first_row: int, end_row: int) -> Indexes:
        """Decode the streams of adjacent rows, one after the other in one array."""
        table, header = self._table, self._header
        bounds = self._bounds[first_row : end_row + 1]
        counts = self._counts[first_row:end_row]
        data = np.frombuffer(table.data, np.uint8)[bounds[0] : bounds[-1]]
        deltas, ends = decode_varints(table, data)
        stops = np.cumsum(counts)
        # Each stream's last varint ends exactly where its bytes do.
        if len(ends) != stops[-1] or not (ends[stops - 1] == bounds[1:] - bounds[0]).all():
            raise table.corrupt("record count differs from the records")
        starts = stops - counts
        span = header.last_index - header.first_index
        if (deltas > span).any():
            raise table.corrupt("a record outside the segment")
        if np.count_nonzero(deltas == 0) != np.count_nonzero(deltas[starts] == 0):
            raise table.corrupt("a record twice")
        # Sums of fewer than 2**32 numbers below 2**32 do not wrap within a stream; the running
        # total over streams may, and subtracting what came before undoes just that.
        totals = np.cumsum(deltas)
        before = totals[starts] - deltas[starts]
        distances = totals - np.repeat(before, counts)
        if (distances > span).any():
            raise table.corrupt("a record outside the segment")
        records: Indexes = distances + np.uint64(header.first_index)
        return records


def decode_varints(
    table: Table, data: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Decode LEB128 values that fill ``data``; return them and where each ends."""
    ends = np.flatnonzero(data < _MORE_BIT) + 1
    if not len(ends) or ends[-1] != len(data):
        raise table.corrupt("a varint runs past the end")
    sizes = np.diff(ends, prepend=0)
    starts = ends - sizes
    if sizes.max() > VARINT_SIZE_MAX:
        raise table.corrupt(f"a varint of more than {VARINT_SIZE_MAX} bytes")
    tops = data[ends - 1]
    if (tops[sizes == VARINT_SIZE_MAX] > VARINT_TOP_MAX).any():
        raise table.corrupt("a varint of more than 64 bits")
    if (tops[sizes > 1] == 0).any():
        raise table.corrupt("a varint longer than needed")
    values = np.zeros(len(ends), np.uint64)
    rows = np.arange(len(ends))
    for number in range(VARINT_SIZE_MAX):
        rows = rows[sizes[rows] > number]
        if not len(rows):
            break
        low = (data[starts[rows] + number] & _LOW_BITS).astype(np.uint64)
        values[rows] |= low << np.uint64(7 * number)
    return values, ends
