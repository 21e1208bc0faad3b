"""Sealed segments that are damaged, cut or forged: a named error, never a wrong entry."""

import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from crc32c import crc32c

from onelog.ual.entry import Entry
from onelog.ual.errors import CorruptFile, DataError, UnknownVersion
from onelog.ual.segments.format import FOOTER_SIZE, HEADER_SIZE, Footer, SegmentHeader, TableSpan
from onelog.ual.segments.sealed import (
    BLOCK_ENTRIES,
    ENTRIES_CHECKED_SINGLY_MAX,
    SealedSegment,
)
from tests.simulation.disk import SimDisk
from tests.ual.segments.segment_files import (
    DIRECTORY,
    SECOND_NS,
    make_model,
    sealed_bytes,
)

SMALL = make_model(Random(3), group_sizes=[1, 2, 1], payload_size_max=4, stream_count=0)
SMALL = replace(SMALL, records={7: [1, 3], 300: [2]}, void_indexes=[2, 4])
LARGE = make_model(Random(4), group_sizes=[1, 300, 7, 500, 90], first_index=41)
PATH = DIRECTORY / "0000000001.flseg"


def disk_with(data: bytes, path: Path = PATH) -> SimDisk:
    disk = SimDisk()
    disk.put(path, data)
    return disk


def with_footer(data: bytes, footer: Footer) -> bytes:
    """Put another footer on a file, with checksums that are right."""
    body = data[:-FOOTER_SIZE]
    file_crc = crc32c(footer.encode_unfinished(), crc32c(body))
    return body + replace(footer, file_crc=file_crc).encode()


def footer_of(data: bytes) -> Footer:
    return Footer.decode("x", data[-FOOTER_SIZE:], len(data) - FOOTER_SIZE)


def with_table(data: bytes, name: str, content: bytes) -> bytes:
    """Put other bytes of the same size into a table, with checksums that are right."""
    footer = footer_of(data)
    span: TableSpan = getattr(footer, name)
    assert span.size == len(content)
    data = data[: span.position] + content + data[span.end :]
    changed = {name: replace(span, crc=crc32c(content))}
    return with_footer(data, replace(footer, **changed))  # type: ignore[arg-type]


def read_all(segment: SealedSegment) -> list[Entry]:
    return [segment.read(index) for index in range(segment.first_index, segment.last_index + 1)]


def test_seeking_is_never_misled_by_a_damaged_timestamp() -> None:
    """The search reads unverified timestamps; what it finds must be right or refused."""
    model = make_model(Random(8), group_sizes=[1] * 60, gaps_ns=(1, 500), stream_count=0)
    data, offsets = sealed_bytes(model), model.offsets()
    refused = 0
    for damaged in range(60):
        for byte in (b"\0\0\0\0\0\0\0\0", b"\xff" * 8):
            at = offsets[damaged] + 24
            segment = SealedSegment.open(disk_with(data[:at] + byte + data[at + 8 :]), PATH)
            for entry in model.entries[1::7]:
                try:
                    assert segment.seek_time(entry.timestamp_ns) == entry.index
                except CorruptFile as error:
                    assert error.offset == offsets[damaged]  # noqa: PT017
                    refused += 1
    assert refused > 60


def test_any_flipped_bit_is_a_named_error_and_never_a_wrong_entry() -> None:
    data = sealed_bytes(SMALL)
    assert len(data) < 1000
    entries = SMALL.entries
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        disk = disk_with(bytes(damaged))
        try:
            segment = SealedSegment.open(disk, PATH)
        except DataError:
            continue
        with pytest.raises(CorruptFile, match="checksum"):
            segment.check_file()
        for entry in entries:
            with suppress(DataError):
                assert segment.read(entry.index) == entry, bit
        with suppress(DataError):
            found = list(segment.entries(1, 4, stream_id=7, skip_voids=True))
            assert found == [entries[0], entries[2]], bit
        assert segment.voids.tolist() == [[2, 2], [4, 4]]


def test_a_file_cut_at_any_byte_is_refused() -> None:
    data = sealed_bytes(SMALL)
    for size in range(len(data)):
        disk = disk_with(data[:size])
        with pytest.raises(CorruptFile):
            SealedSegment.open(disk, PATH)


@pytest.mark.parametrize("extra", [b"\0", bytes(8), b"FLO_END\0", bytes(4096)])
def test_a_file_with_something_behind_its_footer_is_refused(extra: bytes) -> None:
    with pytest.raises(CorruptFile):
        SealedSegment.open(disk_with(sealed_bytes(SMALL) + extra), PATH)


def test_a_second_footer_behind_the_first_is_refused() -> None:
    data = sealed_bytes(SMALL)
    with pytest.raises(CorruptFile, match="footer at"):
        SealedSegment.open(disk_with(data + data[-FOOTER_SIZE:]), PATH)


def test_an_unsealed_file_under_a_sealed_name_is_refused() -> None:
    with pytest.raises(CorruptFile, match="no end mark"):
        SealedSegment.open(disk_with(LARGE.data, DIRECTORY / "x"), DIRECTORY / "x")


def test_a_future_version_is_named_as_such() -> None:
    header = bytearray(sealed_bytes(SMALL)[:HEADER_SIZE])
    header[8] = 9
    header[60:] = crc32c(header[:32]).to_bytes(4, "little")
    with pytest.raises(UnknownVersion, match="version 9"):
        SealedSegment.open(disk_with(bytes(header) + b"a layout of the future"), PATH)


def test_a_file_under_the_name_of_another_segment_is_refused() -> None:
    path = DIRECTORY / "0000000002.flseg"
    with pytest.raises(CorruptFile, match="header says first index 1"):
        SealedSegment.open(disk_with(sealed_bytes(SMALL), path), path)


@pytest.mark.parametrize("name", ["offsets", "indexes", "sparse", "time", "streams", "voids"])
@pytest.mark.parametrize("field", ["position", "size", "count"])
def test_absurd_numbers_with_right_checksums_allocate_nothing(name: str, field: str) -> None:
    data = sealed_bytes(SMALL)
    footer = footer_of(data)
    span: TableSpan = getattr(footer, name)
    for value in (0xFFFFFFFF, 0x7FFFFFFF, getattr(span, field) + 8, 0xFFFFFFF8):
        changed = {name: replace(span, **{field: value})}
        forged = with_footer(data, replace(footer, **changed))  # type: ignore[arg-type]
        disk = disk_with(forged)
        tracemalloc.start()
        try:
            with pytest.raises(CorruptFile):
                SealedSegment.open(disk, PATH)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("count", [0, 3, 5, 0xFFFFFFFF])
def test_an_absurd_entry_count_is_refused(count: int) -> None:
    data = sealed_bytes(SMALL)
    header = replace(SegmentHeader.decode("x", data[:HEADER_SIZE]), entry_count=count).encode()
    footer = replace(footer_of(data), header_crc=crc32c(header))
    with pytest.raises(CorruptFile):
        SealedSegment.open(disk_with(with_footer(header + data[HEADER_SIZE:], footer)), PATH)


def test_offsets_that_contradict_the_sparse_table_are_refused() -> None:
    data = sealed_bytes(LARGE)
    path = DIRECTORY / "0000000041.flseg"
    offsets = np.array(LARGE.offsets(), "<u4")
    offsets[256] += 1
    offsets[257:] += 1
    forged = with_table(data, "offsets", offsets.clip(max=offsets[-1] - 1).tobytes())
    with pytest.raises(CorruptFile, match="offsets table"):
        SealedSegment.open(disk_with(forged, path), path).read(41)


def test_offsets_that_contradict_the_entries_never_give_a_wrong_entry() -> None:
    """All checksums are right: only the entries themselves tell that an offset is not theirs."""
    data = sealed_bytes(LARGE)
    path = DIRECTORY / "0000000041.flseg"
    offsets = np.array(LARGE.offsets(), "<u4")
    sizes = np.diff(offsets)
    row = int(np.flatnonzero(sizes > 41)[0])
    offsets[row + 1] -= 1
    segment = SealedSegment.open(
        disk_with(with_table(data, "offsets", offsets.tobytes()), path), path
    )
    segment.check_file()

    assert segment.read(41 + row - 1) == LARGE.entries[row - 1]
    with pytest.raises(CorruptFile) as caught:
        segment.read(41 + row + 1)
    assert caught.value.offset == offsets[row + 1]
    with pytest.raises(CorruptFile, match="checksum"):
        list(segment.entries(41, LARGE.last_index))
    with pytest.raises(CorruptFile, match="tables differ"):
        segment.columns(41 + row, 41 + row)


def damage(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_entries_are_checked_singly_and_many_columns_by_the_whole_file() -> None:
    """A short read must not cost a whole file; a long one must not trust a damaged one."""
    path = DIRECTORY / "0000000041.flseg"
    at = LARGE.offsets()[5] + 7
    segment = SealedSegment.open(disk_with(damage(sealed_bytes(LARGE), at), path), path)

    assert list(segment.entries(47, LARGE.last_index)) == LARGE.entries[6:]
    assert len(LARGE.entries) > ENTRIES_CHECKED_SINGLY_MAX
    with pytest.raises(CorruptFile, match="checksum of the file"):
        segment.columns(41, LARGE.last_index)
    with pytest.raises(CorruptFile, match="checksum of the file"):
        segment.proposal_count()
    with pytest.raises(CorruptFile, match="checksum") as caught:
        list(segment.entries(41, 50))
    assert (caught.value.path, caught.value.offset) == (str(path), LARGE.offsets()[5])
    with pytest.raises(CorruptFile, match="checksum") as caught:
        segment.read(46)
    assert (caught.value.path, caught.value.offset) == (str(path), LARGE.offsets()[5])


def test_bytes_that_rot_after_the_file_was_checked_are_not_served() -> None:
    path = DIRECTORY / "0000000041.flseg"
    data = sealed_bytes(LARGE)
    disk = disk_with(data, path)
    segment = SealedSegment.open(disk, path)
    segment.check_file()
    segment.unmap()
    disk.open(path).write(bytes([data[LARGE.offsets()[5] + 7] ^ 1]), LARGE.offsets()[5] + 7)

    assert list(segment.entries(41, 45)) == LARGE.entries[:5]
    with pytest.raises(CorruptFile, match="checksum"):
        list(segment.entries(41, LARGE.last_index))


def test_a_long_scan_compares_the_checksum_of_the_file() -> None:
    model = make_model(Random(9), group_sizes=[BLOCK_ENTRIES, 3], payload_size_max=0)
    path = DIRECTORY / f"{model.entries[0].index:010}.flseg"
    at = model.offsets()[-1] + 7
    segment = SealedSegment.open(disk_with(damage(sealed_bytes(model), at), path), path)

    with pytest.raises(CorruptFile, match="checksum of the file"):
        list(segment.entries(model.entries[0].index, model.last_index))


def test_a_damaged_streams_table_is_found_on_first_use() -> None:
    data = sealed_bytes(SMALL)
    segment = SealedSegment.open(disk_with(damage(data, footer_of(data).streams.position)), PATH)
    assert read_all(segment) == SMALL.entries
    with pytest.raises(CorruptFile, match="streams table: checksum"):
        segment.stream_records(7)
    with pytest.raises(CorruptFile, match="streams table: checksum"):
        list(segment.entries(1, 4, stream_id=7))


@pytest.mark.parametrize(("row", "shift_ns"), [(1, -7), (1, 7)])
def test_a_time_table_that_contradicts_the_entries_is_refused(row: int, shift_ns: int) -> None:
    """All checksums are right: only the entries tell that the table lies."""
    model = make_model(Random(5), group_sizes=[1] * 9, gaps_ns=(2 * SECOND_NS,), stream_count=0)
    entry = model.entries[row]
    rows = [[entry.timestamp_ns, entry.index] for entry in model.entries]
    rows[row][0] += shift_ns
    forged = with_table(sealed_bytes(model), "time", np.array(rows, "<u8").tobytes())
    segment = SealedSegment.open(disk_with(forged), PATH)
    segment.check_file()
    with pytest.raises(CorruptFile, match="time table differs") as caught:
        segment.seek_time(entry.timestamp_ns + (shift_ns + 1 if shift_ns < 0 else 1))
    assert caught.value.offset == model.offsets()[row]


def test_a_file_that_was_damaged_since_it_was_opened_is_not_taken_for_another() -> None:
    disk = disk_with(sealed_bytes(SMALL))
    segment = SealedSegment.open(disk, PATH)
    disk.flip(PATH, (segment.size_bytes - 100) * 8)
    with pytest.raises(CorruptFile, match="footer checksum"):
        segment.read(1)
