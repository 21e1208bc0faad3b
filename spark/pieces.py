"""Verified entries of one file, read into memory by plain reads and returned as arrays.

A ``Piece`` holds consecutive entries of one file. Before it is returned, its bytes are verified:

* in a sealed file, by the checksum of the file if a large part of it is wanted, otherwise each
  entry by its own checksum;
* in an unsealed file, each entry by its own checksum.

The index and size of each entry must also agree with the tables of the file, or with the entry
before it. Any difference raises ``CorruptFile``, and no entry of the piece is returned.

Files are copied and not mapped. A mapped page that the disk cannot read would kill the process, and
a running server truncates and replaces its files. A piece of a sealed file is a view of one copy of
the wanted part; an unsealed file is read in windows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from onelog.ual.entry import HEADER, HEADER_SIZE, PAYLOAD_SIZE_MAX
from onelog.ual.errors import CorruptFile
from onelog.ual.files import File
from onelog.ual.offline.reader import ReadOnlyFiles
from onelog.ual.segments.format import (
    ENTRIES_OFFSET,
    FOOTER_FILE_CRC_OFFSET,
    FOOTER_SIZE,
    SegmentHeader,
    TableSpan,
)
from onelog.ual.segments.format import HEADER_SIZE as FILE_HEADER_SIZE
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.tables import (
    Bytes,
    Indexes,
    Table,
    decode_indexes,
    decode_offsets,
    first_bad_checksum,
    gather_headers,
)

READ_SIZE = 1 << 20
# How many headers, of 40 bytes each, are gathered at once.
PIECE_ENTRIES_MAX = 131_072
# If at least this part of a file is wanted, one checksum over all of it is cheaper than many.
WHOLE_FILE_PART = 1 / 4

_LENGTH_FIELD, _INDEX_FIELD = 6, 4  # of an unpacked header of an entry

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Verified entries: where each starts in ``data``, and its header."""

    data: Bytes
    offsets: Positions
    headers: NDArray[np.void]


def open_sealed(reader: ReadOnlyFiles, path: Path) -> tuple[SealedSegment, File]:
    """Open a sealed file; return its header, footer and small tables, and the open file.

    Both belong to the same file, even if another one is renamed to its name meanwhile.
    """
    file = reader.open_read(path)
    return SealedSegment.open(_Opened(reader, file), path), file


class _Opened(ReadOnlyFiles):
    """Files in which every name means the one file that is already open."""

    def __init__(self, files: ReadOnlyFiles, file: File) -> None:
        super().__init__(files)
        self._file = file

    def open_read(self, path: Path) -> File:  # noqa: ARG002 - the port's
        return self._file


def sealed_pieces(
    segment: SealedSegment, file: File, first_index: int, last_index: int
) -> Iterator[Piece]:
    """Yield the entries of a sealed file within a range of indexes, in order."""
    starts, indexes = _tables(segment, file)
    if indexes is None:
        rows = slice(first_index - segment.first_index, last_index - segment.first_index + 1)
        wanted = np.arange(first_index, last_index + 1, dtype=np.uint64)
    else:
        first = int(np.searchsorted(indexes, np.uint64(first_index), "left"))
        rows = slice(first, int(np.searchsorted(indexes, np.uint64(last_index), "right")))
        wanted = indexes[rows]
    if not len(wanted):
        return
    ends = np.append(starts[1:], segment.footer.entries_end)[rows]
    starts = starts[rows]
    position, stop = int(starts[0]), int(ends[-1])
    is_whole = stop - position >= segment.size_bytes * WHOLE_FILE_PART
    data = _read_whole(segment, file, position, stop) if is_whole else _read(file, position, stop)
    for at in range(0, len(wanted), PIECE_ENTRIES_MAX):
        part = slice(at, at + PIECE_ENTRIES_MAX)
        yield check_piece(
            str(segment.path),
            position,
            data,
            starts[part] - position,
            ends[part] - position,
            wanted[part],
            has_checksum=is_whole,
        )


def _tables(segment: SealedSegment, file: File) -> tuple[Positions, Indexes | None]:
    """Return where each entry starts, and, in a compacted file, the index of each."""
    footer = segment.footer

    def table(name: str, span: TableSpan) -> Table:
        return Table(str(segment.path), name, span, file.read(span.size, span.position))

    offsets = decode_offsets(table("offsets", footer.offsets), footer.entries_end)
    if not segment.is_compacted:
        return offsets.astype(np.int64), None
    return offsets.astype(np.int64), decode_indexes(
        table("indexes", footer.indexes), segment.header
    )


def _read(file: File, position: int, stop: int) -> Bytes:
    content = np.empty(stop - position, np.uint8)
    for at in range(position, stop, READ_SIZE):
        data = file.read(min(READ_SIZE, stop - at), at)
        content[at - position : at - position + len(data)] = np.frombuffer(data, np.uint8)
        if len(data) < min(READ_SIZE, stop - at):  # truncated meanwhile: the checksum will differ
            content[at - position + len(data) :] = 0
            break
    return content.data


def _read_whole(segment: SealedSegment, file: File, position: int, stop: int) -> Bytes:
    """Read a whole file to verify its checksum; return the wanted part."""
    covered = segment.size_bytes - FOOTER_SIZE + FOOTER_FILE_CRC_OFFSET
    content = np.empty(stop - position, np.uint8)
    crc = 0
    for at in range(0, covered, READ_SIZE):
        data = file.read(min(READ_SIZE, covered - at), at)
        crc = crc32c(data, crc)
        first, end = max(at, position), min(at + len(data), stop)
        if first < end:
            content[first - position : end - position] = np.frombuffer(
                data, np.uint8, end - first, first - at
            )
    if crc != segment.footer.file_crc:
        raise CorruptFile(str(segment.path), "checksum of the file")
    return content.data


def unsealed_pieces(file: File, path: Path, first_index: int, last_index: int) -> Iterator[Piece]:
    """Yield the entries of a range in an unsealed file, as far as the file has them.

    All of the range is durable, so a bad entry is damage and not a torn write.
    """
    name = str(path)
    header = SegmentHeader.decode_identity(name, file.read(FILE_HEADER_SIZE, 0))
    position, index, size = ENTRIES_OFFSET, header.first_index, file.size()
    window = READ_SIZE
    while index <= last_index and position < size:
        data = file.read(min(window, size - position), position)
        offsets, end, needed = _walk(name, data, position, index, last_index)
        if not offsets:
            if position + needed > size or needed <= len(data):
                return  # the file ends in this entry
            window = max(READ_SIZE, needed)
            continue
        starts = np.array(offsets, np.int64)
        ends = np.append(starts[1:], end)
        wanted = np.arange(index, index + len(starts), dtype=np.uint64)
        keep = slice(max(first_index - index, 0), None)
        if len(wanted[keep]):
            yield check_piece(
                name,
                position,
                data,
                starts[keep],
                ends[keep],
                wanted[keep],
                has_checksum=False,
            )
        position, index, window = position + end, index + len(starts), READ_SIZE


def _walk(
    path: str, data: bytes, position: int, index: int, last_index: int
) -> tuple[list[int], int, int]:
    """Return where whole entries start in ``data``, where the last ends, and what the next needs.

    An unsealed file has no table of offsets, so this is the one loop over entries.
    """
    offsets: list[int] = []
    at, size = 0, len(data)
    unpack = HEADER.unpack_from
    while index <= last_index and len(offsets) < PIECE_ENTRIES_MAX:
        if at + HEADER_SIZE > size:
            return offsets, at, HEADER_SIZE
        fields = unpack(data, at)
        length = fields[_LENGTH_FIELD]
        if fields[_INDEX_FIELD] != index or length > PAYLOAD_SIZE_MAX:
            _refuse(path, position + at, f"entry {index} is damaged: index or size")
        end = at + HEADER_SIZE + length
        if end > size:
            return offsets, at, end - at
        offsets.append(at)
        at, index = end, index + 1
    return offsets, at, 0


def check_piece(
    path: str,
    position: int,
    data: Bytes,
    starts: Positions,
    ends: Positions,
    indexes: Indexes | None,
    *,
    has_checksum: bool,
) -> Piece:
    """Return verified entries; ``has_checksum``: the bytes were verified before.

    ``indexes``: the expected index of each; None: the caller compares them. ``path`` and
    ``position`` are for error messages.
    """
    headers = gather_headers(data, starts)
    if indexes is None:
        indexes = headers["index"]
    if not has_checksum:
        bad = first_bad_checksum(data, starts, ends, headers["crc"])
        if bad is not None:
            _refuse(path, position + int(starts[bad]), f"entry {indexes[bad]} is damaged: checksum")
    sizes = headers["payload_len"].astype(np.int64) + HEADER_SIZE
    holds = (headers["index"] == indexes) & (starts + sizes == ends)
    if not holds.all():
        bad = int(np.argmin(holds))
        rule = f"entry {indexes[bad]}: the tables differ from the entry"
        _refuse(path, position + int(starts[bad]), rule)
    return Piece(data, starts, headers)


def _refuse(path: str, offset: int, rule: str) -> NoReturn:
    raise CorruptFile(path, rule, offset)
