"""Reading a snapshot: nothing is trusted before its checksum was compared.

``open`` reads the header, the footer and the headers of the sections, and compares them with each
other and with the size of the file. ``verify`` compares all checksums without keeping anything.
``chunks`` yields a section's content in bounded pieces and compares its checksum once more at the
end: a loader that read damaged bytes gets an error and discards its state.

The file is read with ``File.read`` and never mapped: a page that the disk cannot read is then an
``OSError``, where a mapping would end the process. No size in the file decides what is allocated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from onelog.snapshot.errors import CorruptSnapshot
from onelog.snapshot.format import (
    FILE_SIZE_MIN,
    FOOTER_SIZE,
    HEADER_SIZE,
    SECTION_HEADER_SIZE,
    SectionHeader,
    SnapshotHeader,
    combine,
    decode_footer,
    parse_snapshot_name,
)
from onelog.snapshot.progress import Phase, Progress, no_progress
from onelog.ual.files import File, Files

READ_SIZE = 256 << 10


@dataclass(frozen=True, slots=True)
class SectionSpan:
    """A section and the offset of its content."""

    header: SectionHeader
    offset: int

    @property
    def end(self) -> int:
        """The offset just past the content."""
        return self.offset + self.header.size


class SnapshotReader:
    """One ``.fsnap`` file, open. It stays readable when its name is removed."""

    __slots__ = ("_file", "_file_crc", "header", "path", "sections")

    def __init__(
        self,
        path: Path,
        file: File,
        header: SnapshotHeader,
        sections: tuple[SectionSpan, ...],
        file_crc: int,
    ) -> None:
        self.path = path
        self.header = header
        self.sections = sections
        self._file = file
        self._file_crc = file_crc

    @classmethod
    def open(cls, files: Files, path: Path) -> "SnapshotReader":
        """Read everything but the contents; raise ``CorruptSnapshot`` or ``UnknownVersion``."""
        name = str(path)
        file = files.open_read(path)
        size = file.size()
        header = SnapshotHeader.decode(name, file.read(HEADER_SIZE, 0))
        if size != header.size or size < FILE_SIZE_MIN:
            rule = f"{size} bytes, the header says {header.size}"
            raise CorruptSnapshot(name, rule, min(size, header.size))
        named = parse_snapshot_name(path.name)
        if named is not None and named.index != header.index:
            raise CorruptSnapshot(name, f"the header says index {header.index}", 0)
        footer_at = size - FOOTER_SIZE
        file_crc = decode_footer(name, file.read(FOOTER_SIZE, footer_at), footer_at)
        sections = tuple(_walk_sections(name, file, header.section_count, footer_at))
        return cls(path, file, header, sections, file_crc)

    @property
    def section_types(self) -> tuple[int, ...]:
        """The sections that are there, ascending."""
        return tuple(span.header.section_type for span in self.sections)

    def verify(self, progress: Progress = no_progress) -> None:
        """Compare every checksum of the file."""
        crc = crc32c(self.header.encode())
        for span in self.sections:
            for _, end in self._content(span):
                progress(Phase.VERIFY, end, self.header.size)
            crc = combine(crc32c(span.header.encode(), crc), span.header.crc, span.header.size)
        if crc != self._file_crc:
            offset = self.header.size - FOOTER_SIZE
            raise CorruptSnapshot(str(self.path), "checksum of the file", offset)
        progress(Phase.VERIFY, self.header.size, self.header.size)

    def chunks(self, section_type: int, progress: Progress = no_progress) -> Iterator[bytes]:
        """Yield the content of a section that must be there, in pieces of at most READ_SIZE."""
        for span in self.sections:
            if span.header.section_type == section_type:
                for data, end in self._content(span):
                    progress(Phase.LOAD, end, self.header.size)
                    yield data
                return
        raise CorruptSnapshot(str(self.path), "missing", None, section_type)

    def _content(self, span: SectionSpan) -> Iterator[tuple[bytes, int]]:
        """Yield pieces of a section and where each ends; raise if the checksum does not hold."""
        crc = 0
        offset = span.offset
        while offset < span.end:
            data = self._file.read(min(READ_SIZE, span.end - offset), offset)
            if not data:  # cut since it was opened
                raise self._corrupt("the file ends in the content", offset, span)
            crc = crc32c(data, crc)
            offset += len(data)
            yield data, offset
        if crc != span.header.crc:
            raise self._corrupt("checksum of the content", span.offset, span)

    def _corrupt(self, rule: str, offset: int, span: SectionSpan) -> CorruptSnapshot:
        return CorruptSnapshot(str(self.path), rule, offset, span.header.section_type)


def _walk_sections(path: str, file: File, count: int, footer_at: int) -> Iterator[SectionSpan]:
    """Yield the sections; they must ascend and fill the file up to the footer."""
    offset = HEADER_SIZE
    type_before = -1
    for _ in range(count):
        content_at = offset + SECTION_HEADER_SIZE
        if content_at > footer_at:
            raise CorruptSnapshot(path, "the file ends in a section's header", offset)
        header = SectionHeader.decode(path, file.read(SECTION_HEADER_SIZE, offset), offset)
        if header.section_type <= type_before:
            rule = f"follows section 0x{type_before:02x}"
            raise CorruptSnapshot(path, rule, offset, header.section_type)
        span = SectionSpan(header, content_at)
        if span.end > footer_at:
            rule = f"size {header.size} reaches past the end of the file"
            raise CorruptSnapshot(path, rule, offset, header.section_type)
        yield span
        type_before, offset = header.section_type, span.end
    if offset != footer_at:
        raise CorruptSnapshot(path, f"{footer_at - offset} bytes in no section", offset)
