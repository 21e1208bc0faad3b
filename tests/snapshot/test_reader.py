"""Reading ``.fsnap`` files: what was written comes back, and nothing else is accepted."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.snapshot import reader as reader_module
from onelog.snapshot.errors import CorruptSnapshot
from onelog.snapshot.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    SECTION_HEADER_SIZE,
    SectionHeader,
    SnapshotHeader,
    encode_footer,
    parse_snapshot_name,
    snapshot_name,
    temporary_name,
)
from onelog.snapshot.progress import Phase
from onelog.snapshot.reader import SnapshotReader
from onelog.ual.errors import CorruptFile, UnknownVersion
from tests.simulation.disk import SimDisk
from tests.snapshot.files_of import HEADER, SNAPS, read, section_maps, write

SECTIONS = {0: b"system", 1: b"some keys and values", 4: b"", 16: b"notes"}


@settings(deadline=None)
@given(section_maps)
def test_what_was_written_is_read(sections: dict[int, bytes]) -> None:
    disk, path = write(sections)
    assert read(disk, path) == sections
    header = SnapshotReader.open(disk, path).header
    assert replace(header, section_count=0, size=0) == HEADER
    assert (header.section_count, header.size) == (len(sections), len(disk.contents(path)))


@settings(max_examples=30, deadline=None)
@given(section_maps)
def test_a_snapshot_cut_at_any_byte_is_refused(sections: dict[int, bytes]) -> None:
    disk, path = write(sections)
    data = disk.contents(path)
    for size in range(len(data)):
        disk.put(path, data[:size])
        with pytest.raises(CorruptSnapshot):
            read(disk, path)


@settings(max_examples=10, deadline=None)
@given(section_maps)
def test_a_snapshot_with_any_flipped_bit_is_refused(sections: dict[int, bytes]) -> None:
    disk, path = write(sections)
    for bit in range(8 * len(disk.contents(path))):
        disk.flip(path, bit)
        with pytest.raises(CorruptSnapshot):
            read(disk, path)
        disk.flip(path, bit)
    assert read(disk, path) == sections


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_bytes_behind_the_footer_are_refused(extra: bytes) -> None:
    disk, path = write(SECTIONS)
    disk.put(path, disk.contents(path) + extra)
    with pytest.raises(CorruptSnapshot):
        read(disk, path)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_junk_is_refused(data: bytes) -> None:
    disk = SimDisk()
    path = SNAPS / snapshot_name(1, 1)
    disk.put(path, data)
    with pytest.raises(CorruptSnapshot):
        read(disk, path)


def test_damage_is_named_by_file_section_and_offset() -> None:
    disk, path = write(SECTIONS)
    start = disk.contents(path).index(b"some keys")
    disk.flip(path, 8 * (start + 3))
    reader = SnapshotReader.open(disk, path)
    with pytest.raises(CorruptSnapshot, match="section 0x01: checksum of the content") as caught:
        reader.verify()
    assert isinstance(caught.value, CorruptFile)
    assert (caught.value.path, caught.value.section) == (str(path), 1)
    assert caught.value.offset == start
    with pytest.raises(CorruptSnapshot, match="checksum"):
        list(reader.chunks(1))
    assert b"".join(reader.chunks(16)) == b"notes"


def rebuilt(header: SnapshotHeader, sections: list[tuple[bytes, bytes]], version: int = 1) -> bytes:
    """Return a file by hand, all checksums right, whatever its fields say."""
    head = bytearray(header.encode())
    head[8:10] = version.to_bytes(2, "little")
    head[56:60] = struct.pack("<I", crc32c(head[:56]))
    body = bytes(head) + b"".join(a + b for a, b in sections)
    return body + encode_footer(crc32c(body))


def put_file(data: bytes) -> tuple[SimDisk, Path]:
    disk = SimDisk()
    path = SNAPS / snapshot_name(HEADER.index, 1)
    disk.put(path, data)
    return disk, path


def with_size(size: int, count: int = 1) -> SnapshotHeader:
    return replace(HEADER, section_count=count, size=size)


def test_a_newer_version_is_not_called_damage() -> None:
    disk, path = put_file(rebuilt(with_size(HEADER_SIZE + FOOTER_SIZE, 0), [], version=2))
    with pytest.raises(UnknownVersion, match="version 2"):
        SnapshotReader.open(disk, path)
    disk, path = put_file(rebuilt(with_size(HEADER_SIZE + FOOTER_SIZE, 0), [], version=0))
    with pytest.raises(CorruptSnapshot, match="version 0"):
        SnapshotReader.open(disk, path)


@pytest.mark.parametrize("size", [6, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_an_absurd_size_is_refused_before_anything_is_read(size: int) -> None:
    content = b"12345"
    section = SectionHeader(1, size, crc32c(content)).encode()
    data = rebuilt(with_size(64 + 24 + 5 + 16), [(section, content)])
    disk, path = put_file(data)
    with pytest.raises(CorruptSnapshot, match="past the end"):
        SnapshotReader.open(disk, path)
    assert disk.bytes_read < 200


def test_bytes_between_sections_and_footer_are_refused() -> None:
    section = SectionHeader(1, 2, crc32c(b"ab")).encode()
    disk, path = put_file(rebuilt(with_size(64 + 24 + 5 + 16), [(section, b"abcde")]))
    with pytest.raises(CorruptSnapshot, match="3 bytes in no section"):
        SnapshotReader.open(disk, path)


def test_more_sections_than_the_file_holds_are_refused() -> None:
    section = SectionHeader(1, 5, crc32c(b"abcde")).encode()
    disk, path = put_file(rebuilt(with_size(64 + 24 + 5 + 16, 2), [(section, b"abcde")]))
    with pytest.raises(CorruptSnapshot, match="ends in a section's header"):
        SnapshotReader.open(disk, path)


@pytest.mark.parametrize("types", [(1, 1), (4, 1)])
def test_sections_that_do_not_ascend_are_refused(types: tuple[int, int]) -> None:
    sections = [(SectionHeader(kind, 0, 0).encode(), b"") for kind in types]
    disk, path = put_file(rebuilt(with_size(64 + 48 + 16, 2), sections))
    with pytest.raises(CorruptSnapshot, match="follows section"):
        SnapshotReader.open(disk, path)


def test_a_section_that_nobody_knows_is_refused() -> None:
    head = bytes((0x11,)) + bytes(7 + 8 + 4)
    section = head + struct.pack("<I", crc32c(head))
    disk, path = put_file(rebuilt(with_size(64 + 24 + 16), [(section, b"")]))
    with pytest.raises(CorruptSnapshot, match="unknown section type 0x11"):
        SnapshotReader.open(disk, path)


def test_a_section_that_is_not_there_is_missing() -> None:
    disk, path = write({1: b"x"})
    with pytest.raises(CorruptSnapshot, match="section 0x10: missing"):
        list(SnapshotReader.open(disk, path).chunks(16))


def test_a_file_under_another_snapshots_name_is_refused() -> None:
    disk, path = write(SECTIONS)
    disk.rename(path, path.with_name(snapshot_name(1235, 1)))
    with pytest.raises(CorruptSnapshot, match="says index 1234"):
        SnapshotReader.open(disk, path.with_name(snapshot_name(1235, 1)))


def test_a_file_cut_while_it_is_open_is_refused() -> None:
    disk, path = write({1: bytes(1000)})
    reader = SnapshotReader.open(disk, path)
    disk.open(path).truncate(500)
    with pytest.raises(CorruptSnapshot, match="ends in the content"):
        reader.verify()


def test_content_comes_in_bounded_pieces_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "READ_SIZE", 64)
    disk, path = write({1: bytes(1000), 4: b"abc"})
    reader = SnapshotReader.open(disk, path)
    steps: list[tuple[Phase, int, int]] = []

    assert max(map(len, reader.chunks(1))) == 64
    reader.verify(lambda *step: steps.append(step))

    size = len(disk.contents(path))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert steps[-1] == (Phase.VERIFY, size, size)
    assert len(steps) > 1000 // 64


def test_names_say_index_and_time() -> None:
    assert snapshot_name(7, 9) == "0000000007-9.fsnap"
    assert snapshot_name(12345678901, 9) == "12345678901-9.fsnap"
    assert parse_snapshot_name("0000000007-9.fsnap") == (7, 9, False)
    assert parse_snapshot_name(temporary_name("12345678901-1700000000.fsnap")) == (
        12345678901,
        1_700_000_000,
        True,
    )
    for name in (
        "0000000000-9.fsnap", "7-9.fsnap", "00000000007-9.fsnap", "0000000007-09.fsnap",
        "0000000007.fsnap", "0000000007-9.fsnap.new", "x", "0000000007-9.fsnap.tmp.tmp",
    ):  # fmt: skip
        assert parse_snapshot_name(name) is None


def test_sizes_of_the_parts_are_fixed() -> None:
    """Files on disks depend on them."""
    assert (HEADER_SIZE, SECTION_HEADER_SIZE, FOOTER_SIZE) == (64, 24, 16)
