"""The bytes around a segment's entries: file names, header and footer.

::

    header 64 B | entries | offsets | indexes | sparse | time | streams | voids | footer 212 B

Each table and the footer start at a multiple of 8, with zeros before them. ual/segments/tables.py
knows the content of the tables; docs/formats.md has all byte tables.

Two things about the header matter in a crash. Its first 32 bytes (the identity) are written when
the file is made and never again, and the header's own checksum covers only them. The 28 bytes
after that (the summary) are written in place while sealing: a torn write there must not make an
unsealed file unreadable, so readers of unsealed files ignore them, and in a sealed file the footer
covers them.

Everything here trusts nothing. Bad bytes are ``CorruptFile`` with the rule that broke; a higher
version is ``UnknownVersion``, but only if the checksum holds: a flipped bit is damage. Counts and
positions of the footer are compared with the file's size before anything is allocated by them.
"""

import re
import struct
from dataclasses import dataclass
from enum import Enum

from crc32c import crc32c

from onelog.ual.entry import HEADER_SIZE as ENTRY_HEADER_SIZE
from onelog.ual.entry import OWNER_COUNT_MAX
from onelog.ual.errors import CorruptFile, UnknownVersion

SEGMENT_VERSION = 1
SEGMENT_MAGIC = b"FLOSEG\0\0"
END_MAGIC = b"FLO_END\0"

HEADER_SIZE = 64
IDENTITY_SIZE = 32
SUMMARY_OFFSET = 32
SUMMARY_SIZE = 28
FOOTER_SIZE = 212
FOOTER_CHECKED_SIZE = 196  # what the footer's own checksum covers
FOOTER_FILE_CRC_OFFSET = 200  # the file's checksum covers all bytes up to this field
TABLE_ALIGNMENT = 8

ENTRIES_OFFSET = HEADER_SIZE
ENTRIES_END_MAX = (1 << 32) - 1  # offsets are u32
INDEX_SPAN_MAX = 1 << 32  # entry_count is u32, and so was that of a segment before compaction
INDEX_MAX = (1 << 64) - 1

SPARSE_STEP = 256
TIME_STEP_NS = 1_000_000_000

OFFSET_SIZE = 4
INDEX_SIZE = 8
SPARSE_ROW_SIZE = 12
TIME_ROW_SIZE = 16
STREAM_ROW_SIZE = 16
VOID_ROW_SIZE = 16

_IDENTITY = struct.Struct(
    "<"  # little-endian, no implicit padding
    "8s"  # magic
    "H"  # version
    "H"  # shard
    "I"  # segment_id
    "Q"  # first_index
    "Q"  # first_proposal: the number of the first group in the Raft log
)
_SUMMARY = struct.Struct(
    "<"
    "Q"  # last_index
    "Q"  # first_timestamp_ns
    "Q"  # last_timestamp_ns
    "I"  # entry_count
)
_CRC = struct.Struct("<I")
assert _IDENTITY.size == IDENTITY_SIZE  # files and docs/formats.md depend on these
assert _SUMMARY.size == SUMMARY_SIZE
assert IDENTITY_SIZE + SUMMARY_SIZE + _CRC.size == HEADER_SIZE

_SPAN = struct.Struct(
    "<"
    "Q"  # position in the file
    "I"  # size in bytes
    "I"  # count of rows; of streams in the streams table
    "I"  # crc32c of the table
)
_COUNTS = struct.Struct(
    "<"
    f"{OWNER_COUNT_MAX}I"  # entries by owner
    "Q"  # entries_end
    "I"  # crc32c of the 64 header bytes
)
_ENDING = struct.Struct(
    "<"
    "I"  # crc32c of the footer up to here
    "I"  # crc32c of the file up to here
    "8s"  # magic
)
TABLE_NAMES = ("offsets", "indexes", "sparse", "time", "streams", "voids")
assert _SPAN.size * len(TABLE_NAMES) + _COUNTS.size == FOOTER_CHECKED_SIZE
assert FOOTER_CHECKED_SIZE + _CRC.size == FOOTER_FILE_CRC_OFFSET
assert FOOTER_CHECKED_SIZE + _ENDING.size == FOOTER_SIZE


class SegmentKind(Enum):
    """What a file in a segment directory is; the value is the end of its name."""

    SEALED = ".flseg"
    UNSEALED = ".flseg.tmp"
    SUCCESSOR = ".flseg.next"
    COMPACTING = ".flseg.new"
    TOMBSTONE = ".flseg.tomb"
    RECEIVED = ".flseg.recv"


_NAME = re.compile(r"([0-9]{10,20})(\.flseg(?:\.tmp|\.next|\.new|\.tomb|\.recv)?)")


def segment_name(first_index: int) -> str:
    """Return the name of a sealed segment; indexes beyond ten digits make it longer."""
    return f"{first_index:010d}{SegmentKind.SEALED.value}"


def unsealed_name(first_index: int) -> str:
    """Return the name of a segment that is still written to, or closed and not sealed yet."""
    return f"{first_index:010d}{SegmentKind.UNSEALED.value}"


def successor_name(first_index: int) -> str:
    """Return the name of the next segment until the one before it is synced to its end."""
    return f"{first_index:010d}{SegmentKind.SUCCESSOR.value}"


def compacting_name(first_index: int) -> str:
    """Return the name of a compacted segment before it replaces the sealed one."""
    return f"{first_index:010d}{SegmentKind.COMPACTING.value}"


def tomb_name(first_index: int) -> str:
    """Return the name of a tombstone: the segment is being deleted."""
    return f"{first_index:010d}{SegmentKind.TOMBSTONE.value}"


def received_name(first_index: int) -> str:
    """Return the name of a segment that a peer sends, until it becomes part of the log."""
    return f"{first_index:010d}{SegmentKind.RECEIVED.value}"


def parse_segment_name(name: str) -> tuple[int, SegmentKind] | None:
    """Return first index and kind, or None for a name that none of the above would make.

    Sort by the number that this returns: as text, names of different length sort wrongly.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    digits, suffix = match.groups()
    first_index = int(digits)
    if not 1 <= first_index <= INDEX_MAX or f"{first_index:010d}" != digits:
        return None
    return first_index, SegmentKind(suffix)


def aligned(position: int) -> int:
    """Return the next multiple of 8 that is not below ``position``."""
    return -(-position // TABLE_ALIGNMENT) * TABLE_ALIGNMENT


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 64 bytes. The summary is all zero until the segment is sealed.

    In a compacted segment the indexes and timestamps are those of the segment as it was, so that
    neighbours still touch; only ``entry_count`` says what is left.
    """

    shard: int
    segment_id: int
    first_index: int
    first_proposal: int
    last_index: int = 0
    first_timestamp_ns: int = 0
    last_timestamp_ns: int = 0
    entry_count: int = 0

    @property
    def is_compacted(self) -> bool:
        """Whether entries of a sealed segment's range are gone."""
        return self.entry_count != self.last_index - self.first_index + 1

    def identity(self) -> "SegmentHeader":
        """Return the header without its summary, as an unsealed file has it."""
        return SegmentHeader(self.shard, self.segment_id, self.first_index, self.first_proposal)

    def encode(self) -> bytes:
        """Return the 64 bytes."""
        identity = _IDENTITY.pack(
            SEGMENT_MAGIC,
            SEGMENT_VERSION,
            self.shard,
            self.segment_id,
            self.first_index,
            self.first_proposal,
        )
        summary = _SUMMARY.pack(
            self.last_index, self.first_timestamp_ns, self.last_timestamp_ns, self.entry_count
        )
        return identity + summary + _CRC.pack(crc32c(identity))

    @staticmethod
    def decode_identity(path: str, data: bytes | memoryview) -> "SegmentHeader":
        """Decode the header of an unsealed file; its summary is ignored."""
        if len(data) < HEADER_SIZE:
            raise CorruptFile(path, f"{len(data)} bytes, too short for a header", 0)
        magic, version, shard, segment_id, first_index, first_proposal = _IDENTITY.unpack_from(data)
        if magic != SEGMENT_MAGIC:
            raise CorruptFile(path, "not a segment: wrong magic", 0)
        (crc,) = _CRC.unpack_from(data, HEADER_SIZE - _CRC.size)
        if crc32c(data[:IDENTITY_SIZE]) != crc:
            raise CorruptFile(path, "header checksum", 0)
        if version > SEGMENT_VERSION:
            raise UnknownVersion(path, version, SEGMENT_VERSION)
        if version == 0:
            raise CorruptFile(path, "version 0", 0)
        if first_index == 0:
            raise CorruptFile(path, "first index 0: indexes start at 1", 0)
        return SegmentHeader(shard, segment_id, first_index, first_proposal)

    @staticmethod
    def decode(path: str, data: bytes | memoryview) -> "SegmentHeader":
        """Decode the header of a sealed file. ``Footer.check`` verifies its summary."""
        identity = SegmentHeader.decode_identity(path, data)
        summary = _SUMMARY.unpack_from(data, SUMMARY_OFFSET)
        last_index, first_timestamp_ns, last_timestamp_ns, entry_count = summary
        span = last_index - identity.first_index + 1
        if not 1 <= span <= INDEX_SPAN_MAX:
            rule = f"last index {last_index} for a first index {identity.first_index}"
            raise CorruptFile(path, rule, SUMMARY_OFFSET)
        if entry_count > span:
            raise CorruptFile(path, f"{entry_count} entries in {span} indexes", SUMMARY_OFFSET)
        if first_timestamp_ns > last_timestamp_ns:
            raise CorruptFile(path, "timestamps run backwards", SUMMARY_OFFSET)
        return SegmentHeader(
            identity.shard,
            identity.segment_id,
            identity.first_index,
            identity.first_proposal,
            last_index,
            first_timestamp_ns,
            last_timestamp_ns,
            entry_count,
        )


@dataclass(frozen=True, slots=True)
class TableSpan:
    """Position, size, number of rows and checksum of a table in its file."""

    position: int
    size: int
    count: int
    crc: int

    @property
    def end(self) -> int:
        """The file offset just past the table."""
        return self.position + self.size


@dataclass(frozen=True, slots=True)
class Footer:
    """The last 212 bytes: the positions of all tables, and the checksums."""

    offsets: TableSpan
    indexes: TableSpan
    sparse: TableSpan
    time: TableSpan
    streams: TableSpan
    voids: TableSpan
    owner_counts: tuple[int, ...]
    entries_end: int
    header_crc: int
    # Covers the footer's own bytes before it, so it is known last: see ``encode_unfinished``.
    file_crc: int

    @property
    def spans(self) -> tuple[TableSpan, ...]:
        """The tables in file order, as in ``TABLE_NAMES``."""
        return (self.offsets, self.indexes, self.sparse, self.time, self.streams, self.voids)

    def encode_unfinished(self) -> bytes:
        """Return the footer up to ``file_crc``: the last bytes which that checksum covers."""
        assert len(self.owner_counts) == OWNER_COUNT_MAX, len(self.owner_counts)
        spans = b"".join(_SPAN.pack(s.position, s.size, s.count, s.crc) for s in self.spans)
        checked = spans + _COUNTS.pack(*self.owner_counts, self.entries_end, self.header_crc)
        return checked + _CRC.pack(crc32c(checked))

    def encode(self) -> bytes:
        """Return the 212 bytes."""
        return self.encode_unfinished() + _CRC.pack(self.file_crc) + END_MAGIC

    @staticmethod
    def decode(path: str, data: bytes | memoryview, offset: int) -> "Footer":
        """Decode the footer that was read at ``offset``; ``check`` verifies its content."""
        if len(data) != FOOTER_SIZE:
            raise CorruptFile(path, f"{len(data)} bytes, too short for a footer", offset)
        crc, file_crc, magic = _ENDING.unpack_from(data, FOOTER_CHECKED_SIZE)
        if magic != END_MAGIC:
            raise CorruptFile(path, "no end mark: not sealed, or cut", offset)
        if crc32c(data[:FOOTER_CHECKED_SIZE]) != crc:
            raise CorruptFile(path, "footer checksum", offset)
        spans_size = _SPAN.size * len(TABLE_NAMES)
        fields = _SPAN.iter_unpack(data[:spans_size])
        spans = {name: TableSpan(*next(fields)) for name in TABLE_NAMES}
        *owner_counts, entries_end, header_crc = _COUNTS.unpack_from(data, spans_size)
        return Footer(
            **spans,
            owner_counts=tuple(owner_counts),
            entries_end=entries_end,
            header_crc=header_crc,
            file_crc=file_crc,
        )

    def check(
        self, path: str, header: SegmentHeader, header_data: bytes | memoryview, file_size: int
    ) -> None:
        """Compare the footer with the header and the file; its counts can be trusted afterwards."""
        footer_offset = file_size - FOOTER_SIZE
        for rule in (
            self._header_rule(header, header_data),
            self._counts_rule(header),
            self._layout_rule(footer_offset),
        ):
            if rule is not None:
                raise CorruptFile(path, rule, footer_offset)

    def _header_rule(self, header: SegmentHeader, header_data: bytes | memoryview) -> str | None:
        if crc32c(header_data) != self.header_crc:
            return "header checksum in the footer"
        if sum(self.owner_counts) != header.entry_count:
            return f"{sum(self.owner_counts)} entries by owner, {header.entry_count} in the header"
        return None

    def _counts_rule(self, header: SegmentHeader) -> str | None:
        """Return which count contradicts the number of entries, if any."""
        entries = header.entry_count
        spacing_rows = -(-entries // SPARSE_STEP)
        if self.offsets.count != entries:
            return f"{self.offsets.count} offsets for {entries} entries"
        if self.indexes.count != (entries if header.is_compacted else 0):
            return f"{self.indexes.count} indexes for {entries} entries"
        if self.sparse.count != spacing_rows:
            return f"{self.sparse.count} sparse rows for {entries} entries"
        if not min(entries, 1) <= self.time.count <= entries:
            return f"{self.time.count} time rows for {entries} entries"
        if self.voids.count > entries:
            return f"{self.voids.count} voids for {entries} entries"
        return None

    def _layout_rule(self, footer_offset: int) -> str | None:
        """Return which position or size is wrong, if any: each follows from those before it."""
        entries_size = self.entries_end - ENTRIES_OFFSET
        entries_size_min = self.offsets.count * ENTRY_HEADER_SIZE
        if self.entries_end > ENTRIES_END_MAX or entries_size < entries_size_min:
            return f"entries end at {self.entries_end}"
        if self.offsets.count == 0 and entries_size:
            return f"{entries_size} bytes of entries, but no entry"
        row_sizes = (OFFSET_SIZE, INDEX_SIZE, SPARSE_ROW_SIZE, TIME_ROW_SIZE, None, VOID_ROW_SIZE)
        end = self.entries_end
        for name, span, row_size in zip(TABLE_NAMES, self.spans, row_sizes, strict=True):
            if span.position != aligned(end):
                return f"{name} table at {span.position}, not at {aligned(end)}"
            if row_size is not None and span.size != span.count * row_size:
                return f"{name} table of {span.size} bytes for {span.count} rows"
            end = span.end
        # One row and at least one byte of records for each stream.
        if self.streams.size < self.streams.count * (STREAM_ROW_SIZE + 1):
            return f"streams table of {self.streams.size} bytes for {self.streams.count} streams"
        if self.streams.size and not self.streams.count:
            return f"streams table of {self.streams.size} bytes without a stream"
        if aligned(end) != footer_offset:
            return f"footer at {footer_offset}, not at {aligned(end)}"
        return None
