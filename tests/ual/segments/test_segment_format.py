"""Names, headers and footers of segment files."""

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.segments.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    INDEX_MAX,
    SUMMARY_OFFSET,
    SUMMARY_SIZE,
    Footer,
    SegmentHeader,
    SegmentKind,
    TableSpan,
    compacting_name,
    parse_segment_name,
    segment_name,
    tomb_name,
    unsealed_name,
)

u16 = st.integers(0, (1 << 16) - 1)
u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, INDEX_MAX)

HEADER = SegmentHeader(
    shard=3,
    segment_id=7,
    first_index=1000,
    first_proposal=400,
    last_index=1299,
    first_timestamp_ns=5_000,
    last_timestamp_ns=9_000,
    entry_count=300,
)
SIZE = 64 + 300 * 50
# A footer that fits HEADER: 300 entries of 50 bytes, two sparse rows, one time row, one stream.
FOOTER = Footer(
    offsets=TableSpan(15064, 1200, 300, 1),
    indexes=TableSpan(16264, 0, 0, 0),
    sparse=TableSpan(16264, 24, 2, 2),
    time=TableSpan(16288, 16, 1, 3),
    streams=TableSpan(16304, 18, 1, 4),
    voids=TableSpan(16328, 16, 1, 5),
    owner_counts=(300, *[0] * 15),
    entries_end=SIZE,
    header_crc=crc32c(HEADER.encode()),
    file_crc=0x01020304,
)
FILE_SIZE = 16344 + FOOTER_SIZE


def with_crc(data: bytes) -> bytes:
    return data[:60] + struct.pack("<I", crc32c(data[:32]))


@given(st.builds(SegmentHeader, u16, u32, st.integers(1, INDEX_MAX), u64, u64, u64, u64, u32))
def test_a_header_keeps_its_identity_whatever_its_summary_says(header: SegmentHeader) -> None:
    data = header.encode()

    assert len(data) == HEADER_SIZE
    assert SegmentHeader.decode_identity("x", data) == header.identity()


def test_a_sealed_header_is_read_back() -> None:
    assert SegmentHeader.decode("x", HEADER.encode()) == HEADER


def test_the_header_has_the_documented_bytes() -> None:
    assert (
        HEADER.encode().hex(" ", 8)
        == (
            "464c4f5345470000 0100030007000000 e803000000000000 9001000000000000 "
            "1305000000000000 8813000000000000 2823000000000000 2c010000"
        )
        + struct.pack("<I", crc32c(HEADER.encode()[:32])).hex()
    )


@given(st.binary(min_size=SUMMARY_SIZE, max_size=SUMMARY_SIZE))
def test_a_torn_summary_does_not_make_an_unsealed_file_unreadable(summary: bytes) -> None:
    """Sealing rewrites these bytes in place; a crash may leave anything there."""
    data = HEADER.encode()
    data = data[:SUMMARY_OFFSET] + summary + data[SUMMARY_OFFSET + SUMMARY_SIZE :]

    assert SegmentHeader.decode_identity("x", data) == HEADER.identity()


def test_any_flipped_bit_of_the_identity_is_found() -> None:
    for bit in (*range(32 * 8), *range(60 * 8, 64 * 8)):
        data = bytearray(HEADER.encode())
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            SegmentHeader.decode_identity("x", bytes(data))


def test_a_future_version_is_named_only_when_the_checksum_holds() -> None:
    data = bytearray(HEADER.encode())
    data[8] = 2
    with pytest.raises(CorruptFile, match="header checksum"):
        SegmentHeader.decode_identity("x", bytes(data))
    with pytest.raises(UnknownVersion, match="version 2"):
        SegmentHeader.decode_identity("x", with_crc(bytes(data)))
    with pytest.raises(UnknownVersion, match="version 2"):
        SegmentHeader.decode("x", with_crc(bytes(data)))


@pytest.mark.parametrize(
    ("offset", "value", "rule"),
    [
        (0, b"FLOSNAP\0", "wrong magic"),
        (8, struct.pack("<H", 0), "version 0"),
        (16, struct.pack("<Q", 0), "first index 0"),
    ],
)
def test_a_header_with_a_right_checksum_still_has_rules(
    offset: int, value: bytes, rule: str
) -> None:
    data = HEADER.encode()
    data = with_crc(data[:offset] + value + data[offset + len(value) :])
    with pytest.raises(CorruptFile, match=rule):
        SegmentHeader.decode_identity("x", data)


@pytest.mark.parametrize("size", [0, 1, 63])
def test_a_short_header_is_refused(size: int) -> None:
    with pytest.raises(CorruptFile, match="too short"):
        SegmentHeader.decode_identity("x", HEADER.encode()[:size])


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        (replace(HEADER, last_index=999), "last index 999"),
        (replace(HEADER, last_index=INDEX_MAX), "last index"),
        (replace(HEADER, entry_count=301), "301 entries in 300 indexes"),
        (replace(HEADER, first_timestamp_ns=9_001), "timestamps run backwards"),
        (HEADER.identity(), "last index 0"),
    ],
)
def test_a_summary_that_contradicts_itself_is_refused(header: SegmentHeader, rule: str) -> None:
    with pytest.raises(CorruptFile, match=rule):
        SegmentHeader.decode("x", header.encode())


def test_a_footer_is_read_back() -> None:
    data = FOOTER.encode()

    assert len(data) == FOOTER_SIZE
    assert Footer.decode("x", data, 0) == FOOTER
    FOOTER.check("x", HEADER, HEADER.encode(), FILE_SIZE)


def test_the_footer_has_the_documented_bytes() -> None:
    data = FOOTER.encode()

    assert data[:20] == struct.pack("<QIII", 15064, 1200, 300, 1)
    assert data[100:120] == struct.pack("<QIII", 16328, 16, 1, 5)
    assert data[120:124] == struct.pack("<I", 300)
    assert data[184:192] == struct.pack("<Q", SIZE)
    assert data[192:196] == struct.pack("<I", crc32c(HEADER.encode()))
    assert data[196:200] == struct.pack("<I", crc32c(data[:196]))
    assert data[200:204] == struct.pack("<I", 0x01020304)
    assert data[204:] == b"FLO_END\0"


def test_any_flipped_bit_of_the_footer_is_found_but_for_the_files_checksum() -> None:
    for bit in (*range(200 * 8), *range(204 * 8, 212 * 8)):
        data = bytearray(FOOTER.encode())
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            Footer.decode("x", bytes(data), 0)


def test_a_short_footer_is_refused() -> None:
    with pytest.raises(CorruptFile, match="too short"):
        Footer.decode("x", FOOTER.encode()[1:], 0)


HUGE = (1 << 32) - 1


@pytest.mark.parametrize(
    ("footer", "rule"),
    [
        (replace(FOOTER, header_crc=1), "header checksum"),
        (replace(FOOTER, owner_counts=(299, *[0] * 15)), "299 entries by owner"),
        (replace(FOOTER, offsets=TableSpan(15064, 1200, HUGE, 1)), "offsets for"),
        (replace(FOOTER, offsets=TableSpan(15064, HUGE, 300, 1)), "offsets table of"),
        (replace(FOOTER, offsets=TableSpan(15060, 1200, 300, 1)), "offsets table at 15060"),
        (replace(FOOTER, offsets=TableSpan(INDEX_MAX, 1200, 300, 1)), "offsets table at"),
        (replace(FOOTER, indexes=TableSpan(16264, 2400, 300, 1)), "300 indexes for"),
        (replace(FOOTER, indexes=TableSpan(16264, 8, 0, 1)), "indexes table of"),
        (replace(FOOTER, sparse=TableSpan(16264, 24, 3, 2)), "3 sparse rows"),
        (replace(FOOTER, sparse=TableSpan(16264, 12, 2, 2)), "sparse table of 12 bytes"),
        (replace(FOOTER, time=TableSpan(16288, 16, 0, 3)), "0 time rows"),
        (replace(FOOTER, time=TableSpan(16288, 16, HUGE, 3)), "time rows"),
        (replace(FOOTER, time=TableSpan(0, 16, 1, 3)), "time table at 0"),
        (replace(FOOTER, streams=TableSpan(16304, 18, 2, 4)), "streams table of 18 bytes for 2"),
        (replace(FOOTER, streams=TableSpan(16304, 18, HUGE, 4)), "streams table of 18 bytes for"),
        (replace(FOOTER, streams=TableSpan(16304, 18, 0, 4)), "without a stream"),
        (replace(FOOTER, streams=TableSpan(16304, HUGE, 1, 4)), "voids table at"),
        (replace(FOOTER, voids=TableSpan(16328, 16, HUGE, 5)), "voids for"),
        (replace(FOOTER, voids=TableSpan(16328, 32, 2, 5)), "footer at"),
        (replace(FOOTER, entries_end=64), "entries end at 64"),
        (replace(FOOTER, entries_end=0), "entries end at 0"),
        (replace(FOOTER, entries_end=INDEX_MAX), "entries end at"),
        (replace(FOOTER, entries_end=SIZE + 8), "offsets table at"),
    ],
)
def test_a_footer_that_contradicts_header_or_file_is_refused(footer: Footer, rule: str) -> None:
    """The checksums are right: only the numbers are absurd."""
    decoded = Footer.decode("x", footer.encode(), 0)
    with pytest.raises(CorruptFile, match=rule):
        decoded.check("x", HEADER, HEADER.encode(), FILE_SIZE)


def test_a_segment_that_lost_entries_needs_its_indexes() -> None:
    header = replace(HEADER, last_index=1300)
    footer = replace(FOOTER, header_crc=crc32c(header.encode()))
    with pytest.raises(CorruptFile, match="0 indexes for 300 entries"):
        footer.check("x", header, header.encode(), FILE_SIZE)


@given(st.integers(1, INDEX_MAX))
def test_names_are_parsed_back(first_index: int) -> None:
    for make, kind in (
        (segment_name, SegmentKind.SEALED),
        (unsealed_name, SegmentKind.UNSEALED),
        (compacting_name, SegmentKind.COMPACTING),
        (tomb_name, SegmentKind.TOMBSTONE),
    ):
        assert parse_segment_name(make(first_index)) == (first_index, kind)


def test_names_have_ten_digits_and_grow_beyond() -> None:
    assert segment_name(42) == "0000000042.flseg"
    assert unsealed_name(42) == "0000000042.flseg.tmp"
    assert compacting_name(42) == "0000000042.flseg.new"
    assert tomb_name(10**10) == "10000000000.flseg.tomb"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "42.flseg",
        "0000000000.flseg",
        "00000000042.flseg",
        "0000000042.flseg~",
        "0000000042.flseg.tmp.tmp",
        " 0000000042.flseg",
        "0000000042.flseg\n",
        "٠٠٠٠٠٠٠٠٤٢.flseg",  # digits, but not ours
        "18446744073709551616.flseg",
        "0000000042.FLSEG",
        "MANIFEST",
    ],
)
def test_foreign_names_are_left_alone(name: str) -> None:
    assert parse_segment_name(name) is None
