"""Snapshot sections as byte streams: chunks out, fields in.

A section is written as chunks of at most CHUNK_SIZE_MAX and may come back cut anywhere else.
Reading trusts nothing: a field that crosses the end, or bytes behind the last field, is a
``CorruptSection``; a damaged size costs no more memory than the section has bytes.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from onelog.projections.errors import CorruptSection
from onelog.projections.limits import CHUNK_SIZE_MAX


def chunked(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts, and cut large ones, into chunks of bounded size."""
    pending: list[bytes] = []
    size = 0
    for part in parts:
        pending.append(part)
        size += len(part)
        if size >= CHUNK_SIZE_MAX:
            data = b"".join(pending)
            end = size - size % CHUNK_SIZE_MAX
            for start in range(0, end, CHUNK_SIZE_MAX):
                yield data[start : start + CHUNK_SIZE_MAX]
            pending = [data[end:]]
            size -= end
    if size:
        yield b"".join(pending)


class SectionReader:
    """Reads fields from the chunks of one section."""

    __slots__ = ("_at", "_buffer", "_chunks", "_owner")

    def __init__(self, owner: int, chunks: Iterable[bytes]) -> None:
        self._owner = owner
        self._chunks = iter(chunks)
        self._buffer = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        end = self._at + size
        if end > len(self._buffer):
            self._fill(size)
            end = size
        data = self._buffer[self._at : end]
        self._at = end
        return data

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next fields, laid out as ``layout`` says."""
        end = self._at + layout.size
        if end > len(self._buffer):
            self._fill(layout.size)
            end = layout.size
        values = layout.unpack_from(self._buffer, self._at)
        self._at = end
        return values

    def number(self, layout: struct.Struct) -> int:
        """Return the next field, which is one number."""
        number: int = self.fields(layout)[0]
        return number

    def sized(self, layout: struct.Struct) -> bytes:
        """Return bytes that are preceded by their size."""
        return self.take(self.number(layout))

    def text(self, layout: struct.Struct) -> str:
        """Return UTF-8 text that is preceded by its size."""
        try:
            return self.sized(layout).decode()
        except UnicodeDecodeError as error:
            raise self.corrupt("a name is not UTF-8") from error

    def expect(self, holds: object, rule: str) -> None:
        """Refuse the section unless ``holds``."""
        if not holds:
            raise self.corrupt(rule)

    def finish(self) -> None:
        """Refuse bytes behind the last field."""
        if self._at < len(self._buffer) or any(self._chunks):
            raise self.corrupt("bytes behind the last field")

    def corrupt(self, rule: str) -> CorruptSection:
        """Return the error that says which rule broke."""
        return CorruptSection(self._owner, rule)

    def _fill(self, size: int) -> None:
        """Make at least ``size`` bytes available at the buffer's start."""
        parts = [self._buffer[self._at :]]
        have = len(parts[0])
        while have < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise self.corrupt("the section ends inside a field")
            parts.append(chunk)
            have += len(chunk)
        self._buffer = b"".join(parts)
        self._at = 0
