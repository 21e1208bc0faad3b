"""Writing a snapshot: a stream of sections in, a durable file out, in bounded memory.

The file grows under a temporary name. Sizes and checksums of a section are known when its content
ends and are then written in front of it; the header comes last of all. Only a file that is complete
and synced is renamed, and the name is durable when ``write_snapshot`` returns. So a crash leaves a
``.tmp``, which is removed when the shard is opened next (snapshot/store.py), or the whole file.

Two things keep a large snapshot from disturbing the running server: it is synced every
``SYNC_BYTES``, so that the disk never has much to write at once, and it
stops before the free space falls below the minimum that the log needs.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from crc32c import crc32c

from onelog.snapshot.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    SECTION_HEADER_SIZE,
    SectionHeader,
    SnapshotHeader,
    combine,
    encode_footer,
    snapshot_name,
    temporary_name,
)
from onelog.snapshot.progress import Phase, Progress, no_progress
from onelog.ual.errors import DiskFull
from onelog.ual.files import EXHAUSTED, File, Files, to_disk_full
from onelog.ual.log_config import LogConfig

Section = tuple[int, Iterable[bytes]]
"""A section's type and its content; the chunk boundaries are arbitrary."""

WRITE_SIZE = 256 << 10  # smaller chunks are collected before they are written
SYNC_BYTES = 32 << 20
FREE_BYTES_MIN = LogConfig().free_bytes_min


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """A durable file that MANIFEST does not list yet."""

    path: Path
    header: SnapshotHeader


def write_snapshot(
    files: Files,
    directory: Path,
    header: SnapshotHeader,
    created_s: int,
    sections: Iterable[Section],
    *,
    free_bytes_min: int = FREE_BYTES_MIN,
    progress: Progress = no_progress,
) -> WrittenSnapshot:
    """Write the state at ``header`` as a new file; no file is left after a failure.

    Raises ``DiskFull`` where space is short; other ``OSError`` pass through.
    """
    path = directory / snapshot_name(header.index, created_s)
    temporary = path.with_name(temporary_name(path.name))
    if files.exists(temporary):
        files.remove(temporary)
    try:
        growing = _GrowingFile(files, temporary, free_bytes_min, progress)
        written = [growing.add_section(kind, content) for kind, content in sections]
        whole = replace(header, section_count=len(written), size=growing.position + FOOTER_SIZE)
        growing.finish(whole, written)
        files.rename(temporary, path)
        files.sync_directory(directory)
    except BaseException as error:
        with suppress(OSError):
            files.remove(temporary)
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise to_disk_full(f"write {path}", error) from error
        raise
    return WrittenSnapshot(path, whole)


class _GrowingFile:
    """A snapshot without its header. ``position`` is where the next byte goes."""

    __slots__ = ("_file", "_files", "_free_bytes_min", "_path", "_progress", "_synced", "position")

    def __init__(self, files: Files, path: Path, free_bytes_min: int, progress: Progress) -> None:
        self._files = files
        self._path = path
        self._free_bytes_min = free_bytes_min
        self._progress = progress
        self._file: File = files.open(path, create=True)
        self._synced = 0
        self.position = HEADER_SIZE
        self._refuse_short_space()

    def add_section(self, section_type: int, content: Iterable[bytes]) -> SectionHeader:
        """Write a section at the end and return its header."""
        header_at = self.position
        start = self.position = header_at + SECTION_HEADER_SIZE
        crc = 0
        for piece in _collected(content):
            self._file.write(piece, self.position)
            crc = crc32c(piece, crc)
            self.position += len(piece)
            self._progress(Phase.WRITE, self.position, 0)
            if self.position - self._synced >= SYNC_BYTES:
                self._file.sync()
                self._synced = self.position
                self._refuse_short_space()
        header = SectionHeader(section_type, self.position - start, crc)
        self._file.write(header.encode(), header_at)
        return header

    def finish(self, header: SnapshotHeader, sections: list[SectionHeader]) -> None:
        """Write footer and header, and make the whole file durable."""
        types = [section.section_type for section in sections]
        assert types == sorted(set(types)), f"sections {types} do not ascend"
        head = header.encode()
        crc = crc32c(head)
        for section in sections:
            crc = combine(crc32c(section.encode(), crc), section.crc, section.size)
        self._file.write(encode_footer(crc), self.position)
        self._file.write(head, 0)
        self._file.sync()
        self._progress(Phase.WRITE, header.size, header.size)

    def _refuse_short_space(self) -> None:
        free = self._files.free_bytes(self._path.parent)
        if free < self._free_bytes_min:
            raise DiskFull(
                f"{free} bytes free in {self._path.parent}, {self._free_bytes_min} must stay free; "
                "free some space"
            )


def _collected(content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of about ``WRITE_SIZE``."""
    waiting: list[bytes] = []
    size = 0
    for chunk in content:
        waiting.append(chunk)
        size += len(chunk)
        if size >= WRITE_SIZE:
            yield chunk if len(waiting) == 1 else b"".join(waiting)
            waiting = []
            size = 0
    if size:
        yield b"".join(waiting)
