"""Sealed segments: immutable files, read through a mapping, with a small summary in memory.

Opening reads the header, the footer and three tables (sparse, time, voids), through ``File.read``
and not through the mapping, so that a log of thousands of segments opens without touching their
entries. The file is mapped when an entry is first read, and ``unmap`` drops the mapping again: a
mapping holds a descriptor.

What is trusted, and since when:

* header, footer and the tables in memory: since ``open``, by their checksums and by each other;
* offsets, indexes and streams: since their first use, likewise;
* entries (``read``, ``entries``): by their own checksums, each time they are read. A scan of many
  compares the checksum of the whole file in the end, once for each scan: bytes may rot after any
  check, and what they have become is never served;
* ``columns`` of many and proposals: by the checksum of the whole file, which is compared once.
  ``raw_range`` is the exception: its callers run ``check_group`` on the bytes.

Anything wrong is ``CorruptFile``, with the offset if it is known. A damaged segment is replaced by
a ``DamagedSegment``. It keeps its place in the chain, so that its neighbours still touch. Of its
file only single entries whose own checksums hold are read (ual/segments/chain.py), until a peer's
copy replaces it.

Any thread may read. What ``open`` made never changes. The mapping with everything derived from it
is one object: a method takes it once and keeps using it, whatever ``unmap`` does meanwhile, and
two threads that make it at the same time make the same. Such objects, and the marks that a
checksum was compared, are only ever assigned whole.

The name may come to refer to another file: compaction renames one over it, retention removes it.
A mapping is not disturbed by that. A segment that has to map its file again, or for the first time,
and finds none or another one, raises ``FileNotFoundError``; the log then has a newer segment in its
place, or none.
"""

import errno
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from onelog.ual.entry import HEADER as ENTRY_HEADER
from onelog.ual.entry import HEADER_SIZE as ENTRY_HEADER_SIZE
from onelog.ual.entry import Entry, Unreadable, check_entry
from onelog.ual.errors import CorruptFile, EntryError, IndexDropped
from onelog.ual.files import Files
from onelog.ual.segments.format import (
    FOOTER_FILE_CRC_OFFSET,
    FOOTER_SIZE,
    HEADER_SIZE,
    SPARSE_STEP,
    Footer,
    SegmentHeader,
    TableSpan,
    parse_segment_name,
)
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.tables import (
    Columns,
    Indexes,
    Offsets,
    Rows,
    StreamTable,
    Table,
    are_in,
    decode_indexes,
    decode_offsets,
    decode_sparse,
    decode_time,
    decode_voids,
    find_bad_checksums,
    first_bad_checksum,
    gather_group_left,
    gather_headers,
)

# How many entries a scan holds as columns at once; their payloads are copied one by one. It begins
# with a few, since most readers want a page, and checks those one by one.
FIRST_BLOCK_ENTRIES = 256
BLOCK_GROWTH = 4
BLOCK_ENTRIES = 16_384
# Up to here, checking each entry's own checksum is cheaper than reading the whole file.
ENTRIES_CHECKED_SINGLY_MAX = 256

_TIMESTAMP_FIELD = 5  # of an unpacked entry header


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """The tables that stay in memory for as long as the segment is open."""

    sparse_indexes: Indexes
    sparse_offsets: Offsets
    times_ns: NDArray[np.uint64]
    time_indexes: Indexes
    voids: Indexes


@dataclass(slots=True, eq=False)
class MappedFile:
    """The mapped file and what was derived from it; dropped as a whole by ``unmap``."""

    view: memoryview
    offsets: Offsets
    indexes: Indexes | None  # only in a compacted segment
    streams: StreamTable | None = None  # made on first use
    group_ends: NDArray[np.uint32] | None = None  # rows that close a group; made on first use


class SealedSegment:
    """One ``.flseg`` file."""

    __slots__ = (
        "_file_checked", "_files", "_mapping", "_summary", "_tables_checked", "entry_count",
        "first_index", "first_proposal", "first_timestamp_ns", "footer", "header", "is_compacted",
        "last_index", "last_timestamp_ns", "owner_counts", "path", "segment_id", "shard",
        "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        files: Files,
        path: Path,
        header: SegmentHeader,
        footer: Footer,
        summary: Summary,
        size_bytes: int,
    ) -> None:
        self.path = path
        self.header = header
        self.footer = footer
        self.size_bytes = size_bytes
        self.shard = header.shard
        self.segment_id = header.segment_id
        # The range that the segment covers, whether compaction dropped entries of it or not.
        self.first_index = header.first_index
        self.last_index = header.last_index
        self.first_timestamp_ns = header.first_timestamp_ns
        self.last_timestamp_ns = header.last_timestamp_ns
        self.first_proposal = header.first_proposal
        # What remains of it.
        self.entry_count = header.entry_count
        self.is_compacted = header.is_compacted
        self.owner_counts = footer.owner_counts
        self._files = files
        self._summary = summary
        self._mapping: MappedFile | None = None
        self._tables_checked = False
        self._file_checked = False

    @classmethod
    def open(cls, files: Files, path: Path) -> "SealedSegment":
        """Read and verify what stays in memory; no entry is touched."""
        name = str(path)
        file = files.open_read(path)
        size = file.size()
        header_data = file.read(HEADER_SIZE, 0)
        identity = SegmentHeader.decode_identity(name, header_data)
        named = parse_segment_name(path.name)
        if named is not None and named[0] != identity.first_index:
            raise CorruptFile(name, f"the header says first index {identity.first_index}", 0)
        footer_offset = max(size - FOOTER_SIZE, HEADER_SIZE)
        footer = Footer.decode(name, file.read(FOOTER_SIZE, footer_offset), footer_offset)
        header = SegmentHeader.decode(name, header_data)
        footer.check(name, header, header_data, size)

        def table(table_name: str, span: TableSpan) -> Table:
            return Table(name, table_name, span, file.read(span.size, span.position))

        sparse = decode_sparse(table("sparse", footer.sparse), header, footer.entries_end)
        time = decode_time(table("time", footer.time), header)
        voids = decode_voids(table("voids", footer.voids), header)
        return cls(files, path, header, footer, Summary(*sparse, *time, voids), size)

    def reopen(self) -> "SealedSegment":
        """Open the file that has this name now: the same, or its compacted replacement."""
        return SealedSegment.open(self._files, self.path)

    # Facts

    @property
    def voids(self) -> Indexes:
        """The ranges that apply refused: rows of first and last index."""
        return self._summary.voids

    @property
    def sparse_rows(self) -> tuple[Indexes, Offsets]:
        """Index and offset of every 256th entry."""
        return self._summary.sparse_indexes, self._summary.sparse_offsets

    def is_void(self, index: int) -> bool:
        """Tell whether apply refused the entry."""
        return bool(self._void_mask(np.array([index], np.uint64))[0])

    # The mapping

    @property
    def is_mapped(self) -> bool:
        """Whether the segment holds a mapping at the moment."""
        return self._mapping is not None

    def unmap(self) -> None:
        """Drop the mapping; it stays valid for readers that hold it."""
        self._mapping = None

    def mapped_bytes(self) -> memoryview:
        """Return the whole file. It stays readable whatever happens to the name."""
        return self.mapped().view

    def mapped(self) -> MappedFile:
        """Return the mapped file with its tables; map it if needed."""
        mapping = self._mapping
        if mapping is None:
            mapping = self._map()
            self._mapping = mapping
        return mapping

    def check_file(self) -> None:
        """Compare the checksum of the whole file, once for as long as the segment is open."""
        if not self._file_checked:
            self.compare_file()
            self._file_checked = True

    def compare_file(self) -> None:
        """Compare the checksum of the whole file now."""
        self._compare_file(self.mapped())

    # Entries

    def read(self, index: int) -> Entry:
        """Return one entry, verified; ``IndexDropped`` if compaction dropped it."""
        mapping = self.mapped()
        return self._read_row(mapping, self._row(mapping, index))

    def present(self, indexes: Indexes) -> Indexes:
        """Return those of some ascending indexes that compaction has not dropped."""
        own = self.mapped().indexes
        return indexes if own is None else indexes[are_in(indexes, own)]

    def raw_range(self, first_index: int, last_index: int) -> memoryview:
        """Return the unverified bytes of a range of entries: see the module."""
        assert not self.is_compacted, "a compacted segment has no whole groups"
        assert first_index <= last_index, (first_index, last_index)
        mapping = self.mapped()
        rows = self._rows_between(mapping, first_index, last_index)
        starts, ends = self._locate_rows(mapping, rows[[0, -1]])
        return mapping.view[int(starts[0]) : int(ends[1])]

    def locate(self, indexes: Indexes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where these entries, which must exist, start and end in the file."""
        mapping = self.mapped()
        return self._locate_rows(mapping, self._find_rows(mapping, indexes))

    def columns(self, first_index: int, last_index: int) -> Columns:
        """Return a range of entries as arrays over the mapped file, verified."""
        mapping = self.mapped()
        rows = self._rows_between(mapping, first_index, last_index)
        self._check_for(rows)
        return self._columns(mapping, rows, is_checked=self._file_checked)

    def entries(
        self,
        first_index: int,
        last_index: int,
        *,
        types: Collection[int] | None = None,
        stream_id: int | None = None,
        skip_voids: bool = False,
    ) -> Iterator[Entry]:
        """Yield the remaining entries of a range that pass the filters, in order, verified."""
        mapping = self.mapped()
        if stream_id is None:
            rows = self._rows_between(mapping, first_index, last_index)
        else:
            records = self._stream_records(mapping, stream_id)
            inside = (records >= first_index) & (records <= last_index)
            rows = self._find_rows(mapping, records[inside])
        start, size = 0, FIRST_BLOCK_ENTRIES
        while start < len(rows):
            is_checked = size >= BLOCK_ENTRIES
            if is_checked and start < BLOCK_ENTRIES:
                self._compare_file(mapping)  # once: the blocks before were smaller
            columns = self._columns(mapping, rows[start : start + size], is_checked=is_checked)
            start, size = start + size, min(size * BLOCK_GROWTH, BLOCK_ENTRIES)
            mask = np.ones(len(columns), np.bool_)
            if types is not None:
                mask &= np.isin(columns.entry_type, np.array(list(types), np.int64))
            if skip_voids:
                mask &= ~self._void_mask(columns.index)
            yield from columns.select(mask).entries()

    def seek_time(self, timestamp_ns: int) -> int | None:
        """Return the first remaining index with at least this timestamp, if there is one."""
        times_ns, time_indexes = self._summary.times_ns, self._summary.time_indexes
        if not len(times_ns) or timestamp_ns > self.last_timestamp_ns:
            return None
        after = int(np.searchsorted(times_ns, np.uint64(max(timestamp_ns, 0))))
        if after == 0:
            return int(time_indexes[0])
        mapping = self.mapped()
        low = self._row(mapping, int(time_indexes[after - 1]))
        is_last = after == len(times_ns)
        high = self.entry_count if is_last else self._row(mapping, int(time_indexes[after]))
        # Row ``low`` is before the time, row ``high`` is not, or is past the end.
        while high - low > 1:
            middle = (low + high) // 2
            fields = ENTRY_HEADER.unpack_from(mapping.view, int(mapping.offsets[middle]))
            if fields[_TIMESTAMP_FIELD] < timestamp_ns:
                low = middle
            else:
                high = middle
        # The two neighbours prove the answer, so only they are verified: the search would have
        # ended at an entry whose damaged timestamp misled it.
        before = self._read_row(mapping, low)
        if before.timestamp_ns >= timestamp_ns:
            raise self._corrupt("the time table differs from the entry", mapping, low)
        if high == self.entry_count:
            return None
        found = self._read_row(mapping, high)
        if found.timestamp_ns < timestamp_ns:
            raise self._corrupt("the time table differs from the entry", mapping, high)
        return found.index

    def find_unreadable(self) -> list[Unreadable]:
        """Return all entries that cannot be read, in order; takes a while."""
        mapping, found = self.mapped(), list[Unreadable]()
        for start in range(0, self.entry_count, BLOCK_ENTRIES):
            rows = np.arange(start, min(start + BLOCK_ENTRIES, self.entry_count))
            starts, ends = self._places(mapping, rows)
            lost = self._are_outside(starts, ends)
            starts[lost], ends[lost] = HEADER_SIZE, HEADER_SIZE + ENTRY_HEADER_SIZE
            headers = gather_headers(mapping.view, starts)
            indexes = self._expected(mapping, rows)
            bad = lost | (headers["index"] != indexes)
            bad |= headers["payload_len"].astype(np.int64) + ENTRY_HEADER_SIZE != ends - starts
            bad[find_bad_checksums(mapping.view, starts, ends, headers["crc"])] = True
            for index in indexes[bad].tolist():
                if found and found[-1].last_index == index - 1:
                    found[-1] = Unreadable(found[-1].first_index, index)
                else:
                    found.append(Unreadable(index, index))
        return found

    # Streams

    def stream_ids(self) -> NDArray[np.uint64]:
        """Return the streams with records here, ascending."""
        return self._streams(self.mapped()).stream_ids

    def stream_records(self, stream_id: int) -> Indexes:
        """Return the indexes of a stream's records here."""
        return self._stream_records(self.mapped(), stream_id)

    def notes(self) -> SegmentNotes:
        """Return all streams and voids, as they were handed to sealing."""
        streams = self._streams(self.mapped()).all_records()
        return SegmentNotes(streams, self._summary.voids)

    # Proposals

    def proposal_count(self) -> int:
        """Return how many groups the segment holds; not for a compacted one."""
        return len(self._group_ends(self.mapped()))

    def proposal_at(self, number: int) -> tuple[int, int]:
        """Return the first and last index of a proposal's group; not for a compacted segment."""
        ends = self._group_ends(self.mapped())
        at = number - self.first_proposal
        assert 0 <= at < len(ends), (number, self.first_proposal, len(ends))
        first_row = int(ends[at - 1]) + 1 if at else 0
        return self.first_index + first_row, self.first_index + int(ends[at])

    # Inside

    def _corrupt(self, rule: str, mapping: MappedFile, row: int) -> CorruptFile:
        return CorruptFile(str(self.path), rule, int(mapping.offsets[row]))

    def _map(self) -> MappedFile:
        view = self._files.map(self.path)
        if (
            len(view) != self.size_bytes
            or view[:HEADER_SIZE] != self.header.encode()
            or view[-FOOTER_SIZE:] != self.footer.encode()
        ):
            # Either another file has the name now, or this one is damaged: then this raises.
            SealedSegment.open(self._files, self.path)
            raise FileNotFoundError(errno.ENOENT, "the segment was replaced", str(self.path))
        if not self._tables_checked:
            self._check_tables(view)
            self._tables_checked = True
        footer, count = self.footer, self.entry_count
        offsets = np.frombuffer(view, "<u4", count, footer.offsets.position)
        if not self.is_compacted:
            return MappedFile(view, offsets, None)
        indexes = np.frombuffer(view, "<u8", count, footer.indexes.position)
        return MappedFile(view, offsets, indexes)

    def _check_tables(self, view: memoryview) -> None:
        offsets_table = self._table(view, "offsets", self.footer.offsets)
        offsets = decode_offsets(offsets_table, self.footer.entries_end)
        if not (offsets[::SPARSE_STEP] == self._summary.sparse_offsets).all():
            raise offsets_table.corrupt("differs from the sparse table")
        if self.is_compacted:
            indexes_table = self._table(view, "indexes", self.footer.indexes)
            indexes = decode_indexes(indexes_table, self.header)
            if not (indexes[::SPARSE_STEP] == self._summary.sparse_indexes).all():
                raise indexes_table.corrupt("differs from the sparse table")

    def _table(self, view: memoryview, name: str, span: TableSpan) -> Table:
        return Table(str(self.path), name, span, view[span.position : span.end])

    def _compare_file(self, mapping: MappedFile) -> None:
        covered = self.size_bytes - FOOTER_SIZE + FOOTER_FILE_CRC_OFFSET
        if crc32c(mapping.view[:covered]) != self.footer.file_crc:
            raise CorruptFile(str(self.path), "checksum of the file")

    def _check_for(self, rows: Rows) -> None:
        """Compare the file's checksum before many entries are read as columns."""
        if len(rows) > ENTRIES_CHECKED_SINGLY_MAX:
            self.check_file()

    def _row(self, mapping: MappedFile, index: int) -> int:
        """Return the row number of an entry in the file."""
        assert self.first_index <= index <= self.last_index, (index, self.path)
        if mapping.indexes is None:
            return index - self.first_index
        # The sparse table says which 256 indexes to search: one page of the mapped table.
        key = np.uint64(index)
        block = int(np.searchsorted(self._summary.sparse_indexes, key, "right")) - 1
        if block >= 0:
            start = block * SPARSE_STEP
            window = mapping.indexes[start : start + SPARSE_STEP]
            at = int(np.searchsorted(window, key))
            if at < len(window) and window[at] == index:
                return start + at
        raise IndexDropped(index, self.first_index, self.last_index)

    def _rows_between(self, mapping: MappedFile, first_index: int, last_index: int) -> Rows:
        """Return the row numbers of the remaining entries of a range."""
        assert self.first_index <= first_index, (first_index, self.path)
        assert last_index <= self.last_index, (last_index, self.path)
        if mapping.indexes is None:
            return np.arange(first_index - self.first_index, last_index - self.first_index + 1)
        start = np.searchsorted(mapping.indexes, np.uint64(first_index), "left")
        end = np.searchsorted(mapping.indexes, np.uint64(last_index), "right")
        return np.arange(start, end)

    def _find_rows(self, mapping: MappedFile, indexes: Indexes) -> Rows:
        """Return the row numbers of entries that must exist."""
        if mapping.indexes is None:
            assert ((indexes >= self.first_index) & (indexes <= self.last_index)).all()
            return (indexes - np.uint64(self.first_index)).astype(np.intp)
        assert are_in(indexes, mapping.indexes).all(), "an index that is not in the segment"
        return np.searchsorted(mapping.indexes, indexes)

    def _locate_rows(
        self, mapping: MappedFile, rows: Rows
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts, ends = self._places(mapping, rows)
        if self._are_outside(starts, ends).any():  # the table has rotted since it was checked
            raise CorruptFile(str(self.path), "an offset outside of the entries")
        return starts, ends

    def _are_outside(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        outside: NDArray[np.bool_] = (
            (starts < HEADER_SIZE)
            | (ends > self.footer.entries_end)
            | (ends - starts < ENTRY_HEADER_SIZE)
        )
        return outside

    def _places(
        self, mapping: MappedFile, rows: Rows
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts = mapping.offsets[rows].astype(np.int64)
        ends = np.full(len(rows), self.footer.entries_end, np.int64)
        inner = rows < self.entry_count - 1
        ends[inner] = mapping.offsets[rows[inner] + 1]
        return starts, ends

    def _read_row(self, mapping: MappedFile, row: int) -> Entry:
        index = self.first_index + row if mapping.indexes is None else int(mapping.indexes[row])
        try:
            return check_entry(mapping.view, int(mapping.offsets[row]), index)
        except EntryError as error:
            raise self._corrupt(error.rule, mapping, row) from error

    def _columns(self, mapping: MappedFile, rows: Rows, *, is_checked: bool) -> Columns:
        """Gather entries; unless the file was checked, compare each one's checksum."""
        starts, ends = self._locate_rows(mapping, rows)
        headers = gather_headers(mapping.view, starts)
        if not is_checked:
            bad = first_bad_checksum(mapping.view, starts, ends, headers["crc"])
            if bad is not None:
                raise self._corrupt("checksum", mapping, int(rows[bad]))
        sizes = headers["payload_len"].astype(np.int64) + ENTRY_HEADER_SIZE
        holds = (headers["index"] == self._expected(mapping, rows)) & (starts + sizes == ends)
        if not holds.all():
            row = int(rows[np.argmin(holds)])
            raise self._corrupt("the tables differ from the entry", mapping, row)
        return Columns.of_headers(mapping.view, headers, starts)

    def _expected(self, mapping: MappedFile, rows: Rows) -> Indexes:
        """Return the index that each row's entry must have."""
        if mapping.indexes is not None:
            return mapping.indexes[rows]
        return rows.astype(np.uint64) + np.uint64(self.first_index)

    def _void_mask(self, indexes: Indexes) -> NDArray[np.bool_]:
        voids = self._summary.voids
        if not len(voids):
            return np.zeros(len(indexes), np.bool_)
        at = np.searchsorted(voids[:, 0], indexes, "right") - 1
        # Row -1 means before the first void; its comparison is masked out.
        mask: NDArray[np.bool_] = (at >= 0) & (indexes <= voids[at, 1])
        return mask

    def _streams(self, mapping: MappedFile) -> StreamTable:
        streams = mapping.streams
        if streams is None:
            table = self._table(mapping.view, "streams", self.footer.streams)
            streams = StreamTable(table, self.header)
            mapping.streams = streams
        return streams

    def _stream_records(self, mapping: MappedFile, stream_id: int) -> Indexes:
        records = self._streams(mapping).records(stream_id)
        if mapping.indexes is not None and not are_in(records, mapping.indexes).all():
            rule = f"a record of stream {stream_id} is no entry"
            raise CorruptFile(str(self.path), rule, self.footer.streams.position)
        return records

    def _group_ends(self, mapping: MappedFile) -> NDArray[np.uint32]:
        assert not self.is_compacted, "a compacted segment has no whole groups"
        ends = mapping.group_ends
        if ends is None:
            self.check_file()
            left = gather_group_left(mapping.view, mapping.offsets)
            ends = np.flatnonzero(left == 0).astype(np.uint32)
            if not len(ends) or ends[-1] != self.entry_count - 1:
                raise self._corrupt("the last group is not closed", mapping, self.entry_count - 1)
            mapping.group_ends = ends
        return ends


# Damaged


class DamagedSegment:
    """One ``.flseg`` file that must not be read as a whole.

    ``opened`` is the file as it was opened, if that was possible: single entries are read through
    it, each by its own checksum.
    """

    __slots__ = (
        "entry_count", "first_index", "first_proposal", "first_timestamp_ns", "header",
        "last_index", "last_timestamp_ns", "offset", "opened", "path", "rule",
    )  # fmt: skip

    is_compacted = False

    def __init__(
        self,
        path: Path,
        header: SegmentHeader,
        rule: str,
        offset: int | None = None,
        opened: SealedSegment | None = None,
    ) -> None:
        """``header``: of the file, or derived from its neighbours."""
        self.opened = opened
        self.path = path
        self.header = header
        self.rule = rule
        self.offset = offset
        self.first_index = header.first_index
        self.last_index = header.last_index
        self.first_proposal = header.first_proposal
        self.first_timestamp_ns = header.first_timestamp_ns
        self.last_timestamp_ns = header.last_timestamp_ns
        self.entry_count = header.entry_count

    @property
    def damage(self) -> CorruptFile:
        """What is wrong with the file."""
        return CorruptFile(str(self.path), f"set aside as damaged: {self.rule}", self.offset)

    def refuse(self) -> NoReturn:
        """Raise what is wrong with the file."""
        raise self.damage
