"""The bytes of a snapshot's section, read in pieces of bounded size.

A section is a sequence of records of different sizes, in chunks that may end anywhere
(docs/snapshots.md). ``SectionBytes`` holds one piece of it: a few MiB, or one larger record. An
incomplete record at the end of a piece is carried over into the next one. A size that leads past
the end of the section raises ``CorruptPayload``, and takes no more memory than the section has.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.view import BATCH_ROWS_MAX
from onelog.ual.errors import CorruptPayload

PIECE_BYTES = 8 << 20

U8 = struct.Struct("<B")
U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

FindRecords = Callable[[bytes, int, int, list[int]], tuple[int, int]]
"""Find at most ``count`` records in ``data`` from a position on, and append where each starts.

Returns where the first incomplete record starts, and how many bytes it needs at least.
"""


class SectionBytes:
    """A piece of a section, and the position up to which it was read."""

    __slots__ = ("_chunks", "at", "data", "version")

    def __init__(self, chunks: Iterable[bytes], version: int = 1) -> None:
        """``version`` is the newest that is known; older ones are read as well."""
        self._chunks = iter(chunks)
        self.data = b""
        self.at = 0
        self.version = self.number(U8)
        if not 1 <= self.version <= version:
            raise CorruptPayload(f"a section of version {self.version}, known is {version}")

    @property
    def left(self) -> int:
        """The number of unread bytes in the piece."""
        return len(self.data) - self.at

    def fill(self, size: int) -> None:
        """Make ``size`` bytes available from ``at`` on, or all up to the end of the section."""
        if self.left >= size:
            return
        parts = [self.data[self.at :]]
        have = len(parts[0])
        for chunk in self._chunks:
            parts.append(chunk)
            have += len(chunk)
            if have >= size:
                break
        self.data = b"".join(parts)
        self.at = 0

    def need(self, size: int) -> None:
        """Make ``size`` bytes available, or refuse the section."""
        if self.left < size:
            self.fill(max(size, PIECE_BYTES))
            if self.left < size:
                raise CorruptPayload("a section ends inside a field")

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read fields that are laid out as ``layout`` says."""
        self.need(layout.size)
        found = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return found

    def number(self, layout: struct.Struct) -> int:
        """Read one number."""
        found: int = self.fields(layout)[0]
        return found

    def take(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        self.need(size)
        found = self.data[self.at : self.at + size]
        self.at += size
        return found

    def sized(self, layout: struct.Struct) -> bytes:
        """Read bytes with their size before them."""
        return self.take(self.number(layout))

    def text(self, layout: struct.Struct) -> str:
        """Read text with its size before it."""
        try:
            return self.sized(layout).decode()
        except UnicodeDecodeError as error:
            raise CorruptPayload("a name in a section is not UTF-8") from error

    def finish(self) -> None:
        """Refuse bytes behind the last field."""
        self.fill(1)
        if self.left:
            raise CorruptPayload("bytes behind the last field of a section")

    def records(
        self, count: int, find: FindRecords
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64], int]]:
        """Yield the next ``count`` records in pieces: the bytes, where each starts, where all end.

        The bytes end with the last record of the piece.
        """
        needed = 0
        while count:
            self.fill(max(PIECE_BYTES, needed))
            starts: list[int] = []
            stop, needed = find(self.data, self.at, min(count, BATCH_ROWS_MAX), starts)
            if not starts and self.left < needed:
                self.fill(needed)
                if self.left < needed:
                    raise CorruptPayload("a section ends inside a record")
            if starts:
                count -= len(starts)
                data = np.frombuffer(self.data, np.uint8, stop)
                self.at = stop
                yield data, np.array(starts, np.int64), stop


def end_of_records(
    starts: list[int], at: int, end: int, *, is_cut: bool, record_bytes_max: int
) -> tuple[int, int]:
    """Finish a search for records; return what a ``FindRecords`` returns.

    ``at`` is where the last record ends; ``is_cut``: its size could not be read. The end is
    compared with the end of the bytes only here, once and not for each record.
    """
    if is_cut:
        at = starts.pop()
        if at <= end:
            return at, end - at + 1
    if at > end:
        start = starts.pop()
        refuse(at - start > record_bytes_max, "a record above the size limit")
        return start, at - start
    return at, 0


def rows_batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a few rows; a number that does not fit its column means damage."""
    try:
        return pa.RecordBatch.from_pylist(rows, schema=schema)
    except (OverflowError, pa.ArrowInvalid) as error:
        raise CorruptPayload("a number in a section is out of bounds") from error


def optional_numbers(values: NDArray[np.uint64], valid: NDArray[np.bool_]) -> pa.Array:
    """Return a column of numbers that only a few rows have."""
    return arrays.numbers(values, valid=valid) if valid.any() else pa.nulls(len(valid), pa.int64())


def refuse(broken: bool | np.bool_, rule: str) -> None:  # noqa: FBT001
    """Refuse a section in which a rule is broken."""
    if broken:
        raise CorruptPayload(rule)
